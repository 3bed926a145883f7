"""Witnesses of storage, of prefetches and of draft pages: what a search must have met there."""

from typing import Any

from hicache_ref.model.records import BackupWriting, Prefetch, PrefetchReading
from hicache_ref.model.state import FREE
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.commits import committed
from hicache_ref.requirements.registry import FACT, sometimes
from hicache_ref.requirements.rows import NOWHERE
from hicache_ref.requirements.view import View
from hicache_ref.requirements.waited import is_by_force
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import ROOT, NodeId
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled, Prefetching, Progressed, Refused

Ending = Change[ops.Progress | ops.Poll, Progressed | Polled]

FACT.update(
    {
        "state_put_alone": "HC-STATE-67",
        "state_not_put": "HC-STATE-68",
        "state_not_read": "HC-STATE-69",
        "fetched_without_state": "HC-STATE-70",
        "state_fetched": "HC-STATE-71",
        "fetched_state_given_back": "HC-STATE-72",
        "draft_missing": "HC-DRAFT-50",
        "draft_not_stored": "HC-DRAFT-51",
        "offered_with_owed_above": "HC-STORE-50",
        "offered_again": "HC-STORE-51",
        "write_raised": "HC-STORE-52",
        "write_cut_short": "HC-STORE-53",
        "owed_at_attach": "HC-STORE-54",
        "page_reported": "HC-STORE-55",
        "prefetch_truncated": "HC-PREF-50",
        "query_raised": "HC-PREF-51",
        "limited_in_query": "HC-PREF-74",
        "cancelled_during_query": "HC-PREF-52",
        "read_short": "HC-PREF-53",
        "read_raised": "HC-PREF-54",
        "read_after_close": "HC-PREF-55",
        "revoked": "HC-PREF-56",
        "adopted": "HC-PREF-57",
        "anchor_lost": "HC-PREF-58",
        "stopped_with_nothing": "HC-PREF-59",
        "aborted_while_queued": "HC-PREF-60",
        "aborted_while_answered": "HC-PREF-61",
        "aborted_while_reading": "HC-PREF-62",
        "aborted_while_ended": "HC-PREF-63",
        "agreed_on_less": "HC-PREF-73",
        "attach_failed": "HC-LIFE-56",
    }
)


# -- pages and nodes ---------------------------------------------------------------------------------------------------


@sometimes("HC-DRAFT-52", "progress", "poll")
def draft_in_part(change: Ending) -> bool:
    """A commit had pages with and without draft page."""
    if not change.before.draft:
        return False
    draft = change.before.host.draft
    return any(len({draft[page] is None for page in record.pages[:known]}) > 1 for record, known in committed(change))


@sometimes("HC-DRAFT-53", "register_draft", told=("done",))
def draft_came_late(change: Change[ops.RegisterDraft, Done]) -> bool:
    """A draft model was registered when pages were cached without one."""
    return not change.before.draft and len(change.before.rows) > 1


@sometimes("HC-STORE-56", "match_prefix", "lock", "insert", "prefetch", "progress", "poll")
def split_under_write(change: Change[Any, Outcome]) -> bool:
    """A node was split whose host pages a write reads."""
    after = change.after
    if not after.storage.records or change.still:
        return False
    new = after.row.keys() - change.before.row.keys()
    return any(not new.isdisjoint(_readers(after, record.pages)) for record in change.before.storage.backups)


def _readers(view: View, pages: tuple[int, ...]) -> set[NodeId | str]:
    return {view.host.held.get(page, FREE)[1] for page in pages}


@sometimes(
    "HC-STORE-57", "evict_host", "take_pages", "insert", "write_backup", "load_back", "evict", "poll", "prefetch"
)
def kept_by_storage(change: Change[Any, Outcome]) -> bool:
    """Host pages were made room for while a node was no leaf only because storage work pins it."""
    before = change.before
    if not before.storage.records or not any(pool == before.host.name for pool, _ in change.what.victims):
        return False
    inner = {row.parent for row in before.rows}
    pinned = [before.row.get(number, NOWHERE) for number in before.storage_pins - inner - {ROOT}]
    return any(row.device is None and row.host is not None and not row.lock for row in pinned)


# -- asking ------------------------------------------------------------------------------------------------------------


@sometimes("HC-HASH-50", "prefetch", told=("prefetching",))
def asked_in_namespace(change: Change[ops.Prefetch, Prefetching]) -> bool:
    """A key in a namespace was asked for."""
    return change.op.key.extra is not None


@sometimes("HC-PREF-64", "prefetch", told=("prefetching",))
def two_open(change: Change[ops.Prefetch, Prefetching]) -> bool:
    """Two prefetches are open."""
    return len(change.after.storage.open) > 1


@sometimes("HC-PREF-65", "prefetch", told=("prefetching",))
def asked_again_under_io(change: Change[ops.Prefetch, Prefetching]) -> bool:
    """A prefetch begins while the I/O of a closed one runs."""
    return any(record.rid is None and record.stage == "reading" for record in change.before.storage.prefetches)


