"""One broken state for each requirement that states are judged by."""

from dataclasses import replace

from hicache_ref.model.state import Receipt
from hicache_ref.vocabulary.ids import KV
from hicache_ref.vocabulary.operations import (
    CopyDone,
    Evict,
    LoadBack,
    Lock,
    MatchPrefix,
    TakePages,
    WriteBackup,
)
from tests.properties.breaking import DEVICE, HOST, Case, StateCase, World, key

ALWAYS: list[Case] = []
EVENTUALLY: list[Case] = []


def broken(requirement: str, *falls: str, cases: list[Case] = ALWAYS):
    """The function makes a state in which this requirement is the weakest broken one."""

    def register(make: StateCase) -> StateCase:
        cases.append(Case(requirement, frozenset(falls), make))
        return make

    return register


def quiet(requirement: str, *falls: str):
    """As `broken`, for what must hold where nothing is pending."""
    return broken(requirement, *falls, cases=EVENTUALLY)


def backed_up(world: World, text: str, start: int = 0) -> None:
    """The key is on both tiers."""
    world.insert(text, start=start)
    world.do(WriteBackup(key=key(text)))
    world.settle()


def on_host(world: World, text: str) -> None:
    """The key is on host only."""
    backed_up(world, text)
    world.do(Evict(n=len(text)))


@broken("HC-PAGE-01", "HC-PAGE-08", "HC-PAGE-09")
def a_page_of_a_node_is_in_the_free_list() -> World:
    world = World()
    world.state.pools[DEVICE].free.append(world.insert("12").at[DEVICE][0])
    return world


@broken("HC-PAGE-02", "HC-PAGE-05", "HC-PAGE-09")
def a_device_page_is_in_no_list() -> World:
    world = World()
    world.state.pools[DEVICE].free.pop()
    return world


@broken("HC-PAGE-03", "HC-PAGE-05", "HC-PAGE-09")
def a_host_page_is_in_no_list() -> World:
    world = World()
    world.state.pools[HOST].free.pop()
    return world


@broken("HC-PAGE-04", "HC-PAGE-05")
def a_page_stays_with_an_operation_that_is_over() -> World:
    world = World(write_policy="write_back")
    (page,) = world.insert("1").at[DEVICE]
    world.do(Evict(n=1))
    world.state.pools[DEVICE].owner[page] = ("op", "h:9")
    return world


@broken("HC-PAGE-05")
def the_owner_map_names_another_node() -> World:
    world = World()
    world.insert("2")
    (page,) = world.insert("1").at[DEVICE]
    world.state.pools[DEVICE].owner[page] = ("node", world.node("2").id)
    return world


@broken("HC-PAGE-06")
def two_device_pages_are_swapped() -> World:
    world = World()
    first, second = world.insert("12").at[DEVICE]
    stamp = world.state.pools[DEVICE].stamp
    stamp[first], stamp[second] = stamp[second], stamp[first]
    return world


@broken("HC-PAGE-07")
def two_host_pages_are_swapped() -> World:
    world = World()
    backed_up(world, "12")
    first, second = world.node("12").at[HOST]
    stamp = world.state.pools[HOST].stamp
    stamp[first], stamp[second] = stamp[second], stamp[first]
    return world


@broken("HC-PAGE-08")
def a_free_page_holds_something() -> World:
    world = World()
    world.state.pools[HOST].stamp[0] = "0" * 64
    return world


@broken("HC-PAGE-09")
def the_evictable_sum_drifts() -> World:
    world = World()
    world.insert("12")
    world.state.evictable += 1
    return world


@broken("HC-TREE-01")
def a_child_is_filed_under_another_page() -> World:
    world = World()
    world.insert("12")
    children = world.state.nodes[0].children
    children[None, (7,)] = children.pop((None, (1,)))
    return world


@broken("HC-TREE-02", "HC-HASH-01")
def a_node_has_a_hash_too_many() -> World:
    world = World()
    world.insert("12").hashes += ("0" * 64,)
    return world


@broken("HC-TREE-03")
def a_node_has_no_copy() -> World:
    world = World()
    world.strip(world.insert("12"), DEVICE)
    return world


@broken("HC-TREE-05")
def a_path_changes_its_namespace() -> World:
    world = World()
    upper = world.insert("1")
    lower = world.insert("12", start=1)
    lower.extra = "a"
    upper.children = {("a", (2,)): lower.id}
    return world


@broken("HC-TREE-06")
def a_resident_node_hangs_below_one_on_host() -> World:
    world = World()
    backed_up(world, "1")
    world.insert("12", start=1)
    world.strip(world.node("1"), DEVICE)
    return world


@broken("HC-LOCK-01")
def a_lock_count_has_no_receipt() -> World:
    world = World()
    world.lock(world.insert("12"), 1)
    return world


@broken("HC-LOCK-04")
def a_node_is_locked_and_its_parent_is_not() -> World:
    world = World()
    world.insert("1")
    lower = world.insert("12", start=1)
    world.state.receipts["l"] = Receipt(id="l", pins=((KV, lower.id),))
    world.lock(lower, 1)
    return world


