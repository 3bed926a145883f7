"""BACKUP: what is on host is a prefix, copies go root first, pinned, and when enough hits say so."""

from collections.abc import Iterator
from typing import Any

from hicache_ref.model.state import FREE
from hicache_ref.requirements.busy import kv_pins
from hicache_ref.requirements.change import Change, came_from
from hicache_ref.requirements.locks import unpinned
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE, Row, copy_in
from hicache_ref.requirements.uses import is_counted
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import HOST, KV, ROOT, STATE_DEVICE, STATE_HOST, NodeId, PoolName
from hicache_ref.vocabulary.operations import Insert, Operation, Poll, SetWritePolicy, WriteBackup
from hicache_ref.vocabulary.outcomes import Done, Inserted, Outcome, Polled, Submitted


@always("HC-BACKUP-01", "nodes", "policy")
def contiguity(view: View) -> int:
    """The parent of a backed-up node is the root or backed up, under write_back at least resident."""
    if not view.rules.contiguity:
        return 0
    judged, resident_is_enough = 0, view.policy == "write_back"
    for row, above in view.pairs:
        if row.host is not None:
            judged += 1
            if above.host is None and not (resident_is_enough and above.device is not None):
                raise Broken.because(f"node {row.id} is backed up, its parent {above.id} is not")
    return judged


def _copied_rows(change: Change[Any, Any]) -> Iterator[Row]:
    """The nodes for which the step submitted a backup, in order."""
    after = change.after
    for effect in change.what.effects:
        if effect.kind == "copy_to_host":
            first = effect.parts[0]
            owner = after.pool(HOST[first.component]).held.get(first.host[0], FREE)
            yield after.row.get(owner[1], NOWHERE) if isinstance(owner[1], int) else NOWHERE


@step("HC-BACKUP-02", "write_backup", "insert", told=("submitted", "inserted"))
def root_first(change: Change[WriteBackup | Insert, Submitted | Inserted]) -> int:
    """Each backup is submitted after that of the node above it, if that one needed one."""
    before, after, told = change.before, change.after, change.told
    copied: set[NodeId] = set()
    for row in _copied_rows(change):
        copied.add(row.id)
        above = after.row.get(row.parent, NOWHERE)
        ready = above.id == ROOT or above.id in copied or _had_host_copy(before, above)
        if not ready and before.rules.contiguity:
            raise Broken.because(f"a backup of node {row.id} is submitted, none of its parent {above.id}")
    if isinstance(told, Submitted):
        copies = [effect for effect in change.what.effects if effect.kind == "copy_to_host"]
        if told.tickets != tuple([effect.id for effect in copies]):
            raise Broken.because(f"tickets {told.tickets} are told, {[effect.id for effect in copies]} were submitted")
        pages = sum([len(part.host) for effect in copies for part in effect.parts if part.component == KV])
        if told.pages != pages:
            raise Broken.because(f"{told.pages} pages are told, {pages} are copied")
    return len(copied)


def _had_host_copy(before: View, row: Row) -> bool:
    was = before.where.get(row.hashes[-1]) if row.hashes else None
    return was is not None and was[0].host is not None


@step("HC-BACKUP-03")
def pending_backup_pins(change: Change[Operation, Outcome]) -> int:
    """The copy of a node to host keeps that node and all above it pinned, unless write_back submitted it."""
    before, after = change.before, change.after
    if not after.tickets or (change.still and before.tickets is after.tickets):
        return 0
    judged = 0
    for ticket in after.tickets.values():
        if ticket.to != "host":
            continue
        was = before.tickets.get(ticket.id)
        must_pin = before.policy != "write_back" if was is None else bool(was.pins)
        if not must_pin:
            continue
        judged += 1
        loose = unpinned(after, ticket)
        if loose:
            raise Broken.because(f"copy {ticket.id} runs, and does not pin nodes {loose}")
    return judged


@always("HC-BACKUP-04", "nodes", "contents", "books")
def host_copy_is_coming(view: View) -> int:
    """A host page of a node is written, or a copy into it is on the books, or a failure above takes it away."""
    host = view.host
    for number, pages in host.unlike:
        for page in pages:
            if host.stamp[page] is None and page not in host.written and not is_losing(view, view.row[number]):
                raise Broken.because(f"host page {page} of node {number} is not written and no copy into it runs")
    return len(view.rows)


def is_losing(view: View, row: Row) -> bool:
    """Whether the row or one above it owns a page that some operation was to write and never will."""
    for each in view.up(row):
        for pool in view.pools():
            pages = copy_in(each, pool.name)
            if pages and any(busy.lost(pool.name).intersection(pages) for busy in view.busy.values()):
                return True
    return False


@step("HC-BACKUP-05", "insert")
def hits_and_threshold(change: Change[Insert, Inserted]) -> int:
    """Each node of the path counted the hits that the rules say, and one at its threshold is backed up if it fits."""
    before, after = change.before, change.after
    found = after.cached(change.hashes)
    path = list(after.up(found[-1][0]))[::-1] if found else []
    wanted = before.rules.hits_before_backup(before.policy)
    due: list[Row] = []
    depth = 0
    for row in path:
        depth += len(row.key)
        hits, counted = _expected_hits(change, row, depth)
        if row.hits != hits:
            raise Broken.because(f"node {row.id} counts {row.hits} hits, by the rules {hits}")
        if counted and hits >= wanted:
            due.append(row)
    for row in due:
        if _is_due(after, row) and (STATE_HOST, row.hashes[-1]) not in change.what.victims:
            _must_lack_room(after, row, path)
    may = {each.id for row in due for each in after.up(row)}
    may |= {row.id for row in path[-1:] if after.rules.late_states == "insert" and row.host is not None}
    for row in _copied_rows(change):
        if row.id not in may:
            raise Broken.because(f"a backup of node {row.id} is submitted after {row.hits} of {wanted} hits")
    return len(path)


