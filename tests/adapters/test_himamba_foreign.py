"""Faults that are none of the known ones, planted where wide entries of sglang-himamba reach: each is told as new."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from hicache_ref.oracle.campaign import Campaign
from hicache_ref.search.finding import Differs, Finding, Recorded
from hicache_ref.vocabulary.operations import (
    Evict,
    EvictHost,
    EvictHostState,
    Forward,
    ForwardDone,
    Insert,
    MatchPrefix,
    Operation,
    TakePages,
)
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes, WritePolicy

pytest.importorskip("torch")

from tests.adapters.himamba_driven import child, key
from tests.adapters.test_himamba_known import known_of

pytestmark = pytest.mark.peers

VERSION = "0.5.17"
SIZES = Sizes(device_pages=4, host_pages=4, device_states=4, host_states=4)
CACHE = "from sglang.srt.mem_cache.hi_mamba_radix_cache import HiMambaRadixCache as Cache\n"


class Foreign(NamedTuple):
    """A fault that is planted into the engine, steps that reveal it, and the entry that would cover it if it could."""

    name: str
    wide: str
    steps: Sequence[Operation]
    code: str
    write_policy: WritePolicy = "write_back"


def put(rid: str, *tokens: int) -> tuple[Operation, ...]:
    """A request has computed this key and inserted it."""
    whole = key(*tokens)
    return (
        TakePages(rid=rid, n=len(tokens)), Forward(rid=rid, key=whole, start=0), ForwardDone(rid=rid),
        Insert(rid=rid, key=whole, start=0),
    )  # fmt: skip


EVICTED = (*put("r", 1), *put("r", 2, 3), Evict(n=3))
SPLIT = (*put("r", 1, 2), MatchPrefix(key=key(1)))
"""The upper half of what was one node has no state, so that it goes where the lower half does."""

FOREIGN = (
    Foreign(
        "no state is evicted from host", "host-state-of-resident-stays", (*EVICTED, EvictHostState(n=1)),
        "Cache.evict_mamba_host = lambda self, n: 0\n",
    ),
    Foreign(
        "nothing is evicted from device", "cascade-ends-eviction", EVICTED,
        """
from sglang.srt.mem_cache.base_prefix_cache import EvictResult
Cache.evict = lambda self, params: EvictResult()
""",
    ),
    Foreign(
        "an eviction from device takes a leaf from host", "room-takes-too-much", EVICTED,
        """
made = Cache.evict
def evict(self, params):
    told = made(self, params)
    self.evict_host(1)
    return told
Cache.evict = evict
""",
    ),
    Foreign(
        "an insert takes a state from host", "late-state-not-backed-up", (*EVICTED, *put("r", 4)),
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
    ),
    Foreign(
        "an insert evicts from device", "room-takes-too-much-on-device", (*put("r", 1), *put("r", 2, 3)),
        """
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
made = Cache.insert
def insert(self, params):
    told = made(self, params)
    self.evict(EvictParams(num_tokens=1 if len(self.root_node.children) > 1 else 0))
    return told
Cache.insert = insert
""",
    ),
    Foreign(
        "an insert copies to host", "late-state-takes-room", put("r", 1),
        """
made = Cache.insert
def insert(self, params):
    told = made(self, params)
    for node in list(self.root_node.children.values()):
        self.write_backup(node, write_back=True)
    return told
Cache.insert = insert
""",
    ),
    Foreign(
        "an insert makes the newest state the oldest", "state-order", (*put("r", 1), *put("r", 2)),
        """
made = Cache.insert
def insert(self, params):
    told = made(self, params)
    states = self.mamba_lru_list
    newest = states.head.mamba_next
    states._remove_node(newest)
    states._add_node_after(states.tail.mamba_prev, newest)
    return told
Cache.insert = insert
""",
    ),
    Foreign(
        "a leaf on host stays without the state that was evicted", "cascade-leaves-leaf",
        (*put("r", 1), Evict(n=1), EvictHostState(n=1)),
        """
def evict_mamba_host(self, count):
    node = self.mamba_host_lru_list.get_lru_no_lock()
    self.mamba_host_lru_list.remove_node(node)
    self.mamba_pool_host.free(node.mamba_host_value)
    node.mamba_host_value = None
    return 1
Cache.evict_mamba_host = evict_mamba_host
""",
    ),
    Foreign(
        "nothing is evicted from host, where a cascade would be", "cascade-ends-host-eviction",
        (*SPLIT, Evict(n=2), EvictHost(n=1)),
        "Cache.evict_host = lambda self, count: None\n",
    ),
    Foreign(
        "nothing is evicted for a request, where a cascade would be", "cascade-ends-admission",
        (*SPLIT, TakePages(rid="s", n=4)),
        """
from sglang.srt.mem_cache.base_prefix_cache import EvictResult
Cache.evict = lambda self, params: EvictResult()
""",
        write_policy="write_through_selective",
    ),
)  # fmt: skip


def found(steps: Sequence[Operation], write_policy: WritePolicy, **options: str) -> tuple[Finding | None, list[str]]:
    """What these steps end in, and the known divergences that it is one of."""
    adapter, description = child(version=VERSION, **options)
    rules = RULES[description.profile].model_copy(update={"write_policy": write_policy})
    profile = Profile(rules=rules, sizes=SIZES, state=True, name="here")
    campaign = Campaign(adapter, profile, known=known_of(VERSION))
    again, met = campaign._replayed(tuple(map(Recorded, steps)), profile)
    if again.finding is None:
        return None, []
    return again.finding, [each.id for each in campaign.known if each.covers(again.finding, steps, met)]


@pytest.mark.parametrize("foreign", FOREIGN, ids=[each.name for each in FOREIGN])
def test_a_foreign_fault_is_new(foreign: Foreign, tmp_path: Path) -> None:
    """Goal: an entry hides nothing else. Method: a fault with the requirement and at the operation of a wide entry."""
    (tmp_path / "plant.py").write_text(CACHE + foreign.code)
    (entry,) = (each for each in known_of(VERSION) if each.id == foreign.wide)
    finding, known = found(foreign.steps, foreign.write_policy, preload=str(tmp_path / "plant.py"))

    assert (None, []) == found(foreign.steps, foreign.write_policy)
    assert finding is not None
    assert entry.requirement == finding.requirement
    assert finding.operation in (entry.operation, *entry.also_at)
    assert alike(finding.differs) in map(alike, entry.differs)
    assert [] == known


def alike(differs: Differs | None) -> tuple[object, ...]:
    """What differs, roughly: its kind, pool and direction."""
    return () if differs is None else (differs.kind, differs.pool, differs.direction)
