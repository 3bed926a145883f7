"""PREF: when a request may go on, what a commit does, and what a poll applies of prefetches."""

from collections.abc import Iterator
from typing import Any

from hicache_ref.model.records import Prefetch, PrefetchEnded, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import FREE
from hicache_ref.requirements.backup import host_pages_for, state_room
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.prefetch import Reading, threshold
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.rows import NOWHERE
from hicache_ref.requirements.sweep import answered
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import ROOT, STATE_HOST, Pages
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled, Progressed


@step("HC-PREF-10", "progress")
def policy_lets_go(change: Change[ops.Progress, Progressed]) -> int:
    """The request may go on when its policy says so; until then nothing changes but the start of its clock."""
    op, before, after = change.op, change.before, change.after
    record = before.storage.prefetch(before.storage.open.get(op.rid))
    done = record is None or _may_go(before, record, op.now)
    if change.told.done != done:
        raise Broken.because(f"request {op.rid} is told {change.told.done}, by its policy {done}")
    if record is None or done:
        return 1
    now = after.storage.prefetch(record.id)
    since = op.now if record.since < 0 else record.since
    if now != record.model_copy(update={"since": since}) or change.told.loaded or not change.still:
        raise Broken.because(f"request {op.rid} may not go on, and its prefetch changed")
    return 1


def _may_go(view: View, record: Prefetch, now: int) -> bool:
    settings = view.storage.settings
    if record.cancelled:
        return True
    if isinstance(record, PrefetchEnded) and view.rules.prefetch_commit == "progress" and record.known == record.done:
        return True
    if settings.prefetch_policy != "timeout":
        return settings.prefetch_policy == "best_effort"
    hits = 0 if isinstance(record, PrefetchQueued) else len(record.hashes)
    since = now if record.since < 0 else record.since
    return now - since > settings.timeout_ms(hits * view.profile.sizes.page_size, view.rules.prefetch_timeout)


@step("HC-PREF-11", "abort")
def abort_leaves_nothing(change: Change[ops.Abort, Done]) -> int:
    """Nothing waits for the request or is kept for it, what was known to be read is given up, and no node changed."""
    op, before, after = change.op, change.before, change.after
    if op.rid in after.storage.open or op.rid in after.storage.loaded:
        raise Broken.because(f"request {op.rid} has gone, and something is kept for it")
    pruned = bool(before.states) and after.row.keys() < before.row.keys()
    if not change.still and not pruned:
        raise Broken.because(f"an abort of {op.rid} changed a node")
    record = before.storage.prefetch(before.storage.open.get(op.rid))
    if record is None:
        return 1
    known = record.pages[: record.known] if isinstance(record, Reading) else ()
    _expect_given_up(after, known, f"host pages {known} of {record.id} were read, and")
    _stay_with_io(change, record, len(known))
    return 1


def _expect_given_up(view: View, pages: Pages, said: str) -> None:
    """Pages that were read and are not wanted are free, or by the rule give_back wait for release."""
    goes_to = ("queue", "") if view.rules.give_back == "queued" else FREE
    if any(view.host.held.get(page) != goes_to for page in pages):
        raise Broken.because(f"{said} are not {goes_to[0]}")


def _stay_with_io(change: Change[Any, Any], record: Prefetch, known: int) -> None:
    """What the closed prefetch had and the scheduler did not know is held by nobody while its end is to come."""
    left = change.after.storage.records.get(record.id)
    if left is not None and left.pages != record.pages[known:]:
        raise Broken.because(f"{record.id} was closed with {known} pages known, and keeps {left.pages}")
    for page in record.pages[known:]:
        holder = change.after.host.held.get(page)
        if holder is not None if left is not None else holder != FREE:
            raise Broken.because(f"host page {page} of {record.id} was not known to be read, and went to {holder}")


