"""STATE: the recurrent state of a hybrid model, one slot at the end of a node, beside the node's KV."""

from typing import Any

from hicache_ref.model.state import FREE
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import NOWHERE, Row, View
from hicache_ref.vocabulary.ids import KV, ROOT, STATE, STATE_DEVICE, STATE_HOST, TIER
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Lock, MatchPrefix, Operation, Unlock
from hicache_ref.vocabulary.outcomes import Done, Matched, Outcome, Polled, Submitted

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
    if not view.states:
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
    on_host = after.rules.lock_evicted == "count" and anchor.host_state is not None
    wanted = [anchor.id] if anchor.id != ROOT and (anchor.device_state is not None or on_host) else []
    named = [number for component, number in after.receipts[change.op.receipt].pins if component == STATE]
    if named != wanted:
        raise Broken.because(f"receipt {change.op.receipt} names the states of {named}, expected {wanted}")
    return 1


@step("HC-STATE-23", needs="nodes")
def locked_state_stays(change: Change[Operation, Outcome]) -> int:
    """A locked state stays on device; only a failed load takes it, or whoever takes the last pin."""
    judged = 0
    for row in change.before.rows:
        if not row.state_lock or row.device_state is None or change.op.op == "reset":
            continue
        judged += 1
        now = change.after.row.get(row.id, NOWHERE)
        if now.device_state == row.device_state or isinstance(change.told, Polled) or isinstance(change.op, Unlock):
            continue
        raise Broken.because(f"node {row.id} lost its state on device, and it was locked")
    return judged


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
    length = reach.resident // chunk * chunk if before.states else 0
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
    if best.id != ROOT and best.state_last <= before.clock:
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
    left = [
        row.id
        for row in change.after.rows
        for slots in (row.device_state if device else row.host_state,)
        if slots and not row.state_lock and (device or slots[0] not in now.touched)
    ]
    if freed + staged < change.op.n and left:
        raise Broken.because(f"{freed + staged} of {change.op.n} slots were given up, the states of {left} remain")
    return 1


@step("HC-STATE-20", "evict_state", "evict_host_state", "take_pages", "load_back", "insert", needs="victims")
def inner_nodes_keep_kv(change: AnyChange) -> int:
    """A victim among states that has children keeps its KV on that tier; a free leaf does not stay without state."""
    after, judged = change.after, 0
    if any(pool not in (STATE_DEVICE, STATE_HOST) for pool, _ in change.what.victims):
        return 0
    for pool, digest in change.what.victims:
        was = change.before.where.get(digest, (NOWHERE, 0))[0]
        now = after.row.get(was.id, NOWHERE)
        judged += 1
        inner = any(row.parent == was.id for row in after.rows)
        kept = now.device == was.device if pool == STATE_DEVICE else now.host == was.host
        if inner and not kept:
            raise Broken.because(f"node {was.id} has children, and lost its KV with its state on {TIER[pool]}")
    return judged


@step("HC-STATE-08", needs="nodes")
def leaf_is_demoted_with_state(change: Change[Operation, Outcome]) -> int:
    """A leaf of the tree that left the device and stays has its state on host."""
    before, after, judged = change.before, change.after, 0
    if not after.states or isinstance(change.told, Polled):
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


# -- copies ---------------------------------------------------------------------------------------------------------


@step("HC-STATE-10", "write_backup", "load_back", told=("submitted",))
def copied_stays(change: Change[Any, Submitted]) -> int:
    """What a copy is submitted to fill is there after the step: room was not made from it."""
    after = change.after
    for name in change.told.tickets:
        for pool, slot in after.busy[name].state_writes:
            if after.pool(pool).held.get(slot, FREE)[0] not in ("node", "request"):
                raise Broken.because(f"{name} was submitted, and nobody has {TIER[pool]} state slot {slot}")
    return len(change.told.tickets) if after.states else 0


@step("HC-STATE-11", "poll", told=("polled",))
def failed_part_costs_its_own(change: Change[Any, Polled]) -> int:
    """Where the state part of a copy failed and no KV part did, every node of it keeps the KV that was copied."""
    before, after, judged = change.before, change.after, 0
    for name in (*change.told.backups, *change.told.loads):
        ticket = before.tickets[name]
        failed = ticket.parts[ticket.good or 0 :]
        if not before.states or not failed or any(part.component == KV for part in failed):
            continue
        judged += 1
        to_host = ticket.to == "host"
        pool = after.host if to_host else after.device
        for part in ticket.parts[: ticket.good]:
            gone = [page for page in (part.host if to_host else part.device) if page in pool.free]
            if gone and not all(_left(change, page, to_host) for page in gone):
                raise Broken.because(f"the state part of {name} failed, and pages {gone} of its KV are gone")
    return judged


def _left(change: AnyChange, page: int, on_host: bool) -> bool:
    """Whether the node that had the page was left a leaf without state, or has left with one that was."""
    owner = (change.before.host if on_host else change.before.device).held.get(page, FREE)[1]
    return owner not in change.after.row


@step("HC-STATE-12", "take_pages", "load_back", told=("refused",))
def refused_takes_nothing(change: AnyChange) -> int:
    """A refused request has neither pages nor a slot of it, and no copy was submitted for it."""
    before, after = change.before, change.after
    if before.requests.keys() != after.requests.keys():
        raise Broken.because(f"requests {sorted(before.requests)} became {sorted(after.requests)} by a refused step")
    changed = [rid for rid, request in after.requests.items() if request != before.requests[rid]]
    if changed or any(effect.kind in ("copy_on_device", "copy_to_device") for effect in change.what.effects):
        raise Broken.because(f"requests {changed} changed or a copy was submitted by a refused step")
    return 1


