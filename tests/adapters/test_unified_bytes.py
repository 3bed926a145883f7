"""What pages and state slots hold beside the unified cache's tree core: written by passes, moved by ended copies."""

from pathlib import Path

import pytest

from hicache_ref.adapters.sglang_unified import PLANT_NAMES
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.operations import CopyDone, Evict, Forward, ForwardDone, GiveBack, LoadBack, Poll, TakePages
from hicache_ref.vocabulary.outcomes import Done, Submitted, Took
from hicache_ref.vocabulary.profile import RULES, Profile

pytest.importorskip("torch")

from hicache_ref.adapters.sglang_rust.child import TreeCoreAdapter
from hicache_ref.adapters.sglang_rust.core import load_bindings
from hicache_ref.adapters.sglang_unified.following import PROFILE, describe
from hicache_ref.adapters.sglang_unified.plants import PLANTS
from hicache_ref.adapters.sglang_unified.states import StateCaller
from tests.adapters.driven import Driven, key

pytestmark = pytest.mark.peers

ONE, TWO, THREE = chain(((1,), (2,), (3,)), None)
OTHER = chain(((5,),), None)[0]


def driven(file: Path, kind: type[StateCaller] = StateCaller) -> Driven:
    """A new compiled core with states, write_through."""
    adapter = TreeCoreAdapter(load_bindings(file), kind, describe(has_states=True))
    adapter.reset(Profile(rules=RULES[PROFILE], state=True, name="here"))
    return Driven(adapter)


def held(here: Driven, pool: str) -> list[str]:
    """What pages or slots of the pool hold that are not free, in any order."""
    contents = here.see().contents or {}
    return sorted(digest for name, digest in contents.items() if name.partition(":")[0] == pool)


def on_host_alone(here: Driven) -> None:
    """Two pages and the state at their end are on host and not on device."""
    here.insert(1, 2, pages=2)
    here.back_up_to_the_end(["h:1.2"])
    here(Evict(n=2))


def test_a_copy_has_moved_bytes_when_it_has_ended(sglang_core: Path) -> None:
    """Goal: neither before nor elsewhere. Method: insert, back up, go on from the state; look before and after."""
    here = driven(sglang_core)
    here.insert(1, 2, pages=2)
    assert (sorted([ONE, TWO]), [TWO]) == (held(here, "device"), held(here, "device_state"))
    assert ([], []) == (held(here, "host"), held(here, "host_state"))
    here.back_up_to_the_end(["h:1.2"])
    assert (sorted([ONE, TWO]), [TWO]) == (held(here, "host"), held(here, "host_state"))
    assert isinstance(here(TakePages(rid="s", n=1, prefix=key(1, 2))), Took)
    assert [TWO] == held(here, "device_state")
    assert Done() == here(CopyDone(ticket="c:1.2"))
    assert [TWO, TWO] == held(here, "device_state")


def test_a_pass_changes_the_state_when_it_has_ended(sglang_core: Path) -> None:
    """Goal: the slot never holds what is yet to come. Method: a request goes on, and its pass ends."""
    here = driven(sglang_core)
    here.insert(1, 2, pages=2)
    here(TakePages(rid="s", n=1, prefix=key(1, 2)))
    here(CopyDone(ticket="c:1.2"))
    assert Done() == here(Forward(rid="s", key=key(1, 2, 3), start=2))
    assert [TWO, TWO] == held(here, "device_state")
    assert Done() == here(ForwardDone(rid="s"))
    assert sorted([TWO, THREE]) == held(here, "device_state")


def test_a_load_brings_the_state_to_the_node_and_to_the_request(sglang_core: Path) -> None:
    """Goal: both have it, and a slot that is taken holds nothing old. Method: evict, use all slots, load."""
    here = driven(sglang_core)
    on_host_alone(here)
    assert ([], []) == (held(here, "device"), held(here, "device_state"))
    assert isinstance(here(LoadBack(key=key(1, 2), rid="s")), Submitted)
    assert ([], []) == (held(here, "device"), held(here, "device_state"))
    here(CopyDone(ticket="d:1.2"))
    here(Poll(loads=1))
    assert (sorted([ONE, TWO]), [TWO, TWO]) == (held(here, "device"), held(here, "device_state"))
    here(GiveBack(rid="s"))
    here.insert(5, pages=1, rid="t")
    assert sorted([TWO, OTHER]) == held(here, "device_state")


@pytest.mark.parametrize(
    ("plant", "pages", "states"),
    [
        ("state-not-backed-up", [ONE, TWO], []),
        ("state-loaded-once", [ONE, TWO], [TWO]),
        ("wrong-page-copied", [ONE], [TWO, TWO]),
    ],
)
def test_a_planted_fault_leaves_something_out(
    sglang_core: Path, plant: str, pages: list[str], states: list[str]
) -> None:
    """Goal: what is shown is what is there. Method: a load for a request after a backup, with each fault."""
    here = driven(sglang_core, PLANTS[plant])
    on_host_alone(here)
    here(LoadBack(key=key(1, 2), rid="s"))
    here(CopyDone(ticket="d:1.2"))
    assert (sorted(pages), states) == (held(here, "device"), held(here, "device_state"))


def test_plants_are_known_by_name_before_the_core_is_loaded() -> None:
    """Goal: a mistyped plant is one line. Method: the names without torch are those of the classes."""
    assert list(PLANT_NAMES) == list(PLANTS)
