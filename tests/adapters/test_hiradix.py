"""The adapter for SGLang's HiRadixCache: what it shows of each release, and what its part as the caller does."""

import pytest

from hicache_ref.vocabulary.events import BlockRemoved, BlockStored
from hicache_ref.vocabulary.hashing import block_hashes
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import IssuedCopy
from hicache_ref.vocabulary.operations import (
    Attach,
    Audit,
    ClearStorage,
    CopyDone,
    Detach,
    Evict,
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
    Reset,
    TakePages,
    Terminate,
    Unlock,
    WriteDone,
)
from hicache_ref.vocabulary.outcomes import (
    Audited,
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Polled,
    Refused,
    Submitted,
    Took,
)

pytest.importorskip("torch")

from hicache_ref.search.simpler import EVERYTHING
from tests.adapters.hiradix_driven import ALL_RELEASES, Driven, progressed

pytestmark = pytest.mark.peers

NOWHERE = Key(tokens=())
TERMINATING = ALL_RELEASES[3:-1]
"""Releases that can tell a prefetch to stop while its request waits."""

STREAMED = ALL_RELEASES[1:]
"""Releases that copy on streams and read pages into buffers of their own."""


@pytest.mark.parametrize("version", STREAMED)
@pytest.mark.parametrize("page_size", [1, 4])
def test_pages_go_down_all_tiers_and_come_back_byte_for_byte(version: str, page_size: int) -> None:
    """Goal: bytes are upstream's own, on every tier. Method: store, flush, fetch, load; read them after each way."""
    driven = Driven.of(version, page_size=page_size)
    driven.attach()
    driven.only_stored((1, 2, 3, 4))
    name = driven.reading("q", 1, 2, 3, 4)
    driven.read(name, 2, 2)
    driven(EVERYTHING)
    assert progressed(version, loaded=4) == driven(Progress(rid="q"))
    driven(EVERYTHING)
    assert driven.hashes(1, 2, 3, 4) == driven.held("host", 1, 2, 3, 4)
    key = driven.key(1, 2, 3, 4)
    ticket = f"d:{key}"
    assert Submitted(tickets=(ticket,), pages=4) == driven(LoadBack(key=key))
    assert Done() == driven(CopyDone(ticket=ticket))
    assert driven.hashes(1, 2, 3, 4) == driven.held("device", 1, 2, 3, 4)
    assert Polled(loads=(ticket,), prefetched=0, backed_up=0) == driven(Poll(loads=1))
    assert Audited() == driven(Audit())
    assert ({}, set()) == (driven.twice(), driven.nobodys())


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_the_scheduler_learns_of_as_many_copies_as_were_agreed_on(version: str) -> None:
    """Goal: a poll applies leading ends and no more. Method: two backups, the later ended first; then one of two."""
    driven = Driven.of(version)
    driven.insert(1)
    driven.insert(2)
    first, second = (f"h:{driven.key(n)}" for n in (1, 2))
    assert Done() == driven(CopyDone(ticket=second))
    assert Polled() == driven(Poll(backups=2))
    assert Done() == driven(CopyDone(ticket=first))
    assert [True, True] == [each.locked for each in driven.see().segments]
    assert Polled(backups=(first,)) == driven(Poll(backups=1))
    assert {True, False} == {each.locked for each in driven.see().segments}
    assert Polled(backups=(second,)) == driven(Poll(backups=9))


