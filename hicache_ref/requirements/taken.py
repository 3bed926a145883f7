"""One victim of a step: what it was when it was taken, and its place in the order of the policy."""

from typing import NamedTuple

from hicache_ref.requirements.rows import Row
from hicache_ref.vocabulary.ids import PoolName
from hicache_ref.vocabulary.profile import Rules

Rank = tuple[int, ...]


class Taken(NamedTuple):
    """A victim. `least` is the smallest rank among the leaves of that moment."""

    row: Row
    pool: PoolName
    leaf: bool
    pinned: bool
    rank: Rank
    least: Rank
    stayed: bool
    """It was tried and kept its copy."""

    copied: bool
    """A copy of its device pages was submitted in the step."""

    host_room: int
    """Host pages that could be had at that moment, at least."""


def rank_of(row: Row, last: int, rules: Rules) -> Rank:
    """The place of a node in the order of the configured policy; smaller goes first."""
    match rules.eviction:
        case "lru":
            return (last,)
        case "mru":
            return (-last,)
        case "lfu":
            return (_use_count(row, rules), last)
        case "fifo":
            return (row.born, last)
        case "filo":
            return (-row.born, last)
        case "priority":
            return (row.priority, last)
        case "slru":
            return (int(_use_count(row, rules) >= rules.slru_protected_threshold), last)


def _use_count(row: Row, rules: Rules) -> int:
    return row.uses if rules.eviction_counts == "uses" else row.hits
