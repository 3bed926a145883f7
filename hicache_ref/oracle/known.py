"""Known divergences: findings that somebody has looked at, each with its reason and its own smallest trace.

An entry is one JSON object a line, with the fields of `Known`. A finding is known if requirement and operation are an
entry's, what differs is what the entry pins and, with what the entry gives of these, it was raised in the same place,
is worded alike, came in a step of the same kind and after the same trigger. An entry that gives none of these is told
by its smallest trace, which has to be the finding's up to the names of handles.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from hicache_ref.jsonlines import FileError, lines, opened
from hicache_ref.oracle.triggers import TRIGGERS
from hicache_ref.search.finding import Differs, Finding
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.operations import OPERATION, Operation
from hicache_ref.vocabulary.profile import RULES, Profile

PUBLISHED = "HC-EVENT-06"


class KnownError(FileError):
    """A file of known divergences cannot be read."""


class Known(Frozen):
    """One known divergence."""

    id: str
    requirement: str
    operation: str
    also_at: tuple[str, ...] = ()
    """Other operations at which it shows, where an earlier one hid nothing of it."""

    reason: str
    """Why it is as it is, and whose fault."""

    differs: tuple[Differs, ...] = ()
    """What may differ: kind, pool, direction, and which field or event. What differs otherwise is another finding."""

    raised: str | None = None
    """Where it is raised, if it is."""

    says: str | None = None
    """A regular expression that is found in the finding's text."""

    here: str | None = None
    """A fact of the model in the very step in which it shows."""

    trigger: str | None = None
    """A trigger by name, or a fact of the model, that a step of the smallest trace is. Walks leave triggers out."""

    goes_on: bool = False
    """Whether a walk goes on after it: only for what was published, on which nothing later depends."""

    events: bool | None = None
    """Whether it is met only where events are published, or only where none are; None: it is no matter."""

    preset: str | None = None
    """The preset of which `profile` gives only what differs, so that the entry follows it."""

    profile: Profile
    trace: tuple[Operation, ...]

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") not in RULES:
            return data
        profile = data.get("profile", {})
        rules = RULES[data["preset"]].model_dump() | profile.get("rules", {})
        return data | {"profile": profile | {"rules": rules}}

    @model_validator(mode="after")
    def _can_be_used(self) -> "Known":
        if self.goes_on and self.requirement != PUBLISHED:
            raise ValueError(f"goes_on is true for {self.requirement}, expected {PUBLISHED} alone")
        if self.preset is not None and self.preset not in RULES:
            raise ValueError(f"preset is {self.preset}, expected one of {', '.join(RULES)}")
        if not self.differs and not self.is_told_by_its_trace:
            raise ValueError("differs is empty, expected what differs, or none of raised, says, here and trigger")
        vague = {each.kind for each in self.differs} & {"crash", "own check"}
        if vague and self.raised is None and self.says is None and not self.is_told_by_its_trace:
            raise ValueError(f"differs is {min(vague)}, expected raised or says beside it, for that alone says little")
        if self.says is not None:
            try:
                re.compile(self.says)
            except re.error as problem:
                raise ValueError(f"says is no regular expression: {problem}") from None
        return self

    @property
    def is_told_by_its_trace(self) -> bool:
        """Whether nothing but its smallest trace tells it."""
        return (self.raised, self.says, self.here, self.trigger) == (None, None, None, None)

    @property
    def is_told_by_itself(self) -> bool:
        """Whether a finding is recognised without its smallest trace: by place, or by step or words and no trigger."""
        return self.raised is not None or ((self.says or self.here) is not None and self.trigger is None)

    def covers(self, finding: Finding, steps: Sequence[Operation], met: Collection[str]) -> bool:
        """Whether this is the finding, made by these steps, which met these triggers and facts."""
        if self.requirement != finding.requirement or finding.operation not in (self.operation, *self.also_at):
            return False
        if self.differs and finding.differs not in self.differs:
            return False
        if self.is_told_by_its_trace:
            return canonical(self.trace) == canonical(steps)
        return (
            self.raised in (None, finding.raised)
            and (self.says is None or re.search(self.says, finding.text) is not None)
            and (self.here is None or self.here in finding.facts)
            and (self.trigger is None or self.trigger in met)
        )


def watched(known: Sequence[Known]) -> list[str]:
    """The triggers that entries name; other names of theirs are facts of the model."""
    return sorted({each.trigger for each in known if each.trigger in TRIGGERS})


def canonical(steps: Sequence[Operation]) -> tuple[str, ...]:
    """The steps with requests, receipts and tokens numbered in order of appearance, as text."""
    names: dict[tuple[str, object], int] = {}

    def renamed(field: str, value: object) -> object:
        if field in ("rid", "receipt", "extra") and isinstance(value, str):
            return names.setdefault((field, value), len(names))
        if field == "tokens" and isinstance(value, list):
            return [names.setdefault((field, token), len(names)) for token in value]
        if isinstance(value, dict):
            return {name: renamed(name, inner) for name, inner in value.items()}
        return None if field == "ticket" else value

    return tuple(str(renamed("", OPERATION.dump_python(step, mode="json"))) for step in steps)


def read_known(path: Path) -> tuple[Known, ...]:
    """The entries of a file, one a line. Raises KnownError naming file and line."""
    found: list[Known] = []
    with opened(path, KnownError) as stream:
        for number, line in lines(path, stream, KnownError):
            if not line.strip():
                continue
            try:
                entry = Known.model_validate_json(line)
            except ValidationError as problem:
                first = problem.errors()[0]
                place = ".".join(map(str, first["loc"])) or "line"
                raise KnownError(path, number, f"{place}: {first['msg']}, expected a known divergence") from None
            if entry.id in {each.id for each in found}:
                raise KnownError(path, number, f"id is {entry.id} a second time, expected one of its own")
            found.append(entry)
    return tuple(found)
