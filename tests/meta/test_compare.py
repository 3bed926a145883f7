"""What is told to a caller is compared by its meaning: sets as sets, and what is not told is no difference."""

import pytest

from hicache_ref.oracle.compare import Comparison, Difference
from hicache_ref.vocabulary.outcomes import Audited, Evicted, Outcome, Polled, Refused
from hicache_ref.vocabulary.profile import Profile

ALIKE: tuple[tuple[Outcome, Outcome], ...] = (
    (Evicted(freed=0, staged=1, wait_for=("f:a", "f:b")), Evicted(freed=0, staged=1, wait_for=("f:b", "f:a"))),
    (Evicted(freed=0, staged=1, wait_for=("f:a", "f:b")), Evicted(freed=0, staged=1, wait_for=None)),
    (Refused(why="full", wait_for=("f:a", "f:b")), Refused(why="no room", wait_for=("f:b", "f:a", "f:b"))),
    (Refused(why="full", wait_for=("f:a",)), Refused(why="no room", wait_for=None)),
    (Audited(pending=("f:a", "h:1")), Audited(pending=("h:1", "f:a"))),
    (Polled(loads=("d:1",), lost=("a", "b")), Polled(loads=("d:1",), lost=("b", "a"))),
)
UNLIKE: tuple[tuple[Outcome, Outcome], ...] = (
    (Evicted(freed=0, staged=1, wait_for=("f:a", "f:b")), Evicted(freed=0, staged=1, wait_for=("f:b",))),
    (Refused(why="full", wait_for=("f:a",)), Refused(why="full")),
    (Audited(pending=("f:a", "h:1")), Audited(pending=("h:1",))),
    (Polled(loads=("d:1",), lost=("a", "b")), Polled(loads=("d:1",), lost=("a",))),
    (Polled(backups=("h:1", "h:2")), Polled(backups=("h:2", "h:1"))),
)


@pytest.mark.parametrize(("ours", "theirs"), ALIKE)
def test_what_means_the_same_is_no_difference(ours: Outcome, theirs: Outcome) -> None:
    """Goal: a lawful engine is not blamed (HC-EVICT-11). Method: sets in another order, names told twice or not."""
    Comparison(Profile()).outcome(ours, theirs)

    assert ours != theirs


@pytest.mark.parametrize(("ours", "theirs"), UNLIKE)
def test_what_is_missing_or_out_of_order_is_one(ours: Outcome, theirs: Outcome) -> None:
    """Goal: a set is still compared. Method: a name is left out; of what has an order, the order is another."""
    with pytest.raises(Difference) as found:
        Comparison(Profile()).outcome(ours, theirs)

    assert "HC-CONF-02" == found.value.requirement
