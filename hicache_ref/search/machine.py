"""The state machine: the same alphabet as the walks, drawn by Hypothesis.

Hypothesis plays the random generator of the drawing functions, so that every draw is its own. It searches, and does
not shrink: what it finds is made small by deleting steps, like the findings of walks, in a fraction of the time.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from hicache_ref.model import Model, State
from hicache_ref.model.chooser import POLICY, DrawnChooser
from hicache_ref.requirements import Checker
from hicache_ref.search.alphabet import SINGLE, can_be_loaded, invalid
from hicache_ref.search.composites import settle
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.kinds import COMPOSITE, NEEDED
from hicache_ref.search.minimise import minimise
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import CUT_SHARE, HYBRID_WEIGHT, WITHOUT_STORAGE, draw_profile
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.adapter import Hybrid
from hicache_ref.vocabulary.ids import STATE_DEVICE
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STORAGE_OPERATIONS, Operation
from hicache_ref.vocabulary.profile import Profile, Rules
from hicache_ref.vocabulary.storage import ATTACH_FAILURES

RANDOM = st.randoms(use_true_random=True)
"""Hypothesis draws where each begins, not every number: it would draw extremes mostly, which cut composites off."""

REFERENCE = Profile()

ENABLED: dict[str, Callable[[State], object]] = {
    "give_back": lambda state: state.requests,
    "forward": lambda state: state.requests,
    "forward_done": lambda state: state.passes,
    "insert": lambda state: state.requests,
    "unlock": lambda state: state.receipts,
    "evict": lambda state: state.device_leaves,
    "evict_host": lambda state: state.host_leaves,
    "evict_state": lambda state: STATE_DEVICE in state.pools,
    "evict_host_state": lambda state: STATE_DEVICE in state.pools,
    "go_on": lambda state: STATE_DEVICE in state.pools,
    "topple": lambda state: STATE_DEVICE in state.pools,
    "fade": lambda state: STATE_DEVICE in state.pools,
    "revive": lambda state: STATE_DEVICE in state.pools,
    "belated": lambda state: STATE_DEVICE in state.pools,
    "write_backup": lambda state: len(state.nodes) > 1 and state.policy != "write_back",
    "load_back": lambda state: any(can_be_loaded(state, node) for node in state.nodes.values()),
    "copy_done": lambda state: any(ticket.good is None for ticket in state.tickets.values()),
    "copy_failed": lambda state: any(ticket.good is None for ticket in state.tickets.values()),
    "poll": lambda state: any(ticket.good is not None for ticket in state.tickets.values()),
    "settle": lambda state: state.tickets or state.passes,
}
"""States without which drawing an operation of this kind is in vain; kinds that are absent can always be drawn."""


class Failure(AssertionError):
    """A requirement does not hold; the text tells the smallest story."""

    def __init__(self, finding: Finding, profile: Profile, steps: tuple[Recorded, ...]) -> None:
        super().__init__(finding, profile, steps)
        self.finding = finding
        self.profile = profile
        self.steps = steps

    def __str__(self) -> str:
        story = "\n".join(f"  {index}. {step.op!r}" for index, step in enumerate(self.steps))
        return f"{self.finding.requirement}: {self.finding.text}\n{self.profile!r}\n{story}"


@dataclass(frozen=True)
class Subject:
    """What a machine drives: a kind of model, profiles around `base` with these `rules`, and what is judged."""

    kind: type[Model] = Model
    base: Profile = REFERENCE
    rules: Mapping[str, str | int | bool | None] | None = None
    only: frozenset[str] | None = None
    """Requirements that are judged; None: all."""

    operations: frozenset[str] = frozenset(OPERATION_TYPES)
    hybrid: Hybrid = "drawn"
    seed: int | None = None
    """Where Hypothesis begins; None: as its settings say."""

    met: Counter[str] = field(default_factory=Counter)
    """How often each witness was met in all that was driven."""

    def profile(self, rng: random.Random) -> Profile:
        """A profile as a walk would draw it."""
        drawn = draw_profile(rng, self.base, hybrid=self.hybrid, disabled=True, silent=True)
        rules = Rules.model_validate({**drawn.rules.model_dump(), **(self.rules or {})})
        return drawn.model_copy(update={"rules": rules})

    def stepper(self, profile: Profile) -> ModelStepper:
        """A new model of this kind, judged after each step."""
        return ModelStepper(profile, self.kind, checker=Checker(profile, only=self.only))


class CacheMachine(RuleBasedStateMachine):
    """One cache, any operations in any order; every requirement is judged after each of them."""

    subject = Subject()

    @initialize(rng=RANDOM)
    def begin(self, rng: random.Random) -> None:
        """The cache is new, with the pool sizes and rules that were drawn."""
        self.failed = False
        self.stepper = self.subject.stepper(self.subject.profile(rng))
        left_out = STORAGE_OPERATIONS if rng.random() < WITHOUT_STORAGE else frozenset()
        self.drawing = Drawing(
            self.stepper.model,
            rng,
            self.subject.operations - left_out,
            peers=True,
            attach_failures=ATTACH_FAILURES,
            attach_policies="any",
            forces=True,
        )

    @rule(rng=RANDOM)
    def refuse(self, rng: random.Random) -> None:
        """A call that breaks a precondition was refused."""
        self.drawing.rng = rng
        self.make(invalid(self.drawing))

    def draw(self, kind: str, rng: random.Random) -> None:
        """An operation of this kind has happened, or the operations of this composite up to where it was cut off."""
        if NEEDED.get(kind, kind if kind in SINGLE else "audit") not in self.drawing.operations:
            return
        self.drawing.rng = rng
        self.stepper.chooser = DrawnChooser(rng)
        if kind in SINGLE:
            op = SINGLE[kind](self.drawing)
            if op is not None:
                self.make(op)
            return
        for op in COMPOSITE[kind](self.drawing):
            self.make(op)
            if rng.random() < CUT_SHARE:
                return

    def make(self, op: Operation) -> None:
        """The operation has happened and every requirement holds. Raises Failure."""
        try:
            self.stepper.step(op)
        except Found as found:
            self.failed = True
            profile = self.stepper.model.profile
            small = minimise(self.stepper.steps, lambda: self.subject.stepper(profile), found.finding)
            raise Failure(small.finding or found.finding, profile, small.steps) from None

    def teardown(self) -> None:
        """Everything has ended and was polled, and the quiet cache was judged too."""
        if not hasattr(self, "stepper") or self.failed:
            return
        self.stepper.chooser = POLICY
        self.drawing.rng = random.Random(0)
        for op in settle(self.drawing):
            self.make(op)
        self.make(ops.Audit())
        self.subject.met.update(self.stepper.checker.reached)


def _rule_of(kind: str) -> Callable[..., None]:
    """The rule that draws operations of one kind, and is tried only in states that have some."""

    def step(self: CacheMachine, rng: random.Random) -> None:
        self.draw(kind, rng)

    step.__name__ = kind
    step.__doc__ = f"As the walks draw `{kind}`."
    enabled = ENABLED.get(kind, lambda state: True)
    guard = precondition(lambda self: bool(enabled(self.stepper.model.state)))  # type: ignore[no-untyped-call]
    made: Callable[..., None] = guard(rule(rng=RANDOM)(step))
    return made


def machine_for(subject: Subject) -> type[CacheMachine]:
    """A state machine over the whole alphabet that drives this subject.

    Hypothesis draws rules evenly, so a kind of double weight has two rules.
    """
    weights = {kind: max(1, round(HYBRID_WEIGHT.get(kind, 1))) for kind in (*SINGLE, *COMPOSITE)}
    members = {f"{kind}_{copy}": _rule_of(kind) for kind, weight in weights.items() for copy in range(weight)}
    machine = type("CacheMachine", (CacheMachine,), {**members, "subject": subject})
    return machine if subject.seed is None else seed(subject.seed)(machine)


def run_machine(subject: Subject, given: settings | None = None) -> None:
    """Hypothesis has found nothing under `given` settings (None: those in force). Raises Failure."""
    without_shrinking = settings(
        settings() if given is None else given,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine_for(subject), settings=without_shrinking)
