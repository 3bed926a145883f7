"""What was evicted, judged by what is gone and what is still there."""

from collections.abc import Mapping, Sequence

from hicache_ref.oracle.differing import Difference
from hicache_ref.search.finding import Differs, direction_of
from hicache_ref.vocabulary.ids import KV_POOLS, TIER, PageHash, PoolName

Residency = dict[PoolName, dict[PageHash, int]]

Unlike = dict[PoolName, tuple[set[PageHash], set[PageHash]]]
"""Pool -> the page hashes that the model and the implementation have there, where these differ."""


def judge_victims(
    victims: Sequence[tuple[PoolName, PageHash]], unlike: Unlike, before: Residency, names: Mapping[PageHash, str]
) -> None:
    """What was to be evicted has gone (HC-EVICT-02, HC-EVICT-03). Raises Difference.

    Where nothing that was there before has gone in its place there is no order to break: the eviction ended too early.
    """
    began = False
    for pool_name, digest in victims:
        expected, theirs = unlike.get(pool_name, (set(), set()))
        if digest not in theirs - expected:
            began = True
            continue
        gone = (expected - theirs) & before[pool_name].keys()
        told = ", ".join(sorted(names.get(each, each[:8]) for each in gone)) or "nothing else"
        raise Difference(
            "HC-EVICT-02" if gone else "HC-EVICT-03",
            f"{where(pool_name)} victim should have been {names.get(digest)}, which is still there; "
            f"instead gone: {told}",
            Differs(
                kind="victim", pool=pool_name, direction=direction_of(True, gone),
                what=None if gone else "after others" if began else "the first",
            ),
        )  # fmt: skip


def where(pool_name: PoolName) -> str:
    """The tier of the pool, and that it is of states if it is."""
    return TIER[pool_name] if pool_name in KV_POOLS else f"{TIER[pool_name]}, as a state"
