"""The checker: judges every state and every step, and reports the weakest requirement that is broken."""

from collections.abc import Callable
from typing import Any

from hicache_ref.model.state import State
from hicache_ref.requirements.catalogue import REQUIREMENTS, implied
from hicache_ref.requirements.registry import (
    ALWAYS,
    EVENTUALLY,
    FACT,
    STEP,
    WITNESS,
    Always,
    Broken,
    StepJudge,
    Witness,
)
from hicache_ref.requirements.view import Change, StepLike, View
from hicache_ref.vocabulary.operations import OPERATION_TYPES, Operation
from hicache_ref.vocabulary.profile import Profile

_TOLD = (
    "done", "matched", "took", "inserted", "evicted", "submitted", "polled", "audited", "refused", "invalid",
)  # fmt: skip
_ALSO_DISABLED = frozenset({"HC-CONF-04", "HC-CONF-11"})
"""What is judged of the steps of a cache that is switched off."""

_UNJUDGED = (LookupError, TypeError, ValueError, AttributeError)
"""What a judge may trip over in a state that another one calls broken."""


class Checker:
    """Follows one run. `tally` counts subjects judged by requirement, `reached` witnesses."""

    def __init__(self, profile: Profile, *, only: frozenset[str] | None = None) -> None:
        self.profile = profile
        self.only = only
        self.tally: dict[str, int] = {}
        self.reached: dict[str, int] = {}
        self._always: list[tuple[str, Always]] = [item for item in ALWAYS.items() if self._wanted(item[0])]
        self._eventually = [item for item in EVENTUALLY.items() if self._wanted(item[0])]
        steps = [(op, told) for op in OPERATION_TYPES for told in _TOLD]
        self._steps: dict[tuple[str, str], list[tuple[str, StepJudge]]] = {
            (op, told): [
                (name, judge)
                for name, (scope, judge) in STEP.items()
                if self._wanted(name) and scope.includes(op, told) and (profile.enabled or name in _ALSO_DISABLED)
            ]
            for op, told in steps
        }
        self._witnesses: dict[tuple[str, str], list[tuple[str, Witness]]] = {
            (op, told): [
                (name, witness)
                for name, (scope, witness) in WITNESS.items()
                if self._wanted(name) and scope.includes(op, told)
            ]
            for op, told in steps
        }
        self._facts = {fact: name for fact, name in FACT.items() if self._wanted(name)}
        self.tally.update({name: 0 for name in (*ALWAYS, *STEP, *EVENTUALLY) if self._wanted(name)})
        self.reached.update({name: 0 for name in (*FACT.values(), *WITNESS) if self._wanted(name)})
        self._before: View | None = None

    def _wanted(self, requirement: str) -> bool:
        return self.only is None or requirement in self.only

    def start(self, state: State) -> None:
        """History is forgotten, and `state` is where the next step begins."""
        self._before = View(state, self.profile)

    def check(self, op: Operation, step: StepLike, state: State) -> None:
        """The step and the state after it are judged.

        Raises `Broken` for the weakest requirement that does not hold, and ValueError before `start`.
        """
        before = self._before
        if before is None:
            raise ValueError("check before start: the state before the step is not known")
        after = View(state, self.profile)
        change: Change[Any, Any] = Change(before, op, step, after)
        judges = self._steps[op.op, change.told.kind]
        tally = self.tally
        try:
            for name, judge in self._always:
                tally[name] += judge(after)
            for name, judge_step in judges:
                tally[name] += judge_step(change)
        except (Broken, *_UNJUDGED) as error:
            raise _weakest(
                [(name, judge, after) for name, judge in self._always]
                + [(name, judge, change) for name, judge in judges],
                error,
            ) from None
        self._witness(change)
        self._before = after

    def _witness(self, change: Change[Any, Any]) -> None:
        reached = self.reached
        for fact in change.what.facts:
            name = self._facts.get(fact)
            if name is not None:
                reached[name] += 1
        for name, witness in self._witnesses[change.op.op, change.told.kind]:
            if witness(change):
                reached[name] += 1

    def check_quiescent(self, state: State) -> None:
        """What must hold once nothing is pending is judged. Raises `Broken`."""
        view = View(state, self.profile)
        try:
            for name, judge in self._eventually:
                self.tally[name] += judge(view)
        except (Broken, *_UNJUDGED) as error:
            raise _weakest([(name, judge, view) for name, judge in self._eventually], error) from None


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
