"""What a check promises is what walks of a healthy model meet."""

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.oracle.campaign import Budget, Campaign
from hicache_ref.oracle.verdict import CheckReport, check_report
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.vocabulary.profile import RULES, profile_named
from tests.properties.rates import STEPS


def checked(name: str, steps: int, *, fixed_sizes: bool) -> CheckReport:
    """The verdict on the model under that profile."""
    adapter = ReferenceAdapter()
    campaign = Campaign(adapter, profile_named(name), fixed_sizes=fixed_sizes)
    outlook = campaign.run(Budget(steps=steps))
    return check_report(adapter.describe(), outlook, (), profile=name, level="tree", seed=0)


def owed(report: CheckReport) -> tuple[str, ...]:
    """What was promised and not met."""
    return report.requirements.owed + report.witnesses.owed


@pytest.mark.parametrize("name", ["reference", "sglang-unified-0.5.23"])
def test_the_shortest_promise_is_kept(name: str) -> None:
    """Goal: a promise that holds. Method: 3,000 steps of two presets, as a user gives them."""
    report = checked(name, STEPS[0], fixed_sizes=False)

    assert ("conforms", ()) == (report.verdict, owed(report))
    assert report.requirements.promised > 60


def test_promises_are_of_a_few_lengths() -> None:
    """Goal: round figures, from one table. Method: each requirement's steps are of those that `rates` gives."""
    assert set() == {each.within for each in REQUIREMENTS.values()} - set(STEPS)


@pytest.mark.long
@pytest.mark.parametrize("sizes", ["", "/tiny", "/small"])
@pytest.mark.parametrize("preset", RULES)
def test_each_preset_keeps_its_promise(preset: str, sizes: str) -> None:
    """Goal: no profile that can never conform. Method: 10,000 steps under each preset, sizes drawn and named."""
    report = checked(preset + sizes, 10_000, fixed_sizes=bool(sizes))

    assert ("conforms", ()) == (report.verdict, owed(report))
    assert report.requirements.promised > 90
