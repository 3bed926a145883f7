"""The numbered rules: their catalogue, one judge each, and the checker that runs them over a run of states.

A judge recomputes by definition from pages, receipts and operations; it trusts no kept set and no function of the
model. The text of each rule is in `spec/requirements.toml`; where text and code differ, the text wins.
"""

from hicache_ref.requirements import (
    backup,
    commits,
    conformance,
    counters,
    draft,
    events,
    evict,
    failure,
    hashing,
    insert,
    leaves,
    lifecycle,
    load,
    locks,
    match,
    pages,
    prefetch,
    state,
    state_copies,
    state_storage,
    storage_witnesses,
    store,
    transfer,
    tree,
    waited,
    witnesses,
)
from hicache_ref.requirements.catalogue import REQUIREMENTS, Requirement, catalogue_digest
from hicache_ref.requirements.change import StepLike
from hicache_ref.requirements.checker import Checker
from hicache_ref.requirements.incremental import IncrementalChecker
from hicache_ref.requirements.registry import Broken
from hicache_ref.requirements.view import View

AREAS = (
    pages, tree, match, insert, locks, leaves, evict, backup, load, transfer, waited, failure, draft, store, prefetch,
    commits, counters, hashing, events, conformance, lifecycle, state, state_copies, state_storage, witnesses,
    storage_witnesses,
)  # fmt: skip
"""Importing them registers their judges."""

__all__ = [
    "AREAS",
    "REQUIREMENTS",
    "Broken",
    "Checker",
    "IncrementalChecker",
    "Requirement",
    "StepLike",
    "View",
    "catalogue_digest",
]
