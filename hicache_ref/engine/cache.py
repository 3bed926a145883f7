"""The cache with real bytes: the model decides, and what its steps ask for is done on page memory, by CPU and workers.

The caller steps operations of the scheduler. What the world does comes in by `pump`, which steps it as operations too.
One thread calls; only the workers are others.
"""

import random
import time
import weakref
from collections.abc import Callable
from types import TracebackType

from hicache_ref.engine.cpu import CpuDevice, DeviceTask, Lot
from hicache_ref.engine.link import Link, Opener
from hicache_ref.engine.pages import PageMemory, Place
from hicache_ref.engine.settings import EngineSettings, naming
from hicache_ref.engine.verify import Verifier
from hicache_ref.engine.workers import End, Job, Report, StorageWorkers, Task
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.vocabulary.effects import (
    CopyOnDevice,
    CopyToDevice,
    CopyToHost,
    Effect,
    RunForward,
    StorageCancel,
    StorageQuery,
    StorageRead,
)
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV_HOST, PageHash
from hicache_ref.vocabulary.operations import (
    Abort,
    Attach,
    ClearStorage,
    Detach,
    Forward,
    Operation,
    Poll,
    QueryDone,
    ReadDone,
    RegisterDraft,
    Reset,
)
from hicache_ref.vocabulary.outcomes import Invalid, Outcome, Refused
from hicache_ref.vocabulary.profile import Profile

WORLD = frozenset({"forward_done", "copy_done", "copy_failed", "query_done", "read_done", "write_done"})
"""Operations that are facts of the world: here device and workers bring them, never a caller."""

EVERYTHING = 10**9
ALL_ENDS = Poll(
    backups=EVERYTHING, loads=EVERYTHING, answers=EVERYTHING, reads=EVERYTHING, writes=EVERYTHING, releases=EVERYTHING
)
"""A poll that applies whatever has ended."""

Watch = Callable[[Operation, Step], None]


