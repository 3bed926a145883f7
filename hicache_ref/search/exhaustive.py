"""Exhaustive search: every state of a scope, breadth first, so that what is found has the shortest trace.

A state is known by its canonical form, and that by a 64-bit hash: of a million states two would share one in one of
thirty million runs, and one of the two would not be gone into.
"""

import time
from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.requirements import Broken, Checker
from hicache_ref.search.branches import Branches
from hicache_ref.search.finding import Finding, Recorded, crash
from hicache_ref.search.moves import Moves
from hicache_ref.search.scopes import Scope
from hicache_ref.search.stepping import CRASHES, RAISED
from hicache_ref.trace import TraceStep
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.operations import Operation

_STATES_BETWEEN_PROGRESS = 200


class Violation(Frozen):
    """A requirement that a step broke, and the fewest steps of the scope that lead there."""

    requirement: str
    text: str
    operation: str
    falls: tuple[str, ...] = ()
    """Requirements that are broken too because of it."""

    trace: tuple[TraceStep, ...]


class ExploreReport(Frozen):
    """What a search looked at, and what it found there."""

    scope: str
    states: int
    transitions: int
    depth: int
    """The most steps that a state is away from the first one."""

    complete: bool
    """Whether these are all states of the scope; a violation ends the search before that."""

    seconds: float
    violations: tuple[Violation, ...] = ()


class _Place(NamedTuple):
    """A state that was reached, and its number."""

    number: int
    state: State


class Exploration:
    """A search under way. Its `checker` counts what was judged; with `stop` set it ends early."""

    def __init__(
        self,
        scope: Scope,
        kind: type[Model] = Model,
        *,
        limit: int | None = None,
        progress: Callable[["Exploration"], None] = lambda search: None,
    ) -> None:
        self.scope = scope
        self.kind = kind
        self.limit = limit
        self.progress = progress
        self.checker = Checker(scope.profile)
        self.transitions = 0
        self.depth = 0
        self.stop = False
        self.violation: Violation | None = None
        self._moves = Moves(scope)
        self._alike = scope.is_alike
        first = scope.start()
        self.checker.check_state(first)
        self._frontier = [_Place(0, first)]
        self._seen = {self._fingerprint(first)}
        self._came: list[tuple[int, Recorded | None]] = [(0, None)]
        """For each state the number of the one that it was first reached from, and by which step."""

    @property
    def states(self) -> int:
        """How many states were reached."""
        return len(self._came)

    def run(self) -> ExploreReport:
        """All states were looked at, or a requirement was broken, or there are `limit` states, or `stop` was set."""
        began = time.monotonic()
        while self._frontier and not self._is_over():
            self._go_deeper()
        return ExploreReport(
            scope=self.scope.name,
            states=self.states,
            transitions=self.transitions,
            depth=self.depth,
            complete=not self._frontier and self.violation is None,
            seconds=time.monotonic() - began,
            violations=() if self.violation is None else (self.violation,),
        )

    def _is_over(self) -> bool:
        full = self.limit is not None and self.states >= self.limit
        return full or self.stop or self.violation is not None

    def _go_deeper(self) -> None:
        """Every step from the states of the frontier was made; the states that are new are the frontier."""
        reached: list[_Place] = []
        for at, place in enumerate(self._frontier):
            if self._is_over():
                reached = self._frontier[at:] + reached
                break
            if at % _STATES_BETWEEN_PROGRESS == 0:
                self.progress(self)
            reached += self._from(place)
        if reached:
            self.depth += 1
        self._frontier = reached

    def _from(self, place: _Place) -> list[_Place]:
        """The new states that one step leads to."""
        reached: list[_Place] = []
        self.checker.start(place.state, judged=True)
        for op in self._moves.of(self.kind(self.scope.profile, place.state)):
            untold: list[tuple[int, ...]] = [()]
            while untold and self.violation is None:
                choose = Branches(untold.pop(), may_fail="host" in self.scope.failing)
                state = self._try(place, op, choose)
                untold += choose.untold()
                if state is not None:
                    self._came.append((place.number, Recorded(op, tuple(choose.log))))
                    reached.append(_Place(len(self._came) - 1, state))
        return reached

    def _try(self, place: _Place, op: Operation, choose: Branches) -> State | None:
        """The state after the step, if it is new; all that must hold of it was checked."""
        self.transitions += 1
        model = self.kind(self.scope.profile, clone(place.state))
        checker = copy(self.checker)
        try:
            step = model.step(op, choose)
            checker.check(op, step, model.state)
            if not self._is_new(model.state):
                return None
            if not model.pending():
                checker.check_quiescent(model.state)
        except Broken as broken:
            finding = Finding(broken.requirement, broken.text, op.op, "requirement", falls=broken.falls)
        except CRASHES as error:
            finding = crash(error, op, RAISED)
        else:
            return model.state
        self.violation = self._violation(finding, [*self._way_to(place.number), Recorded(op, tuple(choose.log))])
        return None

    def _fingerprint(self, state: State) -> int:
        return hash(canonical(state, self.scope.profile, alike=self._alike))

    def _is_new(self, state: State) -> bool:
        count = len(self._seen)
        self._seen.add(self._fingerprint(state))
        return len(self._seen) > count

    def _way_to(self, number: int) -> list[Recorded]:
        """The steps by which the state was first reached."""
        way: list[Recorded] = []
        number, step = self._came[number]
        while step is not None:
            way.append(step)
            number, step = self._came[number]
        return [*(Recorded(op, ()) for op in self.scope.opening), *way[::-1]]

    def _violation(self, finding: Finding, way: list[Recorded]) -> Violation:
        steps = tuple(TraceStep(i=i, op=step.op, choices=step.choices) for i, step in enumerate(way))
        return Violation(
            requirement=finding.requirement,
            text=finding.text,
            operation=finding.operation,
            falls=finding.falls,
            trace=steps,
        )


def explore(
    scope: Scope,
    *,
    kind: type[Model] = Model,
    limit: int | None = None,
    progress: Callable[[Exploration], None] = lambda search: None,
) -> ExploreReport:
    """The states of `scope` were looked at, all of them unless the report says otherwise.

    Every requirement was checked on every step of `kind` from every state. `limit` is in states.
    """
    return Exploration(scope, kind, limit=limit, progress=progress).run()
