"""Workloads: recorded or made-up requests run through a large cache, to see what they find, and that every rule holds.

Every step is judged by what it touched, and the whole state now and then. What is generated for a request is not
cached: its blocks get their ids when a later prompt shows them.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hicache_ref.model import Model
from hicache_ref.requirements import Broken
from hicache_ref.requirements.incremental import IncrementalChecker
from hicache_ref.search.finding import Finding, Found, crash
from hicache_ref.search.requests import BLOCK_TOKENS, Request, read_requests
from hicache_ref.search.serving import Place, Server
from hicache_ref.search.stepping import CRASHES, RAISED
from hicache_ref.vocabulary.adapter import Adapter
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile, Sizes

CHECK_EVERY = 10_000
_REQUESTS_BETWEEN_PROGRESS = 100
_ANSWERED = "HC-CONF-02"


class WorkloadReport(Frozen):
    """What a stream of requests found, and whether every rule held."""

    requests: int
    pages: int
    hits: dict[Place, int]
    """Where the pages of the prompts were found; they add up to `pages`."""

    operations: int
    operations_per_second: float
    seconds: float
    violations: tuple[str, ...] = ()
    """At most one, for it ends the run."""


class JudgedStepper:
    """A large model whose steps are judged by what they touch, and perhaps an implementation that is told the same."""

    def __init__(self, profile: Profile, kind: type[Model] = Model, *, adapter: Adapter | None = None,
                 check_every: int = CHECK_EVERY) -> None:  # fmt: skip
        self.model = kind(profile)
        self.adapter = adapter
        self.checker = IncrementalChecker(profile, every=check_every)
        self.operations = 0
        self.checker.start(self.model.state)
        self._shared: frozenset[str] = frozenset()
        if adapter is not None:
            self._shared = adapter.describe().operations
            adapter.reset(profile)

    def step(self, op: Operation) -> Outcome:
        """The operation has happened, nothing it touched is out of order, and both say the same. Raises Found."""
        self.operations += 1
        try:
            step = self.model.step(op)
            self.checker.check(op, step, self.model.state)
        except Broken as broken:
            raise Found(Finding(broken.requirement, broken.text, op.op, "requirement", falls=broken.falls)) from broken
        except CRASHES as error:
            raise Found(crash(error, op, RAISED)) from error
        if self.adapter is not None and op.op in self._shared:
            _compare(op, step.outcome, self._ask(self.adapter, op))
        return step.outcome

    def _ask(self, adapter: Adapter, op: Operation) -> Outcome:
        try:
            return adapter.apply(op)
        except Exception as error:
            raise Found(crash(error, op, RAISED)) from error

    def finish(self) -> None:
        """The whole state is in order, now that nothing is pending. Raises Found."""
        try:
            self.checker.check_quiescent(self.model.state)
        except Broken as broken:
            raise Found(Finding(broken.requirement, broken.text, "end", "requirement", falls=broken.falls)) from broken


def _compare(op: Operation, ours: Outcome, theirs: Outcome) -> None:
    """Both outcomes say the same, whatever the pages are called. Raises Found."""
    expected, told = _without_pages(ours), _without_pages(theirs)
    if expected != told:
        text = f"expected {expected}, was told {told}"
        raise Found(Finding(_ANSWERED, text, op.op, "difference", (ours.kind, theirs.kind)))


def _without_pages(outcome: Outcome) -> dict[str, object]:
    return {
        name: len(value) if isinstance(value, tuple) else str(value) if isinstance(value, Key) else value
        for name, value in outcome
    }


def run_workload(
    requests: Path | Iterable[Request],
    *,
    device_pages: int,
    host_pages: int,
    page_tokens: int = BLOCK_TOKENS,
    profile: Profile | None = None,
    adapter: Adapter | None = None,
    check_every: int = CHECK_EVERY,
    progress: Callable[[str], None] = lambda text: None,
) -> WorkloadReport:
    """The requests, or those of a file with blocks of `page_tokens` tokens, went through a cache of these pages.

    `profile` gives the rules; its sizes are not used. With `adapter` an implementation is asked the same and has to
    answer the same. Raises RequestError where the file cannot be read.
    """
    sizes = Sizes(device_pages=device_pages, host_pages=host_pages, page_size=1)
    stepper = JudgedStepper(
        (profile or Profile()).model_copy(update={"sizes": sizes, "bigram": False}),
        adapter=adapter,
        check_every=check_every,
    )
    server = Server(stepper)
    violations: tuple[str, ...] = ()
    began, count = time.monotonic(), 0
    try:
        for request in read_requests(requests, page_tokens) if isinstance(requests, Path) else requests:
            if count % _REQUESTS_BETWEEN_PROGRESS == 0:
                progress(f"{count:,} requests, {stepper.operations:,} operations")
            count += 1
            server.serve(request.blocks)
        stepper.finish()
    except Found as found:
        violations = (str(found),)
    seconds = time.monotonic() - began
    return WorkloadReport(
        requests=count,
        pages=sum(server.hits.values()),
        hits=server.hits,
        operations=stepper.operations,
        operations_per_second=stepper.operations / seconds if seconds else 0.0,
        seconds=seconds,
        violations=violations,
    )
