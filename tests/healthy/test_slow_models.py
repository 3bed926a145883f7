"""An implementation may be slow: nothing is found on one that is so in a lawful way, and any other one is found."""

from pathlib import Path

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.faults import FAULTS
from hicache_ref.model import Model, clone
from hicache_ref.oracle.campaign import Budget, Campaign
from hicache_ref.oracle.polls import NEVER_APPLIED
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.operations import POLLS_IN_VAIN_MAX, Operation, Poll
from hicache_ref.vocabulary.outcomes import Outcome, Polled
from hicache_ref.vocabulary.profile import profile_named
from tests.healthy.slow.models import LAWFUL, OtherHostPages, Slow

TRACES = Path(__file__).parents[1] / "faults" / "traces"
STEPS = 4_000
HUNT = 20_000
"""Steps of a campaign that ends at what it is to find."""

PROFILES = ("reference", "sglang-0.5.9", "sglang-himamba-0.5.16")
KINDS = ("backups", "loads", "answers", "reads", "writes", "releases")


class Watched(ReferenceAdapter):
    """A model as an implementation, and how often it applied less than a model that is not slow."""

    hesitated = 0

    def apply(self, operation: Operation) -> Outcome:
        """As the model tells it."""
        eager = None
        if isinstance(operation, Poll):
            eager = Model(self.model.profile, clone(self.model.state)).step(operation).outcome
        told = super().apply(operation)
        self.hesitated += eager is not None and eager != told
        return told


def found_on(adapter: ReferenceAdapter, profile: str = "reference", steps: int = HUNT) -> dict[str, str]:
    """What walks found broken by this implementation, and how that is put."""
    outlook = Campaign(adapter, profile_named(profile)).run(Budget(steps=steps))
    assert outlook.oracle_fault is None
    return {each.finding.requirement: each.finding.text for each in outlook.divergences}


@pytest.mark.parametrize("kind", LAWFUL)
def test_a_slow_model_conforms(kind: type[Model]) -> None:
    """Goal: no false alarm. Method: walks beside the model under several rules; that it was slow is counted."""
    adapter = Watched(kind)

    found = {profile: found_on(adapter, profile, STEPS) for profile in PROFILES}

    assert {profile: {} for profile in PROFILES} == found
    assert adapter.hesitated or kind is OtherHostPages


@pytest.mark.parametrize("kind", KINDS)
def test_what_never_takes_note_is_found(kind: str) -> None:
    """Goal: slow is not never. Method: a model that never applies one kind of ends, under rules that have it."""

    class Never(Slow):
        most = {kind: 0}

    found = found_on(ReferenceAdapter(Never), "sglang-0.5.9" if kind == "releases" else "reference")

    text = f"{POLLS_IN_VAIN_MAX} polls in a row could have applied {kind}, and applied none"
    assert {NEVER_APPLIED: text} == found


@pytest.mark.parametrize(
    ("fault", "requirement"),
    [
        ("applied-before-end", "HC-XFER-02"),
        ("applied-out-of-order", "HC-XFER-02"),
        ("agreed-number-ignored", "HC-XFER-02"),
        ("storage-ends-not-agreed", "HC-PREF-18"),
        ("all-released-at-once", "HC-PREF-16"),
    ],
)
def test_what_is_applied_too_early_is_found(fault: str, requirement: str) -> None:
    """Goal: an answer is taken over only where it is lawful. Method: the stored trace of a fault, beside the model."""
    trace = read_trace(TRACES / f"{fault}.jsonl")
    adapter = ReferenceAdapter(FAULTS[fault].model)
    campaign = Campaign(adapter, trace.header.profile)
    steps = tuple(Recorded(step.op, step.choices) for step in trace.steps)

    finding = replay(steps, lambda: campaign.lockstep(trace.header.profile)).finding

    assert requirement == (finding and finding.requirement)


class Boastful(Slow):
    """Tells all copies that have ended, and applies one."""

    most = {"backups": 1}

    def on_poll(self, op: Poll) -> Polled:
        """More than it did."""
        ended = tuple(ticket.id for ticket in self.leading("host", op.backups))
        return super().on_poll(op).model_copy(update={"backups": ended})


class Modest(Model):
    """Applies all copies that have ended, and tells one."""

    def on_poll(self, op: Poll) -> Polled:
        """Less than it did."""
        told = super().on_poll(op)
        return told.model_copy(update={"backups": told.backups[:1]})


@pytest.mark.parametrize("kind", [Boastful, Modest])
def test_what_is_told_falsely_is_found(kind: type[Model]) -> None:
    """Goal: what is told has to be what was done. Method: a model that tells more than it did, and one that tells less.

    What is pinned differs then, in the nodes or in sums.
    """
    found = found_on(ReferenceAdapter(kind)).keys()

    assert 1 == len(found & {"HC-LOCK-01", "HC-PAGE-09"}) == len(found)
