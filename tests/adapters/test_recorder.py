"""Live caches of released SGLang, driven by calls as a scheduler makes them, recorded, and judged."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.oracle.campaign import Outlook
from hicache_ref.oracle.judge import judge
from hicache_ref.requirements import Checker
from hicache_ref.trace import Trace, read_trace

pytest.importorskip("torch")

from tests.adapters.hiradix_driven import ALL_RELEASES, child

pytestmark = pytest.mark.peers

BOTH = ("0.5.2", "0.5.20")
SEEDS = range(4)
"""Of runs in one or more of which 0.5.2 releases pages twice."""

OTHERS = tuple(pytest.param(version, marks=pytest.mark.long) for version in ALL_RELEASES[1:] if version not in BOTH)
STORED = {"storage": "wait_complete", "prompt": True, "host": 90, "rounds": 500}
"""A run with storage in which copies end before anything is split under them, and no prefetch meets a limit."""


def recorded(folder: Path, version: str, **wanted: Any) -> tuple[Trace, dict[str, Any]]:
    """The trace of a run in a process of its own, and what that said at its end."""
    child(version=version)
    path = folder / "run.jsonl"
    told = {"version": version, "path": str(path), "looking_share": 1000.0} | wanted
    command = [sys.executable, "-W", "ignore", "-m", "tests.adapters.recorder_child", json.dumps(told)]
    path_before = os.environ.get("PYTHONPATH")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (os.getcwd(), path_before)))}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.stdout, done.stderr[-2000:]
    return read_trace(path), json.loads(done.stdout.splitlines()[-1])


def judged(trace: Trace) -> Outlook:
    """What the oracle says of it."""
    return judge(trace, Checker(trace.header.profile))


def found(outlook: Outlook) -> list[tuple[str, str]]:
    """Requirement and text of each divergence; the oracle does not contradict itself."""
    assert outlook.oracle_fault is None
    return [(each.finding.requirement, each.finding.text) for each in outlook.divergences]


@pytest.mark.parametrize("version", [*BOTH, *OTHERS])
@pytest.mark.parametrize(("policy", "page_size"), [("write_through", 1), ("write_through_selective", 4)])
def test_a_recorded_run_is_accepted(tmp_path: Path, version: str, policy: str, page_size: int) -> None:
    """Goal: what a release does without storage is lawful, and is told. Method: random calls, recorded, judged."""
    trace, said = recorded(tmp_path, version, rounds=400, seed=1, policy=policy, page_size=page_size)

    assert (None, None) == (said["ended"], trace.ended)
    assert [] == found(judged(trace))
    kinds = {step.op.op for step in trace.steps}
    assert {"match_prefix", "lock", "unlock", "insert", "evict", "load_back", "copy_done", "poll"} <= kinds
    assert any(step.observed is not None for step in trace.steps)


@pytest.mark.parametrize("version", [*BOTH, *OTHERS])
def test_a_recorded_run_with_storage_is_accepted(tmp_path: Path, version: str) -> None:
    """Goal: as above, with storage threads at work between the calls. Method: no read is cut short."""
    trace, said = recorded(tmp_path, version, seed=0, short=0.0, **STORED)

    assert (None, None) == (said["ended"], trace.ended)
    assert [] == found(judged(trace))
    kinds = {step.op.op for step in trace.steps}
    assert {"attach", "prefetch", "query_done", "read_done", "write_done", "progress"} <= kinds


def test_what_a_thread_gives_up_waits_for_release(tmp_path: Path) -> None:
    """Goal: the pages that a closed prefetch did not read are freed by the poll that says so. Method: as above."""
    trace, said = recorded(tmp_path, "0.5.16", **STORED | {"seed": 5, "short": 0.0})

    assert (None, None) == (said["ended"], trace.ended)
    assert [] == found(judged(trace))


def test_a_terminate_is_recorded(tmp_path: Path) -> None:
    """Goal: a prefetch that is told to stop is told of. Method: as above, and a third of the asking is terminating."""
    trace, said = recorded(tmp_path, "0.5.16", **STORED | {"seed": 2, "short": 0.0, "terminates": 0.3})

    assert (None, None) == (said["ended"], trace.ended)
    assert 5 < sum(step.op.op == "terminate" for step in trace.steps)
    assert [] == found(judged(trace))


def test_a_recorded_run_of_0_5_2_shows_the_double_release(tmp_path: Path) -> None:
    """Goal: the leak of a running server is found in its trace. Method: some reads are short; nothing else is set."""
    texts = []
    for seed in SEEDS:
        trace, _ = recorded(tmp_path, "0.5.2", seed=seed, short=0.3, look_every=5, **STORED)
        texts += found(judged(trace))

    counted = [
        re.match(r"(\d+) pages were released, (\d+) waited", text) for name, text in texts if name == "HC-PREF-16"
    ]
    assert any(each and int(each[1]) == 2 * int(each[2]) for each in counted), texts


def test_0_5_20_shows_none(tmp_path: Path) -> None:
    """Goal: what is found in 0.5.2 is not of the recorder's making. Method: the same runs of a later release.

    Reads are cut short in each of them, without which no page could be released twice.
    """
    for seed in SEEDS:
        trace, _ = recorded(tmp_path, "0.5.20", seed=seed, short=0.3, look_every=5, **STORED)
        outlook = judged(trace)

        assert "HC-PAGE-01" not in dict(found(outlook))
        assert outlook.reached["HC-PREF-53"] > 0


@pytest.mark.parametrize("fault", ["foreign-unlock", "raises"])
def test_what_cannot_be_said_ends_the_recording(tmp_path: Path, fault: str) -> None:
    """Goal: no guessing. Method: an unlock of what nobody locked; an eviction that raises in the cache."""
    trace, said = recorded(tmp_path, "0.5.20", rounds=40, fault=fault)

    if fault == "raises":
        assert "a call raised" == said["ended"]
        assert {"raised": "RuntimeError: planted"} == trace.steps[-1].meta
        assert [("HC-CONF-01", "RuntimeError: planted, expected an outcome")] == found(judged(trace))
    else:
        assert "a node is unlocked that nobody has locked since the recording began" == trace.ended == said["ended"]
        assert [("HC-CONF-02", "expected invalid no receipt nobody, was told done")] == found(judged(trace))


def test_a_short_run_is_looked_at(tmp_path: Path) -> None:
    """Goal: the tree is judged however short the recording. Method: a few calls, with the usual pace of looking."""
    trace, _ = recorded(tmp_path, "0.5.20", rounds=12, looking_share=0.02)
    looks = [step.i for step in trace.steps if step.observed is not None]

    assert [0, len(trace.steps) - 1] == looks
    assert [] == found(judged(trace))


def test_the_cache_is_as_before_when_the_recording_is_over(tmp_path: Path) -> None:
    """Goal: nothing of the recorder stays. Method: the names that the object and its controller have themselves."""
    _, said = recorded(tmp_path, "0.5.20", rounds=40, **{k: v for k, v in STORED.items() if k != "rounds"})

    assert said["own_before"] == said["own_after"]


def test_the_variable_switches_it_on(tmp_path: Path) -> None:
    """Goal: one environment variable. Method: with it, and without."""
    trace, said = recorded(tmp_path, "0.5.20", rounds=20, by_variable=True)

    assert trace.steps
    assert said["off_without"] is True


def test_a_used_cache_is_refused(tmp_path: Path) -> None:
    """Goal: a trace begins at the beginning. Method: a recording is asked for after some calls."""
    _, said = recorded(tmp_path, "0.5.20", rounds=40, late=True)

    assert "the cache is used already, expected a new or a flushed one" == said["refused"]
