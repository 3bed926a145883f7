"""Adapters that misbehave, and signals: what was reached is kept, whatever ends the run."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_ref.bench import BenchReport
from hicache_ref.cli import common
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.trace import Trace, TraceError, read_trace
from tests.meta.shell import Shell, is_news

ROOT = Path(__file__).parents[2]

MISBEHAVING = '''
"""An adapter over the model that does something else at its third insert."""

import os
import time

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.vocabulary.adapter import AdapterError, Description


class Misbehaving(ReferenceAdapter):
    def __init__(self, how, name="mine"):
        super().__init__(name=name)
        self.how = how
        self.count = 0
        self.resets = 0

    def reset(self, profile):
        self.count = 0
        self.resets += 1
        if self.how == "refuse" or (self.how == "refuse-later" and self.resets > 1):
            raise ValueError("no room for a second one")
        super().reset(profile)

    def apply(self, operation):
        self.count += operation.op == "insert"
        if operation.op == "insert" and self.count == 2:
            if self.how == "raise":
                raise RuntimeError("page 7 is lost")
            if self.how == "hang":
                time.sleep(60)
            if self.how == "die":
                os.abort()
            if self.how == "nonsense":
                return {"kind": "perhaps"}
        return super().apply(operation)


def make(**options):
    return Misbehaving(**options)


def broken():
    raise OSError("no GPU here")


def odd():
    return 3


class Vague(ReferenceAdapter):
    def describe(self):
        return Description(name="vague", version="1", level="forest")


def vague():
    return Description(name="vague", version="1", level="tree", invalid="dead")


a_number = 3
'''


@pytest.fixture
def misbehaving(shell: Shell) -> Shell:
    """The folder has a module with an adapter that misbehaves."""
    Path("engine.py").write_text(MISBEHAVING)
    return shell


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "raised RuntimeError in apply: page 7 is lost (engine.py:29)"),
        ("hang", "did not answer within 0.5 s"),
        ("die", "was ended by SIGABRT"),
        ("nonsense", "TypeError in apply: apply returned {'kind': 'perhaps'}, expected an"),
    ],
)
def test_an_adapter_that_fails_in_a_step_has_diverged(how: str, said: str, misbehaving: Shell) -> None:
    """Goal: a crash is a finding with its steps kept. Method: four ways to fail, in a process of the adapter's own."""
    words = ["check", "--adapter", "engine:make", "--option", f"how={how}", "--step-timeout", "0.5", "--steps", "500"]
    ran = misbehaving(*words, "--stop-at-first", "--report", "out")
    (file,) = Path("out").glob("HC-CONF-01-*.jsonl")
    steps = read_trace(file).steps

    assert 1 == ran.code
    assert said in " ".join(ran.out.split())
    assert ("insert", None) == (steps[-1].op.op, steps[-1].outcome)
    assert 2 == sum(step.op.op == "insert" for step in steps)
    assert 1 == misbehaving(*ran.out.splitlines()[-1].split()[1:]).code


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("engine:nothing", "cannot import 'engine:nothing'"),
        ("engine:a_number", "expected a function or class"),
        ("engine:broken", "OSError: no GPU here"),
        ("engine:odd", "made a int without describe"),
        ("engine:make", "missing 1 required positional argument: 'how'"),
        ("engine:make --option how=refuse", "no room for a second one (engine.py:"),
        ("engine:Vague", "Description: level is 'forest', expected 'counts', 'pages', 'tree' or 'bytes'"),
        ("engine:vague", "Description: invalid is 'dead', expected 'refuses', 'dies' or 'undefined'"),
    ],
)
def test_an_adapter_that_fails_before_the_first_step_is_a_mistake(adapter: str, said: str, misbehaving: Shell) -> None:
    """Goal: what cannot start is not judged. Method: eight ways not to start."""
    ran = misbehaving("check", "--adapter", *adapter.split())

    assert (2, 1) == (ran.code, len(ran.err))
    assert said in ran.err[0]
    assert not Path("divergences").exists()


def test_an_adapter_that_cannot_be_reset_later_has_diverged(misbehaving: Shell) -> None:
    """Goal: from the first step on, failing is a finding. Method: a second reset that raises."""
    words = ["check", "--adapter", "engine:make", "--option", "how=refuse-later", "--format", "json"]
    ran = misbehaving(*words, "--steps", "500")

    assert (1, [("HC-CONF-01", "reset")]) == (
        ran.code, [(each["requirement"], each["operation"]) for each in ran.json["divergences"]],
    )  # fmt: skip


