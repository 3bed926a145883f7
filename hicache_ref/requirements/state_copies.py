"""STATE, continued: what copies do with states, and the slot that a request changes in place."""

from typing import Any

from hicache_ref.model.state import FREE, Ticket
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE
from hicache_ref.requirements.state import AnyChange, row_at
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import KV, STATE, TIER
from hicache_ref.vocabulary.outcomes import Polled, Submitted

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
    """Where the state part of a copy failed and no KV part to that tier did, its nodes keep the KV that was copied."""
    before, after, judged = change.before, change.after, 0
    told = (*change.told.backups, *change.told.loads) if before.states else ()
    spoilt = {before.tickets[name].to for name in told if _lost_kv(before.tickets[name])}
    for name in told:
        ticket = before.tickets[name]
        if ticket.to in spoilt or ticket.good == len(ticket.parts):
            continue
        judged += 1
        to_host = ticket.to == "host"
        pool = after.host if to_host else after.device
        for part in ticket.parts[: ticket.good]:
            gone = [page for page in (part.host if to_host else part.device) if page in pool.free]
            if gone and not all(_left(change, page, to_host) for page in gone):
                raise Broken.because(f"the state part of {name} failed, and pages {gone} of its KV are gone")
    return judged


def _lost_kv(ticket: Ticket) -> bool:
    return any(part.component == KV for part in ticket.parts[ticket.good or 0 :])


def _left(change: AnyChange, page: int, on_host: bool) -> bool:
    """Whether the node that had the page was left a leaf without state, or has left with one that was."""
    owner = (change.before.host if on_host else change.before.device).held.get(page, FREE)[1]
    return owner not in change.after.row


@step("HC-STATE-12", "take_pages", "load_back", told=("refused",))
def refused_takes_nothing(change: AnyChange) -> int:
    """A refused request has neither pages nor a slot of it, and no copy was submitted for it."""
    before, after = change.before, change.after
    if not before.states:
        return 0
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
