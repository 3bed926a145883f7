"""STATE: the recurrent state of a hybrid model, one slot at the end of a node, beside the node's KV."""

from typing import Any

from hicache_ref.requirements.backup import may_lose_state
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.leaves import is_droppable
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE, Row
from hicache_ref.requirements.sweep import sweep_of
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import ROOT, STATE, STATE_DEVICE, STATE_HOST, TIER, NodeId
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Lock, MatchPrefix, Operation
from hicache_ref.vocabulary.outcomes import Done, Matched, Outcome, Polled

AnyChange = Change[Any, Any]


def row_at(view: View, key: Key) -> Row:
    """The row that ends exactly at the key; the root for an empty one, `NOWHERE` for one at which none ends."""
    hashes = view.hashes_of(key)
    if not hashes:
        return view.root
    row, at = view.where.get(hashes[-1], (NOWHERE, 0))
    return row if row.hashes and at + 1 == len(row.hashes) else NOWHERE


# -- what a node may have -------------------------------------------------------------------------------------------


@always("HC-STATE-01", "nodes")
def state_stands_on_kv(view: View) -> int:
    """A node with a state on a tier has its KV there."""
    judged = 0
    for row in view.rows:
        for tier, state, kv in (("device", row.device_state, row.device), ("host", row.host_state, row.host)):
            judged += state is not None
            if state is not None and kv is None:
                raise Broken.because(f"node {row.id} has a state on {tier}, and no KV there")
    return judged


@always("HC-STATE-05", "nodes")
def one_slot(view: View) -> int:
    """A state is one slot."""
    judged = 0
    for row in view.rows:
        for slots in (row.device_state, row.host_state):
            judged += slots is not None
            if slots is not None and len(slots) != 1:
                raise Broken.because(f"node {row.id} has {len(slots)} slots for one state")
    return judged


@always("HC-STATE-07", "nodes", "storage", "books")
def no_dead_end(view: View) -> int:
    """A leaf of the tree without state on any tier is pinned."""
    if not view.states or view.rules.dead_ends == "stay":
        return 0
    inner, judged = {row.parent for row in view.rows}, 0
    for row in view.rows:
        if row.id in inner:
            continue
        judged += 1
        if not row.has_state and not row.lock and row.id not in view.storage_pins:
            raise Broken.because(f"node {row.id} is a leaf without state, and nothing pins it")
    return judged


# -- locks ----------------------------------------------------------------------------------------------------------


@always("HC-STATE-06", "nodes", "receipts", "books")
def state_counts_are_pins(view: View) -> int:
    """A node's state lock count is the number of receipts and copies that name its state."""
    for row in view.rows:
        if row.state_lock != view.state_pins.get(row.id, 0):
            count = view.state_pins.get(row.id, 0)
            raise Broken.because(f"node {row.id} has state lock count {row.state_lock}, {count} name its state")
    return len(view.state_pins)


@always("HC-STATE-22", "nodes")
def kv_is_locked_with_state(view: View) -> int:
    """A node whose state is locked is locked."""
    locked = [row for row in view.rows if row.state_lock]
    for row in locked:
        if row.lock < row.state_lock:
            raise Broken.because(
                f"the state of node {row.id} is locked {row.state_lock} times, its KV {row.lock} times"
            )
    return len(locked)


@step("HC-STATE-16", "lock")
def lock_names_the_state(change: Change[Lock, Done]) -> int:
    """A receipt names the state of the end that it pins, if there was one on device, and no other state."""
    after = change.after
    if not after.states:
        return 0
    if change.op.at == "node":
        anchor = row_at(after, change.op.key)
    else:
        reach = ends(after, change.hashes)
        end = reach.device if change.op.at == "device" else reach.best
        anchor = after.cached(change.hashes)[end - 1][0] if end else after.root
    while after.rules.lock_evicted == "skip" and anchor.device is None:
        anchor = after.row[anchor.parent]
    on_host = after.rules.lock_evicted == "count" and anchor.host_state is not None
    there = anchor.device_state is not None or on_host or after.rules.lock_state == "to_come"
    wanted = [anchor.id] if anchor.id != ROOT and there else []
    named = [number for component, number in after.receipts[change.op.receipt].pins if component == STATE]
    if named != wanted:
        raise Broken.because(f"receipt {change.op.receipt} names the states of {named}, expected {wanted}")
    return 1


