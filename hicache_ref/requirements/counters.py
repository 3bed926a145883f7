"""STORE: the counters of storage, which a step raises by what it moved (upstream: StorageMetricsCollector)."""

from collections.abc import Iterable, Mapping
from typing import Any

from hicache_ref.model.records import BackupEnded, Prefetch, Record
from hicache_ref.model.state import FREE
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.commits import committed
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.outcomes import Done, Polled, Progressed


@step("HC-STORE-14", "abort", "poll", "progress")
def counters_rise_by_what_moved(change: Change[Any, Done | Polled | Progressed]) -> int:
    """What a step says to have counted is what it moved, from the records before it and the tree after it."""
    moved = _moved(change)
    for counter, pages in moved.items():
        counted = getattr(change.told, counter)
        if counted not in (None, pages):
            raise Broken.because(f"{counted} pages are counted as {counter}, {pages} were")
    return sum(moved.values())


def _moved(change: Change[Any, Done | Polled | Progressed]) -> dict[str, int]:
    """The pages that the step moved, by counter."""
    told, was = change.told, change.before.storage
    if isinstance(told, Done):
        return {"aborted": _asked(was.records, [was.open.get(change.op.rid, "")])}
    held = change.after.host.held
    come = [page for record, known in committed(change) for page in record.pages[:known]]
    moved: dict[str, int] = {"prefetched": sum([held.get(page, FREE)[0] == "node" for page in come])}
    if isinstance(told, Polled):
        written = [was.records.get(name) for name in told.writes]
        moved["backed_up"] = sum([_put(change.before, record) for record in written if isinstance(record, BackupEnded)])
        moved["revoked_pages"] = _asked(was.records, told.revoked)
    return moved


def _put(before: View, record: BackupEnded) -> int:
    """How many pages of the write count: by `backed_up_counts` = `batches` those of the batches that were put whole."""
    if before.rules.backed_up_counts == "pages":
        return record.done
    size = before.profile.sizes.storage_batch
    batches = [record.hashes[start : start + size] for start in range(0, len(record.hashes), size)]
    whole = [len(batch) for number, batch in enumerate(batches) if number * size + len(batch) <= record.done]
    return sum(whole)


def _asked(records: Mapping[str, Record], names: Iterable[str]) -> int:
    """How many pages the prefetches of these names asked for."""
    found = [records.get(name) for name in names]
    return sum([record.asked for record in found if isinstance(record, Prefetch)])
