"""PREF: storage to host, for a request that waits: what is asked for, who holds which page, what workers report."""

from typing import Any

from hicache_ref.model.records import (
    Backup,
    Prefetch,
    PrefetchAnswered,
    PrefetchEnded,
    PrefetchQueued,
    PrefetchReading,
    Record,
)
from hicache_ref.model.state import FREE
from hicache_ref.requirements.backup import host_pages_for, may_lose_state
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE, Row
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import ROOT, STATE_HOST, NodeId
from hicache_ref.vocabulary.outcomes import Done, Invalid, Outcome, Polled, Prefetching, Refused

Reading = PrefetchReading | PrefetchEnded
STAGES = ("queued", "answered", "reading", "ended")


def threshold(view: View) -> int:
    """The fewest pages worth a prefetch: the threshold in tokens, rounded up to pages, at least one."""
    size = view.profile.sizes.page_size
    return max(1, (view.storage.settings.prefetch_threshold + size - 1) // size)


# -- states -----------------------------------------------------------------------------------------------------------


@always("HC-PREF-01", "storage", about="storage")
def open_prefetch_holds_its_pages(view: View) -> int:
    """An open prefetch holds a host page for each page that it is to read, from when they are taken."""
    judged = 0
    for record in view.storage.opened:
        judged += 1
        first = view.rules.prefetch_allocation == "before" and isinstance(record, PrefetchQueued)
        wanted = len(record.hashes) if first or isinstance(record, Reading) else 0
        if len(set(record.pages)) != len(record.pages) or len(record.pages) != wanted:
            raise Broken.because(f"{record.stage} {record.id} holds host pages {record.pages}, expected {wanted} pages")
    return judged


@always("HC-PREF-02", "storage", about="storage")
def what_waits_fits_the_records(view: View) -> int:
    """Whatever has ended and was not applied waits once, and with no more pages than are in place."""
    storage, records = view.storage, view.storage.records
    if not (records or storage.answers or storage.reads or storage.writes):
        return 0
    for stage, waiting in (("answered", storage.answers), ("written", storage.writes)):
        there = [name for name, record in records.items() if record.stage == stage]
        if sorted(waiting) != sorted(there):
            raise Broken.because(f"{waiting} wait to be applied, {there} are {stage}")
    in_place: dict[str, int] = {}
    for name, count in storage.reads:
        record = records.get(name)
        if not isinstance(record, Reading) or not in_place.get(name, 0) <= count <= record.done:
            raise Broken.because(f"a batch of {name} with {count} pages waits, it does not have them")
        in_place[name] = count
    for name, record in records.items():
        if isinstance(record, Reading) and in_place.get(name, record.done) != record.done:
            raise Broken.because(f"{record.done} pages of {name} are in place, its last batch says {in_place[name]}")
        if isinstance(record, PrefetchEnded) and name not in in_place and not _may_wait_for_progress(view, record):
            raise Broken.because(f"{name} has ended, and nothing of it waits to be applied")
    return len(records)


def _may_wait_for_progress(view: View, record: PrefetchEnded) -> bool:
    """Under the rule `prefetch_commit` = `progress` a complete prefetch waits for its request, not for a poll."""
    return record.rid is not None and view.rules.prefetch_commit == "progress"


@always("HC-PREF-04", "storage", about="storage")
def one_prefetch_a_request(view: View) -> int:
    """The kept map of open prefetches and the records agree, and what is closed was told to stop."""
    storage = view.storage
    if not storage.open and not storage.records:
        return 0
    waiting = {record.id: record.rid for record in storage.prefetches if record.rid is not None}
    said = {name: rid for rid, name in storage.open.items()}
    if said != waiting or len(said) != len(storage.open):
        raise Broken.because(f"{storage.open} is kept to be open, the records say {waiting}")
    for record in storage.prefetches:
        if record.rid is None and not record.cancelled:
            raise Broken.because(f"{record.id} is closed and goes on")
    return len(storage.open)


@always("HC-PREF-09", "storage", about="storage")
def occupied_is_what_is_open(view: View) -> int:
    """As many pages count against the limit as the open prefetches asked for."""
    asked = sum([record.asked for record in view.storage.opened])
    if asked != view.storage.occupied:
        raise Broken.because(f"{view.storage.occupied} pages count as asked for, the open prefetches asked for {asked}")
    return len(view.storage.open)


# -- what stays as it was ----------------------------------------------------------------------------------------------


@step("HC-PREF-03", needs="storage")
def anchor_stays(change: Change[Any, Outcome]) -> int:
    """The anchor of a prefetch that stays open stays, with its host copy, unless a failed copy is applied."""
    before, after, judged = change.before, change.after, 0
    if not after.storage.open:
        return 0
    for record in after.storage.opened:
        was = before.storage.records.get(record.id)
        if not isinstance(was, Prefetch) or record.anchor == ROOT:
            continue
        judged += 1
        had = before.row.get(was.anchor, NOWHERE).host is not None
        has = after.row.get(record.anchor, NOWHERE).host is not None
        if record.anchor != was.anchor or (had and not has and not _failure_applied(change)):
            raise Broken.because(f"{record.id} hangs on node {was.anchor}, which was taken from under it")
    return judged


def _failure_applied(change: Change[Any, Outcome]) -> bool:
    told = change.told
    names = (*told.backups, *told.loads) if isinstance(told, Polled) else ()
    before = change.before
    return any(before.busy[name].lost(pool.name) for name in names for pool in before.pools())


@step("HC-PREF-13", needs="storage")
def progress_is_monotone(change: Change[Any, Outcome]) -> int:
    """Counts do not fall, stages come in order, and what becomes known is what the rules say."""
    before, judged = change.before.storage.records, 0
    applied = _applied_batches(change)
    for name, now in change.after.storage.records.items():
        was = before.get(name)
        if (was is now and name not in applied) or not isinstance(was, Prefetch) or not isinstance(now, Prefetch):
            continue
        judged += 1
        if STAGES.index(now.stage) < STAGES.index(was.stage) or (was.rid is None and now.rid is not None):
            raise Broken.because(f"{name} was {_state(was)} and is {_state(now)}")
        if not isinstance(now, Reading):
            continue
        done, known = (was.done, was.known) if isinstance(was, Reading) else (0, 0)
        handed_over = known if was.rid is not None and now.rid is None else 0
        still_known = now.known == 0 if now.rid is None else now.known >= known
        if now.done < done - handed_over or not still_known:
            raise Broken.because(f"{name} had {done} pages, {known} known, and has {now.done}, {now.known} known")
        if now.rid is not None:
            live = change.before.rules.prefetch_progress == "live"
            _must_know(now, now.done if live else max(known, applied.get(name, 0)))
        pages = was.pages[handed_over:]
        if isinstance(now, PrefetchEnded) and change.before.rules.read_tail == "io_end":
            pages = pages[: now.done]
        if isinstance(was, Reading) and now.pages != pages:
            raise Broken.because(f"{name} reads into pages {now.pages}, it was {was.pages}")
    return judged


def _applied_batches(change: Change[Any, Outcome]) -> dict[str, int]:
    """The prefetches of which a poll applied a batch, each with how many pages the last of these says are in place."""
    op = change.op
    return dict(change.before.storage.reads[: op.reads]) if isinstance(op, ops.Poll) else {}


def _must_know(record: Reading, expected: int) -> None:
    """The scheduler knows of what polls have applied, or by the rule `live` of all that is in place."""
    if record.known != expected:
        raise Broken.because(f"{record.known} pages of {record.id} are known to be read, expected {expected}")


def _state(record: Prefetch) -> str:
    return f"{record.stage} for {record.rid}" if record.rid is not None else f"closed and {record.stage}"


@step("HC-PREF-19", needs="storage")
def stays_open_until_told(change: Change[Any, Outcome]) -> int:
    """An open prefetch is closed by what its request does, by a poll that says so, or by a detach or a reset."""
    before, after, op, told = change.before.storage, change.after.storage, change.op, change.told
    if not before.open or op.op in ("detach", "reset"):
        return 0
    leave = {before.open.get(op.rid)} if isinstance(op, ops.Abort | ops.Progress) else set()
    leave.update((*told.revoked, *told.committed) if isinstance(told, Polled) else ())
    closed = {name for rid, name in before.open.items() if after.open.get(rid) != name}
    if closed - leave:
        raise Broken.because(f"{sorted(closed - leave)} had a request that waits, and {op.op} closed it untold")
    return len(before.open)


@step("HC-PREF-16", needs="storage")
def queue_is_in_order(change: Change[Any, Outcome]) -> int:
    """A poll frees the pages that waited longest, as many as agreed; nothing else takes one out of the queue."""
    was, now, op, told = change.before.storage.release, change.after.storage.release, change.op, change.told
    if not was or op.op in ("detach", "reset"):
        return 0
    count = min(op.releases, len(was)) if isinstance(op, ops.Poll) and isinstance(told, Polled) else 0
    if now[: len(was) - count] != was[count:] or (isinstance(told, Polled) and told.releases != count):
        raise Broken.because(f"pages {was} waited to be released, {count} are to go, and {now} wait")
    held = [page for page in was[:count] if change.after.host.held.get(page) != FREE]
    if held:
        raise Broken.because(f"host pages {held} were released, and are not free")
    return len(was)


# -- the worker's steps -----------------------------------------------------------------------------------------------

Report = ops.QueryDone | ops.ReadDone | ops.WriteDone


@step("HC-PREF-17", "query_done", "read_done", "write_done", told=("done", "invalid"))
def only_running_work_reports(change: Change[Report, Done | Invalid]) -> int:
    """A report is taken about what runs, and about no more pages than it has; else it is invalid."""
    op, before = change.op, change.before
    record = before.storage.records.get(op.id)
    if isinstance(op, ops.QueryDone):
        lawful = isinstance(record, PrefetchQueued) and 0 <= op.hits <= len(record.hashes)
    else:
        stage = "reading" if isinstance(op, ops.ReadDone) else "writing"
        runs = record is not None and record.stage == stage
        lawful = runs and 0 <= op.draft <= op.pages <= batch_size(before, op.id)
        lawful = lawful and (not op.draft or takes_draft(before))
        lawful = lawful and _states_fit(op, record)
    if lawful == isinstance(change.told, Invalid):
        raise Broken.because(f"a report about {record.stage if record else 'nothing'} {op.id} is {change.told.kind}")
    return 1


def _states_fit(op: ops.ReadDone | ops.WriteDone, record: Record | None) -> bool:
    """States come behind the last page, and no more of them than there are."""
    states = int(op.state) if isinstance(op, ops.ReadDone) else op.states
    if not states:
        return True
    last = record is not None and getattr(record, "done", 0) + op.pages == len(record.pages)
    return last and record is not None and 0 < states <= len(record.states)


def batch_size(view: View, name: str) -> int:
    """How many pages the batch has that runs for the read or write of this name."""
    record = view.storage.records[name]
    done = record.done if isinstance(record, Reading | Backup) else 0
    return min(view.profile.sizes.storage_batch, len(record.pages) - done)


def takes_draft(view: View) -> bool:
    """Whether draft pages are read and stored."""
    return view.draft and view.storage.settings.draft


@step("HC-PREF-05", "query_done")
def answer_is_taken(change: Change[ops.QueryDone, Done]) -> int:
    """What storage has is left to read; pages taken before for the rest, or for too little, wait for release."""
    op, before, after = change.op, change.before, change.after
    was, now = before.storage.records.get(op.id), after.storage.records.get(op.id)
    if not isinstance(was, PrefetchQueued):
        return 0
    unheard = op.raised or (was.cancelled and before.rules.cancelled_query == "answers_0")
    unheard = unheard or (before.rules.prefetch_limit == "query" and _is_over_limit(before))
    hits = 0 if unheard else op.hits
    kept = hits if hits >= threshold(before) or not was.pages else 0
    expected = PrefetchReading if kept and was.pages else PrefetchAnswered
    if not isinstance(now, expected) or now.hashes != was.hashes[:kept] or now.key != was.key[:kept]:
        raise Broken.because(f"storage has {hits} pages for {op.id}, and it is {now.stage if now else 'gone'}")
    queued = list(was.pages[kept:])
    if now.pages != was.pages[:kept] or after.storage.release != before.storage.release + queued:
        raise Broken.because(f"{op.id} keeps pages {now.pages}, and {after.storage.release} wait for release")
    return 1


def counts_no_more(view: View, record: PrefetchReading) -> bool:
    """Whether it was terminated, and by the rule `live` nothing counts that is read for it since."""
    return record.cancelled and record.rid is not None and view.rules.prefetch_progress == "live"


@step("HC-PREF-06", "read_done")
def batch_is_exact(change: Change[ops.ReadDone, Done]) -> int:
    """The pages of the batch hold what they should, no other page changed, and the reading ends where it must."""
    op, before, after = change.op, change.before, change.after
    was, now = before.storage.records.get(op.id), after.storage.records.get(op.id)
    if not isinstance(was, PrefetchReading):
        return 0
    end = was.done + op.pages
    stamp = before.host.stamp.copy()
    for page, digest in zip(was.pages[was.done : end], was.hashes[was.done : end], strict=True):
        stamp[page] = digest
    end = was.done if counts_no_more(before, was) else end
    if stamp != after.host.stamp or before.device.stamp != after.device.stamp:
        raise Broken.because(f"a batch of {op.pages} pages of {op.id} did not write exactly those pages")
    over = op.raised or op.pages < batch_size(before, op.id) or end == len(was.pages) or was.cancelled
    tail = was.pages[end:] if was.rid is not None else was.pages
    if over and before.rules.read_tail == "io_end":
        end = min(end, len(was.pages) - len(tail))
        if after.storage.release != [*before.storage.release, *tail]:
            raise Broken.because(f"{op.id} is over, and {after.storage.release} wait for release")
    if not isinstance(now, PrefetchEnded if over else PrefetchReading) or now.done != end:
        raise Broken.because(f"{op.id} has read {end} of {len(was.pages)} pages and is {now.stage if now else 'gone'}")
    if after.storage.reads != [*before.storage.reads, (op.id, end)]:
        raise Broken.because(f"the batch of {op.id} does not wait for a poll")
    return op.pages


# -- the scheduler's steps --------------------------------------------------------------------------------------------


@step("HC-PREF-15", "prefetch")
def asked_by_the_rules(change: Change[ops.Prefetch, Prefetching | Refused]) -> int:
    """A prefetch is refused for the reasons that the rules name and no other; else it asks for all that is missing."""
    before, told = change.before, change.told
    found = _found(change)
    wanted = len(change.hashes) - len(found)
    why = _why_not(change, wanted)
    if (why is not None) != isinstance(told, Refused):
        raise Broken.because(
            f"a prefetch of {wanted} pages is {told.kind}, by the rules {why or 'nothing stands against it'}"
        )
    if not isinstance(told, Prefetching):
        return 1
    record = change.after.storage.prefetch(told.id)
    if record is None or told.id in before.storage.records or record.rid != change.op.rid or record.cancelled:
        raise Broken.because(f"{told.id} is told, and is no new prefetch of {change.op.rid}")
    room = _pages_to_ask_for(before, change, wanted)
    since = change.op.now if before.rules.prefetch_clock == "submission" else -1
    asked = room if before.rules.truncation_counts_less else wanted
    if (record.asked, len(record.hashes), record.since) != (asked, room, since) or told.pages != room:
        raise Broken.because(
            f"{told.id} asks for {told.pages} pages, {wanted} are missing and there is room for {room}"
        )
    anchor = change.after.row.get(record.anchor, NOWHERE)
    if anchor.hashes[-1:] != change.hashes[len(found) - 1 : len(found)]:
        raise Broken.because(f"{told.id} hangs on node {record.anchor}, where its match does not end")
    return 1


def _found(change: Change[ops.Prefetch, Any]) -> list[tuple[Row, int]]:
    """The pages of the key that need not be asked for: those cached, of a hybrid model those up to the best end."""
    return change.before.cached(change.hashes)[: ends(change.before, change.hashes).best]


def _why_not(change: Change[ops.Prefetch, Any], wanted: int) -> str | None:
    before, op = change.before, change.op
    storage, rules = before.storage, before.rules
    found = _found(change)
    reasons = {
        "no storage is attached": not storage.attached,
        "the request has a prefetch": op.rid in storage.open,
        "it is below the threshold": wanted < threshold(before),
        "namespaces have no hash": op.key.extra is not None and not rules.hash_namespace,
        "too much is asked for": rules.prefetch_limit == "submission" and _is_over_limit(before),
        "the anchor has no host copy": bool(found) and found[-1][0].host is None,
        "no state slot is free": _needs_slot(before, {row.id for row, _ in found[-1:]}),
        "the host is full": _pages_to_ask_for(before, change, wanted) < _fewest(before, wanted),
    }
    return next((why for why, holds in reasons.items() if holds), None)


def _is_over_limit(view: View) -> bool:
    """Whether the open prefetches ask for as many tokens as the rule prefetch_capacity allows."""
    sizes = view.profile.sizes
    more = sizes.host_pages - sizes.device_pages
    capacity = {
        "half_host": 0.5 * sizes.host_pages,
        "host_minus_device": 0.8 * more,
        "host_minus_device_clamped": 0.8 * max(0, more),
    }[view.rules.prefetch_capacity]
    return view.storage.occupied * sizes.page_size >= int(capacity * sizes.page_size)


def _needs_slot(view: View, anchor: set[NodeId]) -> bool:
    """Of a hybrid model, where room is taken first: no state slot on host is free or can be, but for the anchor's."""
    first = view.rules.prefetch_allocation == "before" or view.rules.prefetch_state == "submission"
    if not view.states or not first or view.pool(STATE_HOST).free:
        return False
    return anchor.issuperset(may_lose_state(view, STATE_HOST))


def _fewest(before: View, wanted: int) -> int:
    """With less room a prefetch is refused, where its pages are taken first."""
    return threshold(before) if before.rules.prefetch_truncates else wanted


def _pages_to_ask_for(before: View, change: Change[ops.Prefetch, Any], wanted: int) -> int:
    """All that is missing; where host pages are taken first, as much of it as there is room for beside the anchor."""
    if before.rules.prefetch_allocation == "after":
        return wanted
    found = _found(change)
    return host_pages_for(before, wanted, found[-1][0].id if found else ROOT)
