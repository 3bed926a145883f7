"""Traces: a header, then one step a line. Each is read back whole, or refused with file and line.

The format is written down in `spec/trace-format.md`. A step is on its way to the file before it runs, so that a
fault that kills the process still leaves the operation that did it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from json import JSONDecoder
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from hicache_ref.jsonlines import FileError, complaint, lines, opened
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.observation import OBSERVATION, Level, Observation
from hicache_ref.vocabulary.operations import OPERATION, Operation
from hicache_ref.vocabulary.outcomes import OUTCOME, Outcome
from hicache_ref.vocabulary.profile import Profile

FORMAT: Final = "hicache-ref-trace"
VERSION: Final = 1
RAISED_KEY: Final = "raised"
"""In the `meta` of a step without outcome: what the implementation raised instead of answering."""

_CHOICES: TypeAdapter[tuple[Choice, ...]] = TypeAdapter(tuple[Choice, ...])
_END_HEAD = re.compile(rb'\s*\{\s*"ended"\s*:')
_STEP_HEAD = re.compile(r'\s*\{\s*"i"\s*:\s*\d+\s*,\s*"op"\s*:\s*')


class TraceError(FileError):
    """A trace cannot be read or written; the text says where, what, and what was expected."""


class _Line(BaseModel):
    """A line of a trace: frozen, and open to keys that a later version may add."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Implementation(Frozen):
    """Who took the steps."""

    name: str
    version: str


class TraceHeader(_Line):
    """The first line: under which rules the steps were taken, by whom, and how much of them was seen."""

    format: Literal["hicache-ref-trace"] = FORMAT
    version: Literal[1] = VERSION
    requirements: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    """The hash of the requirements that were in force."""

    profile: Profile
    implementation: Implementation
    level: Level
    seed: int | None = None


class TraceStep(_Line):
    """One step: the operation, and, once it has ended, what came of it."""

    i: Annotated[int, Field(ge=0)]
    op: Operation
    choices: tuple[Choice, ...] = ()
    outcome: Outcome | None = None
    """None: the step did not end, as when the process was killed in it."""

    observed: Observation | None = None
    meta: dict[str, JsonValue] = {}
    """For display; never compared."""


class TraceEnd(_Line):
    """A last line that is no step: why whoever wrote the trace went no further."""

    ended: str


class _Label(_Line):
    """What tells a trace from other files; checked first, since all else may differ in another version."""

    format: Literal["hicache-ref-trace"]
    version: Literal[1]


_AnyLine = TypeVar("_AnyLine", bound=_Line)


@dataclass(frozen=True, slots=True)
class Trace:
    """A header and its steps, numbered from 0."""

    header: TraceHeader
    steps: tuple[TraceStep, ...]
    ended: str | None = None
    """Why its writer went no further, if it says so."""


def dumps(line: TraceHeader | TraceStep | TraceEnd) -> str:
    """`line` as compact JSON without a newline."""
    if isinstance(line, TraceHeader | TraceEnd):
        return line.model_dump_json(exclude_none=True)
    return (_head(line.i, line.op) + _tail(line.choices, line.outcome, line.observed, line.meta)).decode()


def loads(line: str | bytes) -> TraceStep:
    """The step that `line` spells. Raises ValueError saying what is wrong and what was expected."""
    return _parsed(TraceStep, line)


def loads_header(line: str | bytes) -> TraceHeader:
    """The header that `line` spells. Raises ValueError, also for another format or version of it."""
    _parsed(_Label, line)
    return _parsed(TraceHeader, line)


def read_trace(path: Path | str) -> Trace:
    """The trace in the file at `path`. Raises TraceError.

    A last line that a killed process cut off is a step without outcome, or none if its operation is not whole.
    """
    path = Path(path)
    with opened(path, TraceError) as stream:
        numbered = lines(path, stream, TraceError)
        number, first = next(numbered, (1, b""))
        if not first:
            raise TraceError(path, 1, f"empty file, expected the header of a {FORMAT}")
        try:
            header = loads_header(first)
        except ValueError as problem:
            raise TraceError(path, number, str(problem)) from None
        read = tuple(_after_header(path, numbered))
        steps = tuple(line for line in read if isinstance(line, TraceStep))
        ends = [line.ended for line in read if isinstance(line, TraceEnd)]
        return Trace(header, steps, ends[0] if ends else None)