@step("HC-STATE-23", needs="nodes")
def locked_state_stays(change: Change[Operation, Outcome]) -> int:
    """A locked state stays on device; only the failure of a load takes it."""
    judged = 0
    for row in change.before.rows:
        if not row.state_lock or row.device_state is None or change.op.op == "reset":
            continue
        judged += 1
        now = change.after.row.get(row.id, NOWHERE)
        if now.device_state != row.device_state and not _applies_failed_load(change):
            raise Broken.because(f"node {row.id} lost its state on device, and it was locked")
    return judged


def _applies_failed_load(change: Change[Operation, Outcome]) -> bool:
    loads = change.told.loads if isinstance(change.told, Polled) else ()
    return any(change.before.tickets[name].good != len(change.before.tickets[name].parts) for name in loads)


# -- split, match ---------------------------------------------------------------------------------------------------


@step("HC-STATE-02", "match_prefix", "lock", "insert", "progress", "poll")
def split_leaves_state_below(change: AnyChange) -> int:
    """The upper half of a split has no state, and the lower half keeps what it had."""
    before, after = change.before, change.after
    judged = 0
    for number in after.row.keys() - before.row.keys() if after.states else ():
        upper = after.row[number]
        was, at = before.where.get(upper.hashes[-1], (NOWHERE, 0))
        if was is NOWHERE or at + 1 == len(was.hashes):
            continue
        judged += 1
        lower = after.row.get(was.id, NOWHERE)
        mine = change.op.op == "insert" and upper.hashes[-1] == change.hashes[-1]
        mine = mine or (change.op.op in ("progress", "poll") and upper.device_state is None)  # fetched to end there
        if upper.has_state and not mine:
            raise Broken.because(f"node {number}, split off node {was.id}, has a state that is not of its end")
        if change.op.op in ("match_prefix", "lock"):
            had, has = (was.device_state, was.host_state), (lower.device_state, lower.host_state)
            if had != has or lower.state_lock - was.state_lock not in (0, 1):
                raise Broken.because(f"node {was.id} had states {had}, after its split {has}")
    return judged


@step("HC-STATE-03", "match_prefix")
def match_ends_at_states(change: Change[MatchPrefix, Matched]) -> int:
    """The device end and the best end are the root or have a state, on device and on some tier."""
    told, after = change.told, change.after
    if not after.states:
        return 0
    best, device = row_at(after, told.best), row_at(after, told.last_device_node)
    if best is NOWHERE or not (best.id == ROOT or best.has_state):
        raise Broken.because(f"{told.best} is told to be the best end, and there is no state")
    if device is NOWHERE or not (device.id == ROOT or device.device_state is not None):
        raise Broken.because(f"{told.last_device_node} is told to be the device end, and there is no state on device")
    return 1


@step("HC-STATE-04", "match_prefix")
def branching_is_aligned(change: Change[MatchPrefix, Matched]) -> int:
    """The branching length is how far KV is resident beyond the best end, in whole chunks, else 0."""
    before = change.before
    reach = ends(before, change.hashes)
    chunk = before.profile.sizes.state_chunk
    kv = reach.resident if before.rules.branching == "resident" else len(before.cached(change.hashes))
    length = kv // chunk * chunk if before.states else 0
    expected = length if length > reach.best else 0
    if change.told.branching != expected:
        raise Broken.because(f"a branching length of {change.told.branching} is told, expected {expected}")
    return 1


@step("HC-STATE-24", "match_prefix", "lock")
def states_are_used(change: Change[MatchPrefix | Lock, Matched | Done]) -> int:
    """The state at the best end was used in this step, and by the rule `end` no other."""
    before, after = change.before, change.after
    if not after.states or (isinstance(change.op, Lock) and change.op.at == "node"):
        return 0
    end = ends(after, change.hashes).best
    best = after.cached(change.hashes)[end - 1][0] if end else after.root
    stamped = after.rules.host_states == "used" or best.device_state is not None
    if best.id != ROOT and stamped and best.state_last <= before.clock:
        raise Broken.because(f"the state of node {best.id} was last used at {best.state_last}, before this step")
    others = [row for row in after.rows if row is not best and row.state_last > before.clock]
    if others and after.rules.match_stamps_states == "end":
        raise Broken.because(f"the state of node {others[0].id} counts as used, the match ends at node {best.id}")
    return 1