class StoredCache:
    """A cache of `profile` whose `Attach` opens the store by `opener`. Nothing is attached at first.

    `watch` is called after each step of the model; `workers` is the kind of workers that run.
    """

    def __init__(self, profile: Profile, opener: Opener, settings: EngineSettings | None = None, *,
                 chooser: Chooser = POLICY, watch: Watch | None = None,
                 workers: type[StorageWorkers] = StorageWorkers) -> None:  # fmt: skip
        self.settings = settings = settings or EngineSettings()
        self.model = Model(profile)
        self.memory = PageMemory(profile, settings.page_bytes, settings.draft_bytes)
        self.verifier = Verifier(self.memory, strict=settings.strict, enabled=settings.verify)
        lot = None if settings.seed is None else Lot(random.Random(settings.seed), fail=settings.copy_failures)
        self.device = CpuDevice(self.memory, self.verifier, self._is_doomed, self._has_draft, lot)
        self.late_reports = 0
        """Ends of operations that the model no longer knew."""

        self._opener = opener
        self._chooser = chooser
        self._watch = watch
        self._kind = workers
        self._naming = naming(profile, settings)
        self._link: Link | None = None
        self._at_end: weakref.finalize[..., StoredCache] | None = None
        self._current: dict[str, Job] = {}
        """The latest job of each name: an end of another one is from before."""

        self._closed = False

    def __enter__(self) -> "StoredCache":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    @property
    def workers(self) -> StorageWorkers | None:
        """The workers of the attached store, or None."""
        return None if self._link is None else self._link.workers

    # -- the scheduler's steps --------------------------------------------------------------------------------------

    def step(self, op: Operation) -> Outcome:
        """The operation has happened, and what it asks of the world is under way. Never waits for the store.

        An attach that cannot open the store, a clear that the store refuses and a detach under a running call are
        Refused. Raises ValueError once the cache is closed, WrongBytes where a page is found wrong.
        """
        if self._closed:
            raise ValueError("the cache is closed, expected an open one")
        if op.op in WORLD:
            return Invalid(why=f"{op.op} is told by the world, expected an operation of the scheduler")
        if isinstance(op, Detach | Reset) and self.model.is_forced(op):
            return Invalid(why=f"{op.op} by force, expected without: a call of a store cannot be ended from outside")
        if isinstance(op, RegisterDraft) and not self.model.profile.draft:
            return Invalid(why="no memory was made for a draft model, expected a profile that has one from the start")
        if isinstance(op, Attach) and op.fails:
            return Invalid(why=f"an attach whose {op.fails} failed, expected one without: the store tells what fails")
        if isinstance(op, Attach):
            return self._attach(op)
        if isinstance(op, Detach):
            return self._detach(op)
        if isinstance(op, ClearStorage) and self._link is not None:
            try:
                self._link.backend.clear()
            except Exception as error:
                return Refused(why=f"the store cannot be cleared: {error}")
        return self._apply(op)

    def pump(self, *, block: bool = False, timeout_s: float = 1.0) -> int:
        """What the world has done since is stepped; returns how many facts that were.

        With `block` the device finishes what it can, and if there is nothing else, the next end of a storage job is
        waited for, for `timeout_s` seconds at most.
        """
        count = 0
        for fact in self.device.advance(all_of_it=block):
            self._apply(fact)
            count += 1
        workers = self.workers
        if workers is None:
            return count
        patience = timeout_s if block and not count and workers.busy() else 0.0
        while (report := workers.next_report(patience)) is not None:
            patience = 0.0
            self._take(report)
            count += 1
        return count

    @property
    def in_flight(self) -> bool:
        """Whether device or workers have something to do or to tell."""
        return not self.device.is_idle or bool(self._current)

    def lost(self) -> tuple[str, ...]:
        """The names of storage jobs that no worker has any more and that were never reported: always none."""
        jobs, busy = dict(self._current), self.workers.busy() if self.workers is not None else ()
        self.pump()
        return tuple(name for name, job in jobs.items() if self._current.get(name) is job and name not in busy)

    def settle(self, timeout_s: float = 10.0) -> tuple[str, ...]:
        """Everything has ended and is applied; else the names of what is pending: it hangs, or a request must ask."""
        deadline = time.monotonic() + timeout_s
        before: tuple[str, ...] | None = None
        while True:
            while self.in_flight and self.pump(block=True, timeout_s=max(0.0, deadline - time.monotonic())):
                pass
            stuck = self.in_flight
            self._apply(ALL_ENDS)
            pending = self.model.pending()
            if stuck or (not self.in_flight and pending in ((), before)):
                return pending
            before = pending

    # -- storage comes and goes -------------------------------------------------------------------------------------

    def detach(self, timeout_s: float | None = None) -> Outcome:
        """No storage is attached; or Refused with what still runs after so many seconds, and storage goes on."""
        deadline = time.monotonic() + (self.settings.stop_timeout_s if timeout_s is None else timeout_s)
        while True:
            outcome = self.step(Detach())
            left = deadline - time.monotonic()
            if not isinstance(outcome, Refused) or left <= 0 or not self.pump(block=True, timeout_s=left):
                return outcome

    def close(self) -> tuple[str, ...]:
        """The store is detached for good; the names of what hangs in it are returned. A second time nothing happens.

        The end of the interpreter does the same for the store, if nobody did before. Takes no longer than
        `stop_timeout_s`.
        """
        if self._closed:
            return ()
        patience = self.settings.stop_timeout_s / 2
        try:
            self.detach(patience)
        finally:
            self._closed = True
            hanging = self._give_up(patience)
        return hanging

    def _give_up(self, timeout_s: float) -> tuple[str, ...]:
        """The store is left as `Link.give_up` leaves it, if one is attached still."""
        if self._link is None or self._at_end is None:
            return ()
        self._at_end.detach()
        return self._link.give_up(timeout_s)

    def _attach(self, op: Attach) -> Outcome:
        """All or nothing (HC-LIFE-07)."""
        if self._link is not None or not self.model.profile.enabled:
            return self._apply(op)
        try:
            link = Link(self._opener, self.memory, self._naming, self.settings.workers, self._kind)
        except Exception as error:
            self._apply(op.model_copy(update={"fails": "store"}))
            return Refused(why=f"the store cannot be attached: {error}")
        self._link = link
        self._at_end = weakref.finalize(self, link.give_up, self.settings.stop_timeout_s)
        return self._apply(op)

    def _detach(self, op: Detach) -> Outcome:
        """Refused while a call of the store runs: the model gives queries up, but their thread cannot (HC-LIFE-08)."""
        link = self._link
        if link is None:
            return self._apply(op)
        for rid in list(self.model.state.storage.open):
            self._apply(Abort(rid=rid))
        if busy := link.workers.busy():
            return Refused(why="work in flight", wait_for=busy)
        outcome = self._apply(op)
        if not isinstance(outcome, Refused):
            self._unlink(link)
        return outcome

    def _unlink(self, link: Link) -> None:
        assert self._at_end is not None
        self._at_end.detach()
        link.stop(self.settings.stop_timeout_s)
        while link.workers.next_report() is not None:
            self.late_reports += 1
        self._current.clear()
        self._link = self._at_end = None

    # -- effects ----------------------------------------------------------------------------------------------------

    def _apply(self, op: Operation) -> Outcome:
        step = self.model.step(op, self._chooser)
        if self._watch is not None:
            self._watch(op, step)
        for effect in step.effects:
            self._perform(effect, op)
        return step.outcome

    def _perform(self, effect: Effect, op: Operation) -> None:
        """The effect is under way."""
        if isinstance(effect, RunForward):
            assert isinstance(op, Forward)
            self.device.submit(effect, self._hashes_of(op))
        elif isinstance(effect, CopyToHost | CopyToDevice):
            if effect.id in self.model.state.tickets:
                self.device.submit(effect, self._hashes_at(effect))
            else:
                # The rule write_back_copy=blocking: the copy ended inside the step.
                assert isinstance(effect, CopyToHost)
                self.device.run_now(effect, ())
        else:
            assert self._link is not None and not isinstance(effect, CopyOnDevice)
            workers = self._link.workers
            if isinstance(effect, StorageCancel):
                workers.cancel(effect.id)
                return
            if not isinstance(effect, StorageQuery):
                self.device.finish(effect.after)
            told = self.model.state.storage.settings.pass_prefix_keys
            self._current[effect.id] = workers.submit(effect, self._drafts_of(effect), told=told)

    def _hashes_of(self, op: Forward) -> tuple[PageHash, ...]:
        """Those of the pages that the pass reads and writes, from the key alone."""
        return chain(self.model.pages(op.key), namespace_seed(op.key.extra), self.model.profile.bigram)

    def _hashes_at(self, effect: CopyToHost | CopyToDevice) -> tuple[PageHash, ...]:
        """Those of the nodes that own the copy's target pages, part by part."""
        found: list[PageHash] = []
        for part in effect.parts:
            to_host = effect.kind == "copy_to_host"
            pool, pages = (HOST[part.component], part.host) if to_host else (DEVICE[part.component], part.device)
            found.extend(digest for node in self.model.owners(pool, pages) for digest in node.hashes)
        return tuple(found)

    def _drafts_of(self, effect: Task) -> tuple[bool, ...]:
        """For each page of the task whether its draft page goes along: all are asked for, and only valid ones put."""
        if not self._stores_draft or isinstance(effect, StorageQuery):
            return ()
        if isinstance(effect, StorageRead):
            return (True,) * len(effect.pages)
        pairs = zip(effect.pages, effect.hashes, strict=True)
        return tuple(self._has_draft((KV_HOST, page), digest) for page, digest in pairs)

    @property
    def _stores_draft(self) -> bool:
        return self.model.profile.draft and self.model.state.storage.settings.draft

    def _is_doomed(self, task: DeviceTask) -> bool:
        state = self.model.state
        if isinstance(task, RunForward):
            return state.passes[task.id.removeprefix("f:")].doomed
        ticket = state.tickets.get(task.id)
        return ticket is not None and ticket.doomed

    def _has_draft(self, place: Place, digest: PageHash) -> bool:
        return self.model.profile.draft and self.model.state.pools[place[0]].draft[place[1]] == digest

    # -- reports ----------------------------------------------------------------------------------------------------

    def _take(self, report: Report) -> None:
        """The end is stepped if it is of the latest job of its name and the model waits for it; else it is late."""
        job, end = report
        if self._current.get(end.id) is not job:
            self.late_reports += 1
            return
        del self._current[end.id]
        end = self._without_draft(end)
        if self.model.requires(end) is not None:
            self.late_reports += 1
            return
        if self.verifier.enabled and isinstance(end, ReadDone) and isinstance(job.task, StorageRead):
            for index in range(end.pages):
                place = (KV_HOST, job.task.pages[index])
                when = f"read from storage by {end.id}"
                self.verifier.expect(place, job.task.hashes[index], when, draft=index < end.draft)
        self._apply(end)

    def _without_draft(self, end: End) -> End:
        """Without its draft pages where their storage was switched off meanwhile (HC-DRAFT-06)."""
        if isinstance(end, QueryDone) or not end.draft or self._stores_draft:
            return end
        return end.model_copy(update={"draft": 0})
