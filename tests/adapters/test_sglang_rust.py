"""The adapter for SGLang's compiled core: what it shows of the core, and what its part as the caller does."""

from pathlib import Path

import pytest

from hicache_ref.vocabulary.events import AllBlocksCleared, BlockRemoved, BlockStored
from hicache_ref.vocabulary.hashing import block_hash, chain
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.observation import LEVELS
from hicache_ref.vocabulary.operations import (
    Audit,
    CopyDone,
    Evict,
    EvictHost,
    Forward,
    ForwardDone,
    GiveBack,
    LoadBack,
    Lock,
    MatchPrefix,
    Poll,
    Reset,
    SetWritePolicy,
    TakePages,
    Unlock,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import (
    Audited,
    Done,
    Evicted,
    Inserted,
    Matched,
    Polled,
    Refused,
    Submitted,
    Took,
)
from hicache_ref.vocabulary.profile import Sizes

pytest.importorskip("torch")

from tests.adapters.driven import Driven, key, profile

pytestmark = pytest.mark.peers

NOWHERE = Key(tokens=())


@pytest.fixture
def tiny(sglang_core: Path) -> Driven:
    """Six pages of one token on both tiers, write_through."""
    return Driven.over(sglang_core, profile())


@pytest.fixture
def selective(sglang_core: Path) -> Driven:
    """As tiny, and nothing is backed up but when asked for."""
    return Driven.over(sglang_core, profile(write_through_threshold=99))


@pytest.mark.parametrize(("size", "bigram"), [(1, False), (2, False), (16, False), (1, True), (2, True), (16, True)])
def test_pages_and_tokens_come_back_as_they_went_in(sglang_core: Path, size: int, bigram: bool) -> None:
    """Goal: slots and pages, units and tokens are translated alike both ways. Method: two keys that share a page."""
    driven = Driven.over(sglang_core, profile(Sizes(page_size=size), bigram=bigram))
    first, second = tuple(range(3 * size + bigram)), (*range(size + bigram), *range(100, 100 + size))
    assert Inserted(prefix=0, given_back=()) == driven.insert(*first, pages=3)
    assert Inserted(prefix=1, given_back=()) == driven.insert(*second, start=1, pages=1, rid="s")
    pages = {tokens: seen[1] for tokens, seen in driven.tree().items()}
    shared, rest = first[: size + bigram], first[size:]
    assert {shared: (3,), rest: (4, 5), (*shared[-1:] * bigram, *second[size + bigram :]): (2,)} == pages
    assert Matched(
        device=(3, 4, 5), host_hit=0, last_device_node=key(*first), last_host_node=key(*first), best=key(*first)
    ) == driven(MatchPrefix(key=key(*first)))


def test_a_match_names_its_ends_by_key_and_reaches_the_host(tiny: Driven) -> None:
    """Goal: ends are whole keys with their namespace. Method: demote the lower of two nodes, match below both."""
    tiny.insert(1, 2, pages=2, extra="a")
    tiny.insert(1, 2, 3, start=2, pages=1, extra="a", rid="s")
    tiny.back_up_to_the_end(["h:a/1.2", "h:a/1.2.3"])
    assert Evicted(freed=1) == tiny(Evict(n=1))
    upper, lower = key(1, 2, extra="a"), key(1, 2, 3, extra="a")
    assert Matched(device=(4, 5), host_hit=1, last_device_node=upper, last_host_node=lower, best=lower) == tiny(
        MatchPrefix(key=key(1, 2, 3, 4, extra="a"))
    )
    assert Matched(device=(), host_hit=0, last_device_node=NOWHERE, last_host_node=NOWHERE, best=NOWHERE) == tiny(
        MatchPrefix(key=key(1, 2, 3, 4))
    )


def test_duplicates_of_an_insert_are_given_back(tiny: Driven) -> None:
    """Goal: what the tree has already is the request's no more. Method: insert one key twice, the second from 0."""
    tiny.insert(1, 2, pages=2)
    before = tiny.see()
    assert Inserted(prefix=2, given_back=(2, 3)) == tiny.insert(1, 2, pages=2, rid="s")
    assert set(before.free_device) == set(tiny.see().free_device)


def test_nothing_is_evicted_for_what_cannot_succeed(selective: Driven) -> None:
    """Goal: a refusal changes nothing, and a shortfall costs one eviction. Method: ask for 7, then for 5 of 6."""
    selective.insert(1, 2, pages=2)
    assert Refused(why="device full") == selective(TakePages(rid="r", n=7))
    assert {(1, 2): (None, (4, 5), None, False)} == selective.tree()
    assert Took(pages=(1, 2, 3, 4, 5)) == selective(TakePages(rid="r", n=5))
    assert {} == selective.tree()


def test_a_page_given_up_under_a_pass_is_free_when_it_ends(selective: Driven) -> None:
    """Goal: no page is taken while a pass touches it. Method: give back and evict under two passes."""
    selective.insert(1, pages=1)
    selective(TakePages(rid="r", n=1))
    selective(Forward(rid="r", key=key(1, 2), start=1))
    selective(GiveBack(rid="r"))
    assert Evicted(freed=0, staged=1, wait_for=("f:r",)) == selective(Evict(n=1))
    seen = selective.see()
    assert ((4, 5), ()) == (seen.held_device, seen.segments)
    assert Refused(why="device full", wait_for=("f:r",)) == selective(TakePages(rid="s", n=5))
    assert Audited(pending=("f:r",)) == selective(Audit())
    assert Done() == selective(ForwardDone(rid="r"))
    assert ((), 6) == (selective.see().held_device, selective.see().counts.free_device)


def test_backups_are_submitted_root_first_and_applied_in_order(selective: Driven) -> None:
    """Goal: one ticket a node of the chain, polled only behind those before it. Method: end the second one first."""
    selective.insert(1, pages=1)
    selective.insert(1, 2, start=1, pages=1, rid="s")
    selective.see()
    assert Submitted(tickets=("h:1", "h:1.2"), pages=2) == selective(WriteBackup(key=key(1, 2)))
    seen = selective.see()
    assert [("h:1", "host", (5,), (5,)), ("h:1.2", "host", (4,), (4,))] == [
        (copy.ticket, copy.to, copy.source, copy.target) for copy in seen.copies
    ]
    assert Done() == selective(CopyDone(ticket="h:1.2"))
    assert Polled() == selective(Poll(backups=2))
    assert Done() == selective(CopyDone(ticket="h:1"))
    assert Polled(backups=("h:1",)) == selective(Poll(backups=1))
    assert {(1,): (None, (5,), (5,), True), (2,): (None, (4,), (4,), True)} == selective.tree()
    assert Polled(backups=("h:1.2",)) == selective(Poll(backups=9, loads=9))
    assert {(1,): (None, (5,), (5,), False), (2,): (None, (4,), (4,), False)} == selective.tree()


def test_a_backup_acknowledges_both_halves_of_a_node_split_meanwhile(tiny: Driven) -> None:
    """Goal: both halves are reported as stored on host. Method: split by a match while the copy runs."""
    tiny.insert(1, 2, pages=2)
    tiny.see()
    tiny(MatchPrefix(key=key(1)))
    tiny.back_up_to_the_end(["h:1.2"])
    first, second = (block_hash(digest) for digest in chain(((1,), (2,)), None))
    assert (
        BlockStored(block_hash=first, parent_block_hash=None, token_ids=(1,), medium="CPU_PINNED"),
        BlockStored(block_hash=second, parent_block_hash=first, token_ids=(2,), medium="CPU_PINNED"),
    ) == tiny.see().events
    assert [False, False] == [segment.locked for segment in tiny.see().segments]


def test_loading_back_pins_before_it_makes_room(sglang_core: Path) -> None:
    """Goal: each refusal leaves no pin, and a load names its pages. Method: threshold, quota, a full pool, success."""
    driven = Driven.over(sglang_core, profile(Sizes(device_pages=3, host_pages=3, load_back_threshold=2)))
    driven.insert(1, 2, pages=2)
    driven.back_up_to_the_end(["h:1.2"])
    driven(Evict(n=2))
    driven(MatchPrefix(key=key(1)))
    whole = key(1, 2)
    assert Refused(why="below threshold") == driven(LoadBack(key=key(1)))
    assert Refused(why="over quota") == driven(LoadBack(key=whole, quota=1))
    driven(TakePages(rid="r", n=2))
    assert Refused(why="device full") == driven(LoadBack(key=whole))
    assert (0, 0) == (driven.see().counts.evictable, driven.see().counts.protected)
    driven(GiveBack(rid="r"))
    driven.see()
    assert Submitted(tickets=("d:1.2",), pages=2) == driven(LoadBack(key=whole))
    seen = driven.see()
    (copy,) = seen.copies
    assert ("d:1.2", "device", (1, 2), (1, 2)) == (copy.ticket, copy.to, copy.source, copy.target)
    assert [(1,), (2,)] == [segment.device for segment in seen.segments]
    assert (0, 2) == (seen.counts.evictable, seen.counts.protected)
    driven(CopyDone(ticket="d:1.2"))
    assert Polled(loads=("d:1.2",)) == driven(Poll(loads=1))
    assert (2, 0, None) == (
        driven.see().counts.evictable, driven.see().counts.protected, driven.see().self_check
    )  # fmt: skip


def test_write_back_copies_inside_the_eviction_or_drops(sglang_core: Path) -> None:
    """Goal: each victim's copy ends inside the step. Method: three nodes, host room for two of them."""
    driven = Driven.over(sglang_core, profile(Sizes(device_pages=3, host_pages=2), write_policy="write_back"))
    for token in (1, 2, 3):
        driven.insert(token, pages=1, rid=str(token))
    driven(Lock(receipt="k", key=key(1), at="best"))
    driven.see()
    assert Evicted(freed=2) == driven(Evict(n=2))
    assert [(None, "host", (1,), (1,)), (None, "host", (0,), (0,))] == [
        (copy.ticket, copy.to, copy.source, copy.target) for copy in driven.see().copies
    ]
    driven(Lock(receipt="l", key=key(2), at="best"))
    driven(Lock(receipt="m", key=key(3), at="best"))
    driven(Unlock(receipt="k"))
    assert Evicted(freed=1) == driven(Evict(n=1))
    assert {(2,): (None, None, (1,), None), (3,): (None, None, (0,), None)} == driven.tree()
    assert driven(WriteBackup(key=key(2))).kind == "invalid"


def test_a_change_of_policy_is_refused_while_a_prefix_is_missing_on_host(sglang_core: Path) -> None:
    """Goal: as upstream's attach. Method: under write_back only the lower of two nodes reaches the host."""
    driven = Driven.over(sglang_core, profile(write_policy="write_back"))
    driven.insert(1, pages=1)
    driven.insert(1, 2, start=1, pages=1, rid="s")
    driven(Evict(n=1))
    assert Refused(why="host data without its prefix") == driven(SetWritePolicy(policy="write_through"))
    driven(EvictHost(n=1))
    assert Done() == driven(SetWritePolicy(policy="write_through"))


def test_a_load_may_outlive_the_policy_it_began_under(sglang_core: Path) -> None:
    """Goal: the change leaves nothing behind in the core. Method: its own check, after a load across a change."""
    driven = Driven.over(sglang_core, profile(write_policy="write_back"))
    driven.insert(1, pages=1)
    driven(Evict(n=1))
    driven(LoadBack(key=key(1)))
    driven(SetWritePolicy(policy="write_through"))
    driven(CopyDone(ticket="d:1"))
    driven(Poll(loads=1))
    assert driven.see().self_check is None
    assert Audited() == driven(Audit())


def test_reset_waits_for_work_and_then_makes_all_new(tiny: Driven) -> None:
    """Goal: a reset under a copy or a pass is refused; else nothing is left. Method: both, then look."""
    tiny.insert(1, pages=1)
    tiny(Lock(receipt="k", key=key(1)))
    tiny(TakePages(rid="r", n=2))
    tiny(Forward(rid="r", key=key(1, 2, 3), start=1))
    assert Refused(why="work in flight", wait_for=("f:r", "h:1")) == tiny(Reset())
    tiny(ForwardDone(rid="r"))
    tiny.back_up_to_the_end(["h:1"])
    tiny(SetWritePolicy(policy="write_back"))
    tiny.see()
    assert Done() == tiny(Reset())
    seen = tiny.see()
    assert ((AllBlocksCleared(),), (), {}, 6, 6) == (
        seen.events, seen.segments, seen.requests, len(set(seen.free_device)), len(set(seen.free_host))
    )  # fmt: skip
    assert tiny(Unlock(receipt="k")).kind == "invalid"
    tiny.insert(1, pages=1)
    assert ["h:1"] == [copy.ticket for copy in tiny.see().copies]


def test_events_are_one_a_page_and_know_no_namespace(sglang_core: Path) -> None:
    """Goal: runs of pages are cut, parents follow. Method: a bigram key of two pages in a namespace, then evict."""
    driven = Driven.over(sglang_core, profile(Sizes(page_size=2), bigram=True, write_through_threshold=99))
    driven.insert(1, 2, 3, 4, 5, pages=2, extra="a")
    pages = pages_of((1, 2, 3, 4, 5), 2, bigram=True)
    first, second = (block_hash(digest) for digest in chain(pages, None, bigram=True))
    assert (
        BlockStored(block_hash=first, parent_block_hash=None, token_ids=(1, 2, 3), medium="GPU"),
        BlockStored(block_hash=second, parent_block_hash=first, token_ids=(3, 4, 5), medium="GPU"),
    ) == driven.see().events
    driven(Evict(n=1))
    assert {BlockRemoved(block_hash=digest, medium="GPU") for digest in (first, second)} == set(
        driven.see().events or ()
    )


def test_lower_levels_show_less(tiny: Driven) -> None:
    """Goal: a cheap look costs little. Method: the levels after one insert, whose copy to host runs."""
    tiny.insert(1, 2, pages=2)
    counts, pages = tiny.adapter.observe("counts"), tiny.adapter.observe("pages")
    assert ((), (), 1) == (counts.segments, counts.free_device, len(counts.copies))
    assert [None] == [segment.locked for segment in pages.segments]
    assert [True] == [segment.locked for segment in tiny.adapter.observe("tree").segments]
    assert [None] * 3 == [tiny.adapter.observe(level).contents for level in LEVELS[:3]]
    first, second = chain(((1,), (2,)), None)
    assert {"device:4": first, "device:5": second} == tiny.see().contents