def committed(change: Change[Any, Any]) -> Iterator[tuple[Prefetch, int]]:
    """The prefetches that the step committed, each with how many of its pages were known to be read and agreed on."""
    before, told, op = change.before.storage, change.told, change.op
    if isinstance(told, Polled):
        for record in map(before.prefetch, told.committed):
            if isinstance(record, PrefetchEnded):
                yield record, record.done
    elif isinstance(told, Progressed) and told.done and op.rid in before.open:
        record = before.prefetch(before.open[op.rid])
        if record is not None:
            known = record.known if isinstance(record, Reading) else 0
            yield record, known if op.agreed is None else min(known, op.agreed)


def is_whole(view: View, record: Prefetch, known: int) -> bool:
    """Whether what was read may be committed: of a hybrid model all of it and its state, or nothing (HC-STATE-31)."""
    whole = isinstance(record, PrefetchEnded) and record.has_state and known == len(record.pages)
    return not view.states or whole


def has_place(view: View, record: Prefetch) -> bool:
    """Whether the anchor of the prefetch is in the tree and has a host copy, so that what was read can hang there."""
    anchor = view.row.get(record.anchor, NOWHERE)
    return anchor is not NOWHERE and (anchor.id == ROOT or anchor.host is not None)


@step("HC-PREF-07", "progress", "poll")
def commit_leaves_no_gap(change: Change[ops.Progress | ops.Poll, Progressed | Polled]) -> int:
    """Known pages are in the tree below the anchor, one for each place, or free; never a gap."""
    after, judged = change.after, 0
    for record, known in committed(change):
        judged += 1
        lost = not has_place(after, record) or not is_whole(after, record, known)
        turned_away = False
        for page, digest in zip(record.pages[:known], record.hashes, strict=False):
            row, at = after.where.get(digest, (NOWHERE, 0))
            there = row.host[at] if row.host is not None else None
            mine = after.host.held.get(page) == ("node", row.id) and there == page
            if not mine and after.host.held.get(page, FREE)[0] not in ("free", "queue" if after.states else "free"):
                raise Broken.because(f"host page {page} of {record.id} is neither in its node nor free")
            turned_away = turned_away or (row.device is not None and there is None and not after.rules.commit_adopts)
            if mine if lost else there is None and not turned_away:
                raise Broken.because(f"{record.id} is committed {'without its anchor' if lost else 'with a gap'}")
        _stay_with_io(change, record, max(known, record.known) if isinstance(record, Reading) else 0)
    return judged


@step(
    "HC-MATCH-06", "take_pages", "give_back", "forward", "forward_done", "unlock", "evict", "evict_host", "evict_state",
    "evict_host_state", "write_backup", "copy_done", "copy_failed", "query_done", "read_done", "write_done",
    "terminate", "abort", "attach", "detach", "clear_storage", "register_draft", "set_write_policy", "audit", "poll",
    "progress", needs="nodes",
)  # fmt: skip
def nothing_is_used(change: Change[Any, Outcome]) -> int:
    """No node that was there was used in a step that asks for no key and commits nothing."""
    if isinstance(change.op, ops.Poll | ops.Progress) and any(True for _ in committed(change)):
        return 0
    before = change.before
    used = [row.id for row in change.after.rows if row.last > before.clock and row.id in before.row]
    if used:
        raise Broken.because(f"nodes {used} were used by {change.op.op}, which asks for no key")
    return 1


@step("HC-PREF-21", "progress", "poll")
def anchor_is_used(change: Change[ops.Progress | ops.Poll, Progressed | Polled]) -> int:
    """A commit makes its anchor used where the rules say so and it had host pages, and else leaves it as it was."""
    before, after, found = change.before, change.after, list(committed(change))
    first = before.rules.prefetch_allocation == "before"
    due = {record.anchor for record, _ in found if first or isinstance(record, Reading)}
    due = due if before.rules.commit_stamps_anchor else set()
    hung = {digest for record, known in found for digest in record.hashes[:known]}
    judged = 0
    for anchor in {record.anchor for record, _ in found} - {ROOT}:
        row = after.row.get(anchor, NOWHERE)
        if row is NOWHERE or row.hashes[-1] in hung:
            continue  # it has gone, or is on the path of another commit of the same poll
        judged += 1
        if (row.last > before.clock) != (anchor in due):
            raise Broken.because(f"node {anchor} was last used at {row.last}, a commit below it at {before.clock + 1}")
    return judged


