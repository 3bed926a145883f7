"""What was evicted, judged by what is gone and what is still there."""

from collections.abc import Mapping, Sequence

from hicache_ref.oracle.differing import Difference
from hicache_ref.search.finding import Differs, direction_of
from hicache_ref.vocabulary.ids import KV_POOLS, STATE_DEVICE, STATE_HOST, TIER, PageHash, PoolName

STATE_POOLS: tuple[PoolName, ...] = (STATE_DEVICE, STATE_HOST)

Residency = dict[PoolName, dict[PageHash, int]]

Unlike = dict[PoolName, tuple[set[PageHash], set[PageHash]]]
"""Pool -> the page hashes that the model and the implementation have there, where these differ."""


def judge_victims(
    victims: Sequence[tuple[PoolName, PageHash]], unlike: Unlike, before: Residency, after: Residency,
    names: Mapping[PageHash, str],
) -> None:  # fmt: skip
    """What was to be evicted has gone (HC-EVICT-02, HC-EVICT-03). Raises Difference.

    Where nothing has gone in its place there is no order to break: the eviction ended too early.
    """
    began = False
    for pool_name, digest in victims:
        expected, theirs = unlike.get(pool_name, (set(), set()))
        if digest not in theirs - expected:
            began = True
            continue
        gone = {each for each in expected - theirs if _has_gone(pool_name, each, before, after)}
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


def _has_gone(pool_name: PoolName, digest: PageHash, before: Residency, after: Residency) -> bool:
    """Whether what should be there was there, or was on another tier and is nowhere; else it has not come at all."""
    tiers = KV_POOLS if pool_name in KV_POOLS else STATE_POOLS
    was = any(digest in before[each] for each in tiers)
    return digest in before[pool_name] or (was and all(digest not in after[each] for each in tiers))


def where(pool_name: PoolName) -> str:
    """The tier of the pool, and that it is of states if it is."""
    return TIER[pool_name] if pool_name in KV_POOLS else f"{TIER[pool_name]}, as a state"