# -- eviction -------------------------------------------------------------------------------------------------------


@step("HC-STATE-09", "evict_state", "evict_host_state", told=("evicted",))
def evicts_enough_states(change: AnyChange) -> int:
    """Enough slots were given up or no state is left that may go, and what is told is what became of them."""
    device = change.op.op == "evict_state"
    at = 0 if device else 1
    was, now = change.before.states[at], change.after.states[at]
    freed, staged = len(now.free) - len(was.free), len(set(now.unheld) - set(was.unheld))
    if (change.told.freed, change.told.staged) != (freed, staged):
        raise Broken.because(
            f"{change.told.freed} slots are told free and {change.told.staged} staged, {freed}, {staged}"
        )
    left = may_lose_state(change.after, STATE_DEVICE if device else STATE_HOST)
    if device:
        below = change.after.below()
        left = [number for number in left if _is_not_kept(change.after, change.after.row[number], below)]
    if freed + staged < change.op.n and left:
        raise Broken.because(f"{freed + staged} of {change.op.n} slots were given up, the states of {left} remain")
    return 1


def _is_not_kept(view: View, row: Row, below: dict[NodeId, list[Row]]) -> bool:
    """Whether the state on device can go: alone, or that of a leaf with its KV, if nothing keeps that from going."""
    children = below.get(row.id, [])
    if view.rules.dead_ends == "leave":
        return bool(children) or bool(row.lock) or is_droppable(view, row, below)
    stays = bool(row.lock) or any(child.device is not None for child in children)
    return stays or row.host is not None or is_droppable(view, row, below)


@step("HC-STATE-20", "evict_state", "evict_host_state", "take_pages", "load_back", "insert", needs="victims")
def inner_nodes_keep_kv(change: AnyChange) -> int:
    """A victim among states that has children keeps its KV on that tier, and what it has on host if it is on device."""
    after, judged = change.after, 0
    kv_decides = after.rules.dead_ends == "stay"
    if any(pool not in (STATE_DEVICE, STATE_HOST) for pool, _ in change.what.victims):
        return 0
    for pool, digest in change.what.victims:
        was = change.before.where.get(digest, (NOWHERE, 0))[0]
        now = after.row.get(was.id, NOWHERE)
        judged += 1
        inner = any(row.parent == was.id for row in after.rows if row.device is not None or not kv_decides)
        had, has = (was.device, now.device) if pool == STATE_DEVICE else (was.host, now.host)
        kept = had is None or (has is not None and had[-len(has) :] == has)  # it may have been split in this step
        if inner and not kept:
            raise Broken.because(f"node {was.id} has children, and lost its KV with its state on {TIER[pool]}")
        copied = was.host_state is not None and (STATE_HOST, digest) not in change.what.victims
        if inner and pool == STATE_DEVICE and copied and now.host_state != was.host_state:
            raise Broken.because(f"node {was.id} has children, and lost its state on host with that on device")
    return judged


@step("HC-STATE-26", "evict_state", "take_pages", "load_back", needs="victims")
def state_is_copied_before_it_goes(change: AnyChange) -> int:
    """Under write_back a state is copied, with the KV that stays, before it goes, if the host had room for both."""
    judged = 0
    for taken in sweep_of(change):
        if taken.pool != STATE_DEVICE or not (taken.copied or taken.host_room):
            continue
        judged += 1
        if not taken.copied and len(taken.row.key) <= taken.host_room:
            raise Broken.because(f"the state of node {taken.row.id} went uncopied, {taken.host_room} pages had room")
    return judged


@step("HC-STATE-08", needs="nodes")
def leaf_is_demoted_with_state(change: Change[Operation, Outcome]) -> int:
    """A leaf of the tree that left the device and stays has its state on host."""
    before, after, judged = change.before, change.after, 0
    if not after.states or after.rules.dead_ends == "stay" or isinstance(change.told, Polled):
        return 0
    inner = {row.parent for row in after.rows}
    for row in after.rows:
        was = before.row.get(row.id, NOWHERE)
        if was.device is None or row.device is not None or row.id in inner:
            continue
        judged += 1
        if row.host_state is None and not row.lock and row.id not in after.storage_pins:
            raise Broken.because(f"leaf {row.id} was demoted without its state: no match can end there")
    return judged