def process(*words: str, folder: Path, stderr: int = subprocess.PIPE,
            largest_file: int = resource.RLIM_INFINITY) -> "subprocess.Popen[str]":  # fmt: skip
    """A running command, to which the disk is full where a file would get larger than that."""
    running = subprocess.Popen(
        [sys.executable, "-m", "hicache_ref", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=stderr, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    return running


ENGINE = ("--adapter", "engine:make", "--option", "how=raise")


def test_a_finding_outlives_a_killed_process(misbehaving: Shell) -> None:
    """Goal: what was found is on screen and on disk at once. Method: SIGKILL at the first line about a crash."""
    running = process("check", *ENGINE, "--time-budget", "600", "--report", "out", folder=Path.cwd())
    assert running.stderr is not None
    line = running.stderr.readline()
    said = re.fullmatch(r"hicache-ref: HC-CONF-01 at insert: .*page 7 is lost.*; (\d+) steps, .* in (\S+)\n", line)
    assert said is not None, line
    until = time.monotonic() + 60
    while not list(Path("out").glob("HC-*.jsonl")) and time.monotonic() < until:
        time.sleep(0.001)
    kill(running)
    path = min(Path("out").glob("HC-CONF-01-*.jsonl"))  # for a moment the long trace is beside the small one
    steps = read_trace(path).steps
    told = misbehaving("explain", str(path), *ENGINE)

    assert "insert" == steps[-1].op.op
    assert int(said[1]) >= len(steps)
    assert 1 == misbehaving("replay", str(path), *ENGINE).code
    assert (1, True) == (told.code, told.out.startswith("DIVERGENCE  HC-CONF-01"))


def test_a_report_outlives_a_killed_process(misbehaving: Shell) -> None:
    """Goal: what was made small is told. Method: SIGKILL once that is said; a run to the end reports the same."""
    running = process("check", *ENGINE, "--time-budget", "600", "--report", "killed", folder=Path.cwd())
    assert running.stderr is not None
    lines = [running.stderr.readline() for _ in range(2)]
    kill(running)
    said = re.fullmatch(r"hicache-ref: HC-CONF-01 at insert: \d+ steps, in (\S+)\n", lines[1])
    assert said is not None, lines
    misbehaving("check", *ENGINE, "--steps", "500", "--report", "ended")
    (ended,) = Path("ended").glob("*.txt")
    killed = Path(said[1]).with_suffix(".txt")

    assert (ended.name, ended.read_text().replace("ended/", "killed/")) == (killed.name, killed.read_text())


def kill(running: "subprocess.Popen[str]") -> None:
    """The process has ended at once, and nothing of it is left open."""
    running.kill()
    running.wait()
    for stream in (running.stdout, running.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize(
    ("room", "left"), [(100, []), (3_000, []), (4_000, [".jsonl", ".jsonl"]), (100_000, [".jsonl", ".txt"])],
    ids=["for nothing", "for no walk", "for no report", "for all"],
)  # fmt: skip
def test_a_full_disk_leaves_nothing_half_written(room: int, left: list[str], misbehaving: Shell) -> None:
    """Goal: what lies in the folder is whole. Method: files may get so large; what remains is read and executed."""
    running = process("check", *ENGINE, "--steps", "500", "--report", "out", folder=Path.cwd(), largest_file=room)
    err = running.communicate(timeout=300)[1].splitlines()
    files = sorted(Path("out").iterdir()) if left else []
    full = re.fullmatch(r"hicache-ref: out/\S+: cannot be written \(File too large\), expected .*", err[-1])

    assert (left, bool(left)) == ([each.suffix for each in files], Path("out").exists())
    assert bool(left) == any("page 7 is lost" in line for line in err)
    assert (1, None) == (running.returncode, full) if ".txt" in left else (2, True) == (running.returncode, bool(full))
    assert {1} >= {misbehaving("replay", str(each), *ENGINE).code for each in files if each.suffix == ".jsonl"}


@pytest.mark.parametrize("words", [("spec", "list"), ("spec", "show", "HC-TREE-01", "--format", "json")], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_said(words: tuple[str, ...]) -> None:
    """Goal: results that are lost are no success, and no fault of ours. Method: a device that is always full."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-m", "hicache_ref", *words], stdout=full, stderr=subprocess.PIPE,
                             text=True, check=False)  # fmt: skip

        silent = subprocess.run([sys.executable, "-m", "hicache_ref", *words], stdout=full, stderr=full, check=False)

    assert (2, 2) == (ran.returncode, silent.returncode)
    assert re.fullmatch(r"hicache-ref: standard output: cannot be written \(.*\), expected .*\n", ran.stderr)


def test_a_full_disk_loses_nothing_that_was_shown(misbehaving: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the finding is told before its file is tried. Method: no trace can be written; two lines, no traceback."""

    def full(path: Path, trace: Trace) -> None:
        raise TraceError(path, None, "cannot be written (No space left on device), expected room in it")

    monkeypatch.setattr("hicache_ref.cli.filing.write_trace", full)
    ran = misbehaving("check", *ENGINE, "--steps", "500", "--format", "json")

    assert (2, "", 2) == (ran.code, ran.out, len(ran.err))
    assert "HC-CONF-01 at insert: the implementation raised RuntimeError in apply: page 7 is lost" in ran.err[0]
    assert ran.err[1].startswith("hicache-ref: divergences/HC-CONF-01-")
    assert "cannot be written (No space left on device)" in ran.err[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step(number: signal.Signals, tmp_path: Path) -> None:
    """Goal: nothing that was reached is lost. Method: a signal to a run without end; report, trace and exit code."""
    running = process("check", "--adapter", "reference", "--time-budget", "600", "--format", "json", folder=tmp_path)
    until = time.monotonic() + 60
    while not any(file.stat().st_size for file in tmp_path.glob("divergences/.running-*")) and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)

    assert (4, "") == (running.returncode, err)
    assert "inconclusive" == json.loads(out)["verdict"]
    assert all(read_trace(file).steps for file in tmp_path.glob("divergences/*"))
    assert [] == list(tmp_path.glob("divergences/.running-*"))


def test_progress_is_for_terminals_and_never_among_results(tmp_path: Path) -> None:
    """Goal: JSON alone on standard output, whoever watches. Method: standard error is a terminal, and is not silent."""
    ours, theirs = pty.openpty()
    words = ["check", "--adapter", "reference", "--time-budget", "1", "--format", "json"]
    running = process(*words, folder=tmp_path, stderr=theirs)
    out, _ = running.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert "reference" == json.loads(out)["adapter"]
    assert re.search(r"[\d,]+ steps, [\d,]+ walks", shown)


@pytest.mark.parametrize("way", ["piped", "no-color"])
def test_plain_output_has_no_control_codes(way: str, tmp_path: Path) -> None:
    """Goal: logs that can be read. Method: a red check, in pipes whatever the environment says, and on a terminal.

    The engine's own words have colours in them.
    """
    (tmp_path / "engine.py").write_text(MISBEHAVING.replace("page 7", "\x1b[31mpage 7\x1b[0m"))
    words = ["check", "--adapter", "engine:make", "--option", "how=raise", "--steps", "300"]
    ours, theirs = pty.openpty()
    ends: tuple[int, int] = (subprocess.PIPE, subprocess.STDOUT) if way == "piped" else (theirs, theirs)
    running = subprocess.Popen(
        [sys.executable, "-m", "hicache_ref", *words, *(["--no-color"] if way == "no-color" else [])],
        cwd=tmp_path, stdout=ends[0], stderr=ends[1],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    said = running.communicate(timeout=60)[0] if way == "piped" else everything(ours)
    running.wait(60)
    os.close(ours)

    assert 1 == running.returncode
    assert b"page 7 is lost" in said
    assert b"\x1b" not in said


def everything(terminal: int) -> bytes:
    """All that was written to the terminal, until nobody can write any more."""
    said = b""
    while True:
        try:
            said += os.read(terminal, 1 << 16)
        except OSError:
            return said


def test_a_pipe_is_told_now_and_then(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody thinks it hangs. Method: a run of seconds, told each tenth of one, and of how much."""
    monkeypatch.setattr(common, "STILL_SECONDS", 0.1)
    ran = shell("check", "--adapter", "reference", "--steps", "1500", "--requirement", "HC-PAGE-01")

    assert 0 == ran.code
    assert any(
        re.fullmatch(r"hicache-ref: [\d,]+ of 1,500 steps, \d+ walks, \d+ s, 0 divergences \.\.\.", line)
        for line in ran.err
    )


def test_what_takes_long_is_told_and_no_complaint(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a slow machine fails no test, and a reader sees it go on. Method: a row of a bench that takes long."""

    def slow(*, fetch: bool, progress: Callable[[str], None]) -> BenchReport:
        progress("measuring a row, 1 of 2")
        time.sleep(0.5)
        return BenchReport(rows=())

    monkeypatch.setattr(common, "STILL_SECONDS", 0.1)
    monkeypatch.setattr("hicache_ref.cli.bench.run_bench", slow)
    ran = shell("bench")

    assert 0 == ran.code
    assert {"hicache-ref: measuring a row, 1 of 2 ..."} == set(ran.err)
    assert all(map(is_news, ran.err))


def test_a_real_process(tmp_path: Path) -> None:
    """Goal: what the tests call is what users run. Method: JSON alone on standard output, a mistake on the other."""
    good = process("spec", "coverage", "--format", "json", folder=tmp_path)
    out, err = good.communicate(timeout=60)
    bad = process("check", "--adapter", "nobody", folder=tmp_path)

    assert (0, "", len(REQUIREMENTS)) == (good.returncode, err, json.loads(out)["total"])
    assert ("", 1) == ((said := bad.communicate(timeout=60))[0], len(said[1].splitlines()))
    assert 2 == bad.returncode
