"""The adapter for SGLang's HiMambaRadixCache: what it shows of each release, and what its part as the caller does."""

from pathlib import Path

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import IssuedCopy
from hicache_ref.vocabulary.operations import (
    Abort,
    Attach,
    Audit,
    CopyDone,
    Evict,
    EvictHostState,
    EvictState,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    LoadBack,
    Lock,
    MatchPrefix,
    Poll,
    Prefetch,
    Progress,
    QueryDone,
    ReadDone,
    TakePages,
    Terminate,
    Unlock,
)
from hicache_ref.vocabulary.outcomes import (
    Audited,
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Polled,
    Progressed,
    Refused,
    Submitted,
    Took,
)
from hicache_ref.vocabulary.profile import RULES, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

pytest.importorskip("torch")

from hicache_ref.search.simpler import EVERYTHING
from tests.adapters.himamba_driven import ALL_RELEASES, Driven, child, end, inserting, key, with_state

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_states_go_to_host_and_come_back_byte_for_byte(version: str) -> None:
    """Goal: state bytes are upstream's own. Method: back up, demote, load for the node and a request; read them."""
    driven = Driven(version=version)
    driven.insert(1, 2, 3)
    assert (end(1, 2, 3), None) == driven.states(1, 2, 3)
    driven.back_up(1, 2, 3)
    assert (end(1, 2, 3), end(1, 2, 3)) == driven.states(1, 2, 3)
    assert Evicted(freed=3) == driven(Evict(n=3))
    assert (None, end(1, 2, 3)) == driven.states(1, 2, 3)
    assert Submitted(tickets=("d:1.2.3",), pages=3) == driven(LoadBack(key=key(1, 2, 3), rid="q"))
    assert None is driven.state_of_request("q")
    assert Done() == driven(CopyDone(ticket="d:1.2.3"))
    assert end(1, 2, 3) == driven.state_of_request("q")
    assert Polled(loads=("d:1.2.3",)) == driven(Poll(loads=1))
    assert (end(1, 2, 3), end(1, 2, 3)) == driven.states(1, 2, 3)
    assert {} == driven.twice()
    assert Audited() == driven(Audit())


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_copies_name_the_slots_of_states(version: str) -> None:
    """Goal: one ticket may fill two slots from one. Method: what a backup and a load for a request were asked with."""
    driven = Driven(version=version)
    driven.insert(1)
    state = driven.node(1)
    issued = IssuedCopy(ticket="h:1", to="host", source=(0,), target=(0,), source_states=(0,), target_states=(0,))
    assert (state.device_state, state.host_state) == (issued.source_states, issued.target_states)
    driven.back_up(1)
    driven(Evict(n=1))
    driven(LoadBack(key=key(1), rid="q"))
    seen = driven.see()
    (node,) = seen.segments
    (copy,) = seen.copies
    assert (*(node.device_state or ()), *seen.request_states["q"]) == copy.target_states
    assert (node.host_state or ()) * 2 == copy.source_states


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_request_goes_on_from_a_copy_of_the_state(version: str) -> None:
    """Goal: the node's state stays, the request's is changed in place. Method: look at both before and after a pass."""
    driven = Driven(version=version)
    driven.insert(1)
    assert isinstance(driven(TakePages(rid="q", n=1, prefix=key(1))), Took)
    assert end(1) == driven.state_of_request("q")
    driven(Forward(rid="q", key=key(1, 2), start=1))
    driven(ForwardDone(rid="q"))
    assert end(1, 2) == driven.state_of_request("q")
    assert end(1) == driven.states(1)[0]
    assert Inserted(prefix=1, given_back=()) == driven(Insert(rid="q", key=key(1, 2), start=1))
    assert end(1, 2) == driven.states(2)[0]


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_state_that_is_there_already_is_given_back(version: str) -> None:
    """Goal: upstream's `mamba_exist`. Method: insert one key twice, count free slots."""
    driven = Driven(version=version)
    driven.insert(1, 2)
    free = len(driven.see().free_device_state)
    again = driven.insert(1, 2)
    assert isinstance(again, Inserted)
    assert (2, True, 2) == (again.prefix, again.state_existed, len(again.given_back))
    assert free == len(driven.see().free_device_state)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_match_ends_where_states_are(version: str) -> None:
    """Goal: three ends. Method: a state on host above KV that has none, matched beyond both."""
    driven = Driven(version=version)
    driven.insert(1, 2)
    driven.back_up(1, 2)
    driven.insert(1, 2, 3, 4, start=2)
    driven.back_up(1, 2, 3, 4)
    assert Evicted(freed=1) == driven(EvictState(n=1))
    found = driven(MatchPrefix(key=key(1, 2, 3, 9)))
    assert isinstance(found, Matched)
    assert ((), 2, key(), key(1, 2), 3) == (
        found.device, found.host_hit, found.last_device_node, found.best, found.branching
    )  # fmt: skip
    driven(LoadBack(key=key(1, 2)))
    driven(CopyDone(ticket="d:1.2"))
    driven(EVERYTHING)
    found = driven(MatchPrefix(key=key(1, 2, 3, 9)))
    assert isinstance(found, Matched)
    assert (2, 0, key(1, 2)) == (len(found.device), found.host_hit, found.last_device_node)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_states_are_evicted_apart_from_their_kv(version: str) -> None:
    """Goal: both evictions of states. Method: an inner node loses its state on device, then on host."""
    driven = Driven(version=version)
    driven.insert(1)
    driven.back_up(1)
    driven.insert(1, 2, start=1)
    driven.back_up(1, 2)
    assert Evicted(freed=1) == driven(EvictState(n=1))
    assert (None, end(1)) == driven.states(1)
    assert Evicted(freed=1) == driven(EvictHostState(n=1))
    assert (None, None) == driven.states(1)
    assert (end(1, 2), end(1, 2)) == driven.states(2)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_lock_pins_the_state_of_its_anchor_alone(version: str) -> None:
    """Goal: locks of both kinds are shown. Method: lock the lower of two nodes, and undo it."""
    driven = Driven(write_policy="write_back", version=version)
    driven.insert(1)
    driven.insert(1, 2, start=1)
    driven(Lock(receipt="a", key=key(1, 2)))
    assert [(True, False), (True, True)] == [(each.locked, each.state_locked) for each in driven.see().segments]
    driven(Unlock(receipt="a"))
    assert [(False, False)] * 2 == [(each.locked, each.state_locked) for each in driven.see().segments]


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_no_slot_is_no_room(version: str) -> None:
    """Goal: pages and slot or neither. Method: a device with one slot, which a request has; then what it left."""
    driven = Driven(Sizes(device_pages=8, host_pages=8, device_states=1, host_states=1), version=version)
    assert isinstance(driven(TakePages(rid="a", n=1)), Took)
    assert Refused(why="no state slot") == driven(TakePages(rid="b", n=1))
    driven(Forward(rid="a", key=key(1), start=0))
    driven(GiveBack(rid="a"))
    assert (0,) == driven.see().held_device_state
    assert Refused(why="no state slot", wait_for=("f:a",)) == driven(TakePages(rid="b", n=1))
    driven(ForwardDone(rid="a"))
    assert isinstance(driven(TakePages(rid="b", n=1)), Took)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_slot_that_a_load_fills_is_held_until_it_was_applied(version: str) -> None:
    """Goal: nobody gets a slot into which bytes are coming. Method: the request goes while its load runs."""
    driven = Driven(version=version)
    driven.insert(1)
    driven.back_up(1)
    driven(Evict(n=1))
    driven(LoadBack(key=key(1), rid="q"))
    driven(GiveBack(rid="q"))
    assert 1 == len(driven.see().held_device_state)
    driven(CopyDone(ticket="d:1"))
    driven(EVERYTHING)
    assert () == driven.see().held_device_state
    assert {} == driven.twice()


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_states_are_stored_and_fetched(version: str) -> None:
    """Goal: the third tier has states too. Method: store, flush, fetch, load for a request; compare its bytes."""
    driven = Driven(Sizes(device_pages=8, host_pages=24), version=version, storage="file")
    driven.attach()
    driven.only_stored(1, 2, 3)
    name = driven.reading("q", 1, 2, 3)
    assert {name} == driven.see().prefetch_states.keys()
    driven.read(name, 2, 1)
    driven(EVERYTHING)
    assert Progressed(done=True, loaded=3, prefetched=3) == driven(Progress(rid="q"))
    driven(EVERYTHING)
    assert (None, end(1, 2, 3)) == driven.states(1, 2, 3)
    driven(LoadBack(key=key(1, 2, 3), rid="z"))
    driven(CopyDone(ticket="d:1.2.3"))
    assert end(1, 2, 3) == driven.state_of_request("z")
    assert {} == driven.twice()


