"""Every judge can fail: a check that has never failed proves nothing."""

import pytest

from hicache_ref.model import Step
from hicache_ref.requirements import Broken, Checker
from hicache_ref.requirements.registry import ALWAYS, EVENTUALLY, STEP
from hicache_ref.vocabulary.operations import Audit
from tests.properties import broken_ends, broken_hybrid, broken_prefetch, broken_state_storage, broken_states
from tests.properties.breaking import Case, World


def named(cases: list[Case]) -> list[object]:
    """One test for each case, named after the requirement."""
    return [pytest.param(case, id=case.requirement) for case in cases]


def audit(world: World) -> None:
    """The state is judged as it stands, nothing having happened."""
    checker = Checker(world.profile)
    checker.start(world.state)
    op = Audit()
    step = world.model.step(op)
    checker.check(op, Step(step.outcome), world.state)


def assert_falls(case: Case, broken: Broken) -> None:
    """This requirement is reported, and with it fall just those that the case names."""
    assert (case.requirement, sorted(case.falls)) == (broken.requirement, sorted(broken.falls))
    assert str(broken).startswith(f"{case.requirement}: ")


@pytest.mark.parametrize("case", named(broken_states.ALWAYS))
def test_a_broken_state_is_named(case: Case) -> None:
    """Goal: each judge of states fails where it must. Method: a lawful state, broken by hand, and an audit of it."""
    world = case.make()

    with pytest.raises(Broken) as raised:
        audit(world)
    assert_falls(case, raised.value)


@pytest.mark.parametrize("case", named(broken_ends.STEPS))
def test_a_broken_step_is_named(case: Case) -> None:
    """Goal: each judge of steps fails where it must. Method: a lawful run, and a last step that is told wrongly."""
    world, op, step = case.make()

    with pytest.raises(Broken) as raised:
        world.checker.check(op, step, world.state)
    assert_falls(case, raised.value)


@pytest.mark.parametrize("case", named(broken_states.EVENTUALLY))
def test_broken_quiescence_is_named(case: Case) -> None:
    """Goal: each judge of quiescence fails where it must. Method: a quiet state, broken by hand."""
    world = case.make()

    with pytest.raises(Broken) as raised:
        Checker(world.profile).check_quiescent(world.state)
    assert_falls(case, raised.value)


def test_every_judge_has_a_case() -> None:
    """Goal: no judge without a failure. Method: the registry and the cases name the same requirements."""
    assert ALWAYS.keys() == {case.requirement for case in broken_states.ALWAYS}
    assert STEP.keys() == {case.requirement for case in broken_ends.STEPS}
    assert EVENTUALLY.keys() == {case.requirement for case in broken_states.EVENTUALLY}


def test_a_healthy_world_is_not_blamed() -> None:
    """Goal: no false alarm. Method: the steps from which the broken worlds are made, and an audit at their end."""
    world = broken_states.healthy()
    audit(world)

    assert {"l"} == world.state.receipts.keys()
    assert 0 < world.checker.tally["HC-PAGE-01"]


def test_a_healthy_world_with_storage_is_not_blamed() -> None:
    """Goal: no false alarm there either. Method: a page is stored, another one fetched behind it, and told."""
    world = broken_prefetch.healthy()
    audit(world)

    assert {"b:1"} == world.state.storage.records.keys()
    assert 0 < world.checker.tally["HC-PREF-07"]


def test_a_healthy_world_with_states_is_not_blamed() -> None:
    """Goal: no false alarm there either. Method: states go to host, are evicted, and come back, for a request too."""
    world = broken_hybrid.healthy()
    audit(world)

    assert ("q",) == tuple(world.state.passes)
    assert 0 < world.checker.tally["HC-STATE-18"]


def test_a_healthy_world_with_states_in_storage_is_not_blamed() -> None:
    """Goal: no false alarm there either. Method: one state is put, another fetched, and a key given up without one."""
    world = broken_state_storage.healthy()
    audit(world)

    assert {world.node("12").hashes[-1], world.node("34").hashes[-1]} == world.state.storage.believed_states
    assert 2 == world.checker.tally["HC-STATE-31"]
