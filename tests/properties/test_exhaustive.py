"""Exhaustive search: in small worlds no requirement can be broken, and planted faults are found there."""

import pytest

from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.search.branches import Branches
from hicache_ref.search.exhaustive import Exploration, explore
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.search.scopes import SCOPES
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE, NodeId
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "states", "transitions", "depth"),
    [
        ("upper-small", 682, 5333, 22),
        ("upper-write-back-small", 8323, 67412, 33),
        ("upper", 6535, 71064, 22),
        pytest.param("upper-failures", 9520, 91258, 25, marks=LONG),
        pytest.param("upper-write-back", 27666, 263792, 34, marks=LONG),
        pytest.param("upper-blocking", 6890, 67725, 22, marks=LONG),
        pytest.param("upper-all", 23772, 259572, 28, marks=LONG),
        ("hybrid-small", 198, 2250, 12),
        ("hybrid", 609, 7538, 18),
        ("hybrid-write-back", 1143, 13665, 22),
        pytest.param("hybrid-copy", 8579, 98483, 36, marks=LONG),
        ("lower-small", 3485, 10445, 25),
        pytest.param("lower", 82305, 236814, 32, marks=LONG),
        pytest.param("lower-reuse", 15266, 51552, 28, marks=LONG),
        pytest.param("lower-early", 58310, 155230, 34, marks=LONG),
        ("lower-terminate", 5259, 17255, 25),
        pytest.param("lower-terminate-early", 41856, 140477, 39, marks=LONG),
    ],
)
def test_a_scope_is_looked_at_whole_and_nothing_is_broken(name: str, states: int, transitions: int, depth: int) -> None:
    """Goal: no requirement can be broken in a small world, whatever happens in which order.

    Method: all states; the counts are pinned, so that a change of the rules or of the search is seen to change them.
    """
    search = Exploration(SCOPES[name])
    report = search.run()

    assert () == report.violations
    assert (name, True) == (report.scope, report.complete)
    assert (states, transitions, depth) == (report.states, report.transitions, report.depth)
    assert states <= search.checker.tally["HC-PAGE-01"]


class PinsStayBelow(Model):
    """A fault: what pins the lower half of a split node does not pin the upper half."""

    def lock_follows_split(self, lower: NodeId, upper: NodeId) -> None:
        """Nothing is done."""


class FailedBackupStays(Model):
    """A fault: a node whose backup failed keeps the host copy that was never written."""

    def lose_host(self, node: Node) -> set[str]:
        """Nothing is done."""
        return set()


class NothingToLose(Model):
    """A fault of another kind: the step raises."""

    def lose_host(self, node: Node) -> set[str]:
        """Raises."""
        raise LookupError("no such node")


LEFT, STEM = Key(tokens=(0, 0)), Key(tokens=(0,))
INSERTED = [
    ops.TakePages(rid="r0", n=2),
    ops.Forward(rid="r0", key=LEFT, start=0),
    ops.Insert(rid="r0", key=LEFT, start=0),
]
FAILED = [
    ops.TakePages(rid="r0", n=1),
    ops.Forward(rid="r0", key=STEM, start=0),
    ops.Insert(rid="r0", key=STEM, start=0),
    ops.CopyFailed(ticket="h:0"),
    ops.Poll(backups=1),
]


@pytest.mark.parametrize(
    ("scope", "kind", "story"),
    [
        ("upper-small", PinsStayBelow, [*INSERTED, ops.MatchPrefix(key=STEM)]),
        ("upper-failures", FailedBackupStays, FAILED),
        ("upper-failures", NothingToLose, FAILED),
    ],
)
def test_a_planted_fault_is_found_by_the_shortest_story(scope: str, kind: type[Model], story: list[Operation]) -> None:
    """Goal: the search sees faults and tells them shortly. Method: models with one wrong function; stories replay."""
    report = explore(SCOPES[scope], kind=kind)

    (violation,) = report.violations
    assert story == [step.op for step in violation.trace]
    assert not report.complete
    steps = [Recorded(step.op, step.choices) for step in violation.trace]
    again = replay(steps, lambda: ModelStepper(SCOPES[scope].profile, kind))
    assert again.finding is not None
    assert (violation.requirement, violation.operation) == (again.finding.requirement, again.finding.operation)
    assert len(story) == len(again.steps)


def test_a_limit_and_a_stop_end_the_search_and_the_report_says_so() -> None:
    """Goal: no partial search passes for a whole one. Method: a limit in states, and a stop out of the progress."""
    limited = explore(SCOPES["upper-small"], limit=100)

    def stop(search: Exploration) -> None:
        search.stop = search.states > 200

    stopped = explore(SCOPES["upper-small"], progress=stop)

    assert not limited.complete
    assert 100 <= limited.states < 120
    assert not stopped.complete
    assert 200 < stopped.states < 682


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    """Goal: the same search is the same search. Method: two runs, one of them with room to spare."""
    reports = [explore(SCOPES["upper-small"], limit=limit) for limit in (None, 10_000)]

    one, other = (report.model_dump(exclude={"seconds"}) for report in reports)
    assert one == other


def test_every_answer_is_given_once() -> None:
    """Goal: no lawful way is passed over, and none is gone twice. Method: a step that asks three times, at most."""

    def step(choose: Branches) -> tuple[object, ...]:
        first = choose.victim(KV_DEVICE, [Key(tokens=(token,)) for token in range(3)])
        if first == 1:
            return (first,)
        return first, choose.copy_result("h:0"), choose.latitude("which", ["a", "b"])

    untold: list[tuple[int, ...]] = [()]
    seen = []
    while untold:
        choose = Branches(untold.pop(), may_fail=True)
        seen.append(step(choose))
        untold += choose.untold()

    others = [(first, good, which) for first in (0, 2) for good in (True, False) for which in "ab"]
    assert sorted([(1,), *others], key=repr) == sorted(seen, key=repr)


def test_what_cannot_fail_is_not_asked_to() -> None:
    """Goal: a scope without failures has none. Method: the one answer that is left."""
    choose = Branches((), may_fail=False)

    assert choose.copy_result("h:0")
    assert [] == choose.untold()
