"""One broken step for each requirement that steps are judged by."""

from dataclasses import replace

from hicache_ref.model import Step
from hicache_ref.model.state import Receipt, Request
from hicache_ref.requirements import Checker
from hicache_ref.vocabulary.ids import KV
from hicache_ref.vocabulary.operations import (
    CopyDone,
    Evict,
    EvictHost,
    Forward,
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
from hicache_ref.vocabulary.outcomes import Done, Evicted, Polled, Refused
from tests.properties.breaking import DEVICE, Case, StepCase, World, key, told
from tests.properties.broken_states import backed_up, on_host

Told = tuple[World, Operation, Step]
STEPS: list[Case] = []


def broken(requirement: str, *falls: str):
    """The function makes a step in which this requirement is the weakest broken one."""

    def register(make: StepCase) -> StepCase:
        STEPS.append(Case(requirement, frozenset(falls), make))
        return make

    return register


def cached(text: str = "12", **rules: object) -> World:
    """A world in which the key is cached."""
    world = World(**rules)
    world.insert(text)
    return world


@broken("HC-TREE-04", "HC-MATCH-04")
def a_split_swaps_pages() -> Told:
    world = cached()
    op, step = world.seen(MatchPrefix(key=key("1")))
    upper, lower = world.node("1"), world.node("12")
    upper.at, lower.at = lower.at, upper.at
    pool = world.state.pools[DEVICE]
    for node in (upper, lower):
        (page,) = node.at[DEVICE]
        pool.owner[page], pool.stamp[page] = ("node", node.id), node.hashes[0]
    return world, op, step


@broken("HC-MATCH-01")
def the_last_device_node_is_too_shallow() -> Told:
    world = cached()
    op, step = world.seen(MatchPrefix(key=key("12")))
    return world, op, told(step, last_device_node=key("1"))


@broken("HC-MATCH-02")
def a_match_tells_a_page_too_many() -> Told:
    world = cached()
    op, step = world.seen(MatchPrefix(key=key("12")))
    return world, op, told(step, host_hit=1)


@broken("HC-MATCH-03")
def a_match_is_no_use() -> Told:
    world = cached()
    op, step = world.seen(MatchPrefix(key=key("12")))
    world.node("12").last[KV] = 1
    return world, op, step


@broken("HC-MATCH-05")
def an_insert_uses_the_rest_of_what_it_splits() -> Told:
    world = cached("123")
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    world.node("123").last[KV] = world.state.clock
    return world, op, step


@broken("HC-MATCH-06")
def a_poll_uses_what_was_copied() -> Told:
    world = World()
    backed_up(world, "12")
    op, step = world.seen(Poll())
    world.state.clock += 1
    world.node("12").last[KV] = world.state.clock
    return world, op, step


@broken("HC-EVICT-11")
def an_eviction_names_one_of_two_passes() -> Told:
    world = cached("1")
    world.do(TakePages(rid="r", n=1), TakePages(rid="s", n=1))
    world.do(Forward(rid="r", key=key("12"), start=1), Forward(rid="s", key=key("13"), start=1))
    op, step = world.seen(Evict(n=1))
    return world, op, told(step, wait_for=("f:s",))


@broken("HC-MATCH-04")
def a_match_changes_the_policy() -> Told:
    world = cached()
    op, step = world.seen(MatchPrefix(key=key("12")))
    world.state.policy = "write_back"
    return world, op, step


@broken("HC-INSERT-01")
def an_insert_leaves_a_page_out() -> Told:
    world = World()
    world.write("12")
    _, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    return world, Insert(rid="r", key=key("123"), start=0), step


@broken("HC-INSERT-02")
def an_insert_tells_a_longer_prefix() -> Told:
    world = World()
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    return world, op, told(step, prefix=1)


@broken("HC-INSERT-03")
def the_request_goes_on() -> Told:
    world = World()
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    world.state.requests["r"] = Request(id="r", pages=())
    return world, op, step


@broken("HC-INSERT-04")
def an_insert_leaves_no_priority() -> Told:
    world = World()
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0, priority=2))
    world.node("12").priority = 0
    return world, op, step


@broken("HC-PAGE-10")
def a_request_gets_a_page_less() -> Told:
    world = World()
    _, step = world.seen(TakePages(rid="q", n=1))
    return world, TakePages(rid="q", n=2), step


@broken("HC-PAGE-11")
def a_request_outlives_its_pages() -> Told:
    world = World()
    world.do(TakePages(rid="q", n=1))
    op, step = world.seen(GiveBack(rid="q"))
    world.state.requests["q"] = Request(id="q", pages=())
    return world, op, step


@broken("HC-LOCK-02")
def a_lock_gives_no_receipt() -> Told:
    world = cached()
    _, step = world.seen(MatchPrefix(key=key("12")))
    return world, Lock(receipt="l", key=key("12")), step._replace(outcome=Done(evictable=0))


@broken("HC-LOCK-06")
def a_second_lock_tells_what_the_first_has_pinned() -> Told:
    world = cached()
    world.do(Lock(receipt="first", key=key("12")))
    op, step = world.seen(Lock(receipt="second", key=key("12")))
    return world, op, told(step, evictable=-2)


@broken("HC-LOCK-02")
def a_lock_pins_a_node_that_goes_on_where_the_match_ends() -> Told:
    world = cached()
    _, step = world.seen(Lock(receipt="l", key=key("12")))
    return world, Lock(receipt="l", key=key("1")), step


