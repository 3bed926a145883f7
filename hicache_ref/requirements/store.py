"""STORE: what is owed to storage, what is offered to it, and what an answer of it means."""

from collections.abc import Iterator
from typing import Any

from hicache_ref.model.records import (
    Backup,
    BackupEnded,
    BackupWriting,
    Prefetch,
    PrefetchEnded,
    PrefetchReading,
    Record,
)
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.commits import committed, has_place, is_whole
from hicache_ref.requirements.prefetch import Reading, Report, batch_size
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE, Row
from hicache_ref.requirements.view import View
from hicache_ref.requirements.waited import is_by_force
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.effects import StorageRead, StorageWrite
from hicache_ref.vocabulary.ids import HOST, PageHash
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled, Progressed, Refused


def may_be_stored(view: View, row: Row) -> bool:
    """Whether pages of this node may be known to storage; without hash of the namespace those in one may not."""
    return row.extra is None or view.rules.hash_namespace


def to_be_stored(view: View) -> set[PageHash]:
    """The settled host pages that may be known to storage."""
    settled = set(view.residency[1])
    if not view.rules.hash_namespace:
        settled.difference_update(*[row.hashes for row in view.rows if row.extra is not None])
    return settled


# -- states -----------------------------------------------------------------------------------------------------------


@always("HC-STORE-01", "nodes", "owners", "contents", "storage", about="storage")
def written_pages_are_settled(view: View) -> int:
    """A write has a written host page for each hash, of the node of that hash or left to operations."""
    judged, host = 0, view.host
    for record in view.storage.backups:
        judged += 1
        if host.contents(record.pages) != record.hashes:
            raise Broken.because(f"{record.id} puts pages {record.pages}, which do not hold what it puts them under")
        for page, digest in zip(record.pages, record.hashes, strict=True):
            holder = host.held.get(page)
            row = view.where[digest][0] if digest in view.where else None
            if holder is not None and (row is None or holder != ("node", row.id)):
                raise Broken.because(f"{record.id} puts host page {page}, held by {holder[0]} {holder[1]}")
    return judged


@always("HC-STORE-03", "nodes", "books", "storage", about="storage")
def owed_is_on_host(view: View) -> int:
    """What is owed or was reported is settled on host."""
    storage = view.storage
    if not storage.owed and not storage.reported:
        return 0
    known = storage.owed.keys() | storage.reported
    if not known <= view.residency[1]:
        raise Broken.because(f"{len(known - view.residency[1])} pages are owed or reported and not on host")
    return len(known)


@always("HC-STORE-07", "storage", about="storage")
def offers_are_counted(view: View) -> int:
    """Nothing that is owed was offered as often as allowed, and nothing is owed and reported."""
    storage = view.storage
    for digest, tries in storage.owed.items():
        if not 0 <= tries < view.rules.storage_retries or digest in storage.reported:
            raise Broken.because(f"page {digest[:8]} was offered {tries} times and is owed")
    return len(storage.owed)


@always("HC-STORE-10", "nodes", "books", "storage", about="storage")
def nothing_is_forgotten(view: View) -> int:
    """Every settled host page that may be stored is believed stored, owed or reported."""
    storage = view.storage
    if not storage.attached or not view.rules.attach_offers:
        return 0
    settled = to_be_stored(view)
    forgotten = settled.difference(storage.believed, storage.owed, storage.reported)
    if forgotten:
        raise Broken.because(f"{len(forgotten)} pages on host are neither stored nor owed nor reported")
    return len(settled)


# -- what the world is asked to do -------------------------------------------------------------------------------------


@step("HC-STORE-05", needs="effects")
def prefix_keys_are_a_chain(change: Change[Any, Outcome]) -> int:
    """What comes before a batch, and the batch, are one chain from the start, or nothing is told."""
    after, judged = change.after, 0
    told = after.storage.settings.pass_prefix_keys
    for effect in change.what.effects:
        if effect.kind not in ("storage_query", "storage_read", "storage_write"):
            continue
        judged += 1
        record = after.storage.records[effect.id]
        done = record.done if isinstance(record, Reading | Backup) else 0
        if effect.id not in change.before.storage.records and not _is_one_path(after, record):
            raise Broken.because(f"the pages of {effect.id} and those told to come before are not one path")
        expected = record.prefix + record.hashes[:done] if told else ()
        if effect.prefix != expected:
            raise Broken.because(
                f"{len(effect.prefix)} hashes are told before {effect.id}, {len(expected)} come before"
            )
    return judged


