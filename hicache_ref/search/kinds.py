"""Which composites there are, and where they are of use."""

from hicache_ref.search.composites import build, flush, reload, request, settle
from hicache_ref.search.composites_of_states import belated, fade, go_on, revive, topple
from hicache_ref.search.composites_of_storage import (
    abandon,
    break_off,
    collide,
    come_back,
    fetch,
    grow,
    overtake,
    stake,
)
from hicache_ref.search.drawing import Composite

COMPOSITE: dict[str, Composite] = {
    "break_off": break_off,
    "fetch": fetch,
    "overtake": overtake,
    "collide": collide,
    "come_back": come_back,
    "stake": stake,
    "grow": grow,
    "request": request,
    "settle": settle,
    "flush": flush,
    "reload": reload,
    "go_on": go_on,
    "topple": topple,
    "fade": fade,
    "revive": revive,
    "belated": belated,
    "build": build,
    "abandon": abandon,
}

NEEDED: dict[str, str] = {
    "break_off": "detach",
    "fetch": "prefetch",
    "overtake": "prefetch",
    "come_back": "prefetch",
    "stake": "prefetch",
    "grow": "write_done",
    "build": "copy_failed",
    "go_on": "evict_state",
    "topple": "evict_state",
    "fade": "evict_state",
    "revive": "evict_state",
    "belated": "evict_state",
    "collide": "prefetch",
    "abandon": "abort",
}
"""Composites that are of use only where the implementation has this operation."""