def write_trace(path: Path | str, trace: Trace) -> None:
    """The file at `path` holds `trace`, or is as before. Raises TraceError where it cannot be written."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            stream.write(dumps(trace.header).encode() + b"\n")
            stream.writelines(dumps(step).encode() + b"\n" for step in trace.steps)
            if trace.ended is not None:
                stream.write(dumps(TraceEnd(ended=trace.ended)).encode() + b"\n")
        draft.replace(path)
    except OSError as problem:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise unwritable(path, None, problem) from None


class WriteAhead:
    """A trace in the making: each operation is with the operating system before it runs.

    Used as a context manager. It survives the death of the process, not of the machine: nothing is flushed to disk.
    """

    def __init__(self, path: Path | str, header: TraceHeader) -> None:
        self._path = Path(path)
        self._header = header
        self._file = -1
        self._line = 1
        self._bytes = 0
        self._open = False

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as problem:
            raise unwritable(self._path, None, problem) from None
        try:
            self._write(dumps(self._header).encode() + b"\n")
        except TraceError:
            os.close(self._file)
            raise
        return self

    def before(self, i: int, op: Operation) -> None:
        """Step `i` is written as begun. Raises TraceError where there is no room for it."""
        if self._open:
            raise ValueError("the step before has not ended, expected `after` first")
        self._line += 1
        self._write(_head(i, op))
        self._open = True

    def after(
        self,
        choices: tuple[Choice, ...] = (),
        outcome: Outcome | None = None,
        observed: Observation | None = None,
        meta: dict[str, JsonValue] | None = None,
    ) -> None:
        """The step that was begun is written as ended. Raises TraceError where there is no room for it."""
        if not self._open:
            raise ValueError("no step has begun, expected `before` first")
        self._open = False
        self._write(_tail(choices, outcome, observed, meta or {}) + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._open:
                self.after()
        except TraceError:
            if error is None:
                raise
        finally:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            append_whole(self._file, data, self._bytes)
        except OSError as problem:
            raise unwritable(self._path, self._line, problem) from None
        self._bytes += len(data)


def _head(i: int, op: Operation) -> bytes:
    return b'{"i":%d,"op":%b' % (i, OPERATION.dump_json(op, exclude_none=True))


def _tail(
    choices: tuple[Choice, ...], outcome: Outcome | None, observed: Observation | None, meta: dict[str, JsonValue]
) -> bytes:
    parts = []
    if choices:
        parts.append(b',"choices":' + _CHOICES.dump_json(choices, exclude_none=True))
    if outcome is not None:
        parts.append(b',"outcome":' + OUTCOME.dump_json(outcome, exclude_none=True))
    if observed is not None:
        parts.append(b',"observed":' + OBSERVATION.dump_json(observed, exclude_none=True))
    if meta:
        parts.append(b',"meta":' + to_json(meta))
    return b"".join(parts) + b"}"


def append_whole(file: int, data: bytes, at: int) -> None:
    """The file has `data` behind its first `at` bytes, where it ended. Raises OSError, and it ends there as before.

    Without what was half written, what remains is a valid trace.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, at)
            os.lseek(file, at, os.SEEK_SET)
        raise


def unwritable(path: Path, line: int | None, problem: OSError) -> TraceError:
    """What to raise where a trace cannot be written."""
    return TraceError(path, line, f"cannot be written ({problem.strerror}), expected a writable file and room in it")


def _parsed(model: type[_AnyLine], line: str | bytes) -> _AnyLine:
    try:
        return model.model_validate_json(line.rstrip(), strict=True)
    except ValidationError as problem:
        raise ValueError(complaint(problem)) from None


def _after_header(path: Path, numbered: Iterator[tuple[int, bytes]]) -> Iterator[TraceStep | TraceEnd]:
    for expected, (number, line) in enumerate(numbered):
        if not line.endswith(b"\n") and _is_cut_off(line):
            line = _begun(line)
            if not line:
                return
        try:
            if _END_HEAD.match(line):
                yield _parsed(TraceEnd, line)
                _expect_last(path, numbered)
                return
            step = loads(line)
        except ValueError as problem:
            raise TraceError(path, number, str(problem)) from None
        if step.i != expected:
            raise TraceError(path, number, f"step {step.i}, expected step {expected}")
        yield step


def _expect_last(path: Path, numbered: Iterator[tuple[int, bytes]]) -> None:
    for number, _ in numbered:
        raise TraceError(path, number, "a line after the last one, expected none after `ended`")


def _is_cut_off(line: bytes) -> bool:
    try:
        from_json(line)
    except ValueError as problem:
        return str(problem).startswith("EOF while parsing")
    return False


def _begun(line: bytes) -> bytes:
    """The step that a cut line began, closed after its operation; empty where the operation itself is cut."""
    text = line.decode(errors="replace")
    head = _STEP_HEAD.match(text)
    if head is None:
        return b""
    try:
        _, end = JSONDecoder().raw_decode(text, head.end())
    except ValueError:
        return b""
    return text[:end].encode() + b"}"
