"""Runs in which a requirement once blamed the healthy model: each is a fault of ours that was mended."""

from pathlib import Path

import pytest

from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.trace import read_trace

TRACES = sorted(Path(__file__).parent.glob("*.jsonl"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_healthy_model_is_not_blamed(path: Path) -> None:
    """Goal: no false alarm comes back. Method: replay the run in which it was raised."""
    trace = read_trace(path)
    steps = tuple(Recorded(step.op, step.choices) for step in trace.steps)

    result = replay(steps, lambda: ModelStepper(trace.header.profile))

    assert (None, len(steps)) == (result.finding, len(result.steps))
