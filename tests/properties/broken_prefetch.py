"""Broken states and steps of prefetches, one for each requirement of PREF, and for the hashes that they ask for."""

from hicache_ref.model import Step
from hicache_ref.model.records import PrefetchQueued
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.effects import StorageCancel
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.operations import (
    Abort,
    MatchPrefix,
    Poll,
    Prefetch,
    Progress,
    QueryDone,
    ReadDone,
    Terminate,
)
from hicache_ref.vocabulary.outcomes import Done
from tests.properties import broken_states, broken_steps
from tests.properties.breaking import HOST, World, key, told
from tests.properties.broken_states import backed_up, on_host
from tests.properties.broken_storage import NOBODY, Told, attach, attached, reading


def asking(text: str = "12", **rules: object) -> World:
    """A world in which storage is asked for the key, for request q."""
    world = attached(**rules)
    world.do(Prefetch(rid="q", key=key(text)))
    return world


# -- states -----------------------------------------------------------------------------------------------------------


@broken_states.broken("HC-PREF-01")
def pages_are_taken_before_the_answer() -> World:
    world = asking()
    pool, storage = world.state.pools[HOST], world.state.storage
    for page in (0, 1):
        pool.free.remove(page)
        pool.owner[page] = ("prefetch", "p:1.2")
    storage.records["p:1.2"] = storage.records["p:1.2"].model_copy(update={"pages": (0, 1)})
    return world


@broken_states.broken("HC-PREF-02")
def an_answer_waits_twice() -> World:
    world = asking()
    world.do(QueryDone(id="p:1.2", hits=2))
    world.state.storage.answers.append("p:1.2")
    return world


@broken_states.broken("HC-PREF-04")
def a_prefetch_is_open_for_another_request() -> World:
    world = asking()
    world.state.storage.open = {"somebody": "p:1.2"}
    return world


@broken_states.broken("HC-PREF-04")
def a_closed_prefetch_goes_on() -> World:
    world, record = reading()
    world.do(Abort(rid="q"))
    records = world.state.storage.records
    records[record.id] = records[record.id].model_copy(update={"cancelled": False})
    return world


@broken_states.broken("HC-PREF-09")
def the_count_of_pages_asked_for_is_not_lowered() -> World:
    world = asking()
    world.state.storage.occupied += 1
    return world


# -- asking and being answered ----------------------------------------------------------------------------------------


@broken_steps.broken("HC-PREF-03")
def a_match_moves_the_anchor() -> Told:
    world = attached()
    on_host(world, "3")
    on_host(world, "1")
    world.do(Prefetch(rid="q", key=key("12")))
    op, step = world.seen(MatchPrefix(key=key("3")))
    records = world.state.storage.records
    records["p:1.2"] = records["p:1.2"].model_copy(update={"anchor": world.node("3").id})
    for text in ("1", "3"):
        world.model.update_leaf(world.node(text).id)
    return world, op, step


@broken_steps.broken("HC-PREF-05")
def an_answer_is_cut_by_one() -> Told:
    world = asking()
    op, step = world.seen(QueryDone(id="p:1.2", hits=2))
    records = world.state.storage.records
    record = records["p:1.2"]
    records["p:1.2"] = record.model_copy(update={"hashes": record.hashes[:1], "key": record.key[:1]})
    return world, op, step


@broken_steps.broken("HC-PREF-06")
def two_pages_come_in_each_others_place() -> Told:
    world, record = reading()
    op, step = world.seen(ReadDone(id=record.id, pages=2))
    stamp = world.state.pools[HOST].stamp
    first, second = record.pages
    stamp[first], stamp[second] = stamp[second], stamp[first]
    return world, op, step


@broken_steps.broken("HC-PREF-15")
def a_prefetch_tells_a_page_too_many() -> Told:
    world = attached()
    op, step = world.seen(Prefetch(rid="q", key=key("12")))
    return world, op, told(step, pages=3)


@broken_steps.broken("HC-HASH-04")
def a_prefetch_asks_for_pages_of_another_prompt() -> Told:
    world = attached()
    op, step = world.seen(Prefetch(rid="q", key=key("12")))
    records = world.state.storage.records
    hashes = (NOBODY, records["p:1.2"].hashes[1])
    records["p:1.2"] = records["p:1.2"].model_copy(update={"hashes": hashes})
    return world, op, step._replace(effects=(step.effects[0].model_copy(update={"hashes": hashes}),))