@pytest.mark.parametrize("version", ALL_RELEASES[1:])
def test_nobody_writes_the_slot_of_a_prefetch_that_was_closed_before_it_read(version: str) -> None:
    """Goal: the rule unread_slot is no fault. Method: another's state takes the only slot, then the closed one ends."""
    sizes = Sizes(device_pages=8, host_pages=24, host_states=1)
    driven = Driven(sizes, version=version, storage="file")
    driven.attach()
    driven.only_stored(1, 2, 3)
    driven(Prefetch(rid="q", key=key(1, 2, 3)))
    assert () == driven.see().free_host_state
    driven(Abort(rid="q"))
    assert (0,) == driven.see().free_host_state
    driven.insert(4)
    driven.back_up(4)
    for operation in (QueryDone(id="p:1.2.3", hits=3), EVERYTHING, ReadDone(id="p:1.2.3", pages=2), EVERYTHING):
        driven(operation)
    assert (end(4), end(4)) == driven.states(4)
    assert {} == driven.twice()


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_terminated_prefetch_waits_for_its_request(version: str) -> None:
    """Goal: only the mark is set, and no state is taken for that of a part. Method: terminate before the last batch."""
    driven = Driven(Sizes(device_pages=8, host_pages=24), version=version, storage="file")
    driven.attach()
    driven.only_stored(1, 2, 3)
    name = driven.reading("q", 1, 2, 3)
    driven.read(name, 2)
    assert Done() == driven(Terminate(rid="q"))
    assert (name,) == driven.see().told_to_stop
    assert Done() == driven(ReadDone(id=name, pages=1))
    assert "progressed" == driven(Progress(rid="q")).kind
    driven(EVERYTHING)
    assert {} == driven.twice()


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_what_the_books_show_to_be_wrong_is_invalid(version: str) -> None:
    """Goal: no call is made that upstream's scheduler never makes. Method: one wrong operation of each kind."""
    driven = Driven(version=version)
    driven.insert(1)
    driven(TakePages(rid="q", n=1))
    for wrong in (
        TakePages(rid="q", n=1),
        TakePages(rid="z", n=1, prefix=key(9)),
        Insert(rid="q", key=key(2), start=0),
        Insert(rid="nobody", key=key(1), start=1),
        LoadBack(key=key(1)),
        LoadBack(key=key(9)),
        Unlock(receipt="a"),
        GiveBack(rid="nobody"),
        ForwardDone(rid="q"),
    ):
        assert isinstance(driven(wrong), Invalid), wrong


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_rank_that_has_less_shortens_what_is_fetched(version: str) -> None:
    """Goal: the other rank is heard. Method: it has read one page of three; look at what hangs in the tree (D26)."""
    driven = Driven(Sizes(device_pages=8, host_pages=24), version=version, storage="file")
    driven.attach()
    driven.only_stored(1, 2, 3)
    driven.read(driven.reading("q", 1, 2, 3), 2, 1)
    driven(EVERYTHING)
    assert Progressed(done=True, loaded=1, prefetched=1) == driven(Progress(rid="q", agreed=1))
    # The state is that of three pages: upstream reduces the count of pages and not whether the state came.
    assert (None, end(1, 2, 3)) == driven.states(1)


