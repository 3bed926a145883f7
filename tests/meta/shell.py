"""What the tests of the command line share: a shell in an empty folder, and traces to give it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.cli import main
from hicache_ref.requirements import catalogue_digest
from hicache_ref.trace import Implementation, Trace, TraceHeader, TraceStep, write_trace
from hicache_ref.vocabulary.operations import Audit
from hicache_ref.vocabulary.outcomes import Audited
from hicache_ref.vocabulary.profile import Profile

FAULT = "hit-counts-twice"
"""A fault that a few steps reveal."""


class Ran:
    """What a command did: exit code, standard output, lines of standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err.splitlines()

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


class Shell:
    """Runs commands in an empty folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys

    def __call__(self, *words: str) -> Ran:
        code = main(words)
        return Ran(code, *self.capsys.readouterr())

    @property
    def files(self) -> set[str]:
        """Everything in the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


def is_news(line: str) -> bool:
    """Whether a line of standard error tells what a command is at, or has just found, and complains of nothing."""
    return line.endswith(" ...") or " steps, " in line


def header(name: str = "reference", requirements: str | None = None) -> TraceHeader:
    """The header of a trace."""
    return TraceHeader(
        requirements=requirements or catalogue_digest(), profile=Profile(),
        implementation=Implementation(name=name, version="1"), level="tree",
    )  # fmt: skip


def trace(path: Path, *steps: TraceStep, name: str = "reference", requirements: str | None = None) -> str:
    """The file holds the steps."""
    write_trace(path, Trace(header(name, requirements), steps))
    return str(path)


GOOD = TraceStep(i=0, op=Audit(), outcome=Audited())