@step("HC-PREF-22", needs="storage")
def told_to_stop(change: Change[Any, Any]) -> int:
    """Storage is told to stop what a step has closed or terminated of queries and reads that run, and nothing else."""
    after = change.after.storage
    over = sorted(
        record.id
        for record in change.before.storage.opened
        if isinstance(record, PrefetchQueued | PrefetchReading)
        and not record.cancelled
        and (getattr(after.records.get(record.id), "rid", None) is None or _terminates(change, record))
    )
    told = sorted(effect.id for effect in change.what.effects if effect.kind == "storage_cancel")
    if told != over:
        raise Broken.because(f"storage is told to stop {told}, closed or terminated were {over}")
    return len(over)


def _terminates(change: Change[Any, Any], record: Prefetch) -> bool:
    """Whether the step is the terminate of this open prefetch."""
    return isinstance(change.op, ops.Terminate) and change.op.rid == record.rid


@step("HC-PREF-23", needs="storage")
def terminated_and_open(change: Change[Any, Any]) -> int:
    """An open prefetch is to stop once its request was terminated, which changes nothing else, and not before."""
    was, now = change.before.storage, change.after.storage
    for record in now.opened:
        before = was.prefetch(record.id)
        if before is not None and record.cancelled != (before.cancelled or _terminates(change, before)):
            raise Broken.because(f"{record.id} is {'' if record.cancelled else 'not '}to stop, after {change.op.op}")
    if isinstance(change.op, ops.Terminate):
        kept = ("open", "answers", "reads", "writes", "release", "owed", "believed", "loaded", "occupied")
        changed = [name for name in kept if getattr(was, name) != getattr(now, name)]
        name = was.open.get(change.op.rid)
        records = {
            each: record.model_copy(update={"cancelled": True}) if each == name else record
            for each, record in was.records.items()
        }
        if changed or records != now.records or not change.still:
            raise Broken.because(f"a terminate of {change.op.rid} changed {changed or 'a prefetch or a node'}")
    return len(now.open)


@step("HC-PREF-20", "progress")
def agreed_and_no_more(change: Change[ops.Progress, Progressed]) -> int:
    """What this rank knows to be read, and the ranks have not agreed on, is given up."""
    after, judged = change.after, 0
    for record, known in committed(change):
        if not isinstance(record, Reading) or known == record.known:
            continue
        judged += 1
        surplus = record.pages[known : record.known]
        _expect_given_up(after, surplus, f"{known} pages of {record.id} were agreed on, and {surplus}")
    return judged


@step("HC-PREF-14", "poll")
def closed_end_changes_no_node(change: Change[ops.Poll, Polled]) -> int:
    """Nothing that a closed prefetch read is in the tree; what is new there was committed by this poll."""
    before, after, judged = change.before, change.after, 0
    for name in {*change.told.answers, *change.told.reads}:
        record = before.storage.prefetch(name)
        if record is None or record.rid is not None:
            continue
        judged += 1
        kept = [page for page in record.pages if after.host.held.get(page, FREE)[0] == "node"]
        if kept:
            raise Broken.because(f"{name} was closed, and host pages {kept} that it read are in the tree")
    if not change.still:
        new = after.where.keys() - before.where.keys()
        if new.difference(*(record.hashes[:known] for record, known in committed(change))):
            raise Broken.because("a poll cached pages of no prefetch that it committed")
    return judged


