"""Exhaustive search with storage: planted faults are found, and what is believed or reported makes no difference."""

from collections import Counter
from typing import Any

import pytest

from hicache_ref.faults import FAULTS
from hicache_ref.model import Model, State
from hicache_ref.model.records import Prefetch
from hicache_ref.search.exhaustive import Exploration, explore
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.search.scopes import SCOPES, Scope
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from tests.properties.test_canonical import ahead

KEY = Key(tokens=(0, 0))
NAME = "p:0.0"
ASKED = [
    *SCOPES["lower"].opening,
    ops.Prefetch(rid="r0", key=KEY),
    ops.QueryDone(id=NAME, hits=1),
    ops.Poll(answers=1),
]


class LateEndClosesTheNext(Model):
    """A fault: the end of what was read for a request that went closes the prefetch that is open now."""

    def apply_read(self, name: str, done: int) -> bool:
        """Also commits what is open."""
        closed = self._prefetch(name).rid is None
        told = super().apply_read(name, done)
        if closed and self.storage.open:
            self._commit(self._prefetch(next(iter(self.storage.open.values()))))
        return told


STORIES: dict[str, list[Operation]] = {
    "tail-released-twice": [*ASKED, ops.ReadDone(id=NAME), ops.Poll(reads=1)],
    "abort-frees-what-is-read": [*ASKED, ops.Abort(rid="r0")],
}


@pytest.mark.parametrize("fault", STORIES)
@pytest.mark.parametrize("scope", ["lower-small", "lower"])
def test_a_planted_fault_is_found_by_the_shortest_story(scope: str, fault: str) -> None:
    """Goal: the tail of a short read that goes back twice, and pages that an abort leaves to nobody, are found.

    Method: models with one wrong function; the stories are the shortest that there are, and replay.
    """
    kind = FAULTS[fault].model
    (violation,) = explore(SCOPES[scope], kind=kind).violations

    assert len(STORIES[fault]) == len(violation.trace)
    if scope == "lower-small":
        assert STORIES[fault] == [step.op for step in violation.trace]
    steps = [Recorded(step.op, step.choices) for step in violation.trace]
    again = replay(steps, lambda: ModelStepper(SCOPES[scope].profile, kind))
    assert again.finding is not None
    assert (violation.requirement, violation.operation) == (again.finding.requirement, again.finding.operation)


@pytest.mark.parametrize(
    ("scope", "fault", "steps"),
    [
        ("lower-small", "anchor-unpinned", 8),
        ("lower-small", "abort-keeps-count", 3),
        ("lower-small", "counted-before-it-is-there", 5),
        ("lower-small", "read-error-ends-worker", 5),
        ("lower-small", "failure-taken-for-success", 9),
        ("lower-small", "told-again", 7),
        ("lower-small", "commit-not-published", 6),
        ("lower-reuse", "second-prefetch-replaces-first", 3),
        ("lower-early", "last-fragment-owed", 8),
        ("lower-early", "tail-queued-and-kept", 3),
        ("lower-early", "all-released-at-once", 4),
        ("lower-terminate", "terminated-is-read", 5),
        ("lower-terminate", "terminated-has-to-wait", 4),
        ("lower-terminate-early", "late-batch-counts", 5),
        ("lower-terminate-early", "terminated-tail-leaks", 5),
    ],
)
def test_other_planted_faults_are_found(scope: str, fault: str, steps: int) -> None:
    """Goal: each scope of storage is worth its time. Method: faults that walks find too, by traces of known length."""
    (violation,) = explore(SCOPES[scope], kind=FAULTS[fault].model).violations

    assert {violation.requirement, *violation.falls} & set(FAULTS[fault].expected)
    assert steps == len(violation.trace)


def test_a_late_end_is_found_where_names_come_back() -> None:
    """Goal: `lower-reuse` sees what one prefetch alone cannot show. Method: a fault that needs two of one request."""
    (violation,) = explore(SCOPES["lower-reuse"], kind=LateEndClosesTheNext).violations

    assert "HC-PREF-19" in (violation.requirement, *violation.falls)
    assert explore(SCOPES["lower-small"], kind=LateEndClosesTheNext).complete


class WithAllOfStorage(Exploration):
    """A search that tells states apart also by what their forms leave out of storage, names and pages excepted.

    It keeps what may follow from each form, and the forms from which different things may.
    """

    def __init__(self, scope: Scope) -> None:
        self.futures: dict[int, Counter[tuple[object, ...]]] = {}
        self.unlike: set[int] = set()
        super().__init__(scope)

    def _from(self, place: Any) -> Any:
        form = super()._fingerprint(place.state)
        future = ahead(self.scope, place.state, alike=self.scope.is_alike)
        if self.futures.setdefault(form, future) != future:
            self.unlike.add(form)
        return super()._from(place)

    def _fingerprint(self, state: State) -> int:
        form, storage = super()._fingerprint(state), state.storage
        work = [(each.stage, each.hashes, each.prefix, getattr(each, "done", 0)) for each in storage.records.values()]
        asked = [each.asked for each in storage.records.values() if isinstance(each, Prefetch)]
        waiting = tuple(storage.reads), frozenset(storage.owed.items())
        beliefs = frozenset(storage.believed), frozenset(storage.reported)
        return hash((form, tuple(work), tuple(asked), waiting, beliefs))


@pytest.mark.parametrize("keys", [(Key(tokens=(0,)),), pytest.param((KEY,), marks=pytest.mark.long)])
def test_what_forms_leave_out_of_storage_tells_no_futures_apart(keys: tuple[Key, ...]) -> None:
    """Goal: beliefs, reports and what was closed are rightly left out.

    Method: a search with them judges more states, finds no other form, and from all states of a form the same follows.
    """
    scope = SCOPES["lower-small"].model_copy(update={"keys": keys})
    search = WithAllOfStorage(scope)
    report = search.run()

    assert report.complete
    assert set() == search.unlike
    assert explore(scope).states == len(search.futures)
    assert 3 * len(search.futures) < 2 * report.states


@pytest.mark.long
def test_of_the_first_states_of_lower_too_one_form_has_one_future() -> None:
    """Goal: likewise with two keys, where more can differ. Method: the same search, as far as there is time."""
    search = WithAllOfStorage(SCOPES["lower"])
    search.limit = 12_000
    report = search.run()

    assert () == report.violations
    assert set() == search.unlike
    assert len(search.futures) < report.states
