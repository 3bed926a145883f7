"""Faults that are none of the known ones, planted where wide entries of sglang-himamba reach: each is told as new."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hicache_ref.oracle.campaign import Campaign
from hicache_ref.search.finding import Finding, Recorded
from hicache_ref.vocabulary.operations import Evict, EvictHostState, Forward, ForwardDone, Insert, Operation, TakePages
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes

pytest.importorskip("torch")

from tests.adapters.himamba_driven import child, key
from tests.adapters.test_himamba_known import known_of

pytestmark = pytest.mark.peers

VERSION = "0.5.17"
SIZES = Sizes(device_pages=4, host_pages=4, device_states=4, host_states=4)
CACHE = "from sglang.srt.mem_cache.hi_mamba_radix_cache import HiMambaRadixCache as Cache\n"


def put(rid: str, *tokens: int) -> tuple[Operation, ...]:
    """A request has computed this key and inserted it."""
    whole = key(*tokens)
    return (
        TakePages(rid=rid, n=len(tokens)), Forward(rid=rid, key=whole, start=0), ForwardDone(rid=rid),
        Insert(rid=rid, key=whole, start=0),
    )  # fmt: skip


EVICTED = (*put("r", 1), *put("r", 2, 3), Evict(n=3))
FOREIGN: dict[str, tuple[str, Sequence[Operation], str]] = {
    "no state is evicted from host": (
        "Cache.evict_mamba_host = lambda self, n: 0\n", (*EVICTED, EvictHostState(n=1)), "host-state-of-resident-stays",
    ),
    "nothing is evicted from device": (
        """
from sglang.srt.mem_cache.base_prefix_cache import EvictResult
Cache.evict = lambda self, params: EvictResult()
""",
        EVICTED, "cascade-ends-eviction",
    ),
    "an eviction from device takes a leaf from host": (
        """
made = Cache.evict
def evict(self, params):
    told = made(self, params)
    self.evict_host(1)
    return told
Cache.evict = evict
""",
        EVICTED, "room-takes-too-much",
    ),
    "an insert takes a state from host": (
        """
made = Cache.insert
def insert(self, params):
    told = made(self, params)
    for node in list(self.root_node.children.values()):
        if node.mamba_host_value is not None and self.mamba_host_lru_list.in_list(node):
            self.mamba_host_lru_list.remove_node(node)
            self.mamba_pool_host.free(node.mamba_host_value)
            node.mamba_host_value = None
    return told
Cache.insert = insert
""",
        (*EVICTED, *put("r", 4)), "late-state-not-backed-up",
    ),
}  # fmt: skip


def found(steps: Sequence[Operation], **options: str) -> tuple[Finding | None, list[str]]:
    """What these steps end in, and the known divergences that it is one of."""
    adapter, description = child(version=VERSION, **options)
    rules = RULES[description.profile].model_copy(update={"write_policy": "write_back"})
    profile = Profile(rules=rules, sizes=SIZES, state=True, name="here")
    campaign = Campaign(adapter, profile, known=known_of(VERSION))
    again, met = campaign._replayed(tuple(map(Recorded, steps)), profile)
    if again.finding is None:
        return None, []
    return again.finding, [each.id for each in campaign.known if each.covers(again.finding, steps, met)]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_fault_is_new(name: str, tmp_path: Path) -> None:
    """Goal: an entry hides nothing else. Method: a fault with the requirement and at the operation of a wide entry."""
    code, steps, wide = FOREIGN[name]
    (tmp_path / "plant.py").write_text(CACHE + code)
    (entry,) = (each for each in known_of(VERSION) if each.id == wide)
    finding, known = found(steps, preload=str(tmp_path / "plant.py"))

    assert (None, []) == found(steps)
    assert finding is not None
    assert entry.requirement == finding.requirement
    assert finding.operation in (entry.operation, *entry.also_at)
    assert finding.differs in entry.differs
    assert [] == known
