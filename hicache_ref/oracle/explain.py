"""A finding told step by step: its trace is executed again, and what each side said and showed is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from hicache_ref.model import Model, State, Step, clone
from hicache_ref.model.chooser import ReplayChooser
from hicache_ref.oracle.compare import Pairs
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.trace import RAISED_KEY, TraceStep
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.ids import PoolName
from hicache_ref.vocabulary.observation import Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile


@dataclass(frozen=True)
class Told:
    """One step, told by both sides."""

    op: Operation
    choices: tuple[Choice, ...]
    ours: Step | None
    """None if the model itself crashed."""

    theirs: Outcome | None
    """None if the implementation crashed; then there is no observation either."""

    observation: Observation | None
    pairs: dict[PoolName, Pairs]
    """Model page -> page of the implementation, after the step."""


@dataclass(frozen=True)
class Story:
    """A trace executed again."""

    profile: Profile
    steps: tuple[Told, ...]
    finding: Finding | None
    """What was found at the last step; None if nothing was."""

    state: State
    """The model's state at the time of the last observation."""

    @property
    def observation(self) -> Observation | None:
        """The last one, if the implementation shows anything."""
        return next((told.observation for told in reversed(self.steps) if told.observation is not None), None)

    def trace_steps(self) -> tuple[TraceStep, ...]:
        """The steps as lines of a trace, with what was told and shown; one without an answer says what was raised."""
        raised: dict[str, JsonValue] = {} if self.finding is None else {RAISED_KEY: self.finding.text}
        return tuple(
            TraceStep(
                i=i, op=told.op, choices=told.choices, outcome=told.theirs, observed=told.observation,
                meta=raised if told.theirs is None else {},
            )
            for i, told in enumerate(self.steps)
        )  # fmt: skip


def retell(lockstep: Lockstep, steps: Sequence[Recorded]) -> Story:
    """The steps were executed on a new lockstep, to the end or to the first finding."""
    told: list[Told] = []
    said: list[tuple[Outcome, Observation]] = []
    finding: Finding | None = None
    state = clone(lockstep.model.state)
    lockstep.after_step = lambda index, op, outcome, observation: said.append((outcome, observation))
    for recorded in steps:
        said.clear()
        before = clone(lockstep.model.state)
        try:
            lockstep.step(recorded.op, recorded.choices)
        except Found as found:
            finding = found.finding
        theirs, observation = said[0] if said else (None, None)
        state = clone(lockstep.model.state) if said else before
        ours = lockstep.ours or _answer(lockstep.profile, before, recorded)
        pairs = {pool: dict(pairs) for pool, pairs in lockstep.comparison.pairs.items()}
        told.append(Told(recorded.op, recorded.choices, ours, theirs, observation, pairs))
        if finding is not None:
            break
    return Story(lockstep.profile, tuple(told), finding, state)


def _answer(profile: Profile, state: State, recorded: Recorded) -> Step | None:
    """What the model says of a step that the implementation did not survive."""
    try:
        return Model(profile, clone(state)).step(recorded.op, ReplayChooser(recorded.choices))
    except (AssertionError, LookupError, TypeError, ValueError, AttributeError):
        return None