@broken("HC-LOCK-05")
def a_receipt_names_a_node_that_has_left() -> World:
    world = World()
    world.state.receipts["l"] = Receipt(id="l", pins=((KV, 9),))
    return world


@broken("HC-LEAF-01")
def a_device_leaf_is_forgotten() -> World:
    world = World()
    world.insert("12")
    world.state.device_leaves.clear()
    return world


@broken("HC-LEAF-02")
def a_host_leaf_is_forgotten() -> World:
    world = World()
    on_host(world, "12")
    world.state.host_leaves.clear()
    return world


@broken("HC-LEAF-03", "HC-LEAF-02")
def a_node_is_in_both_leaf_sets() -> World:
    world = World()
    world.state.host_leaves.add(world.insert("12").id)
    return world


@broken("HC-BACKUP-01")
def the_backed_up_prefix_has_a_gap() -> World:
    world = World()
    backed_up(world, "1")
    backed_up(world, "12", start=1)
    world.strip(world.node("1"), HOST)
    return world


@broken("HC-BACKUP-04", "HC-XFER-08")
def a_host_page_was_never_written() -> World:
    world = World()
    backed_up(world, "12")
    world.state.pools[HOST].stamp[world.node("12").at[HOST][1]] = None
    return world


@broken("HC-LOAD-02", "HC-LOAD-05")
def the_sources_of_a_load_are_not_pinned() -> World:
    world = World()
    on_host(world, "12")
    world.do(LoadBack(key=key("12")))
    world.state.tickets["d:1.2"] = replace(world.state.tickets["d:1.2"], pins=())
    world.lock(world.node("12"), 0)
    return world


@broken("HC-LOAD-05")
def what_is_above_the_target_of_a_load_is_not_pinned() -> World:
    world = World()
    backed_up(world, "1")
    backed_up(world, "12", start=1)
    world.do(Evict(n=1), LoadBack(key=key("12")), Lock(receipt="l", key=key("1")))
    ticket = world.state.tickets["d:1.2"]
    world.state.tickets["d:1.2"] = replace(ticket, pins=((KV, world.node("12").id),))
    world.lock(world.node("1"), 1)
    return world


@broken("HC-XFER-01", "HC-XFER-05")
def a_page_under_a_copy_is_free() -> World:
    world = World(write_policy="write_back")
    pages = world.insert("1").at[DEVICE]
    world.do(Evict(n=1))
    world.release(DEVICE, pages)
    return world


@broken("HC-XFER-05")
def a_copy_is_doomed_for_nothing() -> World:
    world = World()
    world.insert("1")
    world.do(WriteBackup(key=key("1")))
    world.state.tickets["h:1"] = replace(world.state.tickets["h:1"], doomed=True)
    return world


@broken("HC-XFER-08")
def nothing_will_write_a_device_page() -> World:
    world = World()
    world.state.pools[DEVICE].stamp[world.insert("12").at[DEVICE][1]] = None
    return world


@broken("HC-XFER-09")
def two_copies_write_one_page() -> World:
    world = World(write_policy="write_back")
    world.insert("1")
    world.do(Evict(n=1))
    world.state.tickets["h:9"] = replace(world.state.tickets["h:1"], id="h:9")
    world.state.pools[DEVICE].owner = [
        ("op", "h:9") if owner[0] == "op" else owner for owner in world.state.pools[DEVICE].owner
    ]
    return world


@broken("HC-HASH-01")
def a_hash_is_not_the_chain() -> World:
    world = World()
    node = world.insert("1")
    node.hashes = ("0" * 64,)
    world.state.pools[DEVICE].stamp[node.at[DEVICE][0]] = node.hashes[0]
    return world


@broken("HC-HASH-02", "HC-HASH-01")
def two_namespaces_share_a_hash() -> World:
    world = World()
    node = world.insert("1", extra="a")
    node.hashes = world.insert("1").hashes
    world.state.pools[DEVICE].stamp[node.at[DEVICE][0]] = node.hashes[0]
    return world


@broken("HC-CONF-06")
def a_pool_lacks_contents() -> World:
    world = World()
    world.state.pools[HOST].stamp.append(None)
    return world


@quiet("HC-LIFE-01")
def a_copy_is_still_on_the_books() -> World:
    world = World()
    world.insert("1")
    world.do(WriteBackup(key=key("1")), CopyDone(ticket="h:1"))
    return world


@quiet("HC-LIFE-03")
def a_page_can_never_be_freed() -> World:
    world = World()
    world.state.pools[DEVICE].free.pop()
    return world


@quiet("HC-LIFE-04")
def a_cached_page_is_not_written() -> World:
    world = World()
    world.state.pools[DEVICE].stamp[world.insert("1").at[DEVICE][0]] = None
    return world


@quiet("HC-LIFE-05")
def there_is_no_leaf_to_evict() -> World:
    world = World()
    world.insert("1")
    world.state.device_leaves.clear()
    return world


def healthy() -> World:
    """A world in which all of this is in order."""
    world = World()
    on_host(world, "12")
    world.insert("34")
    world.do(MatchPrefix(key=key("1")), Lock(receipt="l", key=key("34")), LoadBack(key=key("1")))
    world.do(TakePages(rid="q", n=1))
    return world
