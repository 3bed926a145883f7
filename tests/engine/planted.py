"""Workers with one fault each: what the soak must notice."""

import threading
import time
from collections.abc import Callable, Sequence

from hicache_ref.engine.workers import Call, End, Job, StorageWorkers
from hicache_ref.storage.base import Buffer
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary.effects import StorageRead, StorageWrite
from hicache_ref.vocabulary.operations import ReadDone

LATE_SECONDS = 0.003


def _size(job: Job, start: int) -> int:
    """Pages in the call."""
    return min(job.size, len(job.task.hashes) - start)


def _later(act: Callable[[], object]) -> None:
    timer = threading.Timer(LATE_SECONDS, act)
    timer.daemon = True
    timer.start()


class CountsPagesEarly(StorageWorkers):
    """Pages are counted before a byte of them is there."""

    def _call(self, job: Job, start: int) -> Call:
        if not isinstance(job.task, StorageRead):
            return super()._call(job, start)
        _later(lambda: StorageWorkers._call(self, job, start))
        return Call(_size(job, start))


class CountsPagesThatMissed(StorageWorkers):
    """A page that the store did not give is counted all the same."""

    def _call(self, job: Job, start: int) -> Call:
        call = super()._call(job, start)
        return Call(_size(job, start)) if isinstance(job.task, StorageRead) else call


class CountsDraftsThatMissed(StorageWorkers):
    """A page counts with its draft page, whether that came or not."""

    def _call(self, job: Job, start: int) -> Call:
        call = super()._call(job, start)
        return call._replace(drafts=call.good) if isinstance(job.task, StorageRead) and job.drafts else call


class DropsReports(StorageWorkers):
    """Now and then the end of a job is not told."""

    count = 0

    def _report(self, job: Job, end: End) -> None:
        self.count += 1
        if self.count % 10:
            super()._report(job, end)


class WritesAfterTheEnd(StorageWorkers):
    """A read is told to have ended, and goes on."""

    def _call(self, job: Job, start: int) -> Call:
        if not isinstance(job.task, StorageRead):
            return super()._call(job, start)
        _later(lambda: StorageWorkers._call(self, job, start))
        return Call(0)


class EndsWhenCancelled(StorageWorkers):
    """The end of a cancelled read is told while the store still reads, so that its pages are freed too early."""

    def cancel(self, name: str) -> None:
        with self._lock:
            running = [job for lane in self._lanes.values() for job in lane.jobs if job.task.id == name and job.running]
        super().cancel(name)
        for job in running:
            if isinstance(job.task, StorageRead):
                self._report(job, ReadDone(id=name))


class PutsAfterTheEnd(StorageWorkers):
    """A write is told to be whole, and puts whatever its host pages hold a moment later."""

    def _call(self, job: Job, start: int) -> Call:
        if not isinstance(job.task, StorageWrite):
            return super()._call(job, start)
        _later(lambda: StorageWorkers._call(self, job, start))
        return Call(_size(job, start))


PLANTED: tuple[type[StorageWorkers], ...] = (
    CountsPagesEarly,
    CountsPagesThatMissed,
    CountsDraftsThatMissed,
    DropsReports,
    WritesAfterTheEnd,
    EndsWhenCancelled,
    PutsAfterTheEnd,
)


class SlowBackend(MemoryBackend):
    """A store whose bytes come after a while."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """As the memory backend, later."""
        time.sleep(LATE_SECONDS)
        return super().read(keys, into)
