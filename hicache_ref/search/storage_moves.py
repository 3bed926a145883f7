"""Moves of storage: what may be asked of it next in a scope, and what the world may report of it.

No scope has these, each for its reason:

- `attach`, `detach` and `clear_storage`: one storage is attached from the start to the end.
- A query that raised: it is one that found nothing. A batch that raised after some of its pages: it is one that was
  cut short there. Batches that raised have none of their pages, or all.
- Progress, terminate or abort of a request that has no prefetch: nothing changes. Only scopes that say so terminate
  at all, so that the others stay small.
- Moments between early and late: by the one no prefetch has taken too long, by the other each has.
- A progress for which the ranks have agreed on less than is known here: it commits what a shorter read would have.
- A poll of more than one end: what it applies, polls of one apply one after the other, and leave the same state.
"""

from collections.abc import Iterator

from hicache_ref.model import Model
from hicache_ref.model.records import BackupWriting, Prefetch, PrefetchQueued, PrefetchReading
from hicache_ref.search.scopes import Scope
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation

EARLY, LATE = 0, 10**9
"""Moments in milliseconds: prefetches begin at the first, and by the second no request waits for one."""


class StorageMoves:
    """The operations of storage in a scope; those that depend on no state are made once."""

    def __init__(self, scope: Scope) -> None:
        requests = [f"r{at}" for at in range(scope.requests)]
        self.limit = scope.prefetches
        self.prefetches = {name: [ops.Prefetch(rid=name, key=key) for key in scope.keys] for name in requests}
        self.progress = {name: [ops.Progress(rid=name, now=now) for now in (EARLY, LATE)] for name in requests}
        self.terminates = {name: [ops.Terminate(rid=name)] if scope.terminates else [] for name in requests}
        self.aborts = {name: ops.Abort(rid=name) for name in requests}
        self.polls = ops.Poll(answers=1), ops.Poll(reads=1), ops.Poll(writes=1), ops.Poll(releases=1)

    def of(self, model: Model) -> Iterator[Operation]:
        """What may happen in the model's state, of names that wait for nothing to the first: all are alike."""
        storage = model.state.storage
        if sum(isinstance(record, Prefetch) for record in storage.records.values()) < self.limit:
            free = [name for name in self.prefetches if name not in storage.open]
            yield from (op for name in (*storage.open, *free[:1]) for op in self.prefetches[name])
        for name in storage.open:
            yield from self.progress[name]
            yield self.aborts[name]
            yield from self.terminates[name]
        waiting = zip(self.polls, (storage.answers, storage.reads, storage.writes, storage.release), strict=True)
        yield from (poll for poll, queue in waiting if queue)
        yield from self._reports(model)

    def told(self, model: Model) -> list[Operation]:
        """For each request to which storage gave something: it is told."""
        storage = model.state.storage
        return [self.progress[name][0] for name in storage.loaded if name not in storage.open]

    def _reports(self, model: Model) -> Iterator[Operation]:
        batch_max = model.profile.sizes.storage_batch
        for record in model.state.storage.records.values():
            if isinstance(record, PrefetchQueued):
                yield from (ops.QueryDone(id=record.id, hits=hits) for hits in range(len(record.hashes) + 1))
            elif isinstance(record, PrefetchReading | BackupWriting):
                kind = ops.ReadDone if isinstance(record, PrefetchReading) else ops.WriteDone
                batch = min(batch_max, len(record.pages) - record.done)
                yield from (kind(id=record.id, pages=pages) for pages in range(batch + 1))
                yield from (kind(id=record.id, pages=pages, raised=True) for pages in (0, batch))
