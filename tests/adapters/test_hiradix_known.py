"""Faults that released HiRadixCaches are known to have, each by the operations that show it."""

import pytest

from hicache_ref.adapters.failures import ImplementationRaised
from hicache_ref.vocabulary.operations import (
    Abort,
    Attach,
    Audit,
    CopyDone,
    Evict,
    EvictHost,
    Insert,
    MatchPrefix,
    Poll,
    Progress,
    QueryDone,
    ReadDone,
    Reset,
    WriteDone,
)
from hicache_ref.vocabulary.outcomes import Audited, Done, Evicted, Progressed, Refused
from hicache_ref.vocabulary.profile import RULES, Sizes

pytest.importorskip("torch")

from hicache_ref.search.simpler import EVERYTHING
from tests.adapters.hiradix_driven import ALL_RELEASES, BATCH, Driven, known_of, progressed

pytestmark = pytest.mark.peers

ABORTING = ALL_RELEASES[1:]
ATTACHING = ALL_RELEASES[3:]


@pytest.mark.parametrize("version", ABORTING)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_short_read_gives_its_tail_back_twice_in_one_release(version: str, page_size: int) -> None:
    """Goal: the double release is 0.5.2's alone. Method: one page of a batch is missing; count each page's owners."""
    driven = Driven.of(version, page_size=page_size)
    driven.attach()
    driven.only_stored((1, 2, 3, 4))
    driven.read(driven.reading("q", 1, 2, 3, 4), 1)
    driven(EVERYTHING)
    driven(Progress(rid="q"))
    driven(EVERYTHING)
    assert (3 if version == "0.5.2" else 0) == len(driven.twice())
    assert set() == driven.nobodys()


@pytest.mark.parametrize("version", ABORTING)
def test_an_abort_before_the_read_gives_everything_back_twice_in_one_release(version: str) -> None:
    """Goal: as above, by another way. Method: abort while storage is asked, let the threads go on."""
    driven = Driven.of(version)
    driven.attach()
    driven.only_stored((1, 2))
    name = driven.prefetch("q", 1, 2)
    driven(Abort(rid="q"))
    assert Done() == driven(QueryDone(id=name, hits=2))
    driven(EVERYTHING)
    driven(ReadDone(id=name, pages=2))
    driven(EVERYTHING)
    assert (2 if version == "0.5.2" else 0) == len(driven.twice())
    assert set() == driven.nobodys()


@pytest.mark.parametrize("version", ABORTING)
def test_a_read_that_raises_kills_the_thread_and_its_pages_are_lost(version: str) -> None:
    """Goal: an exception of a backend is caught nowhere. Method: raise, wait, abort, look who has the pages."""
    driven = Driven.of(version)
    driven.attach()
    driven.only_stored((1, 2))
    name = driven.reading("q", 1, 2)
    assert Done() == driven(ReadDone(id=name, raised=True))
    driven(EVERYTHING)
    assert progressed(version, done=False) == driven(Progress(rid="q"))
    driven(Abort(rid="q"))
    driven(EVERYTHING)
    assert 2 == len(driven.nobodys())
    again = driven.reading("q", 1, 2)
    assert Refused(why="prefetch_io_aux_func is dead") == driven(ReadDone(id=again, pages=2))


@pytest.mark.parametrize("version", ABORTING)
def test_a_write_that_raises_pins_its_node_for_ever(version: str) -> None:
    """Goal: as above, for backups. Method: raise in the only write, try to evict what it reads."""
    driven = Driven.of(version)
    driven.attach()
    driven.insert(1)
    driven.back_up((1,))
    assert Done() == driven(WriteDone(id=f"b:{driven.key(1)}", raised=True))
    driven(EVERYTHING)
    driven.insert(*range(2, 10))
    assert Evicted(freed=0) == driven(EvictHost(n=1))


def test_a_late_end_is_taken_for_another_prefetch_of_the_same_request() -> None:
    """Goal: 0.5.20 matches ends by request id. Method: a request goes on without its read, and prefetches again."""
    driven = Driven.of("0.5.20")
    driven.attach("best_effort")
    driven.only_stored((1, 2), (3, 4))
    first = driven.reading("q", 1, 2)
    assert progressed("0.5.20") == driven(Progress(rid="q"))
    driven.prefetch("q", 3, 4)
    driven.read(first, 2)
    with pytest.raises(ImplementationRaised, match="TypeError"):
        driven(Poll(reads=1))


@pytest.mark.parametrize("version", ALL_RELEASES[1:])
def test_a_split_under_a_copy_keeps_the_prefix_from_storage_in_old_releases(version: str) -> None:
    """Goal: only the deepest fragment is offered up to 0.5.10. Method: split before the copy's end is applied."""
    driven = Driven.of(version)
    driven.attach()
    driven.insert(1, 2, 3, 4)
    driven(MatchPrefix(key=driven.key(1, 2)))
    driven(CopyDone(ticket=f"h:{driven.key(1, 2, 3, 4)}"))
    driven(Poll(backups=1))
    name = f"b:{driven.key(1, 2, 3, 4)}"
    assert Done() == driven(WriteDone(id=name, pages=2))
    offers_all = version in ("0.5.15", "0.5.16", "0.5.20")
    assert ("done" if offers_all else "invalid") == driven(WriteDone(id=name, pages=2)).kind


