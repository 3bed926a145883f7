"""The command line: what scripts rely on. Exit codes, JSON keys, files, and the last line of a report."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache_ref.cli import app
from hicache_ref.requirements import REQUIREMENTS, catalogue_digest
from hicache_ref.trace import TraceStep, read_trace
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import MatchPrefix, TakePages
from hicache_ref.vocabulary.outcomes import Took
from tests.meta.shell import FAULT, GOOD, Shell, is_news, trace

COMMANDS = [
    [], ["check"], ["replay"], ["minimize"], ["explain"], ["explore"], ["workload"], ["faults"], ["faults", "list"],
    ["faults", "run"], ["spec"], ["spec", "list"], ["spec", "show"], ["spec", "coverage"], ["bench"], ["storage"],
    ["storage", "check"],
]  # fmt: skip

GROUPS: list[list[str]] = [[], ["faults"], ["spec"], ["storage"]]

WRONG = TraceStep(i=0, op=TakePages(rid="r0", n=1), outcome=Took(pages=(0, 1)))

# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_an_example(command: list[str]) -> None:
    """Goal: nobody has to guess. Method: --help of each command, which also names the options that all share."""
    result = CliRunner().invoke(app, [*command, "--help"])
    named = [each for each in result.output.split() if each in ("--format", "--no-color")]

    assert 0 == result.exit_code
    assert examples(result.output)[-1].startswith(" ".join(["hicache-ref", *command]))
    assert (
        len(command) == 0 or command in (["faults"], ["spec"], ["storage"]) or {"--format", "--no-color"} <= set(named)
    )


def examples(text: str) -> list[str]:
    """The command lines that a help prints, as a reader copies them."""
    return re.findall(r"^ +(?:Example: )?((?:hicache-ref|echo) .*)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([], 0), (["check"], 0), (["replay"], 1), (["minimize"], 0), (["explain"], 1), (["explore"], 0),
        (["workload"], 0), (["faults"], 0), (["faults", "list"], 0), (["faults", "run"], 0), (["spec"], 0),
        (["spec", "list"], 0), (["spec", "show"], 0), (["spec", "coverage"], 0), (["storage"], 0),
        (["storage", "check"], 0), pytest.param(["bench"], 0, marks=pytest.mark.long),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_every_example_works_as_printed(command: list[str], code: int, tmp_path: Path) -> None:
    """Goal: a stranger copies them. Method: each line of a help of 80 columns, by a shell in an empty folder.

    All but the last make what that needs and succeed.
    """
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": scripts, "COLUMNS": "80"}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    lines = examples(run(["hicache-ref", *command, "--help"]).stdout)
    ran = [run(line, shell=True) for line in lines]

    assert [*[0] * (len(lines) - 1), code] == [each.returncode for each in ran]
    said = [line for each in ran for line in each.stderr.splitlines() if line.startswith("hicache-ref: ")]
    assert [] == [line for line in said if not is_news(line)]


def test_a_group_alone_says_what_there_is(shell: Shell) -> None:
    """Goal: `hicache-ref` and `hicache-ref spec` are no mistakes. Method: both, with what they print."""
    ran = [shell(), shell("spec"), shell("faults"), shell("--version")]

    assert [0, 0, 0, 0] == [each.code for each in ran]
    assert ["Commands:" in each.out for each in ran] == [True, True, True, False]
    assert ran[-1].out.startswith("hicache-ref ")


# -- check -------------------------------------------------------------------------------------------------------------

REPORT_KEYS = [
    "verdict", "rules_only", "adapter", "profile", "level", "completion", "steps", "seconds", "seed", "requirements",
    "witnesses", "divergences", "known",
]  # fmt: skip


def test_a_divergence_is_told_filed_and_replayed(shell: Shell) -> None:
    """Goal: from red to reproduced. Method: a planted fault, its JSON, its two files, and the last line of the text."""
    words = ["--adapter", "reference", "--option", f"fault={FAULT}", "--report", "out", "--stop-at-first"]
    ran = shell("check", *words, "--format", "json")
    (line,) = ran.json["divergences"]
    file = Path(line["trace"])

    assert 1 == ran.code
    assert REPORT_KEYS == list(ran.json)
    assert "divergence" == ran.json["verdict"]
    requirements, witnesses = ran.json["requirements"], ran.json["witnesses"]
    assert ["exercised", "observable", "total", "promised", "not_exercised", "owed"] == list(requirements)
    assert ["reached", "total", "promised", "missing", "owed"] == list(witnesses)
    assert ["requirement", "operation", "trace", "length", "known", "differs"] == list(line)
    assert {"out", f"out/{file.name}", f"out/{file.stem}.txt"} == shell.files
    assert line["length"] == len(read_trace(file).steps)

    text = shell("check", *words)
    last = text.out.splitlines()[-1]
    assert file.with_suffix(".txt").read_text() == text.out[text.out.index("DIVERGENCE") :]
    assert f"hicache-ref replay {file} --adapter reference --option fault={FAULT}" == last
    still, healthy = shell(*last.split()[1:]), shell("replay", str(file))
    judged = shell("check", "--trace", str(file), "--format", "json")
    assert (1, True) == (still.code, still.out.startswith("still fails"))
    assert (0, True) == (healthy.code, healthy.out.startswith("passes"))
    assert (1, "divergence") == (judged.code, judged.json["verdict"])


def test_nothing_is_left_where_nothing_was_found(shell: Shell) -> None:
    """Goal: a green run leaves no folder. Method: two walks, which are too few to promise anything."""
    ran = shell("check", "--adapter", "reference", "--examples", "2")

    assert 4 == ran.code
    assert "verdict       inconclusive" == ran.out.splitlines()[-1]
    assert "promised      nothing: the run is too short" in ran.out
    assert "not reached in this budget  HC-" in ran.out
    assert set() == shell.files


def test_named_sizes_can_conform(shell: Shell) -> None:
    """Goal: no verdict that no run can earn. Method: the shortest promise, under sizes without states, and strictly."""
    words = ["check", "--adapter", "reference", "--profile", "tiny", "--steps", "3000"]
    ran, strict = shell(*words), shell(*words, "--strict", "--format", "json")

    assert (0, "verdict       conforms") == (ran.code, ran.out.splitlines()[-1])
    assert re.search(r"promised      \d+ requirements and \d+ witnesses in 3,0\d\d steps, all met", ran.out)
    assert (4, "inconclusive") == (strict.code, strict.json["verdict"])
    assert strict.json["witnesses"]["total"] == strict.json["witnesses"]["promised"]
    assert [] == [name for name in strict.json["witnesses"]["missing"] if "STATE" in name]


def test_a_budget_in_steps_is_kept(shell: Shell) -> None:
    """Goal: the same run on every machine. Method: a budget in steps, twice, and another seed."""
    first, again, other = (
        shell("check", "--adapter", "reference", "--steps", "150", "--seed", seed, "--format", "json").json
        for seed in ("1", "1", "2")
    )

    assert 150 <= first["steps"] < 250
    assert {**first, "seconds": 0} == {**again, "seconds": 0}
    assert {**first, "seconds": 0, "seed": 2} != {**other, "seconds": 0}


def test_one_requirement_can_be_asked_for(shell: Shell) -> None:
    """Goal: a filter judges the one, and can be green. Method: one requirement, on a healthy and on a faulty model."""
    words = ["check", "--adapter", "reference", "--examples", "5", "--requirement", "HC-PAGE-01", "--format", "json"]
    healthy, faulty = shell(*words), shell(*words, "--option", f"fault={FAULT}")

    assert (0, "conforms", 1) == (healthy.code, healthy.json["verdict"], healthy.json["requirements"]["total"])
    assert (0, []) == (faulty.code, faulty.json["divergences"])
    assert "which was not asked for" in shell(*words[:-2], "--option", f"fault={FAULT}").out


def test_sizes_that_are_named_are_kept(shell: Shell) -> None:
    """Goal: RULES/SIZES means these sizes. Method: a fault found under `small`, whose report says the sizes."""
    words = ["check", "--adapter", "reference", "--option", f"fault={FAULT}", "--profile", "reference/small"]

    assert "page=4 device=24 host=32" in shell(*words, "--stop-at-first").out


def test_a_known_divergence_is_not_red(shell: Shell) -> None:
    """Goal: what somebody has looked at stays quiet, and is noticed when gone. Method: a fault's own trace as known."""
    words = ["check", "--adapter", "reference", "--option", f"fault={FAULT}", "--stop-at-first"]
    (line,) = shell(*words, "--format", "json").json["divergences"]
    (walks,) = re.findall(r"in (\d+) walk", shell(*words).out)
    found = read_trace(line["trace"])
    entry = {
        "id": "K-1", "requirement": line["requirement"], "operation": line["operation"], "reason": "we know",
        "profile": found.header.profile.model_dump(mode="json"),
        "trace": [step.op.model_dump(mode="json") for step in found.steps],
    }  # fmt: skip
    Path("known.jsonl").write_text(json.dumps(entry) + "\n")
    again = shell(*words, "--known", "known.jsonl", "--examples", walks, "--report", "new")
    healthy = shell("check", "--adapter", "reference", "--known", "known.jsonl", "--examples", "1")

    assert "known K-1: still fails" in again.out
    assert "divergences   0 new, 1 known" in again.out
    assert 4 == again.code
    assert "known K-1: gone" in healthy.out
    blind = shell(*words, "--known", "known.jsonl", "--blind", "--examples", walks, "--report", "new")
    assert f"known K-1: found, {line['length']} operations" in blind.out
    assert 2 == shell("check", "--trace", line["trace"], "--blind").code
    assert 1 == shell(*words, "--known", os.devnull).code