def _is_one_path(view: View, record: Record) -> bool:
    """Whether the prefix is the path of the anchor, or the prefix and the pages to be written are the path of those."""
    if isinstance(record, Prefetch):
        anchor = view.row.get(record.anchor, NOWHERE)
        return record.prefix == _path(view, anchor, len(anchor.hashes))
    path = record.prefix + record.hashes
    if path[-1] not in view.where:
        return True
    row, at = view.where[path[-1]]
    return record.prefix + record.hashes == _path(view, row, at + 1)


def _path(view: View, row: Row, count: int) -> tuple[PageHash, ...]:
    """The hashes from the root to the first `count` pages of the row."""
    above = [digest for each in list(view.up(row))[:0:-1] for digest in each.hashes]
    return (*above, *row.hashes[:count])


@step("HC-STORE-08", needs="effects")
def write_is_the_next_batch(change: Change[Any, Outcome]) -> int:
    """A batch to be written is the next of its write, each page under the hash of what it holds."""
    after, judged = change.after, 0
    for effect in change.what.effects:
        if isinstance(effect, StorageWrite):
            judged += 1
            _must_be_next(after, effect, BackupWriting)
            if after.host.contents(effect.pages) != effect.hashes:
                raise Broken.because(f"{effect.id} puts pages {effect.pages} under hashes of other pages")
            if effect.states and after.states[1].contents(effect.states) != effect.ends:
                raise Broken.because(f"{effect.id} puts states {effect.states} under hashes of other ends")
    return judged


@step("HC-STORE-09", needs="effects")
def read_is_the_next_batch(change: Change[Any, Outcome]) -> int:
    """A batch to be read is the next of its prefetch, into pages that hold nothing; a query asks for all of it."""
    after, judged = change.after, 0
    for effect in change.what.effects:
        if isinstance(effect, StorageRead):
            judged += 1
            _must_be_next(after, effect, PrefetchReading)
            if any(after.host.contents(effect.pages)):
                raise Broken.because(f"{effect.id} reads into pages {effect.pages}, which hold something")
        elif effect.kind == "storage_query":
            judged += 1
            if effect.hashes != after.storage.records[effect.id].hashes:
                raise Broken.because(f"{effect.id} asks for {len(effect.hashes)} pages, not for its own")
    return judged


def _must_be_next(view: View, effect: StorageRead | StorageWrite, kind: type) -> None:
    record = view.storage.records.get(effect.id)
    if not isinstance(record, kind) or not isinstance(record, Reading | Backup):
        raise Broken.because(f"a batch of {effect.id} is asked for, which is {record.stage if record else 'nothing'}")
    end = record.done + batch_size(view, effect.id)
    late = isinstance(effect, StorageWrite) and bool(effect.states)
    if not (effect.pages or late) or (effect.pages, effect.hashes) != (
        record.pages[record.done : end],
        record.hashes[record.done : end],
    ):
        raise Broken.because(
            f"pages {effect.pages} of {effect.id} are asked for, next are {record.pages[record.done : end]}"
        )


# -- the worker's steps -----------------------------------------------------------------------------------------------


@step("HC-STORE-11", "query_done", "read_done", "write_done")
def error_costs_one_operation(change: Change[Report, Done]) -> int:
    """The end of a query, batch or write changes no node, request, copy or other record."""
    before, after, name = change.before, change.after, change.op.id
    for part in ("requests", "passes", "tickets", "receipts", "policy"):
        if getattr(before, part) != getattr(after, part):
            raise Broken.because(f"{change.op.op} of {name} changed the {part}")
    if not change.still or before.host.free != after.host.free or before.storage.open != after.storage.open:
        raise Broken.because(f"{change.op.op} of {name} changed nodes, free pages or what requests wait for")
    others = [
        {each: record for each, record in view.storage.records.items() if each != name} for view in (before, after)
    ]
    if others[0] != others[1] or name not in after.storage.records:
        raise Broken.because(f"{change.op.op} of {name} changed other storage work, or forgot its own")
    return 1


