"""Moves: what a scope of storage leaves out leads nowhere else."""

from collections.abc import Iterator, Sequence

import pytest

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.model.records import BackupWriting, PrefetchQueued, PrefetchReading
from hicache_ref.search.moves import Moves
from hicache_ref.search.scopes import SCOPES, Scope
from hicache_ref.search.storage_moves import EARLY, LATE
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation

STATES = 2500
TIERS = ("host", "device")
LOWER = pytest.mark.parametrize("name", ["lower-small", "lower", "lower-early"])


def form_of(scope: Scope, state: State) -> int:
    """What the search knows the state by."""
    return hash(canonical(state, scope.profile, alike=scope.is_alike))


def after(scope: Scope, state: State, steps: Sequence[Operation]) -> int:
    """The form to which these steps lead."""
    model = Model(scope.profile, clone(state))
    for op in steps:
        model.step(op)
    return form_of(scope, model.state)


def reached(scope: Scope) -> Iterator[State]:
    """The first states of the scope, breadth first."""
    left = [scope.start()]
    seen = {form_of(scope, left[0])}
    for state in left:
        yield state
        for op in Moves(scope).of(Model(scope.profile, state)):
            model = Model(scope.profile, clone(state))
            model.step(op)
            form = form_of(scope, model.state)
            if form not in seen and len(seen) < STATES:
                seen.add(form)
                left.append(model.state)


@LOWER
def test_no_state_is_a_dead_end(name: str) -> None:
    """Goal: what has to happen first never bars the way. Method: every move is valid, and one changes the state."""
    scope = SCOPES[name]
    for state in reached(scope):
        model = Model(scope.profile, state)
        moves = list(Moves(scope).of(model))
        assert [] == [op for op in moves if model.requires(op) is not None]
        forms = {after(scope, state, [op]) for op in moves}
        assert forms - {form_of(scope, state)}


@LOWER
def test_a_poll_of_all_leads_where_polls_of_one_lead(name: str) -> None:
    """Goal: polls of one end are enough. Method: all that waits in one poll, and in the same order one by one."""
    scope, judged = SCOPES[name], 0
    for state in reached(scope):
        storage = state.storage
        ended = {to: sum(each.to == to and each.good is not None for each in state.tickets.values()) for to in TIERS}
        count = {
            "backups": ended["host"], "loads": ended["device"], "answers": len(storage.answers),
            "reads": len(storage.reads), "writes": len(storage.writes), "releases": len(storage.release),
        }  # fmt: skip
        singles = [ops.Poll.model_validate({kind: 1}) for kind in count for _ in range(count[kind])]
        if len(singles) > 1:
            judged += 1
            assert after(scope, state, singles) == after(scope, state, [ops.Poll.model_validate(count)])
    assert judged > 20


def other_ways(model: Model) -> Iterator[tuple[list[Operation], list[Operation]]]:
    """Steps that no scope of storage has, each with those that lead where it leads."""
    for kind in (ops.Evict, ops.EvictHost):
        freed = model.step(kind(n=1)).outcome
        gone = freed.freed + freed.staged  # type: ignore[union-attr]
        yield [kind(n=2)], [kind(n=1)] * (2 if gone == 1 else 1)
    for name, record in model.state.storage.records.items():
        if isinstance(record, PrefetchQueued):
            yield [ops.QueryDone(id=name, raised=True)], [ops.QueryDone(id=name)]
        elif isinstance(record, PrefetchReading):
            yield [ops.ReadDone(id=name, raised=True)], [ops.ReadDone(id=name)]
        elif isinstance(record, BackupWriting):
            yield [ops.WriteDone(id=name, raised=True)], [ops.WriteDone(id=name)]
    if "r0" not in model.state.storage.open:
        yield [ops.Progress(rid="r0", now=LATE)], [ops.Progress(rid="r0", now=EARLY)]
        yield [ops.Abort(rid="r0")], [ops.Progress(rid="r0", now=EARLY)]


@LOWER
def test_what_is_left_out_has_another_way(name: str) -> None:
    """Goal: nothing is missed by what the moves leave out. Method: it and its other way lead to one form."""
    scope = SCOPES[name]
    for state in reached(scope):
        for left_out, taken in other_ways(Model(scope.profile, clone(state))):
            assert after(scope, state, left_out) == after(scope, state, taken)


@pytest.mark.parametrize("name", ["lower-small", "lower"])
def test_telling_may_change_places_with_other_steps(name: str) -> None:
    """Goal: nothing is missed since requests are told at once. Method: told first, and after any other step.

    A request that asks for more is told of that, so that nothing is left to be told later.
    """
    scope, judged = SCOPES[name], 0
    tell = ops.Progress(rid="r0", now=EARLY)
    for state in reached(scope):
        if not state.storage.loaded:
            continue
        told = Model(scope.profile, clone(state))
        told.step(tell)
        for op in Moves(scope).of(told):
            if not isinstance(op, ops.Prefetch):
                judged += 1
                assert after(scope, state, [tell, op]) == after(scope, state, [op, tell])
    assert judged > 20