def _is_due(view: View, row: Row) -> bool:
    """Whether hits on the node take it to host; by the rule a state that came late waits for its insert."""
    return bool(lacking(row)) and (view.rules.late_states == "hit" or row.host is None)


def lacking(row: Row) -> tuple[int, int]:
    """Pages and state slots that the resident row lacks on host; () stands for nothing."""
    pages = len(row.key) if row.device is not None and row.host is None else 0
    states = int(row.device_state is not None and row.host_state is None)
    return (pages, states) if pages or states else ()  # type: ignore[return-value]


def _expected_hits(change: Change[Insert, Inserted], row: Row, depth: int) -> tuple[int, bool]:
    """The node's hits after the insert, and whether this insert counted one."""
    before = change.before
    source = came_from(change, row)
    split_off = row.id not in before.row
    hits = 0 if source is None or (split_off and not before.rules.split_copies_hit_count) else source.hits
    counted = before.policy != "write_back" and is_counted(change, row, depth)
    return hits + counted, counted


def _must_lack_room(after: View, row: Row, path: list[Row]) -> None:
    """The first node that the backup had to copy does not fit into what is free or could be made so."""
    scope = after.rules.backup_scope
    if scope == "node_if_parent" and after.row.get(row.parent, NOWHERE).host is None:
        return
    first = row
    if scope == "chain":
        first = next(each for each in path if _is_due(after, each))
    room = len(after.host.free) + reclaimable_host_pages(after)
    pages, states = lacking(first)
    if pages <= room and states <= state_room(after, STATE_HOST):
        raise Broken.because(f"node {row.id} is due for backup, {room} host pages could be had, and none is submitted")


def state_room(view: View, pool: PoolName, kept: NodeId = ROOT) -> int:
    """How many state slots are free there, or hold the state of a node from which it may be taken."""
    if not view.states:
        return 0
    return len(view.pool(pool).free) + len([each for each in may_lose_state(view, pool) if each != kept])


def may_lose_state(view: View, pool: PoolName) -> list[NodeId]:
    """The nodes whose state there nothing pins and, on host, no operation touches and no open prefetch hangs on."""
    touched, anchors = view.pool(pool).touched, set[NodeId]()
    if pool == STATE_HOST:
        anchors = {record.anchor for record in view.storage.opened}
        if view.rules.host_states == "arrived":
            anchors = anchors | {row.id for row in view.rows if row.device_state is not None}
    held = [(row, copy_in(row, pool)) for row in view.rows if not row.state_lock and row.id not in anchors]
    return [row.id for row, slots in held if slots and (pool == STATE_DEVICE or slots[0] not in touched)]


def host_pages_for(view: View, wanted: int, kept: NodeId = ROOT) -> int:
    """How many of the wanted host pages an allocation gets, after evicting if need be; node `kept` stays."""
    free = len(view.host.free)
    if wanted <= free:
        return wanted
    could = min(wanted, free + reclaimable_host_pages(view, kept))
    return could if could == wanted or view.rules.evict_host_for_hopeless else free


def reclaimable_host_pages(view: View, kept: NodeId = ROOT) -> int:
    """The host pages that evicting host leaves, one after the other, would give up while node `kept` stays."""
    below, pins = view.below(), view.storage_pins | {kept}

    def pages(row: Row) -> tuple[bool, int]:
        parts = [pages(child) for child in below.get(row.id, ())]
        total = sum(count for _, count in parts)
        dead_end = bool(view.states) and not row.has_state and view.rules.dead_ends == "leave"
        goes = (row.device is None and row.host is not None) or dead_end
        goes = goes and not row.lock and all(gone for gone, _ in parts)
        arrives = any(
            pool.written.intersection(copy_in(row, pool.name) or ()) for pool in (view.host, *view.states[1:])
        )
        if not goes or row.id in pins or arrives:
            return False, total
        return True, total + len(row.host or ())

    return sum(pages(row)[1] for row in below.get(ROOT, ()))


@step("HC-BACKUP-06", "poll", "set_write_policy", told=("polled", "done"))
def copies_end_as_begun(change: Change[Poll | SetWritePolicy, Polled | Done]) -> int:
    """A poll undoes exactly the pins of the copies that it applied; a change of policy touches no copy and no lock."""
    before, after, told = change.before, change.after, change.told
    undone: dict[NodeId, int] = {}
    if isinstance(told, Polled):
        for name in (*told.backups, *told.loads):
            for number in kv_pins(before.tickets[name]):
                undone[number] = undone.get(number, 0) + 1
    elif before.tickets != after.tickets:
        raise Broken.because("a change of policy changed a running copy")
    for row in after.rows:
        was = before.row.get(row.id)
        if was is not None and was.lock - row.lock != undone.get(row.id, 0):
            raise Broken.because(
                f"node {row.id} lost {was.lock - row.lock} pins, the copies had {undone.get(row.id, 0)}"
            )
    return len(before.tickets)
