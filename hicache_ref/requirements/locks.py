"""LOCK: counts are what receipts and copies say, and what is pinned stays."""

from typing import Any

from hicache_ref.model.state import FREE, Ticket
from hicache_ref.requirements.busy import kv_pins
from hicache_ref.requirements.change import Change, came_from
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import DEVICE, HOST, ROOT, NodeId
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed, Lock, Operation, Unlock
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled


@always("HC-LOCK-01", "nodes", "receipts", "books")
def counts_are_pins(view: View) -> int:
    """A node's lock count is the number of receipts and copies that name it."""
    pins = view.pins
    for row in view.rows:
        if row.lock != pins.get(row.id, 0):
            raise Broken.because(f"node {row.id} has lock count {row.lock}, {pins.get(row.id, 0)} name it")
    return len(pins)


@always("HC-LOCK-04", "nodes")
def parents_are_locked(view: View) -> int:
    """A node is locked at least as often as each of its children."""
    judged = 0
    for row, above in view.pairs:
        if row.lock:
            judged += 1
            if above.lock < row.lock and above.id != ROOT:
                raise Broken.because(f"node {row.id} is locked {row.lock} times, its parent {above.lock} times")
    return judged


@always("HC-LOCK-05", "nodes", "receipts", "books")
def pins_name_nodes(view: View) -> int:
    """Whatever is pinned is in the tree, and never the root."""
    if ROOT in view.pins or not view.pins.keys() <= view.row.keys():
        strangers = [number for number in view.pins if number not in view.row or number == ROOT]
        raise Broken.because(f"nodes {strangers} are pinned and not in the tree")
    return len(view.receipts)


def unpinned(view: View, ticket: Ticket) -> list[NodeId]:
    """Nodes that own a page which the copy writes, or are above such a node, and are not named by it."""
    to_host = ticket.to == "host"
    tier = HOST if to_host else DEVICE
    owners = {
        view.pool(tier[part.component]).held.get(page, FREE)[1]
        for part in ticket.parts
        for page in (part.host if to_host else part.device)
    }
    pinned = set(kv_pins(ticket))
    rows = [row for owner in owners if isinstance(owner, int) for row in view.up(view.row[owner])]
    return list(dict.fromkeys([row.id for row in rows if row.id not in pinned]))


def _moved(change: Change[Operation, Outcome]) -> dict[NodeId, int]:
    """By how much each lock count changed; a node split off is compared with what it was part of."""
    moved = {}
    for number, row in change.after.row.items():
        was = came_from(change, row)
        moved[number] = row.lock - (was.lock if was is not None else 0)
    return moved


@step("HC-LOCK-02", "lock", "unlock")
def receipt_is_exact(change: Change[Lock | Unlock, Done]) -> int:
    """A lock pins the path that was asked for, once, and nothing else; an unlock takes exactly that away."""
    receipt = change.op.receipt
    locking = isinstance(change.op, Lock)
    held = (change.after if locking else change.before).receipts.get(receipt)
    if held is None or (receipt in change.before.receipts) == locking or (receipt in change.after.receipts) != locking:
        raise Broken.because(f"receipt {receipt} was not {'given' if locking else 'used up'}")
    if locking:
        _names_the_path(change, kv_pins(held))
    named: dict[NodeId, int] = {}
    for number in kv_pins(held):
        named[number] = named.get(number, 0) + (1 if locking else -1)
    for number, by in _moved(change).items():  # type: ignore[arg-type]
        if by != named.get(number, 0):
            raise Broken.because(f"lock count of node {number} changed by {by}, {receipt} says {named.get(number, 0)}")
    return len(named)


@step("HC-LOCK-06", "lock", "unlock")
def change_is_told(change: Change[Lock | Unlock, Done]) -> int:
    """The caller is told how many resident pages fewer, or below 0 more, are locked now."""
    grown = _locked_pages(change.before) - _locked_pages(change.after)
    if change.told.evictable != grown:
        raise Broken.because(f"{change.told.evictable} pages more are told to be evictable, {grown} are")
    return 1


def _locked_pages(view: View) -> int:
    return sum(len(row.device) for row in view.rows if row.lock and row.device is not None)


def _names_the_path(change: Change[Any, Done], names: list[NodeId]) -> None:
    """The receipt names each node from the end that was asked for up to the root that the rules let it pin."""
    found = change.after.cached(change.hashes)
    if change.op.at != "node":
        reach = ends(change.after, change.hashes)
        found = found[: reach.device if change.op.at == "device" else reach.best]
        if found and found[-1][1] + 1 < len(found[-1][0].hashes):
            raise Broken.because(f"{change.op.receipt} pins node {found[-1][0].id}, which goes on where the match ends")
    path = list(change.after.up(found[-1][0])) if found else []
    if change.op.at == "device" or change.after.rules.lock_evicted == "skip":
        path = [row for row in path if row.device is not None]
    wanted = sorted(row.id for row in path)
    if sorted(names) != wanted:
        raise Broken.because(f"receipt {change.op.receipt} names nodes {sorted(names)}, the path has {wanted}")


@step("HC-LOCK-03", needs="nodes")
def locked_stays(change: Change[Operation, Outcome]) -> int:
    """A locked resident node keeps its device pages; only a failed load takes them, and then receipts are told."""
    after, judged, undone = change.after.row, 0, _undone(change)
    for row in change.before.rows:
        if not row.lock or row.device is None:
            continue
        if row.lock == undone.count(row.id):
            continue  # the last pin is taken, and with it a leaf without state may go
        judged += 1
        now = after.get(row.id)
        kept = now.device if now is not None else None
        if kept is not None and (kept == row.device or row.device[-len(kept) :] == kept):
            continue
        _must_be_told(change, row.id)
    return judged


def _undone(change: Change[Operation, Outcome]) -> list[NodeId]:
    """The nodes whose KV the step unpinned by an unlock, or by the end of a copy to a request."""
    op, before = change.op, change.before
    if isinstance(op, Unlock) and op.receipt in before.receipts:
        return kv_pins(before.receipts[op.receipt])
    ended = before.tickets.get(op.ticket) if isinstance(op, CopyDone | CopyFailed) else None
    return kv_pins(ended) if ended is not None and ended.to == "request" else []


def _must_be_told(change: Change[Operation, Outcome], number: NodeId) -> None:
    told = change.told
    if change.op.op == "reset":
        return
    lost = told.lost if isinstance(told, Polled) else ()
    for receipt in change.before.receipts.values():
        if number in kv_pins(receipt) and receipt.id not in lost:
            raise Broken.because(f"node {number} lost its device copy under receipt {receipt.id}")
    if not isinstance(told, Polled):
        raise Broken.because(f"node {number} lost its device copy while a copy pinned it")
