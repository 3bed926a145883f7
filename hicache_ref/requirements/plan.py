"""Which judges a step calls for: sorted once, looked up in every step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from operator import call
from typing import Any, TypeVar

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import (
    ALWAYS,
    EVENTUALLY,
    FACT,
    STEP,
    WITNESS,
    About,
    Need,
    Scope,
    Witness,
)
from hicache_ref.requirements.view import View

DISABLED = "HC-CONF-11"
ALSO_DISABLED = frozenset({"HC-CONF-04", DISABLED})
"""What is judged of the steps of a cache that is switched off."""

Kind = tuple[str, str, bool, bool, bool, bool, bool]
"""Operation, kind of outcome, and whether there are changed nodes, events, effects, victims, storage."""

_NEEDS: tuple[Need, ...] = ("nodes", "events", "effects", "victims", "storage")
_T = TypeVar("_T", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Judges:
    """The judges that some kind of state or step calls for, each under the name of its requirement."""

    names: tuple[str, ...]
    calls: tuple[Callable[[Any], int], ...]

    def __iter__(self) -> Iterator[tuple[str, Callable[[Any], int]]]:
        return zip(self.names, self.calls, strict=True)

    def ask(self, subject: View | Change[Any, Any]) -> list[int]:
        """How many subjects each of them looked at. Raises what the first of them raises."""
        return list(map(call, self.calls, repeat(subject)))


class Plan:
    """The judges of one kind of checker, by what a step has to show."""

    def __init__(self, only: frozenset[str] | None, enabled: bool) -> None:
        self._only = only
        self._enabled = enabled
        self.eventually = self._judges(EVENTUALLY.items())
        self.facts = {fact: name for fact, name in FACT.items() if self.wants(name)}
        self._always: dict[tuple[int, bool, bool], Judges] = {}
        self._steps: dict[Kind, Judges] = {}
        self._witnesses: dict[tuple[str, str], tuple[tuple[str, Witness], ...]] = {}

    def wants(self, requirement: str) -> bool:
        """Whether this requirement is to be checked at all."""
        return self._only is None or requirement in self._only

    def _judges(self, judges: Iterable[tuple[str, Callable[[Any], int]]]) -> Judges:
        wanted = [(name, judge) for name, judge in judges if self.wants(name)]
        return Judges(tuple([name for name, _ in wanted]), tuple([judge for _, judge in wanted]))

    def states(self, changed: int, busy: bool, storage: bool) -> Judges:
        """The judges of a state in which these parts changed, by operations on the books and storage being there."""
        found = self._always.get((changed, busy, storage))
        if found is None:
            there: dict[About | None, bool] = {"books": busy, "storage": storage, None: True}
            judges = [(name, each.judge) for name, each in ALWAYS.items() if each.parts & changed and there[each.about]]
            found = self._always[changed, busy, storage] = self._judges(judges)
        return found

    def steps(self, kind: Kind) -> Judges:
        """The judges of such a step."""
        found = self._steps.get(kind)
        if found is None:
            has = frozenset(need for need, there in zip(_NEEDS, kind[2:], strict=True) if there)
            found = self._steps[kind] = self._judges(self._scoped(STEP, kind[0], kind[1], has))
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