@step("HC-STATE-18", "load_back", told=("submitted",))
def load_fills_the_state(change: AnyChange) -> int:
    """The state at the key is loaded into the node's slot, and for a request once more into its own."""
    before, after, op = change.before, change.after, change.op
    if not before.states:
        return 0
    was, now = row_at(before, op.key), row_at(after, op.key)
    source = was.host_state or (-1,)
    wanted = [(now.device_state, source)] if now.device_state is not None else []
    if op.rid is not None and op.rid in after.requests:
        wanted.append((after.requests[op.rid].state, source))
    copies = [effect for effect in change.what.effects if effect.kind == "copy_to_device"]
    got = [(part.device, part.host) for effect in copies for part in effect.parts if part.component == STATE]
    if got != wanted or len(wanted) != 1 + (op.rid is not None):
        raise Broken.because(f"the load copies (device, host) states {got}, expected {wanted}")
    return len(got)


@step("HC-STATE-19", "write_backup", told=("submitted",))
def backup_leaves_nothing_out(change: AnyChange) -> int:
    """Of each node that it copies a backup takes all that is on device and not on host, KV and state."""
    before, after = change.before, change.after
    if not before.states:
        return 0
    for effect in change.what.effects:
        if effect.kind != "copy_to_host":
            continue
        copied = {part.component for part in effect.parts}
        first = effect.parts[0]
        pool = after.host if first.component == KV else after.states[1]
        owner = pool.held.get(first.host[0], FREE)[1]
        was = before.row.get(owner, NOWHERE) if isinstance(owner, int) else NOWHERE
        lacks = {KV} if was.device is not None and was.host is None else set()
        lacks |= {STATE} if was.device_state is not None and was.host_state is None else set()
        if was is not NOWHERE and copied != lacks:
            raise Broken.because(f"{effect.id} copies {sorted(copied)}, the node lacked {sorted(lacks)} on host")
    return len(change.what.effects)


# -- the request's slot ---------------------------------------------------------------------------------------------


@step("HC-STATE-13", "take_pages", told=("took",))
def request_goes_on_from_a_copy(change: AnyChange) -> int:
    """The request has one slot of its own, and the state where it goes on is copied into it, or nothing is."""
    before, after, op = change.before, change.after, change.op
    if not before.states:
        return 0
    slot = after.requests[op.rid].state
    if len(slot) != 1 or after.states[0].held.get(slot[0]) != ("request", op.rid):
        raise Broken.because(f"request {op.rid} has state slots {slot}, expected one of its own")
    copies = [(effect.source, effect.target) for effect in change.what.effects if effect.kind == "copy_on_device"]
    wanted = [(row_at(before, op.prefix).device_state, slot)] if op.prefix is not None else []
    if copies != wanted:
        raise Broken.because(f"states {copies} are copied for request {op.rid}, expected {wanted}")
    return 1


@step("HC-STATE-14", "forward", told=("done",))
def pass_begins_where_the_state_is(change: AnyChange) -> int:
    """A pass begins on the state at its start, into which no copy runs."""
    before, op = change.before, change.op
    if not before.states:
        return 0
    slot = before.requests[op.rid].state[0]
    held = before.states[0].stamp[slot]
    wanted = change.hashes[op.start - 1] if op.start else None
    if held != wanted or slot in before.states[0].written:
        raise Broken.because(f"a pass of {op.rid} begins at page {op.start} on the state {held and held[:8]}")
    return 1


@always("HC-STATE-17", "requests", "contents", "books")
def slot_follows_its_request(view: View) -> int:
    """The slot of a request whose pass has ended holds the state at the end of its key, or after a failure nothing."""
    judged = 0
    for request in view.requests.values():
        if not request.state or request.key is None or request.id in view.passes:
            continue
        judged += 1
        held, end = view.states[0].stamp[request.state[0]], view.hashes_of(request.key)[-1]
        if held not in (end, None):
            raise Broken.because(
                f"request {request.id} has the state {held[:8] if held else held}, its key ends {end[:8]}"
            )
    return judged


@step("HC-STATE-15", "insert", told=("inserted",))
def insert_leaves_a_state(change: AnyChange) -> int:
    """The node at the key's end has a state on device: its own, or that of the request, which then gave it."""
    before, after, op = change.before, change.after, change.op
    if not before.states:
        return 0
    was, now = row_at(before, op.key), row_at(after, op.key)
    slot = before.requests[op.rid].state
    existed = was is not NOWHERE and was.device_state is not None
    if change.told.state_existed != existed:
        raise Broken.because(f"a state at {op.key} is told to have {'' if not existed else 'not '}existed")
    expected = was.device_state if existed else slot
    if now.device_state != expected:
        raise Broken.because(f"the node at {op.key} has state {now.device_state}, expected {expected}")
    if existed and after.states[0].held.get(slot[0], FREE) != FREE:
        raise Broken.because(f"the state slot {slot} of {op.rid} is not needed, and is not given back")
    return 1


@always("HC-STATE-25", "nodes", "books", "owners", "requests")
def passes_change_their_own(view: View) -> int:
    """No pass changes a slot that a node holds: nodes keep theirs as they are."""
    judged = 0
    for each in view.passes.values() if view.states else ():
        for slot in each.state:
            judged += 1
            owner = view.states[0].held.get(slot, FREE)
            if owner[0] == "node":
                raise Broken.because(f"the pass of {each.id} changes the state of node {owner[1]}")
    return judged