@sometimes("HC-PREF-68", "prefetch", told=("refused",))
def limit_was_met(change: Change[ops.Prefetch, Refused]) -> bool:
    """A prefetch was refused for the limit of running ones."""
    return change.told.why == "rate limited" and bool(change.before.storage.occupied)


@sometimes("HC-PREF-71", "match_prefix", "lock", "insert", "prefetch", "progress", "poll")
def anchor_was_split(change: Change[Any, Outcome]) -> bool:
    """The anchor of an open prefetch was split."""
    before, after = change.before, change.after
    if change.still or not before.storage.open:
        return False
    anchors = [record.anchor for record in before.storage.prefetches if record.rid is not None]
    lower = [(before.row.get(number, NOWHERE), after.row.get(number, NOWHERE)) for number in anchors if number != ROOT]
    return any(len(now.hashes) < len(was.hashes) and now is not NOWHERE for was, now in lower)


# -- going on ----------------------------------------------------------------------------------------------------------


@sometimes("HC-PREF-66", "progress", "poll")
def duplicates_given_back(change: Ending) -> bool:
    """A commit with its anchor freed some of the pages that were read."""
    free, rows = change.after.host.held, change.after.row
    return any(
        free.get(page) == FREE and rows.get(record.anchor, NOWHERE) is not NOWHERE
        for record, known in committed(change)
        for page in record.pages[:known]
    )


@sometimes("HC-PREF-67", "progress")
def part_was_taken(change: Change[ops.Progress, Progressed]) -> bool:
    """A commit took some pages of a prefetch, and more are read."""
    return any(
        isinstance(record, PrefetchReading) and 0 < known < len(record.pages) for record, known in committed(change)
    )


@sometimes("HC-PREF-69", "progress")
def time_was_over(change: Change[ops.Progress, Progressed]) -> bool:
    """A request went on by the clock while pages were read for it."""
    timed = change.before.storage.settings.prefetch_policy == "timeout"
    return timed and any(isinstance(record, PrefetchReading) for record, _ in committed(change))


@sometimes("HC-PREF-70", "progress")
def had_to_wait(change: Change[ops.Progress, Progressed]) -> bool:
    """A request was told to wait."""
    return not change.told.done


@sometimes("HC-PREF-75", "terminate")
def terminated_while_reading(change: Change[ops.Terminate, Done]) -> bool:
    """A prefetch was terminated while pages were read for it."""
    before = change.before.storage
    record = before.prefetch(before.open.get(change.op.rid))
    return isinstance(record, PrefetchReading) and not record.cancelled


@sometimes("HC-PREF-76", "poll")
def terminated_is_revoked(change: Change[ops.Poll, Polled]) -> bool:
    """A poll revoked a prefetch that was terminated."""
    records = [change.before.storage.prefetch(name) for name in change.told.revoked]
    return any(record is not None and record.cancelled for record in records)


@sometimes("HC-PREF-77", "progress")
def terminated_and_went_on(change: Change[ops.Progress, Progressed]) -> bool:
    """A request went on with pages of a prefetch that was terminated."""
    return any(record.cancelled and known for record, known in committed(change))


@sometimes("HC-PREF-72", "poll")
def queue_was_emptied(change: Change[ops.Poll, Polled]) -> bool:
    """A poll freed pages of the release queue."""
    return change.told.releases > 0


@sometimes("HC-EVENT-50", "progress", "poll")
def commit_was_published(change: Ending) -> bool:
    """A commit published pages on host."""
    host = [event for event in change.what.events if event.kind == "block_stored" and event.medium == "CPU_PINNED"]
    return bool(host) and any(known for _, known in committed(change))


# -- coming and going --------------------------------------------------------------------------------------------------


@sometimes("HC-LIFE-52", "detach")
def detach_refused(change: Change[ops.Detach, Outcome]) -> bool:
    """A detach had to wait."""
    return isinstance(change.told, Refused)


@sometimes("HC-LIFE-53", "attach")
def other_backend(change: Change[ops.Attach, Outcome]) -> bool:
    """Another backend was attached."""
    return isinstance(change.told, Refused) and change.op.fails is None


@sometimes("HC-LIFE-54", "clear_storage")
def cleared_at_work(change: Change[ops.ClearStorage, Done]) -> bool:
    """Work was on the books when storage was cleared."""
    return bool(change.before.storage.records)


@sometimes("HC-LIFE-55", "detach")
def detach_closed_some(change: Change[ops.Detach, Outcome]) -> bool:
    """A prefetch was open at a detach."""
    return any(isinstance(record, Prefetch) and record.rid for record in change.before.storage.records.values())


@sometimes("HC-LIFE-57", "detach", "reset")
def ended_by_force(change: Change[ops.Detach | ops.Reset, Outcome]) -> bool:
    """Storage work ran when it was ended by force."""
    running = PrefetchReading | BackupWriting
    return is_by_force(change.before, change.op) and any(
        isinstance(record, running) for record in change.before.storage.records.values()
    )
