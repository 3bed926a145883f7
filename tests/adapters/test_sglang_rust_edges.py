"""The adapter for SGLang's compiled core at its edges: what it refuses, what fails in it, and what is planted in it."""

from pathlib import Path

import pytest

from hicache_ref.adapters.failures import ImplementationRaised
from hicache_ref.adapters.sglang_rust import PLANT_NAMES, make
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.observation import Observation
from hicache_ref.vocabulary.operations import (
    CopyDone,
    Evict,
    EvictHost,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    LoadBack,
    Lock,
    MatchPrefix,
    Operation,
    Poll,
    TakePages,
    Unlock,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import (
    Evicted,
    Invalid,
    Outcome,
    Took,
)
from hicache_ref.vocabulary.profile import RULES, Profile

pytest.importorskip("torch")

from hicache_ref.adapters.sglang_rust.child import SglangRust
from hicache_ref.adapters.sglang_rust.core import KV
from hicache_ref.adapters.sglang_rust.plants import PLANTS
from tests.adapters.driven import Driven, key, profile

pytestmark = pytest.mark.peers


@pytest.mark.parametrize(
    "operation",
    [
        GiveBack(rid="x"),
        TakePages(rid="r", n=0),
        Forward(rid="x", key=key(1), start=0),
        ForwardDone(rid="x"),
        Insert(rid="x", key=key(1), start=0),
        Unlock(receipt="x"),
        CopyDone(ticket="h:1"),
        WriteBackup(key=key(1)),
        LoadBack(key=key(1)),
    ],
    ids=lambda operation: operation.op,
)
def test_what_the_books_show_to_be_wrong_is_invalid(sglang_core: Path, operation: Operation) -> None:
    """Goal: a slip of the tester does not spoil the core. Method: name what is not there."""
    assert isinstance(Driven.over(sglang_core, profile())(operation), Invalid)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (profile(lock_evicted="skip"), "here: rule lock_evicted is 'skip', expected 'count' as in sglang-0.5.23"),
        (profile(write_back_copy="staged"), "rule write_back_copy is 'staged', expected 'blocking'"),
        (profile(split_stamps="none"), "rule split_stamps is 'none', expected 'both'"),
        (profile(contiguity=False), "rule contiguity is False, expected True"),
        (Profile(rules=RULES["sglang-0.5.23"], enabled=False), "enabled is False, expected True"),
    ],
)
def test_a_profile_that_the_core_cannot_follow_is_refused(sglang_core: Path, given: Profile, text: str) -> None:
    """Goal: no divergence that is none. Method: rules that are fixed in the core, each with another value."""
    with pytest.raises(AdapterError, match=text):
        SglangRust(sglang_core).reset(given)


@pytest.mark.parametrize("eviction", ["lru", "lfu", "fifo", "mru", "filo", "priority", "slru"])
def test_every_offered_policy_is_known_to_the_core(sglang_core: Path, eviction: str) -> None:
    """Goal: the description offers what there is. Method: make a core for each and evict."""
    driven = Driven.over(sglang_core, profile(eviction=eviction))
    driven.insert(1, pages=1)
    driven.back_up_to_the_end(["h:1"])
    assert Evicted(freed=1) == driven(Evict(n=1))


def test_what_the_core_raises_comes_back_from_its_process(sglang_core: Path) -> None:
    """Goal: an error of the core is an answer, and the child goes on. Method: a number that the core cannot take."""
    with make({"core": str(sglang_core)}, False) as adapter:
        assert ("sglang-rust", "bytes") == (adapter.describe().name, adapter.describe().level)
        adapter.reset(profile())
        with pytest.raises(ImplementationRaised, match="OverflowError"):
            adapter.apply(Evict(n=-1))
        adapter.reset(profile())
        outcome, observation = adapter.step(TakePages(rid="r", n=2), "tree")
        assert Took(pages=(4, 5)) == outcome
        assert {"r": (4, 5)} == observation.requests


def test_a_panic_spoils_the_core_and_a_reset_makes_a_new_one(sglang_core: Path) -> None:
    """Goal: after a panic the next walk goes on in the same process. Method: begin one eviction inside another."""
    adapter = SglangRust(sglang_core)
    adapter.reset(profile())
    spoilt = Driven(adapter)
    spoilt.insert(1, pages=1)
    tree = adapter.current().tree
    tree.evict_device_start(KV, 1)
    tree.evict_device_next_node(KV, {KV: 0})
    with pytest.raises(BaseException, match="evict"):
        tree.evict_device_start(KV, 1)
    with pytest.raises(BaseException, match="refusing to reuse state"):
        adapter.observe("tree")
    adapter.reset(profile())
    assert {} == Driven(adapter).tree()


STORY = (
    TakePages(rid="r", n=3), Forward(rid="r", key=key(1, 2, 3), start=0), ForwardDone(rid="r"),
    Insert(rid="r", key=key(1, 2, 3), start=0), MatchPrefix(key=key(1)), CopyDone(ticket="h:1.2.3"), Poll(backups=1),
    Lock(receipt="k", key=key(1)), Unlock(receipt="k"), Lock(receipt="k", key=key(1)), Unlock(receipt="k"),
    Lock(receipt="k", key=key(1, 2, 3)), Unlock(receipt="k"), Evict(n=3), LoadBack(key=key(1, 2, 3)),
    CopyDone(ticket="d:1.2.3"), Poll(loads=1), TakePages(rid="r", n=1), Forward(rid="r", key=key(1, 2, 3, 4), start=3),
    Evict(n=3), ForwardDone(rid="r"), EvictHost(n=2),
)  # fmt: skip


def told(driven: Driven) -> list[tuple[Outcome, Observation]]:
    """Outcome and observation of each step of the story, up to the first that raises."""
    steps: list[tuple[Outcome, Observation]] = []
    for operation in STORY:
        try:
            steps.append((driven(operation), driven.see()))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            break
    return steps


@pytest.mark.parametrize("name", PLANT_NAMES)
def test_each_planted_fault_shows(sglang_core: Path, name: str) -> None:
    """Goal: no plant is without effect. Method: one story, told by the healthy caller and by the planted one."""
    healthy = told(Driven.over(sglang_core, profile()))
    assert len(STORY) == len(healthy)
    assert [None] * len(STORY) == [seen.self_check for _, seen in healthy]
    assert healthy != told(Driven.over(sglang_core, profile(), PLANTS[name]))


def test_plants_are_known_by_name_before_the_core_is_loaded() -> None:
    """Goal: a mistyped plant is one line. Method: the names without torch are those of the classes."""
    assert list(PLANT_NAMES) == list(PLANTS)
    assert [1] * len(PLANTS) == [sum(callable(member) for member in vars(kind).values()) for kind in PLANTS.values()]
