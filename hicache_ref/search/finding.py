"""Findings: what a stepper raises when a step broke a requirement, differed, or crashed."""

import os
import re
import sys
import traceback
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.operations import Operation

_PLACE_CHARACTERS = 120
_NAMED = re.compile(r"(?:(?:\[.*?\]|\S*\d\S*) ?)+")

Source = Literal["requirement", "difference", "crash", "oracle"]


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

    falls: tuple[str, ...] = ()
    """Requirements that are broken too because of it."""

    def same_as(self, other: "Finding | None") -> bool:
        """Whether `other` is the same finding, perhaps with other pages and keys."""
        return other is not None and self.identity == other.identity

    @property
    def identity(self) -> tuple[str, str, tuple[str, ...], str | None, str]:
        """What must stay when a trace is made smaller: requirement, operation, outcomes, place of a crash, words.

        Words are those of a difference up to the first colon, without keys and numbers: they say what differed.
        """
        words = _NAMED.sub("#", self.text.partition(":")[0]) if self.source == "difference" else ""
        return self.requirement, self.operation, self.outcomes, self.raised, words


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
    return Finding(requirement=requirement, text=text, operation=op.op, source=source, raised=place)


def line_raised(error: BaseException) -> str | None:
    """The file and line where the error was raised, the file from where modules are found; None if it never was."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    name, roots = frames[-1].filename, [os.path.join(root, "") for root in sys.path if root]
    root = max((root for root in roots if name.startswith(root)), key=len, default="")
    return f"{name.removeprefix(root)}:{frames[-1].lineno}"
