"""Mistakes at the command line: one line, what is wrong and what was expected; exit code 2, nothing written."""

import os
from pathlib import Path
from typing import get_type_hints

import pytest
from typer import Typer

from hicache_ref.cli import app
from hicache_ref.trace import dumps
from tests.meta.shell import GOOD, Shell, header, trace

CHECK = ("check", "--adapter", "reference")

MISTAKES: dict[str, tuple[str, ...]] = {
    "no adapter": ("check",),
    "unknown adapter": ("check", "--adapter", "nobody"),
    "no such package": ("check", "--adapter", "no.such:thing"),
    "two adapters": (*CHECK, "--adapter-cmd", "cat"),
    "command is not there": ("check", "--adapter-cmd", "./nowhere"),
    "command without words": ("check", "--adapter-cmd", ""),
    "command with open quotes": ("check", "--adapter-cmd", "'x"),
    "command that ends": ("check", "--adapter-cmd", "true"),
    "options beside a command": ("check", "--adapter-cmd", "cat", "--option", "a=b"),
    "option without value": (*CHECK, "--option", "fault"),
    "option twice": (*CHECK, "--option", "fault=a", "--option", "fault=b"),
    "unknown option": (*CHECK, "--option", "colour=red"),
    "unknown fault": (*CHECK, "--option", "fault=none"),
    "unknown profile": (*CHECK, "--profile", "huge"),
    "unknown requirement": (*CHECK, "--requirement", "HC-NONE-1"),
    "no steps": (*CHECK, "--steps", "0"),
    "negative steps": (*CHECK, "--steps", "-1"),
    "no time": (*CHECK, "--time-budget", "0"),
    "negative time": (*CHECK, "--time-budget", "-1"),
    "no examples": (*CHECK, "--examples", "0"),
    "no patience": (*CHECK, "--step-timeout", "0"),
    "unknown format": (*CHECK, "--format", "xml"),
    "unknown flag": (*CHECK, "--fast"),
    "unknown command": ("chekc",),
    "report below a file": (*CHECK, "--report", os.devnull + "/x"),
    "report where nothing can be": (*CHECK, "--report", "/proc/nowhere"),
    "known is not there": (*CHECK, "--known", "nowhere.jsonl"),
    "trace beside an adapter": (*CHECK, "--trace", "x"),
    "trace is not there": ("check", "--trace", "nowhere.jsonl"),
    "trace is a folder": ("check", "--trace", "."),
    "replay of nothing": ("replay",),
    "replay is not there": ("replay", "nowhere.jsonl"),
    "minimize is not there": ("minimize", "nowhere.jsonl"),
    "explain is not there": ("explain", "nowhere.jsonl"),
    "unknown scope": ("explore", "--scope", "everything"),
    "no scope": ("explore",),
    "no requests": ("workload", "nowhere.jsonl", "--device-pages", "1", "--host-pages", "1"),
    "no pages": ("workload", "nowhere.jsonl", "--device-pages", "0", "--host-pages", "1"),
    "no word on pages": ("workload", "nowhere.jsonl"),
    "no states": ("explore", "--scope", "upper-small", "--states", "0"),
    "unknown fault to run": ("faults", "run", "none"),
    "unknown kind": ("faults", "list", "--kind", "K99"),
    "unknown requirement to show": ("spec", "show", "HC-NONE-1"),
    "unknown area": ("spec", "list", "--area", "NONE"),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(words: tuple[str, ...], shell: Shell) -> None:
    """Goal: told what is wrong, and nothing else happens. Method: each way to be wrong that needs no file."""
    ran = shell(*words)

    assert (2, "", 1) == (ran.code, ran.out, len(ran.err))
    assert ran.err[0].startswith("hicache-ref: ")
    assert "Traceback" not in ran.err[0]
    assert set() == shell.files


def numbers_of(commands: Typer, *words: str) -> list[tuple[str, ...]]:
    """The words up to each option, of these commands and of those below, that takes a number with a fraction."""
    found = []
    for command in commands.registered_commands:
        assert command.callback is not None
        hints = get_type_hints(command.callback, include_extras=True).values()
        options = [hint.__metadata__[0] for hint in hints if getattr(hint, "__origin__", None) in (float, float | None)]
        found += [(*words, str(command.name), str(option.default)) for option in options]
    for group in commands.registered_groups:
        assert group.typer_instance is not None
        found += numbers_of(group.typer_instance, *words, str(group.name))
    return found


NUMBERS = numbers_of(app)


def test_options_that_take_numbers_are_found() -> None:
    """Goal: the next test has something to try. Method: options that are known to be there."""
    assert {("check", "--time-budget"), ("replay", "--step-timeout"), ("storage", "check", "--patience")} <= {*NUMBERS}


@pytest.mark.parametrize("words", NUMBERS, ids=" ".join)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "soon"])
def test_what_is_no_length_of_time_is_refused(words: tuple[str, ...], value: str, shell: Shell) -> None:
    """Goal: no run without end. Method: every such option (all are seconds) with what is none."""
    ran = shell(*words, value)

    assert (2, "", 1) == (ran.code, ran.out, len(ran.err))
    assert words[-1] in ran.err[0]
    assert set() == shell.files


