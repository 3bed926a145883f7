"""Passes and copies on the CPU: performed and reported in an order drawn by lot, within what must come before what.

Bytes are in place when a job has run; the cache hears of it when the job is reported, which may be much later.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hicache_ref.engine.pages import PageMemory, Place
from hicache_ref.engine.verify import Verifier
from hicache_ref.vocabulary.effects import CopyToDevice, CopyToHost, RunForward
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV_DEVICE, PageHash
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed, ForwardDone

DeviceTask = RunForward | CopyToHost | CopyToDevice
Fact = ForwardDone | CopyDone | CopyFailed
SPOILT = 0xA5
"""What fills the pages that a failed copy was to write: no page holds it by right."""


@dataclass(eq=False, slots=True)
class _Job:
    """A pass or copy that was not reported yet."""

    task: DeviceTask
    hashes: tuple[PageHash, ...]
    after: tuple["_Job", ...]
    fact: Fact | None = None
    """What will be reported; None until it has run."""

    reported: bool = False


@dataclass(frozen=True)
class Lot:
    """By which chances jobs are put off, and copies fail; each from 0 to 1."""

    rng: random.Random
    wait: float = 0.5
    fail: float = 0.0


class CpuDevice:
    """Runs what is submitted. Without a lot all that can run does so at the next `advance`, and nothing fails.

    `is_doomed` says whether the pass or copy of this name reads what will never be written (HC-XFER-05),
    `has_draft` whether a page's draft page is valid.
    """

    def __init__(
        self,
        memory: PageMemory,
        verifier: Verifier,
        is_doomed: Callable[[DeviceTask], bool],
        has_draft: Callable[[Place, PageHash], bool],
        lot: Lot | None = None,
    ) -> None:
        self._memory = memory
        self._verifier = verifier
        self._is_doomed = is_doomed
        self._has_draft = has_draft
        self._lot = lot
        self._jobs: dict[str, _Job] = {}

    def submit(self, task: DeviceTask, hashes: tuple[PageHash, ...]) -> None:
        """The task will run after those it names, and be reported.

        `hashes` are those of the pages of a copy, part by part, or of what a pass reads and then writes.
        """
        job = _Job(task, hashes, tuple(self._jobs[name] for name in task.after if name in self._jobs))
        self._jobs[task.id] = job
        if self._lot is not None and not self._waits():
            self._try(job)

    def run_now(self, task: CopyToHost, hashes: tuple[PageHash, ...]) -> None:
        """The copy has run, after what it names; nothing is reported, for the cache knows (rule write_back_copy)."""
        self.finish(task.after)
        self._copy(task, hashes, len(task.parts))

    def finish(self, names: tuple[str, ...]) -> None:
        """The jobs of these names have run, and all that they come after; each is reported later."""
        for name in names:
            job = self._jobs.get(name)
            if job is not None and job.fact is None:
                self.finish(job.task.after)
                self._run(job, may_fail=False)

    def advance(self, *, all_of_it: bool = False) -> Iterator[Fact]:
        """Some jobs have run, some of those that ran are reported, in an order that their effects allow."""
        for name, job in list(self._jobs.items()):
            if all_of_it or not self._waits():
                self._try(job)
            if job.fact is not None and self._may_be_reported(job) and (all_of_it or not self._waits()):
                del self._jobs[name]
                job.reported = True
                yield job.fact

    @property
    def is_idle(self) -> bool:
        """Whether everything was reported."""
        return not self._jobs

    def _waits(self) -> bool:
        return self._lot is not None and self._lot.rng.random() < self._lot.wait

    def _may_be_reported(self, job: _Job) -> bool:
        return all(other.reported for other in job.after)

    def _try(self, job: _Job) -> None:
        # Only once the jobs before it are reported does the cache know whether this one is doomed.
        if job.fact is None and self._may_be_reported(job):
            self._run(job, may_fail=True)

    def _run(self, job: _Job, *, may_fail: bool) -> None:
        task, doomed = job.task, self._is_doomed(job.task)
        if isinstance(task, RunForward):
            if not doomed:
                self._forward(task, job.hashes)
            job.fact = ForwardDone(rid=task.id.removeprefix("f:"))
            return
        good = 0 if doomed else self._good_parts(task) if may_fail else len(task.parts)
        self._copy(task, job.hashes, good)
        whole = good == len(task.parts)
        job.fact = CopyDone(ticket=task.id) if whole else CopyFailed(ticket=task.id, first_failed=good)

    def _good_parts(self, task: CopyToHost | CopyToDevice) -> int:
        """How many leading parts succeed."""
        if self._lot is None or self._lot.rng.random() >= self._lot.fail:
            return len(task.parts)
        return self._lot.rng.randrange(len(task.parts))

    def _forward(self, task: RunForward, hashes: tuple[PageHash, ...]) -> None:
        for page, digest in zip(task.reads, hashes[: len(task.reads)], strict=True):
            self._check((KV_DEVICE, page), digest, f"read by pass {task.id}")
        for page, digest in zip(task.writes, hashes[len(task.reads) :], strict=True):
            self._verifier.write((KV_DEVICE, page), digest)

    def _copy(self, task: CopyToHost | CopyToDevice, hashes: tuple[PageHash, ...], good: int) -> None:
        """The first `good` parts are copied and were compared; the pages of the others are spoilt."""
        at = 0
        for number, part in enumerate(task.parts):
            device = [(DEVICE[part.component], page) for page in part.device]
            host = [(HOST[part.component], page) for page in part.host]
            pairs = zip(device, host, strict=True) if task.kind == "copy_to_host" else zip(host, device, strict=True)
            for source, target in pairs:
                if number >= good:
                    self._spoil(target)
                    continue
                if hashes:
                    self._check(source, hashes[at], f"source of copy {task.id}")
                self._memory.copy(source, target)
                at += 1

    def _spoil(self, target: Place) -> None:
        for pools in (self._memory.pools, self._memory.drafts):
            if pools:
                view = pools[target[0]].view(target[1])
                view[:] = bytes([SPOILT]) * len(view)

    def _check(self, place: Place, digest: PageHash, when: str) -> None:
        self._verifier.expect(place, digest, when, draft=self._has_draft(place, digest))