@broken_steps.broken("HC-PREF-13")
def what_was_known_is_forgotten() -> Told:
    world, record = reading("123")
    world.do(ReadDone(id=record.id, pages=2), Poll(reads=1))
    op, step = world.seen(MatchPrefix(key=key("1")))
    records = world.state.storage.records
    records[record.id] = records[record.id].model_copy(update={"known": 1})
    return world, op, step


@broken_steps.broken("HC-PREF-13")
def a_batch_is_known_before_its_poll() -> Told:
    world, record = reading("123")
    op, step = world.seen(ReadDone(id=record.id, pages=2))
    records = world.state.storage.records
    records[record.id] = records[record.id].model_copy(update={"known": 2})
    return world, op, step


@broken_steps.broken("HC-PREF-19", "HC-PREF-22")
def a_match_closes_a_prefetch() -> Told:
    world = asking()
    op, step = world.seen(MatchPrefix(key=key("1")))
    storage = world.state.storage
    world.model._close("p:1.2")
    assert not storage.open
    return world, op, step


@broken_steps.broken("HC-PREF-17")
def a_late_answer_is_taken() -> Told:
    world = asking()
    world.do(QueryDone(id="p:1.2", hits=2))
    return world, QueryDone(id="p:1.2", hits=1), Step(Done())


# -- going on ---------------------------------------------------------------------------------------------------------


@broken_steps.broken("HC-PREF-10")
def a_request_goes_on_too_early() -> Told:
    world = asking()
    op, step = world.seen(Progress(rid="q"))
    return world, op, told(step, done=True)


@broken_steps.broken("HC-PREF-11")
def an_abort_leaves_a_number_to_be_told() -> Told:
    world = asking()
    op, step = world.seen(Abort(rid="q"))
    world.state.storage.loaded["q"] = 1
    return world, op, step


@broken_steps.broken("HC-PREF-12")
def a_request_is_told_a_page_too_many() -> Told:
    world = attached()
    op, step = world.seen(Progress(rid="q"))
    return world, op, told(step, loaded=1)


@broken_steps.broken("HC-PREF-07")
def a_commit_leaves_the_last_page_out() -> Told:
    world, record = reading()
    world.do(ReadDone(id=record.id, pages=2))
    hang = world.model._hang

    def all_but_the_last(anchor: Node, committed: PrefetchQueued, pages: tuple[int, ...]) -> int:
        world.model.release(HOST, pages[1:])
        return hang(anchor, committed, pages[:1])

    world.model._hang = all_but_the_last  # type: ignore[method-assign]
    return world, *world.seen(Poll(reads=1))


@broken_steps.broken("HC-PREF-20")
def a_page_that_another_rank_lacks_is_free_at_once() -> Told:
    world, record = reading(prefetch_commit="progress", give_back="queued")
    world.do(ReadDone(id=record.id, pages=2), Poll(reads=1))
    world.model._give_up = lambda pages: world.model.release(HOST, pages)  # type: ignore[method-assign]
    return world, *world.seen(Progress(rid="q", agreed=1))


@broken_steps.broken("HC-PREF-21")
def a_commit_leaves_its_anchor_as_old_as_it_was() -> Told:
    world = attached(commit_stamps_anchor=True, prefetch_commit="progress")
    on_host(world, "1")
    world.do(Prefetch(rid="q", key=key("12")), QueryDone(id="p:1.2", hits=1), Poll(answers=1))
    world.do(ReadDone(id="p:1.2", pages=1), Poll(reads=1))
    world.model._had_pages = lambda record: False  # type: ignore[method-assign]
    return world, *world.seen(Progress(rid="q"))


@broken_steps.broken("HC-PREF-22")
def storage_is_told_to_stop_what_goes_on() -> Told:
    world = asking()
    op, step = world.seen(MatchPrefix(key=key("1")))
    return world, op, step._replace(effects=(StorageCancel(id="p:1.2"),))


# -- told to stop -----------------------------------------------------------------------------------------------------


@broken_steps.broken("HC-PREF-22")
def storage_is_told_twice_to_stop() -> Told:
    world = asking()
    world.do(Terminate(rid="q"))
    op, step = world.seen(Abort(rid="q"))
    return world, op, step._replace(effects=(StorageCancel(id="p:1.2"),))


