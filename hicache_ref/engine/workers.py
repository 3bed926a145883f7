"""Storage workers: threads that query, read and write a store, and report each end as an operation.

The scheduler hands over effects and takes reports, and only it frees a page: a worker touches the pages of its work
from `submit` to the report and never after. Nothing polls: who waits, waits for a condition or a queue.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Annotated, NamedTuple

from pydantic import Field

from hicache_ref.engine.pages import PageMemory
from hicache_ref.storage.base import Backend, after, leading
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.effects import StorageQuery, StorageRead, StorageWrite
from hicache_ref.vocabulary.ids import KV_HOST, PageHash, Pages
from hicache_ref.vocabulary.operations import QueryDone, ReadDone, WriteDone

Task = StorageQuery | StorageRead | StorageWrite
End = QueryDone | ReadDone | WriteDone
Naming = Callable[[Sequence[PageHash], str], list[str]]
"""From pages and their pool, `kv` or `draft`, to the keys of the objects that hold them."""

KV_POOL, DRAFT_POOL = "kv", "draft"
FAILURES_KEPT = 16


class WorkerSettings(Frozen):
    """How storage is worked on."""

    query_threads: Annotated[int, Field(ge=1)] = 1
    read_threads: Annotated[int, Field(ge=1)] = 2
    write_threads: Annotated[int, Field(ge=1)] = 2
    """Threads share the calls of a batch."""

    queue_max: Annotated[int, Field(ge=1)] = 4096
    """Tasks of one kind that may wait. One more is not taken: it is reported as cancelled."""

    call_pages: Annotated[int, Field(ge=1)] = 32
    """Pages in one call of the backend; between two calls a batch can be cancelled."""


class Call(NamedTuple):
    """What one call of the backend came to: leading pages, leading draft pages, and whether it raised."""

    good: int
    drafts: int = 0
    raised: bool = False


@dataclass(eq=False, slots=True)
class Job:
    """A task on its way, cut into calls of the backend that several threads may share.

    Two jobs of one name are two: the later one is of a later generation.
    """

    task: Task
    drafts: tuple[bool, ...]
    """For each page whether its draft page goes along; () for none."""

    size: int
    """Pages in one call."""

    told: bool = False
    """Whether the store is told what comes before each call."""

    begun: int = 0
    """Pages for which a call has begun."""

    running: int = 0
    """Calls that have not returned."""

    calls: dict[int, Call] = field(default_factory=dict)
    """Those that have, by their first page."""

    cut: bool = False
    """No further call begins: it was cancelled, or a page is missing, after which no page counts."""

    @property
    def is_spent(self) -> bool:
        """Whether no call is left that could begin."""
        return self.cut or self.begun >= len(self.task.hashes)

    def end(self) -> End:
        """What is told of it. A page counts if all before it are there, a draft page likewise (HC-DRAFT-06)."""
        done = drafts = 0
        while (call := self.calls.get(done)) is not None:
            drafts += min(call.good, call.drafts) if drafts == done else 0
            done += call.good
            if call.good < self.size:
                break
        raised = any(call.raised for call in self.calls.values())
        if isinstance(self.task, StorageQuery):
            return QueryDone(id=self.task.id, hits=done, raised=raised)
        kind = ReadDone if isinstance(self.task, StorageRead) else WriteDone
        return kind(id=self.task.id, pages=done, draft=drafts, raised=raised)


class Report(NamedTuple):
    """How a job ended."""

    job: Job
    end: End


class _Lane:
    """Jobs of one kind, in order: all that are not reported, and those of which a call can begin."""

    def __init__(self, lock: threading.Lock) -> None:
        self.jobs: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.arrived = threading.Condition(lock)


class StorageWorkers:
    """Threads over one backend. They run from the start; raises RuntimeError where a thread cannot be started."""

    def __init__(self, backend: Backend, memory: PageMemory, naming: Naming,
                 settings: WorkerSettings | None = None) -> None:  # fmt: skip
        self._backend = backend
        self._memory = memory
        self._naming = naming
        self._settings = settings = settings or WorkerSettings()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._ended = False
        self._reports: SimpleQueue[Report] = SimpleQueue()
        counts = {"storage_query": settings.query_threads, "storage_read": settings.read_threads,
                  "storage_write": settings.write_threads}  # fmt: skip
        self._lanes = {kind: _Lane(self._lock) for kind in counts}
        self.failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        """What calls of the backend raised, the last few."""

        # Daemons: a call that hangs must not keep the interpreter from ending.
        self._threads = [
            threading.Thread(target=self._serve, args=(self._lanes[kind],), name=f"{kind}-{number}", daemon=True)
            for kind, count in counts.items()
            for number in range(count)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.abandon()
            raise

    # -- the scheduler's side ---------------------------------------------------------------------------------------

    def submit(self, task: Task, drafts: tuple[bool, ...] = (), *, told: bool = False) -> Job:
        """The task is queued, and its end will be reported; at once where the queue is full.

        `drafts` says for each page whether its draft page goes along: one that is invalid must not be stored. With
        `told` a store that wants it is told what comes before each call: the prefix of the task, and what the task
        has before that call.
        Never blocks. Raises RuntimeError once the workers are stopped.
        """
        whole = len(task.hashes) if isinstance(task, StorageQuery) else self._settings.call_pages
        job = Job(task, drafts, max(1, whole), told)
        lane = self._lanes[task.kind]
        with self._lock:
            if self._ended:
                raise RuntimeError("the workers are stopped, expected them to run")
            if len(lane.waiting) >= self._settings.queue_max or not task.hashes:
                self._report(job, job.end())
                return job
            lane.jobs.append(job)
            lane.waiting.append(job)
            lane.arrived.notify()
        return job

    def cancel(self, name: str) -> None:
        """No further call begins for this name. What had not begun is reported at once, the rest when calls return."""
        with self._lock:
            self._cut(lambda job: job.task.id == name)

    def next_report(self, timeout_s: float = 0.0) -> Report | None:
        """The next end that was reported; None where none came within so many seconds."""
        try:
            return self._reports.get(timeout=timeout_s) if timeout_s > 0 else self._reports.get_nowait()
        except Empty:
            return None

    def busy(self) -> tuple[str, ...]:
        """The names of what waits or runs. What is in neither has been reported."""
        with self._lock:
            return self._names()

    def stop(self, timeout_s: float) -> tuple[str, ...]:
        """Everything was cancelled or finished, and reported, and the threads have ended; () is returned.

        Where a call of the backend does not return within so many seconds, the names of what hangs are returned:
        then what waited is cancelled, and the workers go on as before.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._cut(lambda job: True)
            self._idle.wait_for(lambda: not self._names(), timeout_s)
            if hanging := self._names():
                return hanging
            self._end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return ()

    def abandon(self) -> None:
        """The threads end as soon as the calls they are in return; nobody waits for them."""
        with self._lock:
            self._cut(lambda job: True)
            self._end()

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({job.task.id for lane in self._lanes.values() for job in lane.jobs}))

    def _end(self) -> None:
        self._ended = True
        for lane in self._lanes.values():
            lane.arrived.notify_all()

    def _cut(self, wanted: Callable[[Job], bool]) -> None:
        for lane in self._lanes.values():
            for job in list(filter(wanted, lane.jobs)):
                job.cut = True
                self._settle(lane, job)

    def _settle(self, lane: _Lane, job: Job) -> None:
        """The job waits no more if none of its calls can begin, and is reported if none runs either."""
        if not job.is_spent:
            return
        if job in lane.waiting:
            lane.waiting.remove(job)
        if not job.running:
            lane.jobs.remove(job)
            self._report(job, job.end())
            self._idle.notify_all()

    def _report(self, job: Job, end: End) -> None:
        self._reports.put(Report(job, end))

    # -- the threads' side ------------------------------------------------------------------------------------------

    def _serve(self, lane: _Lane) -> None:
        """One thread: call after call, until the workers end."""
        while (turn := self._next(lane)) is not None:
            job, start = turn
            call = self._call(job, start)
            with self._lock:
                job.calls[start] = call
                job.running -= 1
                job.cut = job.cut or call.good < min(job.size, len(job.task.hashes) - start)
                self._settle(lane, job)

    def _next(self, lane: _Lane) -> tuple[Job, int] | None:
        """The next call, named by its first page; None at the end."""
        with self._lock:
            lane.arrived.wait_for(lambda: lane.waiting or self._ended)
            if self._ended:
                return None
            job = lane.waiting[0]
            start = job.begun
            job.begun += job.size
            job.running += 1
            if job.is_spent:
                lane.waiting.popleft()
            if lane.waiting:
                # Whoever takes a call wakes the next: woken all at once, they would only queue for the lock.
                lane.arrived.notify()
            return job, start

    def _call(self, job: Job, start: int) -> Call:
        """One call of the backend has returned. What it raises costs this job and nothing else."""
        task = job.task
        hashes = task.hashes[start : start + job.size]
        try:
            store = self._told((*task.prefix, *task.hashes[:start])) if job.told else self._backend
            if isinstance(task, StorageQuery):
                hits = store.exists(self._naming(hashes, KV_POOL))
                return Call(min(max(hits, 0), len(hashes)))
            pages = task.pages[start : start + job.size]
            move = self._read if isinstance(task, StorageRead) else self._write
            return move(store, hashes, pages, job.drafts[start : start + job.size])
        except BaseException as error:  # A backend that calls sys.exit must not end the thread either.
            self._note(error)
            return Call(0, raised=True)

    def _told(self, prefix: Sequence[PageHash]) -> Backend:
        """The store, which knows what comes before the call if it wants to (HC-STORE-05)."""
        return after(self._backend, self._naming(prefix, KV_POOL))

    def _read(self, store: Backend, hashes: Sequence[PageHash], pages: Pages, drafts: Sequence[bool]) -> Call:
        """Pages that hold what was asked for. Draft pages are read first."""
        with_draft = self._move_drafts(self._backend.read, hashes, pages, drafts)
        return Call(self._move(store.read, hashes, pages), with_draft)

    def _write(self, store: Backend, hashes: Sequence[PageHash], pages: Pages, drafts: Sequence[bool]) -> Call:
        """Pages that the store has. Draft pages are written last, and only those of pages that it has."""
        good = self._move(store.write, hashes, pages)
        return Call(good, self._move_drafts(self._backend.write, hashes, pages, drafts[:good]))

    def _move(self, move: "_Move", hashes: Sequence[PageHash], pages: Pages) -> int:
        moved = move(self._naming(hashes, KV_POOL), self._memory.pools[KV_HOST].views(pages))
        return leading(moved[: len(hashes)])

    def _move_drafts(self, move: "_Move", hashes: Sequence[PageHash], pages: Pages, drafts: Sequence[bool]) -> int:
        """Leading draft pages that went well; an error is none, for it never changes the target's result."""
        along = [index for index, wanted in enumerate(drafts) if wanted]
        if not along:
            return 0
        host = self._memory.drafts[KV_HOST]
        names = self._naming([hashes[index] for index in along], DRAFT_POOL)
        try:
            moved = move(names, host.views(pages[index] for index in along))
        except BaseException as error:
            self._note(error)
            return 0
        good = {index for index, went in zip(along, moved, strict=False) if went}
        return leading(index in good for index in range(len(drafts)))

    def _note(self, error: BaseException) -> None:
        self.failures.append(f"{type(error).__name__}: {error}")


_Move = Callable[[Sequence[str], Sequence[memoryview]], list[bool]]
