"""What is told to a caller is compared by its meaning: sets as sets, and what is not told is no difference."""

import pytest

from hicache_ref.oracle.compare import Comparison
from hicache_ref.oracle.differing import Difference
from hicache_ref.oracle.evicted import Residency, Unlike, judge_victims
from hicache_ref.oracle.seen import SeenBroken, seen
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST
from hicache_ref.vocabulary.observation import Observation, Segment
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


PAGE = Segment(parent=-1, tokens=(1,), extra=None, device=(0,), host=None)
BROKEN = {
    "device": (PAGE.model_copy(update={"device": (0, 1)}),),
    "host": (PAGE.model_copy(update={"host": (0, 1)}),),
    "device state": (PAGE.model_copy(update={"device_state": (0, 1)}),),
    "host state": (PAGE.model_copy(update={"host_state": (0, 1)}),),
    "length": (PAGE.model_copy(update={"tokens": ()}),),
    "twice": (PAGE, PAGE),
    "namespace": (PAGE, PAGE.model_copy(update={"parent": 0, "extra": "a"})),
}


def test_what_breaks_on_sight_says_what_it_is() -> None:
    """Goal: a known divergence of one kind covers no other. Method: trees that break a rule of structure, each once."""
    told = []
    for segments in BROKEN.values():
        with pytest.raises(SeenBroken) as found:
            seen(Observation(level="tree", segments=segments), Profile(), write_back=False)
        told.append((found.value.requirement, found.value.differs))

    assert ["HC-TREE-02"] * 5 + ["HC-TREE-05"] * 2 == [requirement for requirement, _ in told]
    assert len(BROKEN) == len(set(told))


def tiers(device: dict[str, int] | None = None, host: dict[str, int] | None = None) -> Residency:
    """Pages on device and on host."""
    return {KV_DEVICE: device or {}, KV_HOST: host or {}}


EVICTED: dict[str, tuple[tuple[Residency, Residency, Unlike], tuple[str, str | None]]] = {
    "another went": (
        (tiers(host={"o": 0, "v": 1}), tiers(host={"v": 1}), {KV_HOST: ({"o"}, {"v"})}), ("HC-EVICT-02", None),
    ),
    "another went from device and did not come": (
        (tiers(device={"o": 0}, host={"v": 1}), tiers(host={"v": 1}), {KV_HOST: ({"o"}, {"v"})}),
        ("HC-EVICT-02", None),
    ),
    "another did not come and is where it was": (
        (tiers(device={"o": 0}, host={"v": 1}), tiers(device={"o": 0}, host={"v": 1}), {KV_HOST: ({"o"}, {"v"})}),
        ("HC-EVICT-03", "the first"),
    ),
    "none went": (
        (tiers(host={"v": 1}), tiers(host={"v": 1}), {KV_HOST: (set(), {"v"})}), ("HC-EVICT-03", "the first"),
    ),
    "one went before": (
        (tiers(host={"u": 0, "v": 1}), tiers(host={"v": 1}), {KV_HOST: (set(), {"v"})}),
        ("HC-EVICT-03", "after others"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVICTED)
def test_an_order_is_broken_only_where_something_else_went(name: str) -> None:
    """Goal: a wrong victim and an eviction that ends early are told apart. Method: u and v should go, v stays."""
    (before, after, unlike), expected = EVICTED[name]
    victims = [(KV_HOST, each) for each in ("u", "v") if each in before[KV_HOST]]
    with pytest.raises(Difference) as found:
        judge_victims(victims, unlike, before, after, {})

    assert expected == (found.value.requirement, found.value.differs.what)
