"""Which judges a step calls for: sorted once, looked up in every step."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any, TypeVar

from hicache_ref.requirements.registry import (
    ALWAYS,
    EVENTUALLY,
    FACT,
    STEP,
    WITNESS,
    Always,
    Need,
    Part,
    Scope,
    StepJudge,
    Witness,
)

DISABLED = "HC-CONF-11"
ALSO_DISABLED = frozenset({"HC-CONF-04", DISABLED})
"""What is judged of the steps of a cache that is switched off."""

Kind = tuple[str, str, bool, bool, bool, bool, bool]
"""Operation, kind of outcome, and whether there are changed nodes, events, effects, victims, storage."""

_NEEDS: tuple[Need, ...] = ("nodes", "events", "effects", "victims", "storage")
_T = TypeVar("_T", bound=Callable[..., Any])


class Plan:
    """The judges of one kind of checker, by what a step has to show."""

    def __init__(self, only: frozenset[str] | None, enabled: bool) -> None:
        self._only = only
        self._enabled = enabled
        self.eventually = self._wanted(EVENTUALLY.items())
        self.facts = {fact: name for fact, name in FACT.items() if self.wants(name)}
        self.always: dict[tuple[bool, ...], tuple[tuple[str, Always], ...]] = {
            there: self._states(*there) for there in product((False, True), repeat=3)
        }
        """By whether a node changed, whether an operation is on the books, and whether there is storage."""

        self._steps: dict[Kind, tuple[tuple[str, StepJudge], ...]] = {}
        self._witnesses: dict[tuple[str, str], tuple[tuple[str, Witness], ...]] = {}

    def wants(self, requirement: str) -> bool:
        """Whether this requirement is to be checked at all."""
        return self._only is None or requirement in self._only

    def _wanted(self, judges: Iterable[tuple[str, _T]]) -> tuple[tuple[str, _T], ...]:
        return tuple((name, judge) for name, judge in judges if self.wants(name))

    def _states(self, moved: bool, busy: bool, storage: bool) -> tuple[tuple[str, Always], ...]:
        idle: dict[Part | None, bool] = {"nodes": not moved, "books": not busy, "storage": not storage, None: False}
        return self._wanted((name, each.judge) for name, each in ALWAYS.items() if not idle[each.part])

    def steps(self, kind: Kind) -> tuple[tuple[str, StepJudge], ...]:
        """The judges of such a step."""
        found = self._steps.get(kind)
        if found is None:
            has = frozenset(need for need, there in zip(_NEEDS, kind[2:], strict=True) if there)
            found = self._steps[kind] = self._scoped(STEP, kind[0], kind[1], has)
        return found

    def witnesses(self, op: str, told: str) -> tuple[tuple[str, Witness], ...]:
        """The witnesses that such a step could reach."""
        found = self._witnesses.get((op, told))
        if found is None:
            found = self._witnesses[op, told] = self._scoped(WITNESS, op, told, frozenset(_NEEDS))
        return found

    def _scoped(
        self, table: Mapping[str, tuple[Scope, _T]], op: str, told: str, has: frozenset[str]
    ) -> tuple[tuple[str, _T], ...]:
        return tuple(
            (name, judge)
            for name, (scope, judge) in table.items()
            if self.wants(name) and self._is_on(name) and scope.includes(op, told, has)
        )

    def _is_on(self, requirement: str) -> bool:
        return requirement != DISABLED if self._enabled else requirement in ALSO_DISABLED or requirement in WITNESS


@cache
def plan_of(only: frozenset[str] | None, enabled: bool) -> Plan:
    """The plan of all checkers that check these requirements."""
    return Plan(only, enabled)
