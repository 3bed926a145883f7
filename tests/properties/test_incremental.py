"""The checker for large pools agrees with the full one."""

import random

import pytest

from hicache_ref.faults import FAULTS
from hicache_ref.model import Model
from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.requirements import Broken, Checker, IncrementalChecker
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STORAGE_OPERATIONS, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile, profile_named

REFERENCE = Profile()
UPPER = Plan(steps=100, operations=frozenset(OPERATION_TYPES) - STORAGE_OPERATIONS)
"""The sums that run along are those of device and host; storage is judged by the full checker alone."""


class BothFail(Exception):
    """The walk ends here: `incremental` says what the other checker saw in the same step, if anything."""

    def __init__(self, full: Broken | None, incremental: Broken | None) -> None:
        super().__init__(full, incremental)
        self.full = full
        self.incremental = incremental


class Both:
    """A model whose every step both checkers see."""

    def __init__(self, model: Model, profile: Profile, chooser: DrawnChooser, every: int) -> None:
        self.model = model
        self.chooser = chooser
        self.full = Checker(profile)
        self.incremental = IncrementalChecker(profile, every=every)
        self.full.start(model.state)
        self.incremental.start(model.state)

    def step(self, op: Operation) -> Outcome:
        """The operation has happened. Raises BothFail where a checker complains."""
        step = self.model.step(op, self.chooser)
        found: list[Broken | None] = []
        for checker in (self.full, self.incremental):
            try:
                checker.check(op, step, self.model.state)
                found.append(None)
            except Broken as broken:
                found.append(broken)
        if any(found):
            raise BothFail(*found)
        return step.outcome


def walks(kind: type[Model], count: int, *, every: int = 10**9, base: Profile = REFERENCE) -> list[BothFail]:
    """How the walks under a model of this kind ended, if they did not go through."""
    ends = []
    for seed in range(count):
        rng = random.Random(seed)
        profile = draw_profile(rng, base)
        both = Both(kind(profile), profile, DrawnChooser(rng), every)
        try:
            Walk(both, rng, UPPER, swarm=seed % 2 == 1).run()
        except BothFail as end:
            ends.append(end)
        except (LookupError, ValueError, AssertionError, RuntimeError):
            continue
    return ends


@pytest.mark.parametrize("preset", ["reference", "sglang-0.5.1", "sglang-0.5.23"])
def test_no_false_alarm(preset: str) -> None:
    """Goal: what the full checker finds in order is in order. Method: walks of the healthy model under presets."""
    assert [] == walks(Model, 30, every=50, base=profile_named(preset))


def test_no_false_alarm_where_events_are_off() -> None:
    """Goal: sums that follow events do without. Method: walks of the healthy model that publishes nothing."""
    assert [] == walks(Model, 10, every=50, base=Profile(events=False))


@pytest.mark.parametrize("fault", sorted(name for name, fault in FAULTS.items() if not fault.state))
def test_it_sees_no_more_than_there_is(fault: str) -> None:
    """Goal: no complaint without a broken rule, and sums seen at once. Method: walks of each faulty model."""
    for end in walks(FAULTS[fault].model, 4):
        assert end.full is not None
        assert end.full.requirement != "HC-PAGE-09" or end.incremental is not None


@pytest.mark.parametrize("requirement", ["HC-PAGE-02", "HC-PAGE-03", "HC-PAGE-09", "HC-LOCK-01", "HC-LEAF-01"])
def test_leaks_and_drift_show_at_once(requirement: str) -> None:
    """Goal: what adds up shows in its step, without a look at the whole. Method: faults that must break such a rule."""
    faults = [fault for fault in FAULTS.values() if fault.expected[0] == requirement and not fault.state]
    ends = [end for fault in faults for end in walks(fault.model, 12)]

    assert any(end.incremental is not None for end in ends)