@pytest.mark.parametrize("version", STREAMED)
def test_a_copy_is_made_when_it_ends(version: str) -> None:
    """Goal: what is given up under a copy would show. Method: look at the target before and after its end."""
    driven = Driven.of(version)
    driven.insert(1, 2)
    assert (None, None) == driven.held("host", 1, 2)
    driven(CopyDone(ticket=f"h:{driven.key(1, 2)}"))
    assert driven.hashes(1, 2) == driven.held("host", 1, 2)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_match_names_its_ends_and_an_insert_gives_back_duplicates(version: str) -> None:
    """Goal: outcomes are in pages and keys. Method: demote half of a path, insert what is there already."""
    driven = Driven.of(version, page_size=2)
    driven.insert(1, 2)
    driven.back_up((1, 2))
    assert Evicted(freed=2) == driven(Evict(n=2))
    driven.insert(3, 4)
    key = driven.key(1, 2)
    assert Matched(device=(), host_hit=2, last_device_node=NOWHERE, last_host_node=key, best=key) == driven(
        MatchPrefix(key=driven.key(1, 2, 5))
    )
    outcome = driven.insert(3, 4, 5)
    assert isinstance(outcome, Inserted)
    assert (2, 2) == (outcome.prefix, len(outcome.given_back))
    own = {driven.key(*numbers).tokens for numbers in ((1, 2), (3, 4), (5,))}
    assert own == {each.tokens for each in driven.see().segments}


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_running_pass_keeps_what_is_given_up_under_it(version: str) -> None:
    """Goal: the order of the stream is kept where upstream knows nothing of passes. Method: give back, then end."""
    driven = Driven.of(version, device=2)
    assert Took(pages=(0, 1)) == driven(TakePages(rid="a", n=2))
    driven(Forward(rid="a", key=driven.key(1, 2), start=0))
    driven(GiveBack(rid="a"))
    assert ((), (0, 1)) == (driven.see().free_device, driven.see().held_device)
    assert Refused(why="device full", wait_for=("f:a",)) == driven(TakePages(rid="b", n=1))
    assert Refused(why="work in flight", wait_for=("f:a",)) == driven(Reset())
    driven(ForwardDone(rid="a"))
    assert Took(pages=(0,)) == driven(TakePages(rid="b", n=1))


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_lock_is_undone_once(version: str) -> None:
    """Goal: receipts are the adapter's, pins and sizes told are upstream's. Method: lock, try to evict, unlock."""
    driven = Driven.of(version, write_through_threshold=9)
    driven.insert(1, 2)
    assert Done(evictable=-2) == driven(Lock(receipt="l", key=driven.key(1, 2)))
    assert Evicted(freed=0) == driven(Evict(n=2))
    assert Done(evictable=2) == driven(Unlock(receipt="l"))
    assert "invalid" == driven(Unlock(receipt="l")).kind
    assert Evicted(freed=2) == driven(Evict(n=2))


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_write_back_copies_inside_the_step(version: str) -> None:
    """Goal: a copy that a step itself waits for has no ticket, and its bytes. Method: evict the only node."""
    driven = Driven.of(version, write_policy="write_back")
    driven.insert(1, 2)
    assert Evicted(freed=2) == driven(Evict(n=2))
    seen = driven.see()
    assert (IssuedCopy(to="host", source=(0, 1), target=(0, 1)),) == seen.copies
    assert dict(zip(("host:0", "host:1"), driven.hashes(1, 2), strict=True)) == seen.contents
    assert Audited() == driven(Audit())


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_more_loads_may_run_than_the_ring_has_events(version: str) -> None:
    """Goal: the ring of three is no limit of the cache. Method: four loads, none of them ended."""
    driven = Driven.of(version)
    for number in range(1, 5):
        driven.insert(number)
        driven.back_up((number,))
    driven(Evict(n=4))
    for number in range(1, 5):
        assert "submitted" == driven(LoadBack(key=driven.key(number))).kind
    for number in range(1, 5):
        driven(CopyDone(ticket=f"d:{driven.key(number)}"))
    assert 4 == len(driven(Poll(loads=9)).loads)
    assert driven.hashes(4) == driven.held("device", 4)


@pytest.mark.parametrize("version", ["0.5.15", "0.5.16", "0.5.20"])
def test_events_come_one_a_page_with_their_tier(version: str) -> None:
    """Goal: runs of pages are cut. Method: insert two pages, back them up, evict them."""
    driven = Driven.of(version)
    driven.insert(1, 2)
    first, second = block_hashes(driven.hashes(1, 2))
    chained = [(first, None, driven.key(1).tokens), (second, first, driven.key(2).tokens)]
    for medium in ("GPU", "CPU_PINNED"):
        expected = [
            BlockStored(block_hash=each, parent_block_hash=above, token_ids=tokens, medium=medium)
            for each, above, tokens in chained
        ]
        assert tuple(expected) == driven.see().events
        driven.back_up((1, 2)) if medium == "GPU" else driven(Evict(n=2))
    assert tuple(BlockRemoved(block_hash=each, medium="GPU") for each in (first, second)) == driven.see().events


@pytest.mark.parametrize("version", STREAMED)
def test_the_tester_decides_what_storage_says(version: str) -> None:
    """Goal: hits and pages read are facts of the world. Method: find two pages that nobody stored, read one."""
    driven = Driven.of(version)
    driven.attach()
    name = driven.prefetch("q", 1, 2, 3)
    assert Done() == driven(QueryDone(id=name, hits=2))
    driven(EVERYTHING)
    assert Done() == driven(ReadDone(id=name, pages=1))
    driven(EVERYTHING)
    assert progressed(version, loaded=1) == driven(Progress(rid="q"))
    assert driven.hashes(1) == driven.held("host", 1)


@pytest.mark.parametrize("version", TERMINATING)
def test_a_terminated_prefetch_waits_for_its_request(version: str) -> None:
    """Goal: only the mark is set. Method: terminate between two batches, look who waits, read on, let it go on."""
    driven = Driven.of(version)
    driven.attach()
    driven.only_stored((1, 2, 3, 4, 5))
    name = driven.reading("q", 1, 2, 3, 4, 5)
    driven.read(name, 2)
    assert progressed(version, done=False) == driven(Progress(rid="q"))
    assert Done() == driven(Terminate(rid="nobody"))
    assert () == driven.see().told_to_stop
    assert Done() == driven(Terminate(rid="q"))
    assert (name,) == driven.see().told_to_stop
    assert "refused" == driven(Prefetch(rid="q", key=driven.key(6))).kind
    driven.read(name, 2)
    assert Invalid(why=f"no running read {name}") == driven(ReadDone(id=name, pages=1))
    assert progressed(version, loaded=2) == driven(Progress(rid="q"))
    driven(EVERYTHING)
    assert driven.hashes(1, 2) == driven.held("host", 1, 2)
    assert ({}, set()) == (driven.twice(), driven.nobodys())