@step("HC-STORE-04", "write_done")
def write_goes_on(change: Change[ops.WriteDone, Done]) -> int:
    """A write counts what was put, goes on after a whole batch, and ends with the last or the first cut short."""
    op, before, after = change.op, change.before, change.after
    was, now = before.storage.records.get(op.id), after.storage.records.get(op.id)
    if not isinstance(was, BackupWriting):
        return 0
    done = was.done + op.pages
    over = op.raised or op.pages < batch_size(before, op.id) or done == len(was.pages)
    if not isinstance(now, BackupEnded if over else BackupWriting) or (now.done, now.pages) != (done, was.pages):
        raise Broken.because(f"{op.id} has put {done} of {len(was.pages)} pages and is {now.stage if now else 'gone'}")
    asked = [effect for effect in change.what.effects if effect.id == op.id]
    if len(asked) != (0 if over else 1):
        raise Broken.because(f"{op.id} {'has ended' if over else 'goes on'}, and {len(asked)} batches are asked for")
    return op.pages


# -- what a poll applies ----------------------------------------------------------------------------------------------


@step("HC-STORE-02", "poll")
def owed_is_offered(change: Change[ops.Poll, Polled]) -> int:
    """After an applied backup all that is owed of its path is offered, unless a write on the books has it."""
    before, after, judged = change.before, change.after, 0
    if not after.storage.attached or after.rules.storage_put == "hit":
        return 0
    written = [record for record in before.storage.backups if record.id in change.told.writes]
    writes = (*after.storage.backups, *written)
    asked = {digest for record in writes for digest in record.hashes}
    ends = {digest for record in writes for digest in record.ends}
    for name in change.told.backups:
        ticket = before.tickets[name]
        for part in ticket.parts[: ticket.good]:
            held = after.pool(HOST[part.component]).held
            holders = [held.get(page, ("free", ""))[1] for page in part.host]
            for row in {each: after.row[each] for each in holders if isinstance(each, int)}.values():
                judged += 1
                path = list(after.up(row))
                missed = {digest for each in path for digest in each.hashes} & after.storage.owed.keys() - asked
                missed |= {each.hashes[-1] for each in path} & after.storage.owed_states.keys() - ends
                if missed:
                    raise Broken.because(f"{name} is on host, and {len(missed)} that its path owes are not offered")
    return judged


@step("HC-STORE-12", "poll")
def write_is_settled(change: Change[ops.Poll, Polled]) -> int:
    """What a write put is believed stored, what it did not was offered once more, or is reported for good."""
    was, now, told = change.before.storage, change.after.storage, change.told
    given_up = []
    still_there = change.after.residency[1].difference(*_delivered(change))
    for name in told.writes:
        record = was.records[name]
        if name in now.records or not isinstance(record, Backup):
            raise Broken.because(f"{name} was applied, and is still on the books")
        if record.cleared:
            continue
        put, rest = record.hashes[: record.done], record.hashes[record.done :]
        if not now.believed.issuperset(put) or not now.owed.keys().isdisjoint(put):
            raise Broken.because(f"{name} put {len(put)} pages, and they are not believed stored, or still owed")
        owed = [digest for digest in rest if digest in was.owed and digest in still_there]
        last = [digest for digest in owed if was.owed[digest] + 1 >= change.before.rules.storage_retries]
        again = {digest: was.owed[digest] + 1 for digest in owed if digest not in last}
        if not now.reported.issuperset(last) or {d: now.owed.get(d) for d in again} != again:
            raise Broken.because(f"{name} did not put {len(rest)} pages, {len(last)} of them for the last time")
        given_up += [name] * (_settles_states(change, record) or bool(last))
    if (told.given_up or ()) != tuple(given_up):
        raise Broken.because(f"{told.given_up} are told to be given up, {given_up} are")
    return len(told.writes)


