"""The write policy in force: it is compared where it shows, and an attach brings one only when a caller may."""

import random

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.model import Model
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.finding import Differs, Found
from hicache_ref.search.storing import attach
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.adapter import AttachPolicies
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import OPERATION_TYPES, Operation
from hicache_ref.vocabulary.profile import Profile, WritePolicy

RUNNING = (ops.TakePages(rid="r", n=1), ops.Forward(rid="r", key=Key(tokens=(1,)), start=0))
FAILED = ops.Attach(fails="store", write_policy="write_back")


class Telling(ReferenceAdapter):
    """The model, which tells a write policy of the tester's."""

    tells: WritePolicy | None = "write_back"

    def observe(self, level: Level) -> Observation:
        """As seen, but for the policy."""
        return super().observe(level).model_copy(update={"write_policy": self.tells})


def beside(adapter: ReferenceAdapter, when: AttachPolicies = "any") -> Lockstep:
    """The model under write_through beside this one, whose attach brings a policy then."""
    description = adapter.describe().model_copy(update={"attach_policies": when})
    return Lockstep(adapter, description, Profile(), "tree", Checker(Profile()))


@pytest.mark.parametrize(("op", "requirement"), [(FAILED, "HC-LIFE-07"), (ops.Audit(), "HC-CONF-03")])
def test_another_policy_than_expected_is_found(op: Operation, requirement: str) -> None:
    """Goal: a policy left in force shows at once. Method: tell write_back where write_through is in force."""
    with pytest.raises(Found) as found:
        beside(Telling()).step(op)
    finding = found.value.finding
    differs = Differs(kind="field", what="write_policy", direction="instead")
    assert (requirement, differs) == (finding.requirement, finding.differs)
    assert "the write policy in force is write_back, expected write_through" == finding.text


def test_a_policy_that_is_not_told_is_not_compared() -> None:
    """Goal: an adapter need not show it. Method: tell none, after an attach that has changed it."""
    adapter = Telling()
    adapter.tells = None
    lockstep = beside(adapter)
    assert "done" == lockstep.step(ops.Attach(write_policy="write_back")).kind
    assert "write_back" == lockstep.model.state.policy


@pytest.mark.parametrize(
    ("when", "running", "out"),
    [("any", True, False), ("idle", True, True), ("idle", False, False), ("never", False, True)],
)
def test_an_attach_waits_with_its_policy_as_long_as_a_caller_has_to(
    when: AttachPolicies, running: bool, out: bool
) -> None:
    """Goal: walks and replays heed when a policy may come. Method: an attach with and without one, a pass running."""
    lockstep = beside(ReferenceAdapter(), when)
    for op in RUNNING if running else ():
        lockstep.step(op)
    assert out == lockstep.leaves_out(ops.Attach(write_policy="write_back"))
    assert not lockstep.leaves_out(ops.Attach())


@pytest.mark.parametrize(
    ("when", "running", "drawn"),
    [("any", True, True), ("idle", True, False), ("idle", False, True), ("never", False, False)],
)
def test_a_policy_is_drawn_only_when_it_may_come(when: AttachPolicies, running: bool, drawn: bool) -> None:
    """Goal: as above, for what is drawn. Method: draw many attaches, a pass running or not."""
    model = Model(Profile())
    for op in RUNNING if running else ():
        model.step(op)
    drawing = Drawing(model, random.Random(0), frozenset(OPERATION_TYPES), attach_policies=when)
    policies = [op.write_policy for op in (attach(drawing) for _ in range(200)) if isinstance(op, ops.Attach)]
    assert drawn == any(policies)