@broken("HC-LOCK-03", "HC-XFER-12", "HC-EVENT-01")
def a_locked_node_is_demoted_by_a_poll() -> Told:
    world = World()
    backed_up(world, "12")
    world.do(Lock(receipt="l", key=key("12")))
    world.strip(world.node("12"), DEVICE)
    return world, Poll(), Step(Polled())


@broken("HC-EVICT-01")
def a_parent_is_evicted_before_its_child() -> Told:
    world = cached("1")
    world.insert("12", start=1)
    op, step = world.seen(Evict(n=2))
    return world, op, step._replace(victims=step.victims[::-1])


@broken("HC-EVICT-02")
def the_latest_is_evicted_first() -> Told:
    world = cached("1")
    world.insert("2")
    world.model.rules = world.model.rules.model_copy(update={"eviction": "mru"})
    return world, *world.seen(Evict(n=1))


@broken("HC-EVICT-03")
def an_eviction_tells_too_much() -> Told:
    world = cached()
    op, step = world.seen(Evict(n=2))
    return world, op, told(step, freed=3)


@broken("HC-EVICT-04", "HC-EVICT-01")
def a_pinned_host_node_is_evicted() -> Told:
    world = World(lock_evicted="count")
    on_host(world, "12")
    world.do(Lock(receipt="l", key=key("12"), at="best"))
    world.unseen(Unlock(receipt="l"))
    return world, *world.seen(EvictHost(n=1))


@broken("HC-EVICT-05", "HC-BACKUP-04", "HC-XFER-08", "HC-EVENT-01")
def a_node_is_demoted_although_its_copy_failed() -> Told:
    world = cached("1", write_policy="write_back")
    (page,) = world.node("1").at[DEVICE]
    op, step = world.seen(Evict(n=1))
    world.state.tickets.clear()
    world.release(DEVICE, (page,))
    world.model.update_leaf(world.node("1").id)
    return world, op, step._replace(outcome=Evicted(freed=1))


@broken("HC-EVICT-06")
def a_node_is_evicted_for_a_request_that_is_refused() -> Told:
    world = cached()
    step = world.unseen(Evict(n=2))
    return world, TakePages(rid="q", n=9), step._replace(outcome=Refused(why="device full"))


@broken("HC-EVICT-07")
def one_node_more_is_evicted() -> Told:
    world = cached("1")
    world.insert("2")
    _, step = world.seen(Evict(n=2))
    return world, Evict(n=1), step


@broken("HC-EVICT-08")
def a_request_is_refused_beside_a_leaf() -> Told:
    world = cached("12")
    return world, TakePages(rid="q", n=6), Step(Refused(why="device full"))


@broken("HC-EVICT-09")
def write_back_drops_beside_free_host_pages() -> Told:
    world = cached("1", write_policy="write_back")
    world.state.policy = "write_through"
    op, step = world.seen(Evict(n=1))
    world.state.policy = "write_back"
    return world, op, step


@broken("HC-BACKUP-02")
def a_child_is_backed_up_before_its_parent() -> Told:
    world = cached("1")
    world.insert("12", start=1)
    op, step = world.seen(WriteBackup(key=key("12")))
    return world, op, told(step, tickets=("h:1.2", "h:1"))._replace(effects=step.effects[::-1])


@broken("HC-BACKUP-03")
def a_backup_does_not_pin() -> Told:
    world = cached("1")
    op, step = world.seen(WriteBackup(key=key("1")))
    world.state.tickets["h:1"] = replace(world.state.tickets["h:1"], pins=())
    world.lock(world.node("1"), 0)
    return world, op, step


@broken("HC-BACKUP-05")
def a_hit_is_counted_twice() -> Told:
    world = World()
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    world.node("12").hits += 1
    return world, op, step


@broken("HC-EVICT-10")
def a_use_is_counted_twice() -> Told:
    world = World()
    world.write("12")
    op, step = world.seen(Insert(rid="r", key=key("12"), start=0))
    world.node("12").uses += 1
    return world, op, step


@broken("HC-BACKUP-06")
def a_poll_takes_a_pin_of_somebody_else() -> Told:
    world = cached("1")
    world.do(WriteBackup(key=key("1")), Lock(receipt="l", key=key("1")), CopyDone(ticket="h:1"))
    op, step = world.seen(Poll(backups=1))
    world.state.receipts["l"] = Receipt(id="l", pins=())
    world.lock(world.node("1"), 0)
    return world, op, step


@broken("HC-LOAD-01", "HC-CONF-10")
def a_refused_load_leaves_a_lock() -> Told:
    world = World(device=1)
    on_host(world, "1")
    world.do(TakePages(rid="q", n=1))
    op, step = world.seen(LoadBack(key=key("1")))
    node = world.node("1")
    world.state.receipts["l"] = Receipt(id="l", pins=((KV, node.id),))
    world.lock(node, 1)
    return world, op, step


@broken("HC-LOAD-03")
def a_load_tells_a_page_too_many() -> Told:
    world = World()
    on_host(world, "12")
    op, step = world.seen(LoadBack(key=key("12")))
    return world, op, told(step, pages=3)


@broken("HC-LOAD-04")
def a_load_is_below_the_threshold() -> Told:
    world = World()
    on_host(world, "12")
    sizes = world.profile.sizes.model_copy(update={"load_back_threshold": 3})
    world.checker = Checker(world.profile.model_copy(update={"sizes": sizes}))
    world.checker.start(world.state)
    return world, *world.seen(LoadBack(key=key("12")))
