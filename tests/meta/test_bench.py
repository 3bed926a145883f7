"""The bench measures what it says, and says what it could not measure. How fast anything is, no test can know."""

from collections.abc import Mapping

import pytest

from hicache_ref import bench
from hicache_ref.bench import RUST_ROWS, BenchReport, run_bench
from hicache_ref.engine.speed import ROWS
from hicache_ref.vocabulary.adapter import AdapterError


@pytest.fixture(autouse=True)
def little_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs, for what they take does not matter here."""
    monkeypatch.setattr(bench, "WALKS_MADE", 3)
    monkeypatch.setattr(bench, "REQUESTS", 20)
    monkeypatch.setattr(bench, "STORAGE_PAGES", 20)
    monkeypatch.setattr(bench, "STORAGE_ROUNDS", 1)


def ratios_fit(report: BenchReport) -> bool:
    """Whether each row has figures, and the ratio is ours over the other's; of one round or of their medians."""
    return all(
        row.ours > 0 and row.other > 0 and row.ratio == pytest.approx(row.ours / row.other) for row in report.rows
    )


def test_rows_without_their_peer_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the bench runs anywhere. Method: a wheel that is not there."""

    def absent(options: Mapping[str, str], fetch: bool) -> None:
        raise AdapterError("no wheel")

    monkeypatch.setattr(bench, "make", absent)
    said: list[str] = []
    report = run_bench(repeats=1, progress=said.append)

    assert ["walk tiny full check", "workload synthetic", *ROWS] == [row.name for row in report.rows]
    assert ["walk tiny full check, 1 of 5", "workload synthetic, 2 of 5", "storage, 3 of 5"] == [
        each.removeprefix("measuring ") for each in said
    ]
    assert tuple(f"{name}: no wheel" for name in RUST_ROWS) == report.left_out
    assert ratios_fit(report)


@pytest.mark.peers
def test_rows_with_their_peer_are_measured() -> None:
    """Goal: the rows of the released core. Method: two short walks with it."""
    report = run_bench(repeats=2)

    assert RUST_ROWS == tuple(row.name for row in report.rows[4:])
    assert () == report.left_out
    assert ratios_fit(report)