def test_replay_heeds_what_is_known(shell: Shell) -> None:
    """Goal: the same words for the same thing in `check` and `replay`. Method: a trace that is known, and one not."""
    ran = shell("check", "--adapter", "reference", "--option", f"fault={FAULT}", "--stop-at-first", "--format", "json")
    (line,) = ran.json["divergences"]
    found = read_trace(line["trace"])
    entry = {
        "id": "K-1", "requirement": line["requirement"], "operation": line["operation"], "reason": "we know",
        "profile": found.header.profile.model_dump(mode="json"), "trace": [], "differs": [line["differs"]],
    }  # fmt: skip
    Path("known.jsonl").write_text(json.dumps(entry | {"says": "."}) + "\n")
    Path("other.jsonl").write_text(json.dumps(entry | {"says": "no such text"}) + "\n")
    words = ["replay", line["trace"], "--adapter", "reference", "--option", f"fault={FAULT}"]
    known, other, text = (
        shell(*words, "--known", "known.jsonl", "--format", "json"),
        shell(*words, "--known", "other.jsonl", "--format", "json"),
        shell(*words, "--known", "known.jsonl"),
    )

    assert (0, 1, 1) == (known.code, other.code, shell(*words).code)
    assert [("known", "K-1")] == [(each["result"], each["known"]) for each in known.json["traces"]]
    assert (0, 1) == (known.json["still_fails"], known.json["known"])
    assert [("still fails", None)] == [(each["result"], each["known"]) for each in other.json["traces"]]
    assert re.match(r"known +\S+ +K-1, HC-", text.out)