@broken_steps.broken("HC-PREF-23")
def a_terminate_leaves_no_mark() -> Told:
    world = asking()
    op, step = world.seen(Terminate(rid="q"))
    records = world.state.storage.records
    records["p:1.2"] = records["p:1.2"].model_copy(update={"cancelled": False})
    return world, op, step


@broken_steps.broken("HC-PREF-19", "HC-PREF-23")
def a_terminate_gives_up_what_was_read() -> Told:
    world, record = reading("123")
    world.do(ReadDone(id=record.id, pages=2), Poll(reads=1))
    op, step = world.seen(Terminate(rid="q"))
    world.model._give_up(world.model._close(record.id))
    return world, op, step


@broken_steps.broken("HC-PREF-23")
def a_match_has_a_prefetch_stop() -> Told:
    world = asking()
    op, step = world.seen(MatchPrefix(key=key("1")))
    records = world.state.storage.records
    records["p:1.2"] = records["p:1.2"].model_copy(update={"cancelled": True})
    return world, op, step


@broken_steps.broken("HC-PREF-06")
def what_comes_after_a_terminate_counts() -> Told:
    world, record = reading("123", prefetch_progress="live")
    world.do(Terminate(rid="q"))
    world.model._counts_no_more = lambda record: False  # type: ignore[method-assign]
    return world, *world.seen(ReadDone(id=record.id, pages=2))


@broken_steps.broken("HC-PREF-10")
def a_request_waits_for_what_was_terminated() -> Told:
    world = asking()
    world.do(Terminate(rid="q"))
    world.model.may_stop = lambda record, now: False  # type: ignore[method-assign]
    return world, *world.seen(Progress(rid="q"))


# -- polls ------------------------------------------------------------------------------------------------------------


@broken_steps.broken("HC-PREF-08")
def a_prefetch_is_revoked_without_cause() -> Told:
    world = asking()
    world.do(QueryDone(id="p:1.2", hits=2))
    world.model.prefetch_threshold = lambda: 3  # type: ignore[method-assign]
    return world, *world.seen(Poll(answers=1))


@broken_steps.broken("HC-PREF-08")
def a_terminated_prefetch_begins_to_read() -> Told:
    world = asking()
    world.do(QueryDone(id="p:1.2", hits=2), Terminate(rid="q"))
    records = world.state.storage.records
    records["p:1.2"] = records["p:1.2"].model_copy(update={"cancelled": False})
    op, step = world.seen(Poll(answers=1))
    records["p:1.2"] = records["p:1.2"].model_copy(update={"cancelled": True})
    return world, op, step


@broken_steps.broken("HC-PREF-14", "HC-EVENT-04")
def what_comes_for_a_closed_prefetch_is_cached() -> Told:
    world, record = reading()
    world.do(Abort(rid="q"), ReadDone(id=record.id, pages=2))

    def hang_all_the_same(name: str) -> None:
        ended = world.state.storage.records.pop(name)
        world.model._hang(world.state.nodes[ROOT], ended, ended.pages)
        world.state.storage.believed.update(ended.hashes)

    world.model._retire = hang_all_the_same  # type: ignore[method-assign]
    return world, *world.seen(Poll(reads=1))


@broken_steps.broken("HC-PREF-16")
def the_page_that_waited_last_is_freed_first() -> Told:
    world = attached(prefetch_allocation="before")
    world.do(Prefetch(rid="q", key=key("123")), QueryDone(id="p:1.2.3", hits=1))
    world.state.storage.release.reverse()
    return world, *world.seen(Poll(releases=1))


@broken_steps.broken("HC-PREF-18")
def an_answer_is_applied_and_not_told() -> Told:
    world = asking()
    world.do(QueryDone(id="p:1.2", hits=2))
    op, step = world.seen(Poll(answers=1))
    return world, op, told(step, answers=())


def healthy() -> World:
    """A world in which all of this is in order: pages are stored, fetched again, and told."""
    world = World()
    world.do(attach(prefetch_policy="best_effort"))
    backed_up(world, "1")
    world.do(Prefetch(rid="q", key=key("12")), QueryDone(id="p:1.2", hits=1), Poll(answers=1))
    world.do(ReadDone(id="p:1.2", pages=1), Poll(reads=1), Progress(rid="q"))
    return world
