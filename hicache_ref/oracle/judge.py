"""A recorded trace is judged: its outcomes and, where there are any, its observations are those of an implementation.

Nothing is executed but the model. Steps without an observation are compared by outcome only.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from hicache_ref.oracle.campaign import Divergence, Outlook
from hicache_ref.oracle.heeding import covering, go_on_after
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.requirements.reach import reach_of
from hicache_ref.search.finding import Found
from hicache_ref.trace import RAISED_KEY, Trace, TraceError, TraceStep
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.observation import LEVELS, Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile

_UNSEEN = Observation(level="counts")


class StepCutOff(Exception):
    """The implementation raised in this step, and has no outcome. It was raised there and not here, as `raw` says."""

    def __init__(self, raised: str) -> None:
        super().__init__(f"{raised}, expected an outcome")
        self.raw = raised


class RecordedAdapter:
    """An adapter that answers as it is recorded; it can be asked for nothing but the recorded steps, in order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.next = 0

    def describe(self) -> Description:
        """Who took the steps, and the most that any of them shows."""
        header, steps = self.trace.header, self.trace.steps
        seen: set[Level] = {step.observed.level for step in steps if step.observed is not None}
        return Description(
            name=header.implementation.name,
            version=header.implementation.version,
            level=max(seen, key=LEVELS.index, default="counts"),
            operations=frozenset(step.op.op for step in steps),
            hybrid="always" if header.profile.state else "never",
            events=any(step.observed is not None and step.observed.events is not None for step in steps),
        )

    def reset(self, profile: Profile) -> None:
        """The recording is at its start."""
        self.next = 0

    def apply(self, operation: Operation) -> Outcome:
        """The recorded outcome. Raises StepCutOff where there is none."""
        self.next += 1
        step = self._current()
        if step.outcome is None:
            raise StepCutOff(str(step.meta.get(RAISED_KEY, "nothing was told")))
        return step.outcome

    def observe(self, level: Level) -> Observation:
        """The recorded observation; if there is none, one that shows nothing."""
        return self._current().observed or _UNSEEN

    def _current(self) -> TraceStep:
        return self.trace.steps[self.next - 1]


def judge(
    trace: Trace, checker: Checker, pause: Callable[[], bool] = lambda: False, known: Sequence[Known] = ()
) -> Outlook:
    """What a campaign would have seen had it made these steps; `pause` is asked before each whether to stop.

    A divergence is one of those `known` as in a campaign, but that the trace is as it is and is not made smaller: a
    trigger may be any step before, and an entry that is told by its smallest trace alone fits that very trace only.
    """
    adapter = RecordedAdapter(trace)
    lockstep = Lockstep(adapter, adapter.describe(), trace.header.profile, adapter.describe().level, checker)
    go_on_after(known, lockstep)
    outlook = Outlook(
        walks=1, cut_off=trace.ended is not None, reaches={reach_of(trace.header.profile, adapter.describe())}
    )
    try:
        for step in trace.steps:
            if pause():
                outlook.stopped = True
                break
            if breaks_off(step):
                outlook.cut_off = True
                break
            lockstep.step(step.op, step.choices)
    except Found as found:
        name = next((each.id for each in covering(known, found.finding, lockstep)), None)
        steps = tuple(lockstep.steps)
        divergence = Divergence(found.finding, trace.header.profile, steps, len(steps), name)
        if found.finding.source == "oracle":
            outlook.oracle_fault = divergence
        else:
            outlook.divergences.append(divergence)
    outlook.steps = len(lockstep.steps)
    outlook.tally.update(checker.tally)
    outlook.reached.update(checker.reached)
    return outlook


def breaks_off(step: TraceStep) -> bool:
    """Whether the recording ends in this step, which says nothing of the implementation: its recorder was ended."""
    return step.outcome is None and RAISED_KEY not in step.meta


def expect_judgeable(path: Path, trace: Trace) -> None:
    """The trace has steps. Raises TraceError where it has none, for then nothing can be said of it."""
    if not trace.steps:
        raise TraceError(path, 2, "no steps, expected at least one")