# -- recorded traces ---------------------------------------------------------------------------------------------------


def test_a_recording_without_observations_is_judged_by_its_outcomes(shell: Shell) -> None:
    """Goal: a log of what callers were told is enough. Method: one wrong answer, and a look at what was judged."""
    file = trace(Path("run.jsonl"), WRONG, name="somebody's engine")
    ran = shell("check", "--trace", file, "--format", "json")

    assert (1, True, "counts") == (ran.code, ran.json["rules_only"], ran.json["level"])
    assert ["HC-CONF-02"] == [each["requirement"] for each in ran.json["divergences"]]
    explained = shell("explain", file)
    assert (1, True) == (explained.code, "HC-CONF-02" in explained.out)
    assert 0 == shell("explain", trace(Path("good.jsonl"), GOOD, name="somebody's engine")).code


def test_a_known_divergence_of_a_recording_is_not_red(shell: Shell) -> None:
    """Goal: what is known of a server is told apart in its traces. Method: one entry that fits, one that does not."""
    file = trace(Path("run.jsonl"), WRONG, name="somebody's engine")
    ran = shell("check", "--trace", file, "--format", "json")
    (line,) = ran.json["divergences"]
    entry = {"id": "K-1", "requirement": line["requirement"], "operation": line["operation"], "reason": "we know"}
    for name, says, differs in (
        ("fits", ".", [line["differs"]]),
        ("fits-not", "no such text", [line["differs"]]),
        ("pins-another", ".", [line["differs"] | {"direction": "instead"}]),
        ("pins-nothing", ".", []),
    ):
        more = {"says": says, "differs": differs, "profile": {}, "trace": []}
        Path(name).write_text(json.dumps(entry | more) + "\n")
    names = ("fits", "fits-not", "pins-another", "pins-nothing")
    fits, *others = (shell("check", "--trace", file, "--known", name) for name in names)

    assert (1, 4, [1, 1, 2]) == (ran.code, fits.code, [each.code for each in others])
    assert "pins-nothing:1: line: Value error, differs is empty, expected" in others[-1].err[0]
    assert "divergences   0 new, 1 known" in fits.out
    assert "known K-1: met at step 0, and nothing judged after it (we know)" in fits.out


