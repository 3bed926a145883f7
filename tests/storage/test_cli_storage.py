"""`hicache-ref storage check`: verdicts, exit codes, JSON, and mistakes in one line."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.cli import main
from hicache_ref.oracle.verdict import CheckReport
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.storage.conformance import RULES
from tests.storage.broken import BROKEN, Replaces

SLOW = ("HC-STORE-33", "HC-STORE-34")
QUICK = [word for name in sorted(RULES) if name not in SLOW for word in ("--requirement", name)]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and lines of standard error."""
    code = main(["storage", "check", *words])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def result(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Exit code, and standard output as JSON."""
    code, out, _ = run(capsys, *words, "--format", "json")
    return code, json.loads(out)


def test_a_store_that_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: green is 0, and says how much was judged. Method: a folder, as text and as JSON; the keys are `check`'s."""
    url = f"files://{tmp_path}"
    code, out, err = run(capsys, url, "--clear", *QUICK)
    json_code, report = result(capsys, url, *QUICK)

    assert (0, []) == (code, err)
    assert out.startswith(f"store       {url}\nrules       {len(RULES) - 3} of {len(RULES) - 2} judged")
    assert "not judged  HC-STORE-41  the store measures nothing" in out
    assert out.endswith("verdict     conforms\n")
    assert (0, "conforms", url, True) == (json_code, report["verdict"], report["adapter"], report["rules_only"])
    assert CheckReport.model_fields.keys() <= report.keys()
    assert ["HC-STORE-35", "HC-STORE-41"] == list(report["not_judged"])
    assert (len(RULES) - 4, len(RULES) - 4, len(RULES) - 2) == (
        report["requirements"]["exercised"], report["requirements"]["observable"], report["requirements"]["total"],
    )  # fmt: skip


def test_a_store_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: red is 1, names the rule and what was seen, and how to see it again. Method: the last put wins."""
    target = "tests.storage.offered:LastPutWins"
    code, out, err = run(capsys, target, *QUICK)
    json_code, report = result(capsys, target, *QUICK)

    assert (1, [], 1, "divergence") == (code, err, json_code, report["verdict"])
    assert REQUIREMENTS["HC-STORE-25"].text in " ".join(out.split())
    assert "write(4 keys of 4096 bytes) -> [true, true, true, true]" in out
    assert f"again       hicache-ref storage check {target} --seed 0 --requirement HC-STORE-25" in out
    assert ["HC-STORE-25"] == [each["requirement"] for each in report["divergences"]]
    told = {"what", "story", "through", "judging", "also"}
    assert {"requirement", "operation", "trace", "length", "known", "differs", *told} == report["divergences"][0].keys()
    assert "HC-STORE-25" == BROKEN[Replaces]


def test_what_was_found_is_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the last line shows the fault once more. Method: one that another rule than the broken one meets alone."""
    target = "tests.storage.offered:ForgetsToAnswerForLarge"
    words = [target, "--clear", "--config", '{"dtype": "float16"}', "--requirement", "HC-STORE-29"]
    code, out, _ = run(capsys, *words)
    again = next(shlex.split(line)[1:] for line in out.splitlines() if line.startswith("again"))

    assert (1, ["hicache-ref", "storage", "check"]) == (code, again[:3])
    assert "broken      HC-STORE-22 at write through handle 1, after 3 calls\n" in out
    assert {"--clear", '{"dtype": "float16"}', "HC-STORE-29"} <= set(again)
    code, report = result(capsys, *again[3:])
    assert (1, ["HC-STORE-22"]) == (code, [each["requirement"] for each in report["divergences"]])


def test_a_report_says_what_pages_were_handed_over_as(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: nobody wonders why tensors did not come. Method: a class without torch, and a store of our own."""
    words = ("--requirement", "HC-STORE-21")
    foreign = run(capsys, "tests.storage.offered:NamesByConfiguration", *words)[1]

    assert "values      memoryviews, for the class works without torch\n" in foreign
    assert "values" not in run(capsys, "memory://", *words)[1]


def test_a_check_that_judged_nothing_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: no pass without a subject. Method: only a rule that needs other processes, on a store that has none."""
    code, report = result(capsys, "memory://alone", "--requirement", "HC-STORE-33")

    assert (4, "inconclusive") == (code, report["verdict"])
    assert {"HC-STORE-33": "no other process sees the pages of this store"} == report["not_judged"]


def test_settings_reach_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: keys that are not ours are passed on and listed. Method: a store that wants one; fields of the config."""
    words = ("tests.storage.offered:WantsAWord", "--requirement", "HC-STORE-21")
    code, out, _ = run(capsys, *words, "--settings", '{"word": "please", "prefetch_threshold": 64}')

    assert (0, True) == (code, "passed on   word: settings of the store's own\n" in out)
    assert 2 == run(capsys, *words)[0]
    assert (
        0 == run(capsys, "memory://", "--requirement", "HC-STORE-38", "--config", '{"dtype": "fp8", "tp_size": 4}')[0]
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nowhere"], "'nowhere' names no store, expected one of files:///FOLDER"),
        (["files:///dev/null/x"], "files:///dev/null/x: /dev/null/x: Not a directory, expected a folder"),
        (["redis://127.0.0.1:1/0"], "redis://127.0.0.1:1/0: redis://127.0.0.1:1/0: "),
        (["mooncake://127.0.0.1:1"], "mooncake://127.0.0.1:1: "),
        (
            ["memory://", "--requirement", "HC-PAGE-01"],
            "requirement HC-PAGE-01 is not one of stores, expected one of HC-ST",
        ),
        (["memory://", "--requirement", "HC"], "unknown requirement 'HC'"),
        (
            ["memory://", "--settings", '{"prefetch_threshold": -1}'],
            "storage settings:1: prefetch_threshold is -1, expected",
        ),
        (["memory://", "--settings", "@absent.json"], "absent.json: cannot be read"),
        (["memory://", "--config", '{"tp_rank": 1}'], "tp_rank is 1, expected less than tp_size = 1"),
        (["memory://", "--step-timeout", "0"], "'--step-timeout'"),
        ([], "Missing argument 'URL'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: exit code 2 and one line that says what and what was expected. Method: one mistake each."""
    code, out, err = run(capsys, *words)

    assert (2, "", 1) == (code, out, len(err)), err
    assert err[0].startswith("hicache-ref: ")
    assert what in err[0]