def _delivered(change: Change[ops.Poll, Polled]) -> Iterator[tuple[PageHash, ...]]:
    """The pages that the prefetches brought which the poll committed: storage is believed to have them."""
    for record, known in committed(change):
        if has_place(change.after, record) and is_whole(change.after, record, known):
            yield record.hashes[:known]


def _settles_states(change: Change[ops.Poll, Polled], record: Backup) -> bool:
    """Likewise of the states that it put; whether it offered one for the last time."""
    was, now, after = change.before.storage, change.after.storage, change.after
    done = record.states_done if isinstance(record, BackupEnded) else 0
    put, rest = record.ends[:done], record.ends[done:]
    if not now.believed_states.issuperset(put) or not now.owed_states.keys().isdisjoint(put):
        raise Broken.because(f"{record.id} put {len(put)} states, and they are not believed stored, or still owed")
    come = {hashes[-1] for hashes in _delivered(change) if hashes}
    held = {row.hashes[-1] for row in after.rows if row.host_state is not None} - come
    tries = {digest: was.owed_states[digest] + 1 for digest in rest if digest in was.owed_states and digest in held}
    last = {digest for digest, count in tries.items() if count >= change.before.rules.storage_retries}
    again = {digest: count for digest, count in tries.items() if digest not in last}
    if not now.reported_states.issuperset(last) or {d: now.owed_states.get(d) for d in again} != again:
        raise Broken.because(f"{record.id} did not put {len(rest)} states, {len(last)} of them for the last time")
    return bool(last)


@step("HC-STORE-13", needs="storage")
def storage_books_are_kept(change: Change[Any, Outcome]) -> int:
    """Storage work goes on the books when it is asked of storage, and leaves them when its last end was applied."""
    was, now = change.before.storage.records, change.after.storage.records
    if was.keys() == now.keys() and not change.what.effects:
        return len(now)
    begun = {effect.id for effect in change.what.effects if effect.kind in ("storage_query", "storage_write")}
    expected = (was.keys() | begun) - _over(change)
    if now.keys() != expected:
        raise Broken.because(f"storage work {sorted(now)} is on the books, expected {sorted(expected)}")
    return len(expected)


def _over(change: Change[Any, Outcome]) -> set[str]:
    """The storage work whose last end the step applied, or that it ended itself."""
    was, op, told = change.before.storage, change.op, change.told
    if op.op in ("detach", "reset"):
        running = PrefetchReading | BackupWriting
        by_force = is_by_force(change.before, op) and not isinstance(told, Refused)
        return {name for name, record in was.records.items() if by_force or not isinstance(record, running)}
    if isinstance(told, Polled):
        left = {name for name, _ in was.reads[op.reads :]}
        read = {name for name in told.reads if name not in left and isinstance(was.records[name], PrefetchEnded)}
        closed = {record.id for record in was.prefetches if record.rid is None} | {*told.revoked, *told.committed}
        return {*told.writes, *(closed & {*told.answers, *read})}
    name = was.open.get(op.rid) if isinstance(op, ops.Progress | ops.Abort) else None
    goes_on = isinstance(told, Progressed) and not told.done
    ended = isinstance(was.prefetch(name), PrefetchEnded) and not goes_on and name not in dict(was.reads)
    return {name} if name is not None and ended else set()


@step("HC-STORE-06", "attach")
def attach_owes(change: Change[ops.Attach, Done | Refused]) -> int:
    """A new attachment is owed every settled host page that may be stored, or nothing, by the rule attach_offers."""
    before, after = change.before, change.after
    if isinstance(change.told, Refused) or before.storage.attached:
        return 0
    expected = to_be_stored(after) if before.rules.attach_offers else set()
    if after.storage.owed != dict.fromkeys(expected, 0) or after.storage.records or change.what.effects:
        raise Broken.because(f"{len(after.storage.owed)} pages are owed after the attach, expected {len(expected)}")
    return 1