def test_a_step_that_did_not_end_blames_who_raised(shell: Shell) -> None:
    """Goal: who was killed with the recorder is not blamed. Method: a last step without outcome, one that raised."""
    begun = TraceStep(i=1, op=MatchPrefix(key=Key(tokens=(1,))))
    cut = shell("check", "--trace", trace(Path("cut.jsonl"), GOOD, begun))
    raised = begun.model_copy(update={"meta": {"raised": "KeyError: 7"}})
    ran = shell("check", "--trace", trace(Path("raised.jsonl"), GOOD, raised), "--format", "json")

    assert 4 == cut.code
    assert "the recording breaks off in step 1, which was not judged" in cut.out
    assert ["HC-CONF-01"] == [each["requirement"] for each in ran.json["divergences"]]


def test_other_requirements_are_a_warning(shell: Shell) -> None:
    """Goal: an old recording is judged all the same. Method: a header with another hash."""
    ran = shell("check", "--trace", trace(Path("run.jsonl"), GOOD, requirements="00000000"))

    assert 4 == ran.code
    assert [
        f"hicache-ref: run.jsonl: written under requirements 00000000, judged under {catalogue_digest()}"
    ] == ran.err


def test_all_that_is_met_within_the_budget_is_reported(shell: Shell) -> None:
    """Goal: one fault does not hide the next. Method: a fault with several effects, the first alone and all."""
    words = ["check", "--adapter", "reference", "--option", "fault=locked-leaf", "--steps", "6000", "--format", "json"]
    first, every = (shell(*words, *more).json for more in (["--stop-at-first"], []))
    named = [(each["requirement"], each["operation"]) for each in every["divergences"]]

    assert 1 == len(first["divergences"]) < len(named)
    assert first["divergences"][0] == every["divergences"][0]
    assert first["steps"] < 6000 <= every["steps"]


