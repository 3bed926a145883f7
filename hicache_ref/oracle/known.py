"""Known divergences: findings that somebody has looked at, each with its reason and its own smallest trace.

An entry is one JSON object a line. A finding is known if requirement and operation are an entry's and its smallest
trace, up to the names of handles, is the entry's; or, where an entry says so, if it was raised in the same place.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from hicache_ref.jsonlines import FileError, lines, opened
from hicache_ref.search.finding import Finding
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.operations import OPERATION, Operation
from hicache_ref.vocabulary.profile import Profile


class KnownError(FileError):
    """A file of known divergences cannot be read."""


class Known(Frozen):
    """One known divergence."""

    id: str
    requirement: str
    operation: str
    reason: str
    """Why it is as it is, and whose fault."""

    raised: str | None = None
    """If given, any trace that raises here is this divergence."""

    profile: Profile
    trace: tuple[Operation, ...]

    def covers(self, finding: Finding, steps: Sequence[Operation]) -> bool:
        """Whether this is the finding."""
        if (self.requirement, self.operation) != (finding.requirement, finding.operation):
            return False
        if self.raised is not None:
            return self.raised == finding.raised
        return canonical(self.trace) == canonical(steps)


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
    found = []
    with opened(path, KnownError) as stream:
        for number, line in lines(path, stream, KnownError):
            if not line.strip():
                continue
            try:
                found.append(Known.model_validate_json(line))
            except ValidationError as problem:
                first = problem.errors()[0]
                place = ".".join(map(str, first["loc"])) or "line"
                raise KnownError(path, number, f"{place}: {first['msg']}, expected a known divergence") from None
    return tuple(found)
