"""How much of a prefix can be used when several pools must have their part of it (upstream: PoolHitPolicy).

Attention pages are needed for every token; recurrent state only for the end of the prefix. So a pool says which prefix
lengths it could restore, and what can be used is the longest length on which all pools agree.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from hicache_ref.storage.base import leading
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import PageHash

HitPolicy = Literal["all_pages", "trailing_pages"]
Agreement = Literal["intersection", "minimum"]


class PoolPresence(Frozen):
    """What is there of one pool beside the KV pages."""

    name: str
    present: tuple[bool, ...]
    """For each page of the prefix, whether this pool has its part."""

    policy: HitPolicy = "all_pages"
    trailing: int = 1
    """Pages at the end of the prefix that `trailing_pages` asks for."""


class PoolHits(Frozen):
    """What of a prefix is in storage (upstream: PoolTransferResult)."""

    usable: int
    """Pages that every pool can restore; 0: nothing."""

    pages: dict[str, int]
    """The longest prefix that each pool could restore, KV among them."""

    restorable: tuple[int, ...]
    """Every length on which the pools agree, rising. Ranks intersect these: the least of the maxima may be none."""


class PoolTransfer(Frozen):
    """One pool's part of a query, read or write (upstream: PoolTransfer)."""

    name: str
    keys: tuple[PageHash, ...] = ()
    host_indices: tuple[int, ...] | None = None
    """Token slots of the pool's host pages, in the order of `keys`."""

    hit_policy: HitPolicy = "all_pages"


def restorable(kv_pages: int, pool: PoolPresence) -> frozenset[int]:
    """The prefix lengths from 1 to `kv_pages` that the pool can restore (HC-STORE-46).

    all_pages: those before its first gap. trailing_pages: those whose last min(trailing, length) pages it has.
    """
    if pool.policy == "all_pages":
        return frozenset(range(1, leading(pool.present[:kv_pages]) + 1))
    need = max(1, pool.trailing)
    lengths = range(1, kv_pages + 1)
    return frozenset(n for n in lengths if all(_at(pool, page) for page in range(max(0, n - need), n)))


def _at(pool: PoolPresence, page: int) -> bool:
    return page < len(pool.present) and pool.present[page]


def usable_prefix(kv_pages: int, pools: Sequence[PoolPresence], agreement: Agreement = "intersection") -> PoolHits:
    """What of a prefix, `kv_pages` of whose KV pages are there without a gap, can be used (HC-STORE-46).

    `minimum` is the rule of 0.5.15: the least of the pools' longest lengths, which a pool may be unable to restore.
    """
    sets = {pool.name: restorable(kv_pages, pool) for pool in pools}
    longest = {"kv": kv_pages} | {name: max(lengths, default=0) for name, lengths in sets.items()}
    agreed = sorted(frozenset(range(1, kv_pages + 1)).intersection(*sets.values()))
    usable = max(agreed, default=0) if agreement == "intersection" else min(longest.values())
    return PoolHits(usable=usable, pages=longest, restorable=tuple(agreed))


def whole_pages(objects: Iterable[bool], per_page: int) -> list[bool]:
    """For each page whether all its objects are true: a page is there only if all of it is (HC-STORE-45)."""
    answers = list(objects)
    return [all(answers[start : start + per_page]) for start in range(0, len(answers), per_page)]
