"""The README states figures, and they are true."""

import re
from pathlib import Path

from hicache_ref.oracle.explain import retell
from hicache_ref.oracle.judge import RecordedAdapter
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.report.files import stem
from hicache_ref.report.model import divergence_report
from hicache_ref.report.text import divergence_text
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Recorded
from hicache_ref.trace import read_trace

ROOT = Path(__file__).parents[2]


def test_the_size_of_the_model_is_true() -> None:
    """Goal: a stranger knows what there is to read. Method: count the lines of the folder that the README names."""
    stated = re.search(r"The folder has ([\d,]+)\nlines", (ROOT / "README.md").read_text())
    assert stated is not None

    lines = sum(path.read_text().count("\n") for path in (ROOT / "hicache_ref" / "model").glob("*.py"))

    assert lines == int(stated[1].replace(",", ""))


def test_the_report_is_what_the_code_prints() -> None:
    """Goal: what a stranger sees first is true. Method: the trace of that report, judged and told again."""
    shown = re.search(r"```\n(DIVERGENCE.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    trace = read_trace(ROOT / "tests" / "meta" / "reports" / "readme.jsonl")
    recorded, profile = RecordedAdapter(trace), trace.header.profile
    steps = [Recorded(step.op, step.choices) for step in trace.steps]
    lockstep = Lockstep(recorded, recorded.describe(), profile, trace.header.level, Checker(profile))

    story = retell(lockstep, steps)
    assert story.finding is not None
    name = f"divergences/{stem(story.finding, profile, steps)}.jsonl"
    replay = f"hicache-ref replay {name} --adapter sglang-rust --option plant=slots-swapped-load"
    report = divergence_report(story.finding, story, recorded.describe(), found_after=97, replay=replay)

    assert divergence_text(report) == shown[1]