def test_a_read_outlives_a_reset() -> None:
    """Goal: 0.5.2 joins two of its three threads. Method: reset while a page is read, abort, count owners."""
    sizes = Sizes(device_pages=8, host_pages=24, storage_batch=BATCH)
    driven = Driven(sizes, version="0.5.2")
    driven.attach()
    driven.only_stored((1, 2))
    name = driven.reading("q", 1, 2)
    assert Done() == driven(Reset(force=True))
    seen = driven.see()
    assert set(seen.prefetch_host[name]) <= set(seen.free_host)
    driven.read(name, 2)
    driven(Abort(rid="q"))
    driven(EVERYTHING)
    assert 2 == len(driven.twice())


def test_a_reset_does_not_forget_an_open_prefetch() -> None:
    """Goal: 0.5.20 keeps ongoing_prefetch over a reset. Method: reset between two batches, abort, count owners."""
    sizes = Sizes(device_pages=8, host_pages=24, storage_batch=BATCH)
    driven = Driven(sizes, version="0.5.20")
    driven.attach()
    driven.only_stored((1, 2, 3, 4))
    driven.read(driven.reading("q", 1, 2, 3, 4), 2)
    driven(EVERYTHING)
    assert Done() == driven(Reset(force=True))
    driven(Abort(rid="q"))
    assert 2 == len(driven.twice())


def test_one_buffer_serves_all_pages_of_a_batch() -> None:
    """Goal: in 0.5.1 every page gets the last one's bytes. Method: read a batch of two, compare contents."""
    driven = Driven.of("0.5.1.post3")
    driven.attach()
    driven.insert(1, 2)
    driven.insert(1, 2, start=0)
    name = driven.prefetch("q", 5, 6)
    assert Done() == driven(QueryDone(id=name, hits=2))
    driven.read(name, 2)
    assert Progressed(done=True, loaded=2) == driven(Progress(rid="q"))
    _, last = driven.hashes(5, 6)
    assert (last, last) == driven.held("host", 5, 6)


def test_a_hit_puts_what_is_still_copied_to_host() -> None:
    """Goal: 0.5.1 does not wait for the copy. Method: insert twice with no poll between, and once with one."""
    driven = Driven.of("0.5.1.post3")
    driven.attach()
    driven.insert(1)
    driven.back_up((1,))
    assert Audited() == driven(Audit())
    driven(Insert(rid="s", key=driven.key(1), start=1))
    assert Audited(pending=(f"b:{driven.key(1)}",)) == driven(Audit())
    driven.insert(2)
    driven(Insert(rid="s", key=driven.key(2), start=1))
    pending = tuple(f"{kind}:{driven.key(number)}" for kind, number in (("b", 1), ("b", 2), ("h", 2)))
    assert Audited(pending=pending) == driven(Audit())


def test_a_prefetch_beyond_the_limit_kills_the_thread() -> None:
    """Goal: 0.5.1 uses a number that it has not set. Method: host hardly larger than device, one prefetch."""
    driven = Driven.of("0.5.1.post3", device=8, host=9)
    driven.attach()
    name = driven.prefetch("q", 1, 2)
    assert "invalid" == driven(QueryDone(id=name, hits=2)).kind
    again = driven.prefetch("p", 3)
    assert Refused(why="prefetch_thread_func is dead") == driven(QueryDone(id=again, hits=1))


@pytest.mark.parametrize("version", ATTACHING)
def test_a_failed_attach_leaves_its_write_policy(version: str) -> None:
    """Goal: half an attach shows where it happens, and is listed. Method: attach with settings that are no JSON."""
    driven = Driven.of(version)
    assert "write_through" == driven.see().write_policy
    assert "refused" == driven(Attach(fails="settings", write_policy="write_back")).kind
    assert "write_back" == driven.see().write_policy
    assert "failed-attach-leaves-policy" in {each.id for each in known_of(version)}


@pytest.mark.parametrize("version", ATTACHING)
def test_an_attach_takes_a_policy_that_the_tree_does_not_fit(version: str) -> None:
    """Goal: no release asks the tree, which only the last ones promise. Method: a host copy below a node without."""
    driven = Driven.of(version, write_policy="write_back")
    driven.insert(1, 2)
    driven(MatchPrefix(key=driven.key(1)))
    driven(Evict(n=1))
    assert Done() == driven(Attach(write_policy="write_through"))
    assert "write_through" == driven.see().write_policy
    promised = RULES[driven.description.profile].contiguity
    assert promised == ("policy-over-gaps" in {each.id for each in known_of(version)})