@step("HC-PREF-18", "poll")
def storage_ends_in_order(change: Change[ops.Poll, Polled]) -> int:
    """Answers, batches and writes are applied in the order in which they ended, up to the agreed numbers."""
    was, now, op, told = change.before.storage, change.after.storage, change.op, change.told
    if change.before.has_storage:
        names = tuple([name for name, _ in was.reads[: op.reads]])
        expected = (tuple(was.answers[: op.answers]), names, tuple(was.writes[: op.writes]))
        if (told.answers, told.reads, told.writes) != expected:
            raise Broken.because(f"{(told.answers, told.reads, told.writes)} were applied, {expected} were to be")
        left = (was.answers[op.answers :], was.reads[op.reads :], was.writes[op.writes :])
        if (now.answers, now.reads, now.writes) != left:
            raise Broken.because(f"{(now.answers, now.reads, now.writes)} wait for the next poll, {left} should")
        last = [
            name for name in names if isinstance(was.records.get(name), PrefetchEnded) and name not in dict(left[1])
        ]
        due = [
            n for n in dict.fromkeys(last) if n in was.open.values() and change.before.rules.prefetch_commit == "poll"
        ]
        if sorted(told.committed) != sorted(due):
            raise Broken.because(f"{told.committed} were committed, {due} had been read to the end")
    return len(told.answers) + len(told.reads) + len(told.writes)


@step("HC-PREF-12", "progress", "poll")
def loaded_is_told_once(change: Change[ops.Progress | ops.Poll, Progressed | Polled]) -> int:
    """The request is told, once, how many pages of its last commit were new."""
    was, now, told = change.before.storage.loaded, change.after.storage.loaded, change.told
    expected = dict(was)
    for record, known in committed(change):
        new = [page for page in record.pages[:known] if change.after.host.held.get(page, FREE)[0] == "node"]
        expected[str(record.rid)] = len(new)
    count = expected.pop(change.op.rid, 0) if isinstance(told, Progressed) and told.done else 0  # type: ignore[union-attr]
    if isinstance(told, Progressed) and told.loaded != count:
        raise Broken.because(f"request {change.op.rid} is told {told.loaded} pages, storage gave it {count}")  # type: ignore[union-attr]
    if now != {rid: pages for rid, pages in expected.items() if pages}:
        raise Broken.because(f"{now} is kept to be told, expected {expected}")
    return 1


def _all_or_nothing(before: View, first: Prefetch, now: Prefetch | None, room: int) -> None:
    """Of a hybrid model: all pages and a slot are taken, or the prefetch is revoked for want of one of them."""
    wanted = len(first.hashes)
    if now is None and wanted >= threshold(before) and room == wanted and state_room(before, STATE_HOST):
        raise Broken.because(f"{first.id} is revoked, there is room for its {wanted} pages and a state")
    if now is not None and (len(now.pages), len(now.states)) != (wanted, 1):
        raise Broken.because(f"{first.id} reads into {len(now.pages)} pages and {len(now.states)} state slots")


@step("HC-PREF-08", "poll")
def revoked_for_cause(change: Change[ops.Poll, Polled]) -> int:
    """An answered prefetch reads, or is revoked if terminated, if storage has too little or the host no room."""
    before, after, told = change.before, change.after, change.told
    enough = threshold(before)
    for name in told.answers:
        was, now = before.storage.prefetch(name), after.storage.prefetch(name)
        if was is None or (name in told.revoked) != (was.rid is not None and now is None):
            raise Broken.because(f"{name} is {'' if name in told.revoked else 'not '}told to be revoked")
        if now is not None and (was.cancelled or len(now.pages) < enough or now.hashes != was.hashes[: len(now.pages)]):
            raise Broken.because(
                f"{name} reads {len(now.pages)} pages, {len(was.hashes)} are there, {enough} are enough"
            )
    first = answered(change)
    if isinstance(first, Prefetch) and not first.cancelled:
        room = host_pages_for(before, len(first.hashes))
        now = after.storage.prefetch(first.id)
        if not before.rules.prefetch_truncates and room < len(first.hashes):
            room = 0
        if before.states:
            _all_or_nothing(before, first, now, room)
        elif (now is None) != (room < enough) or (now is not None and len(now.pages) != room):
            raise Broken.because(f"{first.id} is {now.stage if now else 'revoked'}, there is room for {room} pages")
    return len(told.answers)
