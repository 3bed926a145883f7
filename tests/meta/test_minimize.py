"""`minimize`: fewer steps, the same finding, and none of the steps that walks leave out."""

import json
from pathlib import Path

import pytest

from hicache_ref.trace import Trace, TraceStep, read_trace, write_trace
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Attach, Audit, Detach, Forward, ForwardDone, Insert, Operation, TakePages
from hicache_ref.vocabulary.storage import StorageSettings
from tests.meta.shell import FAULT, Shell, trace

ATTACH = Attach(settings=StorageSettings())
COMPUTING = [TakePages(rid="r", n=1), Forward(rid="r", key=Key(tokens=(1,)), start=0)]
INSERT = Insert(rid="r", key=Key(tokens=(1,)), start=0)

STUMBLING = """
from hicache_ref.adapters.reference import ReferenceAdapter

class Stumbling(ReferenceAdapter):
    def describe(self):
        return super().describe().model_copy(update={"invalid": "undefined"})

    def apply(self, operation):
        if operation.op in ("detach", "insert"):
            raise LookupError("gone")
        return super().apply(operation)
"""


def test_a_trace_is_made_smaller(shell: Shell) -> None:
    """Goal: minimize deletes what is not needed. Method: a failing trace with audits put before every step."""
    words = ["--adapter", "reference", "--option", f"fault={FAULT}"]
    (line,) = shell("check", *words, "--stop-at-first", "--format", "json").json["divergences"]
    found = read_trace(line["trace"])
    long = [op for step in found.steps for op in (Audit(), step.op)]
    write_trace("long.jsonl", Trace(found.header, tuple(TraceStep(i=i, op=op) for i, op in enumerate(long))))
    ran = shell("minimize", "long.jsonl", *words, "--out", "short.jsonl", "--format", "json")

    assert (0, line["length"], 2 * line["length"]) == (ran.code, ran.json["length"], ran.json["from"])
    assert line["length"] == len(read_trace("short.jsonl").steps)
    assert 2 == shell("minimize", "long.jsonl", "--out", "none.jsonl").code
    assert not Path("none.jsonl").exists()


@pytest.mark.parametrize(
    ("known", "steps", "expected"),
    [
        ([], [ATTACH, Detach()], [Detach()]),
        (["K"], [Audit(), ATTACH, Audit(), Detach()], [ATTACH, Detach()]),
        (["K"], [Audit(), Detach()], [Audit(), Detach()]),
        ([], [*COMPUTING, ForwardDone(rid="r"), INSERT], [*COMPUTING, INSERT]),
    ],
    ids=["unknown", "known", "needed", "invalid"],
)
def test_a_trace_shrinks_through_no_step_that_walks_leave_out(
    known: list[str], steps: list[Operation], expected: list[Operation], shell: Shell
) -> None:
    """Goal: as in campaigns. Method: what fails anywhere shrinks neither to a known trigger nor to an invalid call."""
    entry = {
        "requirement": "HC-CONF-01", "operation": "detach", "reason": "why", "profile": {}, "trace": [],
        "differs": [{"kind": "crash"}], "raised": "LookupError in apply", "trigger": "detach_of_nothing",
    }  # fmt: skip
    Path("stumbling.py").write_text(STUMBLING)
    Path("known.jsonl").write_text("".join(json.dumps(entry | {"id": name}) + "\n" for name in known))
    trace(Path("long.jsonl"), *(TraceStep(i=i, op=op) for i, op in enumerate(steps)))
    words = ["--adapter", "stumbling:Stumbling", "--known", "known.jsonl"]
    ran = shell("minimize", "long.jsonl", *words, "--out", "small.jsonl")

    assert 0 == ran.code
    assert expected == [step.op for step in read_trace("small.jsonl").steps]
    assert (steps == expected) == any("stays as it is" in line for line in ran.err)
