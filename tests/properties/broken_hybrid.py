"""Broken states and steps of a hybrid model: recurrent state beside the KV."""

from dataclasses import replace

from hicache_ref.model import Step
from hicache_ref.model.state import Node, Receipt, Request
from hicache_ref.vocabulary.ids import KV, STATE, STATE_DEVICE, STATE_HOST
from hicache_ref.vocabulary.operations import (
    CopyDone,
    CopyFailed,
    Evict,
    EvictHostState,
    EvictState,
    Forward,
    GiveBack,
    Insert,
    LoadBack,
    Lock,
    MatchPrefix,
    Poll,
    TakePages,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import Refused
from tests.properties import broken_states
from tests.properties.breaking import DEVICE, HOST, World, key, told
from tests.properties.broken_states import backed_up
from tests.properties.broken_steps import STEPS, Told, broken, cached
from tests.properties.broken_storage import attach

__all__ = ["STEPS"]


def always(requirement: str, *falls: str):
    """The function makes a state in which this requirement is the weakest broken one."""
    return broken_states.broken(requirement, *falls)


@broken("HC-LOAD-04")
def a_load_is_refused_beside_a_state_that_could_go() -> Told:
    world = hybrid()
    world.do(WriteBackup(key=key("12")))
    world.settle()
    world.do(Evict(n=2))
    for number, text in enumerate("3456"):
        world.write(text, rid=f"r{number}")
    world.do(Insert(rid="r0", key=key("3"), start=0))
    return world, LoadBack(key=key("12")), Step(Refused(why="no state slot"))


@broken("HC-EVICT-08")
def a_request_is_refused_beside_a_state_that_could_go() -> Told:
    world = hybrid()
    for number, text in enumerate("345"):
        world.write(text, rid=f"r{number}")
    return world, TakePages(rid="q", n=1), Step(Refused(why="no state slot"))


@broken("HC-EVICT-11")
def a_request_without_a_slot_is_told_of_one_pass_of_two() -> Told:
    world = World(state=True)
    for number, text in enumerate("1234"):
        rid = f"r{number}"
        world.do(TakePages(rid=rid, n=1), Forward(rid=rid, key=key(text), start=0))
    world.do(GiveBack(rid="r0"), GiveBack(rid="r1"))
    op, step = world.seen(TakePages(rid="q", n=1))
    return world, op, told(step, wait_for=("f:r1",))


def hybrid() -> World:
    """A world of a hybrid model in which `12` is cached, with its state."""
    return cached("12", state=True)


def on_both_tiers(**rules: object) -> World:
    """`12` and its state are on device and on host."""
    world = World(state=True, **rules)
    backed_up(world, "12")
    return world


def tombstone() -> World:
    """`12` lost its state, and `123` below it has one."""
    world = hybrid()
    world.insert("123", start=2)
    world.do(EvictState(n=1))
    return world


def pinned(world: World, node: Node, *components: str) -> None:
    """A receipt names these components of the node; lock counts are as they were."""
    world.state.receipts["l"] = Receipt(id="l", pins=tuple((each, node.id) for each in components))


# -- states -----------------------------------------------------------------------------------------------------------


@always("HC-STATE-01")
def a_state_is_left_without_its_kv() -> World:
    world = on_both_tiers()
    node = world.node("12")
    world.strip(node, DEVICE)
    world.model.update_leaf(node.id)
    return world


@always("HC-STATE-05")
def a_node_has_two_slots() -> World:
    world = hybrid()
    node = world.node("12")
    (slot,) = node.at[STATE_DEVICE]
    spare = world.state.pools[STATE_DEVICE].free[0]
    world.hold(node, STATE_DEVICE, (spare,))
    node.at[STATE_DEVICE] = (slot, spare)
    return world


@always("HC-PAGE-06")
def a_state_on_device_is_of_another_position() -> World:
    world = hybrid()
    world.state.pools[STATE_DEVICE].stamp[world.node("12").at[STATE_DEVICE][0]] = world.node("12").hashes[0]
    return world


@always("HC-PAGE-07")
def a_state_on_host_is_of_another_position() -> World:
    world = on_both_tiers()
    world.state.pools[STATE_HOST].stamp[world.node("12").at[STATE_HOST][0]] = world.node("12").hashes[0]
    return world


@always("HC-LOAD-02")
def the_state_that_a_load_reads_is_moved() -> World:
    world = on_both_tiers()
    backed_up(world, "34")
    world.do(Evict(n=2), LoadBack(key=key("12")))
    other = world.node("34")
    world.strip(other, STATE_HOST)
    slots = other.at[STATE_HOST] = world.node("12").at.pop(STATE_HOST)
    pool = world.state.pools[STATE_HOST]
    pool.owner[slots[0]], pool.stamp[slots[0]] = ("node", other.id), other.hashes[-1]
    return world


@always("HC-STATE-06")
def a_state_lock_has_no_receipt() -> World:
    world = hybrid()
    node = world.node("12")
    pinned(world, node, KV)
    world.lock(node, 1)
    node.locks[STATE] = 1
    return world


@always("HC-STATE-07")
def a_leaf_without_state_stays() -> World:
    world = hybrid()
    world.strip(world.node("12"), STATE_DEVICE)
    return world


@always("HC-STATE-17")
def the_slot_of_a_request_is_of_another_position() -> World:
    world = hybrid()
    world.write("34")
    (slot,) = world.state.requests["r"].state
    world.state.pools[STATE_DEVICE].stamp[slot] = world.node("12").hashes[-1]
    return world


@always("HC-STATE-22")
def a_state_is_locked_and_its_kv_is_not() -> World:
    world = hybrid()
    node = world.node("12")
    pinned(world, node, STATE)
    node.locks[STATE] = 1
    return world


@always("HC-STATE-25")
def a_pass_changes_the_state_of_a_node() -> World:
    world = hybrid()
    world.do(TakePages(rid="r", n=1), Forward(rid="r", key=key("3"), start=0))
    running = world.state.passes["r"]
    world.state.passes["r"] = replace(running, state=world.node("12").at[STATE_DEVICE])
    return world


# -- steps ------------------------------------------------------------------------------------------------------------


@broken("HC-STATE-02")
def the_upper_half_of_a_split_has_a_state() -> Told:
    world = hybrid()
    world.write("13")
    op, step = world.seen(Insert(rid="r", key=key("13"), start=0))
    world.hold(world.node("1"), STATE_DEVICE, world.state.pools[STATE_DEVICE].free[:1])
    return world, op, step


@broken("HC-STATE-03", "HC-MATCH-02")
def a_match_ends_at_a_tombstone() -> Told:
    world = tombstone()
    op, step = world.seen(MatchPrefix(key=key("12")))
    end = {"device": world.node("12").at[DEVICE], "last_device_node": key("12"), "best": key("12")}
    return world, op, told(step, **end)


@broken("HC-STATE-04")
def a_branching_length_is_told_where_there_is_none() -> Told:
    world = hybrid()
    op, step = world.seen(MatchPrefix(key=key("12")))
    return world, op, told(step, branching=2)


@broken("HC-STATE-08", "HC-STATE-07")
def a_leaf_is_demoted_without_its_state() -> Told:
    world = on_both_tiers()
    op, step = world.seen(Evict(n=2))
    world.strip(world.node("12"), STATE_HOST)
    return world, op, step


@broken("HC-STATE-09")
def an_eviction_of_states_tells_too_much() -> Told:
    world = hybrid()
    op, step = world.seen(EvictState(n=1))
    return world, op, told(step, freed=2)


@broken("HC-STATE-10")
def room_is_made_from_what_is_copied() -> Told:
    world = hybrid()
    op, step = world.seen(WriteBackup(key=key("12")))
    (slot,) = world.node("12").at.pop(STATE_HOST)
    world.state.pools[STATE_HOST].owner[slot] = ("op", "h:1.2")
    return world, op, step


@broken("HC-STATE-11", "HC-XFER-12")
def a_failed_state_costs_the_kv() -> Told:
    world = hybrid()
    world.do(WriteBackup(key=key("12")), CopyFailed(ticket="h:1.2", first_failed=1))
    op, step = world.seen(Poll(backups=1))
    world.model.events = []
    world.model.lose_host(world.node("12"))
    return world, op, step._replace(events=(*step.events, *world.model.events))


@broken("HC-STATE-12", "HC-CONF-10")
def a_refused_request_is_there() -> Told:
    world = hybrid()
    op, step = world.seen(TakePages(rid="q", n=9))
    world.state.requests["q"] = Request(id="q", pages=())
    return world, op, step


@broken("HC-STATE-13")
def a_state_is_copied_for_who_begins_anew() -> Told:
    world = hybrid()
    _, step = world.seen(TakePages(rid="q", n=1, prefix=key("12")))
    return world, TakePages(rid="q", n=1), step


@broken("HC-XFER-13")
def a_load_may_fail_from_which_a_request_has_its_state() -> Told:
    world = on_both_tiers(state_copy="blocking")
    world.do(Evict(n=2), LoadBack(key=key("12")))
    op, step = world.seen(TakePages(rid="q", n=1, prefix=key("12")))
    world.state.tickets["d:1.2"] = replace(world.state.tickets["d:1.2"], sure=0)
    return world, op, step


@broken("HC-STORE-02")
def a_state_is_owed_and_not_offered() -> Told:
    world = World(state=True)
    world.do(attach())
    world.insert("12")
    world.do(WriteBackup(key=key("12")), CopyDone(ticket="h:1.2"))
    op, step = world.seen(Poll(backups=1))
    (write,) = world.state.storage.records.values()
    world.state.storage.records[write.id] = write.model_copy(update={"states": (), "ends": ()})
    return world, op, step


@broken("HC-STATE-14")
def a_pass_begins_on_the_state_of_another_position() -> Told:
    world = hybrid()
    world.do(TakePages(rid="q", n=1))
    (slot,) = world.state.requests["q"].state
    stamp = world.state.pools[STATE_DEVICE].stamp
    stamp[slot] = world.node("12").hashes[-1]
    world.checker.start(world.state)
    stamp[slot] = None
    return world, *world.seen(Forward(rid="q", key=key("3"), start=0))


@broken("HC-STATE-15")
def an_insert_tells_of_a_state_that_was_not_there() -> Told:
    world = World(state=True)
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    return world, op, told(step, state_existed=True)


@broken("HC-STATE-16")
def a_receipt_forgets_the_state() -> Told:
    world = hybrid()
    op, step = world.seen(Lock(receipt="l", key=key("12")))
    node = world.node("12")
    pinned(world, node, KV)
    node.locks[STATE] = 0
    return world, op, step


@broken("HC-STATE-18")
def a_load_leaves_the_state_out() -> Told:
    world = on_both_tiers()
    world.do(Evict(n=2))
    op, step = world.seen(LoadBack(key=key("12")))
    return world, op, without_state(step)


@broken("HC-STATE-19")
def a_backup_leaves_the_state_out() -> Told:
    world = hybrid()
    op, step = world.seen(WriteBackup(key=key("12")))
    return world, op, without_state(step)


@broken("HC-STATE-20")
def an_inner_node_gets_other_kv_with_its_eviction() -> Told:
    world = on_both_tiers()
    world.insert("123", start=2)
    op, step = world.seen(EvictHostState(n=1))
    node = world.node("12")
    world.strip(node, HOST)
    world.hold(node, HOST, tuple(world.state.pools[HOST].free[:2]))
    return world, op, step


@broken("HC-STATE-26")
def a_state_goes_uncopied_by_another_rule() -> Told:
    world = World(state=True, write_policy="write_back")
    world.insert("12")
    world.insert("123", start=2)
    world.model.rules = world.model.rules.model_copy(update={"write_back_states": "lost"})
    op, step = world.seen(EvictState(n=1))
    return world, op, step


@broken("HC-STATE-23")
def a_locked_state_is_taken() -> Told:
    world = hybrid()
    world.do(Lock(receipt="l", key=key("12")))
    op, step = world.seen(TakePages(rid="q", n=1))
    world.strip(world.node("12"), STATE_DEVICE)
    return world, op, step


@broken("HC-STATE-24")
def a_match_is_no_use_of_the_state() -> Told:
    world = hybrid()
    op, step = world.seen(MatchPrefix(key=key("12")))
    world.node("12").last[STATE] = 1
    return world, op, step


def without_state(step: Step) -> Step:
    """The step asks for the same copy, the state left out."""
    (effect,) = step.effects
    kv = tuple(part for part in effect.parts if part.component == KV)
    return step._replace(effects=(effect.model_copy(update={"parts": kv}),))


def healthy() -> World:
    """A world in which states were copied both ways, evicted, and loaded for a request."""
    world = on_both_tiers()
    world.insert("123", start=2)
    world.do(MatchPrefix(key=key("12")), EvictState(n=1), EvictState(n=1), LoadBack(key=key("12"), rid="q"))
    world.do(CopyDone(ticket="d:1.2"), Poll(loads=1), TakePages(rid="q", n=1))
    world.do(Forward(rid="q", key=key("124"), start=2), Lock(receipt="l", key=key("12")))
    return world
