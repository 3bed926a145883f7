"""The oracle against SGLang's compiled core: it conforms, and whatever is planted in how it is called is found."""

from pathlib import Path

import pytest

from hicache_ref.adapters.sglang_rust import PLANT_NAMES, make
from hicache_ref.oracle.campaign import Budget, Campaign, Outlook
from hicache_ref.vocabulary.profile import profile_named

pytest.importorskip("torch")

pytestmark = pytest.mark.peers


def checked(options: dict[str, str], steps: int) -> Outlook:
    """What a campaign of so many steps has seen, under the rules that the adapter names."""
    with make(options, False) as adapter:
        campaign = Campaign(adapter, profile_named(adapter.describe().profile))
        return campaign.run(Budget(steps=steps))


def test_the_released_core_conforms(sglang_core: Path) -> None:
    """Goal: no false alarm, and no fault of upstream's that we know of. Method: some walks under drawn profiles."""
    outlook = checked({"core": str(sglang_core)}, 3000)
    assert outlook.oracle_fault is None
    assert [] == [each.finding for each in outlook.divergences]
    assert outlook.steps >= 3000


@pytest.mark.parametrize("plant", PLANT_NAMES)
def test_each_planted_fault_is_found(sglang_core: Path, plant: str) -> None:
    """Goal: a pass means something. Method: the same walks, until the first divergence."""
    outlook = checked({"core": str(sglang_core), "plant": plant}, 10_000)
    assert outlook.oracle_fault is None
    assert len(outlook.divergences) == 1
