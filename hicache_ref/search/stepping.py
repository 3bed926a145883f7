"""The model under its own requirements: what walks, the state machine, replays and faults are run on."""

from collections.abc import Sequence

from hicache_ref.model import Model
from hicache_ref.model.chooser import POLICY, Chooser, DrawnChooser, ReplayChooser
from hicache_ref.requirements import Broken, Checker
from hicache_ref.search.finding import Finding, Found, Recorded, crash
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Audited, Outcome
from hicache_ref.vocabulary.profile import Profile

RAISED = "HC-CONF-01"
CRASHES = (AssertionError, LookupError, TypeError, ValueError, AttributeError, StopIteration, RecursionError)
"""What a faulty model raises when it trips over what it has broken."""


class ModelStepper:
    """A model, or a faulty subclass of it, checked against every requirement after each step."""

    def __init__(self, profile: Profile, kind: type[Model] = Model, *, chooser: Chooser = POLICY,
                 checker: Checker | None = None) -> None:  # fmt: skip
        self.model = kind(profile)
        self.chooser = chooser
        self.checker = Checker(profile) if checker is None else checker
        self.checker.start(self.model.state)
        self.steps: list[Recorded] = []
        self._log = chooser.log if isinstance(chooser, DrawnChooser) else []
        """What the chooser drew since the last step."""

    def leaves_out(self, op: Operation) -> bool:
        """Never: what the model takes it can come to, and what is invalid it refuses."""
        return False

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """The operation has happened and every requirement holds. Raises Found."""
        chooser = self.chooser if choices is None else ReplayChooser(choices)
        try:
            step = self.model.step(op, chooser)
            self.checker.check(op, step, self.model.state)
            if isinstance(step.outcome, Audited) and not step.outcome.pending:
                self.checker.check_quiescent(self.model.state)
        except Broken as broken:
            raise Found(Finding(broken.requirement, broken.text, op.op, "requirement", falls=broken.falls)) from broken
        except CRASHES as error:
            raise Found(crash(error, op, RAISED)) from error
        finally:
            self.steps.append(Recorded(op, tuple(self._log if choices is None else choices)))
            self._log.clear()
        return step.outcome
