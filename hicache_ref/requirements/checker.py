"""The checker: judges every state and every step, and reports the weakest requirement that is broken."""

from collections.abc import Callable
from operator import add
from typing import Any

from hicache_ref.model.state import State
from hicache_ref.requirements.catalogue import REQUIREMENTS, implied
from hicache_ref.requirements.change import Change, StepLike
from hicache_ref.requirements.plan import Judges, plan_of
from hicache_ref.requirements.registry import ALWAYS, EVENTUALLY, FACT, STEP, WITNESS, Broken
from hicache_ref.requirements.view import EVERYTHING, View
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import Profile

_UNJUDGED = (LookupError, TypeError, ValueError, AttributeError)
"""What a judge may trip over in a state that another one calls broken."""


class Checker:
    """Follows one run. `reached` counts witnesses."""

    def __init__(self, profile: Profile, *, only: frozenset[str] | None = None) -> None:
        self.profile = profile
        self._plan = plan_of(only, profile.enabled)
        self._asked: dict[Judges, list[int]] = {}
        """How many subjects the judges have looked at, by those that are asked together."""

        self.reached = {name: 0 for name in (*FACT.values(), *WITNESS) if only is None or name in only}
        self._before: View | None = None
        self._first = True
        """The state before has not been judged; of later ones what did not change need not be judged again."""

    @property
    def tally(self) -> dict[str, int]:
        """How many subjects were judged, by requirement."""
        tally = {name: 0 for name in (*ALWAYS, *STEP, *EVENTUALLY) if self._plan.wants(name)}
        for judges, counts in self._asked.items():
            for name, count in zip(judges.names, counts, strict=True):
                tally[name] += count
        return tally

    def start(self, state: State, *, judged: bool = False) -> None:
        """History is forgotten, and `state`, which may have been `judged` before, is where the next step begins."""
        self._before, self._first = View(state, self.profile), not judged

    def check(self, op: Operation, step: StepLike, state: State) -> None:
        """The step and the state after it are judged.

        Raises `Broken` for the weakest requirement that does not hold, and ValueError before `start`.
        """
        before = self._before
        if before is None:
            raise ValueError("check before start: the state before the step is not known")
        after = View(state, self.profile, before)
        change: Change[Any, Any] = Change(before, op, step, after)
        plan, changed = self._plan, EVERYTHING if self._first else after.changed(before)
        has = (bool(step.events), bool(step.effects), bool(step.victims), before.has_storage or after.has_storage)
        judges = plan.steps((op.op, change.told.kind, self._first or not change.still, *has))
        try:
            if changed:
                self._ask(plan.states(changed, bool(after.busy), after.has_storage), after)
            self._ask(judges, change)
        except (Broken, *_UNJUDGED) as error:
            states = [(name, judge, after) for name, judge in plan.states(EVERYTHING, True, True)]
            steps = [(name, judge, change) for name, judge in judges]
            raise _weakest([*states, *steps], error) from None
        self._witness(change)
        self._before, self._first = after, False

    def _ask(self, judges: Judges, subject: View | Change[Any, Any]) -> None:
        counts, before = judges.ask(subject), self._asked.get(judges)
        self._asked[judges] = counts if before is None else list(map(add, before, counts))

    def _witness(self, change: Change[Any, Any]) -> None:
        reached = self.reached
        for fact in change.what.facts:
            name = self._plan.facts.get(fact)
            if name is not None:
                reached[name] += 1
        for name, witness in self._plan.witnesses(change.op.op, change.told.kind):
            if witness(change):
                reached[name] += 1

    def check_state(self, state: State) -> None:
        """The state is judged as a whole, whatever came before it. Raises `Broken`."""
        self._judge(self._plan.states(EVERYTHING, True, True), View(state, self.profile))

    def check_quiescent(self, state: State) -> None:
        """What must hold once nothing is pending is judged. Raises `Broken`."""
        self._judge(self._plan.eventually, View(state, self.profile))

    def _judge(self, judges: Judges, view: View) -> None:
        try:
            self._ask(judges, view)
        except (Broken, *_UNJUDGED) as error:
            raise _weakest([(name, judge, view) for name, judge in judges], error) from None


def _weakest(judges: list[tuple[str, Callable[[Any], int], Any]], first: Exception) -> Exception:
    """The broken requirement that implies no other broken one, with the others as `falls`."""
    broken: dict[str, Broken] = {}
    for name, judge, subject in judges:
        try:
            judge(subject)
        except Broken as error:
            broken[name] = error
        except _UNJUDGED:
            continue
    order = {name: at for at, name in enumerate(REQUIREMENTS)}
    names = sorted(broken, key=lambda name: order.get(name, len(order)))
    weakest = [name for name in names if not any(other in broken for other in implied(name))]
    if not weakest:
        return first
    name = weakest[0]
    return Broken(name, broken[name].text, tuple(other for other in names if other != name))
