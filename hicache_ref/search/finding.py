"""Findings: what a stepper raises when a step broke a requirement, differed, or crashed."""

import os
import re
import sys
import traceback
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.ids import PoolName
from hicache_ref.vocabulary.operations import Operation

_PLACE_CHARACTERS = 120

Source = Literal["requirement", "difference", "crash", "oracle"]

Kind = Literal[
    "answer", "field", "residency", "victim", "ends", "dead end", "lock", "count", "holders", "structure", "exchange",
    "stop", "event", "content", "own check", "crash",
]  # fmt: skip
Direction = Literal["missing", "not expected", "instead"]


class Differs(Frozen):
    """What differs, without keys and numbers: said where the difference is found, never read out of a text."""

    kind: Kind
    pool: PoolName | None = None
    direction: Direction | None = None
    """Something is missing, or there though not expected, or there in the place of something else."""

    what: str | None = None
    """Which field, count, event or kind of answer."""


def direction_of(more: object, less: object) -> Direction:
    """Whether there is more than expected, less, or something else."""
    if more and less:
        return "instead"
    return "not expected" if more else "missing"


class Recorded(NamedTuple):
    """One step of a run and the choices that were made in it."""

    op: Operation
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What broke, at which kind of operation, and how.

    `source` says whether a requirement failed on the model under test, an implementation differed from the model,
    it raised or died, or the healthy model broke its own rule (a fault of ours).
    """

    requirement: str
    text: str
    operation: str
    source: Source
    outcomes: tuple[str, ...] = ()
    """Kinds of the outcomes that were compared."""

    raised: str | None = None
    """Where a crash happened: exception type and innermost function."""

    differs: Differs | None = None
    """What differs; None where a requirement failed on the model itself."""

    facts: tuple[str, ...] = ()
    """Facts of the model in the step itself; none where the implementation crashed in it."""

    falls: tuple[str, ...] = ()
    """Requirements that are broken too because of it."""

    def same_as(self, other: "Finding | None") -> bool:
        """Whether `other` is the same finding, perhaps with other pages and keys."""
        return other is not None and self.identity == other.identity

    @property
    def identity(self) -> tuple[str, str, tuple[str, ...], str | None, Differs | None]:
        """What stays when a trace is made smaller: requirement, operation, outcomes, place of a crash, difference."""
        return self.requirement, self.operation, self.outcomes, self.raised, self.differs


class Found(Exception):
    """Carries a finding out of a step."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.requirement} at {finding.operation}: {finding.text}")
        self.finding = finding


def crash(error: BaseException, op: Operation, requirement: str, source: Source = "crash") -> Finding:
    """The finding for an exception that a step raised.

    One that carries `raw`, what another process said, was raised there: its words say the place, without numbers;
    its `line` says the line, which is told and is no part of the place.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if hasattr(error, "raw"):
        text = str(error)
        place = re.sub(r"\[.*?\]|\d+", "#", text.splitlines()[0])[:_PLACE_CHARACTERS]
        line = getattr(error, "line", None)
    else:
        text = f"{type(error).__name__}: {error}"
        place = f"{type(error).__name__} in {frames[-1].name}" if frames else type(error).__name__
        line = line_raised(error)
    text += f" ({line})" if line else ""
    return Finding(
        requirement=requirement, text=text, operation=op.op, source=source, raised=place, differs=Differs(kind="crash")
    )


def line_raised(error: BaseException) -> str | None:
    """The file and line where the error was raised, the file from where modules are found; None if it never was."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    name, roots = frames[-1].filename, [os.path.join(root, "") for root in sys.path if root]
    root = max((root for root in roots if name.startswith(root)), key=len, default="")
    return f"{name.removeprefix(root)}:{frames[-1].lineno}"
