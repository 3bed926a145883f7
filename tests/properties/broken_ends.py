"""More broken steps: ends of copies, events, answers and resets."""

from dataclasses import replace

from hicache_ref.model import Step
from hicache_ref.requirements import Checker
from hicache_ref.vocabulary.events import BlockRemoved, BlockStored
from hicache_ref.vocabulary.operations import (
    Audit,
    CopyDone,
    CopyFailed,
    Evict,
    Forward,
    ForwardDone,
    Insert,
    LoadBack,
    MatchPrefix,
    Poll,
    RegisterDraft,
    Reset,
    SetWritePolicy,
    TakePages,
    Unlock,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import Done, Invalid, Polled
from tests.properties.breaking import DEVICE, HOST, World, key, told
from tests.properties.broken_states import backed_up, on_host
from tests.properties.broken_steps import STEPS, Told, broken, cached

__all__ = ["STEPS"]


@broken("HC-XFER-02")
def an_ended_copy_is_not_applied() -> Told:
    world = cached("1")
    world.do(WriteBackup(key=key("1")), CopyDone(ticket="h:1"))
    _, step = world.seen(Poll())
    return world, Poll(backups=1), step


@broken("HC-XFER-03")
def a_load_does_not_wait_for_its_source() -> Told:
    world = cached("1", write_policy="write_back")
    world.do(Evict(n=1))
    op, step = world.seen(LoadBack(key=key("1")))
    (effect,) = step.effects
    return world, op, step._replace(effects=(effect.model_copy(update={"after": ()}),))


@broken("HC-XFER-04", "HC-XFER-10", "HC-XFER-11")
def a_copy_ends_before_its_source_is_written() -> Told:
    world = World()
    world.do(TakePages(rid="r", n=1), Forward(rid="r", key=key("1"), start=0), Insert(rid="r", key=key("1"), start=0))
    world.do(WriteBackup(key=key("1")))
    world.unseen(ForwardDone(rid="r"))
    return world, *world.seen(CopyDone(ticket="h:1"))


@broken("HC-XFER-04")
def a_copy_fails_at_a_part_that_it_does_not_have() -> Told:
    world = World()
    world.insert("1")
    world.do(WriteBackup(key=key("1")))
    step = world.unseen(CopyDone(ticket="h:1"))
    return world, CopyFailed(ticket="h:1", first_failed=1), step


def relied_on() -> World:
    """A load runs, a pass reads what it fills, and a copy of what the pass writes has ended inside an eviction."""
    world = World(write_back_copy="blocking")
    on_host(world, "1")
    world.do(SetWritePolicy(policy="write_back"))
    world.do(LoadBack(key=key("1")), TakePages(rid="r", n=1), Forward(rid="r", key=key("12"), start=1))
    world.do(Insert(rid="r", key=key("12"), start=1))
    return world


@broken("HC-XFER-13")
def a_load_that_was_waited_for_fails() -> Told:
    world = relied_on()
    world.do(Evict(n=1))
    load = world.state.tickets["d:1"]
    world.state.tickets["d:1"] = replace(load, sure=0)
    op, step = world.seen(CopyFailed(ticket="d:1"))
    return world, op, step


@broken("HC-XFER-13")
def a_load_is_not_sure_though_it_was_waited_for() -> Told:
    world = relied_on()
    op, step = world.seen(Evict(n=1))
    world.state.tickets["d:1"] = replace(world.state.tickets["d:1"], sure=0)
    return world, op, step


@broken("HC-XFER-06", "HC-EVENT-01")
def a_node_keeps_what_a_backup_did_not_write() -> Told:
    world = cached("1")
    world.do(WriteBackup(key=key("1")), CopyFailed(ticket="h:1"))
    pages = world.node("1").at[HOST]
    op, step = world.seen(Poll(backups=1))
    world.hold(world.node("1"), HOST, pages)
    return world, op, step


@broken("HC-XFER-07", "HC-EVENT-01")
def a_node_keeps_what_a_load_did_not_write() -> Told:
    world = World()
    on_host(world, "1")
    world.do(LoadBack(key=key("1")), CopyFailed(ticket="d:1"))
    pages = world.node("1").at[DEVICE]
    op, step = world.seen(Poll(loads=1))
    world.hold(world.node("1"), DEVICE, pages)
    world.model.update_leaf(world.node("1").id)
    return world, op, step


@broken("HC-XFER-10")
def a_copy_writes_into_another_page() -> Told:
    world = cached("1")
    pages = world.do(WriteBackup(key=key("1")), TakePages(rid="q", n=1)).outcome.pages
    op, step = world.seen(CopyDone(ticket="h:1"))
    world.state.pools[DEVICE].stamp[pages[0]] = "0" * 64
    return world, op, step


@broken("HC-XFER-11")
def a_pass_is_forgotten() -> Told:
    world = World()
    world.do(TakePages(rid="r", n=1), Forward(rid="r", key=key("1"), start=0))
    world.unseen(ForwardDone(rid="r"))
    return world, Poll(), Step(Polled())


@broken("HC-XFER-12", "HC-EVENT-01")
def a_poll_takes_a_host_copy() -> Told:
    world = World()
    backed_up(world, "1")
    world.strip(world.node("1"), HOST)
    return world, Poll(), Step(Polled())


def inserting() -> Told:
    """A request's page becomes the tree's, and is published."""
    world = World()
    world.write("1")
    return world, *world.seen(Insert(rid="r", key=key("1"), start=0))


@broken("HC-EVENT-01")
def a_page_is_not_published() -> Told:
    world, op, step = inserting()
    return world, op, step._replace(events=())


@broken("HC-EVENT-02")
def a_block_has_a_wrong_parent() -> Told:
    world, op, step = inserting()
    return world, op, step._replace(events=(step.events[0].model_copy(update={"parent_block_hash": 1}),))


@broken("HC-EVENT-03", "HC-EVENT-01")
def a_block_has_a_number_of_its_own() -> Told:
    world, op, step = inserting()
    return world, op, step._replace(events=(step.events[0].model_copy(update={"block_hash": 1}),))


@broken("HC-EVENT-04")
def a_block_is_on_host_for_a_moment() -> Told:
    world, op, step = inserting()
    (stored,) = step.events
    assert isinstance(stored, BlockStored)
    removed = BlockRemoved(block_hash=stored.block_hash, medium="CPU_PINNED")
    events = (stored, stored.model_copy(update={"medium": "CPU_PINNED"}), removed)
    return world, op, step._replace(events=events)


@broken("HC-EVENT-05")
def a_block_is_stored_twice() -> Told:
    world, op, step = inserting()
    removed = BlockRemoved(block_hash=step.events[0].block_hash, medium="GPU")
    return world, op, step._replace(events=(*step.events, *step.events, removed))


@broken("HC-EVENT-07")
def a_silent_cache_publishes() -> Told:
    world, op, step = inserting()
    world.checker = Checker(world.profile.model_copy(update={"events": False}))
    before = World()
    before.write("1")
    world.checker.start(before.state)
    return world, op, step


@broken("HC-CONF-03")
def the_policy_stays() -> Told:
    world = World()
    return world, SetWritePolicy(policy="write_back"), Step(Done())


@broken("HC-CONF-04")
def an_invalid_call_ticks() -> Told:
    world = cached()
    world.state.clock += 1
    return world, Unlock(receipt="l"), Step(Invalid(why="no receipt l"))


@broken("HC-CONF-05")
def an_audit_forgets_a_copy() -> Told:
    world = cached("1")
    world.do(WriteBackup(key=key("1")))
    op, step = world.seen(Audit())
    return world, op, told(step, pending=())


@broken("HC-CONF-10")
def a_refused_call_ticks() -> Told:
    world = World()
    op, step = world.seen(TakePages(rid="q", n=9))
    world.state.clock += 1
    return world, op, step


@broken("HC-CONF-11")
def a_cache_that_is_off_finds_something() -> Told:
    world = cached()
    world.checker = Checker(world.profile.model_copy(update={"enabled": False}))
    world.checker.start(world.state)
    return world, *world.seen(MatchPrefix(key=key("12")))


@broken("HC-LIFE-02")
def a_reset_forgets_the_draft_model() -> Told:
    world = cached()
    world.do(RegisterDraft())
    op, step = world.seen(Reset())
    world.state.draft = False
    return world, op, step


@broken("HC-LIFE-02")
def the_clock_survives_a_reset() -> Told:
    world = cached()
    op, step = world.seen(Reset())
    world.state.clock = 3
    return world, op, step
