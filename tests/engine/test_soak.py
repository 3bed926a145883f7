"""The soak: no wrong byte, page or reference is left after many steps over bad stores, and bad workers are noticed."""

import pytest

from hicache_ref.engine.workers import StorageWorkers
from hicache_ref.soak import SoakResult, soak
from hicache_ref.storage.base import Backend
from hicache_ref.storage.faulty import Faults, FaultyBackend
from tests.engine.planted import PLANTED, EndsWhenCancelled, SlowBackend

STEPS = 20_000
LONG_STEPS = 1_000_000

MUST_BE_REACHED = {
    "read_raised", "read_short", "read_after_close", "write_raised", "write_cut_short", "query_raised",
    "cancelled_during_query", "aborted_while_reading", "adopted", "draft_missing", "draft_not_stored",
    "copy_to_host_failed", "copy_to_device_failed", "owed_at_attach", "prefetch_truncated", "staged",
}  # fmt: skip
"""What makes the soak worth something."""


def expect_clean(result: SoakResult, steps: int) -> None:
    """Nothing is wrong, and enough was done for that to mean something."""
    assert [] == result.complaints
    assert (0, 0, 0) == (result.wrong_bytes, result.pages_missing_at_end, result.references_left)
    assert result.steps >= steps
    assert set() == MUST_BE_REACHED - result.reached.keys()
    assert result.checks >= steps // 20
    assert min(result.pages_verified, 10 * result.pages_fetched) >= steps // 20
    assert result.late_reports > 0


def test_over_files_with_faults() -> None:
    """Goal: real threads and real bytes keep every rule. Method: 20,000 drawn steps over faulty files."""
    expect_clean(soak(STEPS, 1), STEPS)


@pytest.mark.long
def test_over_files_with_faults_for_long() -> None:
    """Goal: what is rare is seen too. Method: a million drawn steps."""
    expect_clean(soak(LONG_STEPS, 2), LONG_STEPS)


def slow_store(number: int) -> Backend:
    """A store whose reads take a while, always the same one."""
    return FaultyBackend(SlowBackend("soak"), Faults(), number)


@pytest.mark.parametrize("workers", PLANTED, ids=lambda kind: kind.__name__)
def test_planted_faults_are_noticed(workers: type[StorageWorkers]) -> None:
    """Goal: a clean soak means something. Method: workers with one fault each, until the first complaint."""
    result = soak(4 * STEPS, 1, workers=workers, opening=slow_store if workers is EndsWhenCancelled else None)

    assert not result.is_clean
    assert (workers.__name__ == "DropsReports") == (result.wrong_bytes == 0)


def test_a_soak_over_one_store_keeps_its_pages() -> None:
    """Goal: the store may be given. Method: a slow one without faults; pages come back from it."""
    result = soak(2_000, 3, opening=slow_store)

    assert result.is_clean, result.complaints
    assert result.pages_fetched > 0