HEAD = dumps(header()).encode() + b"\n"

NO_TRACES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ":1: empty file, expected"),
    "not JSON": (b"nonsense\n", ":1: not JSON"),
    "binary": (b"\x00\x01", ":1: binary data"),
    "not UTF-8": (HEAD + b'{"i":0,"op":{"op":"audit"},"meta":{"a":"\xff"}}\n', ":2: binary data"),
    "another version": (HEAD.replace(b'"version":1,', b'"version":2,'), ":1: version is 2, expected 1"),
    "a cut header": (HEAD[:40], ":1: not JSON"),
    "a cut step": (HEAD + b'{"i":0,"op":{"op":\n{"i":1,"op":{"op":"audit"}}\n', ":2: not JSON"),
    "an unknown operation": (HEAD + b'{"i":0,"op":{"op":"evikt"}}\n', ":2: unknown op 'evikt', expected one of"),
    "a missing step": (HEAD + b'{"i":1,"op":{"op":"audit"}}\n', ":2: step 1, expected step 0"),
    "a deep line": (HEAD + b'{"i":0,"op":' + b"[" * 100_000 + b"\n", ":2: not JSON"),
    "deep meta": (
        HEAD + b'{"i":0,"op":{"op":"audit"},"meta":' + b'{"a":' * 5000 + b"1" + b"}" * 5001 + b"\n",
        ":2: not",
    ),
    "a long line": (HEAD + b'{"i":0,"meta":"' + b"x" * (9 << 20) + b'"}\n', ":2: line of more than"),
    "a pool beyond measure": (HEAD.replace(b'"device_pages":6', b'"device_pages":1000000000'), ":1: profile.sizes"),
}


@pytest.mark.parametrize(
    "command", ["check --trace", "replay", "minimize", "explain", "check --adapter reference --known"]
)
@pytest.mark.parametrize("name", NO_TRACES)
def test_a_file_that_is_no_trace_is_refused(command: str, name: str, shell: Shell) -> None:
    """Goal: no file is too strange. Method: each kind of damage for each command that reads files."""
    data, complaint = NO_TRACES[name]
    Path("run.jsonl").write_bytes(data)
    ran = shell(*command.split(), "run.jsonl", *(["--examples", "1"] if "known" in command else []))
    known = "known" in command

    assert ((4, 0) if known and not data else (2, 1)) == (ran.code, len(ran.err))
    assert known or f"hicache-ref: run.jsonl{complaint}" in ran.err[0]
    assert {"run.jsonl"} == shell.files


def test_a_trace_without_steps_says_nothing(shell: Shell) -> None:
    """Goal: no verdict on nothing. Method: a header alone."""
    ran = shell("check", "--trace", trace(Path("run.jsonl")))

    assert (2, ["hicache-ref: run.jsonl:2: no steps, expected at least one"]) == (ran.code, ran.err)


def test_a_trace_of_an_unknown_adapter_needs_one(shell: Shell) -> None:
    """Goal: no guess at what to drive. Method: replay of a trace whose adapter is somebody else's."""
    ran = shell("replay", trace(Path("run.jsonl"), GOOD, name="theirs"))

    assert (2, True) == (ran.code, "of the adapter 'theirs', expected --adapter" in ran.err[0])


def test_a_fault_of_ours_is_said_to_be_one(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: exit code 3 and no traceback unless asked for. Method: a catalogue that raises."""
    monkeypatch.setattr("hicache_ref.cli.spec.measured", lambda: 1 / 0)
    ran = shell("spec", "coverage")
    monkeypatch.setenv("HICACHE_REF_DEBUG", "1")
    debugged = shell("spec", "coverage")

    assert (3, 1) == (ran.code, len(ran.err))
    assert "internal error, ZeroDivisionError: division by zero" in ran.err[0]
    assert (3, True) == (debugged.code, "Traceback" in debugged.err[0])