@pytest.mark.parametrize("version", STREAMED)
def test_a_thread_takes_its_work_in_order(version: str) -> None:
    """Goal: what is behind another has to wait for it by name. Method: answer the second of two queries."""
    driven = Driven.of(version)
    driven.attach()
    first, second = driven.prefetch("a", 1), driven.prefetch("b", 2)
    assert Invalid(why=f"behind {first}") == driven(QueryDone(id=second, hits=1))
    assert Done() == driven(QueryDone(id=first, hits=0))
    assert Done() == driven(QueryDone(id=second, hits=1))


@pytest.mark.parametrize("version", ALL_RELEASES[3:])
def test_storage_comes_and_goes(version: str) -> None:
    """Goal: a detach waits for what runs, an attach begins anew. Method: detach while a page is read."""
    driven = Driven.of(version)
    driven.attach()
    driven.only_stored((1,))
    name = driven.reading("q", 1)
    assert Refused(why="work in flight", wait_for=(name,)) == driven(Detach())
    driven.read(name, 1)
    assert Done() == driven(Detach())
    assert "refused" == driven(Prefetch(rid="q", key=driven.key(1))).kind
    assert ({}, set()) == (driven.twice(), driven.nobodys())
    driven.attach()
    assert Done() == driven(ClearStorage())
    assert Done() == driven(QueryDone(id=driven.prefetch("q", 1), hits=1))


@pytest.mark.parametrize("version", ALL_RELEASES[3:])
def test_an_attach_brings_a_write_policy_until_a_reset(version: str) -> None:
    """Goal: the policy brought rules, with the profile's number of hits. Method: insert once under each policy."""
    driven = Driven.of(version, write_policy="write_through_selective", write_through_threshold=1)
    driven.insert(1)
    assert Audited(pending=(f"h:{driven.key(1)}",)) == driven(Audit())
    driven.back_up((1,))
    for policy, pending in (("write_back", ()), ("write_through_selective", (f"h:{driven.key(3)}",))):
        assert Done() == driven(Attach(write_policy=policy))
        assert policy == driven.see().write_policy
        driven.insert(3 if pending else 2)
        assert Audited(pending=pending) == driven(Audit())
    driven(CopyDone(ticket=f"h:{driven.key(3)}"))
    driven(EVERYTHING)
    assert Done() == driven(Attach(write_policy="write_back"))
    driven(Reset(force=True))
    assert "write_through_selective" == driven.see().write_policy


@pytest.mark.parametrize("version", ALL_RELEASES[1:3])
def test_old_releases_have_storage_from_the_start(version: str) -> None:
    """Goal: an attach is a new cache where none is possible later. Method: attach to an unused and to a used one."""
    driven = Driven.of(version)
    driven.attach()
    driven.insert(1)
    driven.back_up((1,))
    assert Done() == driven(WriteDone(id=f"b:{driven.key(1)}", pages=1))
    used = Driven.of(version)
    used.insert(1)
    with pytest.raises(AssertionError):
        used.attach()


@pytest.mark.parametrize("version", STREAMED)
def test_after_a_reset_all_is_as_at_first(version: str) -> None:
    """Goal: an operation reset is a scheduler's flush. Method: fill device and host, reset, look, use it again."""
    driven = Driven.of(version)
    driven.attach()
    driven.insert(1, 2)
    driven.back_up((1, 2))
    driven.store(1, 2)
    assert Done() == driven(Reset())
    seen = driven.see()
    assert (8, 24, ()) == (len(seen.free_device), len(seen.free_host), seen.segments)
    name = driven.reading("q", 1, 2)
    driven.read(name, 2)
    driven(EVERYTHING)
    assert progressed(version, loaded=2) == driven(Progress(rid="q"))


@pytest.mark.parametrize("version", ALL_RELEASES[2:])
def test_time_is_what_the_operation_says(version: str) -> None:
    """Goal: a timeout needs no waiting. Method: ask just before the longest time, and after it."""
    driven = Driven.of(version)
    driven.attach("timeout")
    driven.prefetch("q", 1)
    assert progressed(version, done=False) == driven(Progress(rid="q", now=900))
    assert progressed(version) == driven(Progress(rid="q", now=3_000))


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_copy_in_flight_survives_a_split(version: str) -> None:
    """Goal: tickets keep their names. Method: split the node whose copy runs, end and apply the copy."""
    driven = Driven.of(version)
    driven.insert(1, 2)
    driven(MatchPrefix(key=driven.key(1)))
    ticket = f"h:{driven.key(1, 2)}"
    assert Done() == driven(CopyDone(ticket=ticket))
    assert Polled(backups=(ticket,)) == driven(Poll(backups=1))
    assert [False, False] == [each.locked for each in driven.see().segments]


def test_insert_needs_written_pages() -> None:
    """Goal: a caller's mistake is told. Method: insert pages that no pass has written."""
    driven = Driven.of("0.5.20")
    driven(TakePages(rid="r", n=1))
    assert "invalid" == driven(Insert(rid="r", key=driven.key(1), start=0)).kind
