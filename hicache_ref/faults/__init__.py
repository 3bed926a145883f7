"""Planted faults: the catalogue that the oracle itself is tested with.

One file a family, named like the file of the model that it breaks; `run` searches for each fault and says what
caught it.
"""

from hicache_ref.faults import (
    backup,
    commit,
    draft,
    events,
    evict,
    hashing,
    insert,
    leaves,
    lifecycle,
    load,
    locks,
    pages,
    prefetch,
    state,
    state_copies,
    state_evict,
    state_load,
    state_requests,
    state_storage,
    store,
    terminate,
    transfer,
    tree,
)
from hicache_ref.faults.catalogue import FAULTS, KINDS, Fault, Kind, model

FAMILIES = (
    pages, tree, locks, leaves, evict, backup, load, insert, transfer, hashing, events, store, prefetch, commit,
    terminate, draft, lifecycle, state, state_evict, state_copies, state_load, state_requests, state_storage,
)  # fmt: skip
"""The modules by which the catalogue is filled."""

__all__ = [
    "FAMILIES", "FAULTS", "KINDS", "Fault", "Kind", "backup", "commit", "draft", "events", "evict", "hashing", "insert",
    "leaves", "lifecycle", "load", "locks", "model", "pages", "prefetch", "state", "state_copies", "state_evict",
    "state_load", "state_requests", "state_storage", "store", "terminate", "transfer", "tree",
]  # fmt: skip
