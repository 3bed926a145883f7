"""The canonical form: what it leaves out can make no difference to what follows.

Two proofs. In small scopes every two ways into a form are followed one step further, and must lead to the same forms.
And for each field that is left out a twin is made that differs in it; then both go the same way for a while.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.search.moves import Moves
from hicache_ref.search.scopes import Scope
from hicache_ref.vocabulary.outcomes import Outcome

TWINS = 40
"""Twins that are made for each field."""

STEPS_BEFORE, STEPS_AFTER = 25, 25


def told(outcome: Outcome) -> tuple[object, ...]:
    """The outcome without names: of names and pages only how many there are."""
    values = (value for _, value in outcome)
    return tuple(len(value) if isinstance(value, tuple) else value for value in values)


def successors(scope: Scope, state: State, *, alike: bool) -> Iterator[tuple[object, State]]:
    """For each move what was asked and told, without names, and the state after it."""
    for op in Moves(scope).of(Model(scope.profile, state)):
        model = Model(scope.profile, clone(state))
        yield (op.op, getattr(op, "n", 0), told(model.step(op).outcome)), model.state


class Ahead:
    """For each form what may follow."""

    def __init__(self, scope: Scope, *, alike: bool) -> None:
        self.scope = scope
        self.form = partial(canonical, profile=scope.profile, alike=alike)
        self.alike = alike

    def of(self, state: State) -> Counter[object]:
        """The forms that one step leads to, each with how that is asked and told, and how often."""
        return Counter((how, hash(self.form(after))) for how, after in successors(self.scope, state, alike=self.alike))