def test_several_traces_are_replayed(shell: Shell) -> None:
    """Goal: one bad file hides no other. Method: a good one, one that is no trace, and what the exit code says."""
    good = trace(Path("good.jsonl"), GOOD)
    Path("bad.jsonl").write_text("{}\n")
    ran = shell("replay", good, "bad.jsonl", good, "--format", "json")

    assert 2 == ran.code
    assert ["passes", "error", "passes"] == [each["result"] for each in ran.json["traces"]]
    assert (0, 2, 1) == (ran.json["still_fails"], ran.json["passes"], ran.json["errors"])


# -- the other commands ------------------------------------------------------------------------------------------------


def test_spec(shell: Shell) -> None:
    """Goal: the rules can be read and counted. Method: list, show and coverage, as text and JSON."""
    coverage = shell("spec", "coverage", "--format", "json").json
    shown = shell("spec", "show", "HC-PAGE-01", "--format", "json").json

    assert ["total", "by_kind", "by_area", "missing"] == list(coverage)
    assert len(REQUIREMENTS) == coverage["total"] == sum(coverage["by_kind"].values())
    assert [] == coverage["missing"]
    assert REQUIREMENTS["HC-PAGE-01"].text == shown["text"]
    assert REQUIREMENTS["HC-PAGE-01"].text in shell("spec", "show", "HC-PAGE-01").out
    assert len(REQUIREMENTS) == len(shell("spec", "list", "--format", "json").json)
    assert {"LOCK"} == {each["area"] for each in shell("spec", "list", "--area", "LOCK", "--format", "json").json}


def test_every_requirement_can_be_shown(shell: Shell) -> None:
    """Goal: `spec show` is the end of every report. Method: each id of the catalogue."""
    assert [] == [name for name in REQUIREMENTS if shell("spec", "show", name).code != 0]


def test_faults(shell: Shell) -> None:
    """Goal: the catalogue can be listed and hunted. Method: one fault with a small budget, its keys and its trace."""
    ran = shell(
        "faults", "run", FAULT, "--steps", "2000", "--healthy-steps", "20", "--store", "kept", "--format", "json"
    )
    (fault,) = ran.json["faults"]
    keys = {
        "id",
        "origin",
        "kind",
        "expected",
        "caught_by",
        "diverged_at",
        "caught",
        "steps",
        "seconds",
        "trace_length",
    }

    assert 0 == ran.code
    assert {"faults", "caught", "total", "false_alarms"} <= ran.json.keys()
    assert keys <= fault.keys()
    assert {"kept", f"kept/{FAULT}.jsonl"} == shell.files
    assert 1 == shell("replay", f"kept/{FAULT}.jsonl").code
    assert FAULT in [each["id"] for each in shell("faults", "list", "--format", "json").json]
    assert FAULT in shell("faults", "list").out


def test_workload(shell: Shell) -> None:
    """Goal: recorded requests can be served at any size. Method: two prompts, of which the second repeats the first."""
    rows = [{"timestamp": i, "input_length": 3, "output_length": 0, "hash_ids": [1, 2, 3]} for i in range(2)]
    Path("requests.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["workload", "requests.jsonl", "--device-pages", "9", "--host-pages", "9", "--page-tokens", "1"]
    ran = shell(*words, "--format", "json")
    keys = ["requests", "pages", "hits", "operations", "operations_per_second", "seconds", "violations"]

    assert 0 == ran.code
    assert keys == list(ran.json)
    assert (2, 6) == (ran.json["requests"], ran.json["pages"])
    assert {"device": 3, "host": 0, "miss": 3} == ran.json["hits"]
    assert "violations  none" == shell(*words).out.splitlines()[-1]


def test_explore(shell: Shell) -> None:
    """Goal: a scope can be searched, and a part of it is no proof. Method: a few states."""
    ran = shell("explore", "--scope", "upper-small", "--states", "50", "--format", "json")

    assert 4 == ran.code
    assert ["scope", "states", "transitions", "depth", "complete", "seconds", "violations"] == list(ran.json)
    assert not ran.json["complete"]
