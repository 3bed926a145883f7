"""Broken states and steps of states in storage, one for each requirement of STATE there."""

from hicache_ref.model.records import PrefetchEnded
from hicache_ref.vocabulary.ids import STATE_HOST
from hicache_ref.vocabulary.operations import (
    Abort,
    CopyDone,
    Poll,
    Prefetch,
    QueryDone,
    ReadDone,
    TakePages,
    WriteBackup,
    WriteDone,
)
from tests.properties import broken_states, broken_steps
from tests.properties.breaking import World, key
from tests.properties.broken_states import backed_up
from tests.properties.broken_storage import NOBODY, Told, attached, reading, writing


@broken_states.broken("HC-STATE-30")
def a_state_is_owed_that_is_not_on_host() -> World:
    world = attached(state=True)
    world.state.storage.owed_states[NOBODY] = 0
    return world


@broken_states.broken("HC-STATE-34")
def a_state_on_host_is_forgotten() -> World:
    world, _ = writing(state=True)
    world.state.storage.owed_states.clear()
    return world


@broken_states.broken("HC-STATE-35")
def a_write_puts_a_state_under_the_wrong_hash() -> World:
    world, record = writing(state=True)
    world.state.storage.records[record.id] = record.model_copy(update={"ends": (NOBODY,)})
    return world


@broken_steps.broken("HC-STATE-36")
def a_state_that_came_is_not_in_its_slot() -> Told:
    world, record = reading(state=True)
    op, step = world.seen(ReadDone(id=record.id, pages=2, state=True))
    world.state.pools[STATE_HOST].stamp[record.states[0]] = None
    return world, op, step


@broken_steps.broken("HC-STATE-37")
def an_aborted_query_keeps_its_slot() -> Told:
    world = attached(state=True, prefetch_state="submission", unread_slot="given_up")
    world.do(Prefetch(rid="q", key=key("12")))
    world.model._never_gets_a_state = lambda record: False  # type: ignore[method-assign]
    return world, *world.seen(Abort(rid="q"))


@broken_steps.broken("HC-STATE-31", "HC-PREF-07")
def a_state_that_was_not_read_is_hung_up() -> Told:
    world, record = reading(state=True)
    world.do(ReadDone(id=record.id, pages=2, state=True))
    ended = world.state.storage.records[record.id]
    assert isinstance(ended, PrefetchEnded)
    world.state.storage.records[record.id] = ended.model_copy(update={"has_state": False})
    world.checker.start(world.state)
    world.state.storage.records[record.id] = ended
    return world, *world.seen(Poll(reads=1))


@broken_steps.broken("HC-STATE-36")
def a_state_is_put_that_was_not() -> Told:
    world, record = writing(state=True)
    op, step = world.seen(WriteDone(id=record.id, pages=2, states=1))
    ended = world.state.storage.records[record.id]
    world.state.storage.records[record.id] = ended.model_copy(update={"states_done": 0})
    return world, op, step


@broken_steps.broken("HC-STATE-33")
def an_anchor_loses_its_state() -> Told:
    world = attached(state=True)
    backed_up(world, "12")
    world.do(Prefetch(rid="q", key=key("123")))
    op, step = world.seen(TakePages(rid="r", n=1))
    node = world.node("12")
    world.strip(node, STATE_HOST)
    world.state.storage.owed_states.clear()
    (write,) = [each for each in world.state.storage.records.values() if each.id == "b:1.2"]
    world.state.storage.records["b:1.2"] = write.model_copy(update={"states": (), "ends": ()})
    return world, op, step


def healthy() -> World:
    """A world in which `12` was put with its state, `34` fetched with one, and `56` given up for want of one."""
    world = attached(state=True)
    world.insert("12")
    world.do(WriteBackup(key=key("12")), CopyDone(ticket="h:1.2"), Poll(backups=1))
    world.do(WriteDone(id="b:1.2", pages=2, states=1), Poll(writes=1))
    for text, has_state in (("34", True), ("56", False)):
        name = f"p:{'.'.join(text)}"
        world.do(Prefetch(rid="q", key=key(text)), QueryDone(id=name, hits=2), Poll(answers=1))
        world.do(ReadDone(id=name, pages=2, state=has_state), Poll(reads=1))
    return world