@pytest.mark.parametrize("met", [key(1), key(1, 1)], ids=["whole", "and splits"])
@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_commit_makes_the_state_of_a_node_that_it_meets_used(version: str, met: Key) -> None:
    """Goal: the rule match_stamps_states is what releases do. Method: the oldest state goes."""
    sizes = Sizes(device_pages=8, host_pages=16, device_states=4, host_states=4)
    released = Driven(sizes, write_policy="write_back", version=version)
    model = ReferenceAdapter()
    model.reset(released.profile)
    for operation in (
        Attach(settings=StorageSettings(prefetch_threshold=1)),
        Prefetch(rid="q", key=key(1, 0, 0)),
        QueryDone(id="p:1.0.0", hits=3),
        EVERYTHING,
        *inserting("r", met),
        *inserting("s", key(2)),
        ReadDone(id="p:1.0.0", pages=2),
        ReadDone(id="p:1.0.0", pages=1, state=True),
        Progress(rid="q"),
        EvictState(n=1),
    ):
        model.apply(operation)
        assert released(operation).kind not in ("refused", "invalid")
    assert (1,) in with_state(released.see())
    assert with_state(model.observe("tree")) == with_state(released.see())


@pytest.mark.parametrize("version", ALL_RELEASES[2:])
def test_a_terminated_prefetch_may_lack_the_state_that_came(version: str) -> None:
    """Goal: what does not count may be in place or not. Method: a prefetch that is terminated before its last batch."""
    trace = read_trace(Path(__file__).parent / "traces" / "state-after-a-terminate.jsonl")
    steps = tuple(Recorded(step.op) for step in trace.steps)
    adapter, description = child(version=version)
    profile = trace.header.profile.model_copy(update={"rules": RULES[description.profile]})
    beside = Lockstep(adapter, description, profile, "bytes", Checker(profile))
    assert replay(steps, lambda: beside).finding is None


def test_what_is_freed_twice_under_a_pass_is_seen_twice() -> None:
    """Goal: keeping pages back hides no double free. Method: a run that ends with one (D14) while a pass reads them."""
    trace = read_trace(Path(__file__).parent / "traces" / "double-free-under-a-pass.jsonl")
    profile, steps = trace.header.profile, tuple(Recorded(step.op) for step in trace.steps)
    adapter, description = child(version="0.5.10.post1")
    beside = Lockstep(adapter, description, profile, "bytes", Checker(profile))
    finding = replay(steps, lambda: beside).finding
    assert finding is not None
    assert ("HC-PAGE-01", "evict") == (finding.requirement, finding.operation)
