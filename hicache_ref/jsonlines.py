"""JSON lines as files: lines of bounded length go out, and every complaint names file, line and what was expected."""

import zlib
from collections.abc import Iterator
from io import BufferedIOBase, BufferedReader
from itertools import count
from lzma import LZMAError
from pathlib import Path
from reprlib import Repr

from pydantic import ValidationError
from pydantic_core import ErrorDetails

LINE_BYTES_MAX = 8 * 2**20
"""A longer line is no line of ours: reading stops before it fills the memory."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 40


class FileError(Exception):
    """A file is not what was expected; its text is `FILE:LINE: what, and what was expected`.

    `line` counts from 1 and is None where the whole file is meant, as when it cannot be opened.
    """

    def __init__(self, path: Path | str, line: int | None, text: str) -> None:
        super().__init__(path, line, text)
        self.path = Path(path)
        self.line = line
        self.text = text

    def __str__(self) -> str:
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.text}"


def lines(path: Path, stream: BufferedIOBase, error: type[FileError]) -> Iterator[tuple[int, bytes]]:
    """Each line of `stream` has been given with its number from 1 and its newline, if it has one.

    Raises `error` where the stream breaks off, holds a NUL byte, or has a line above `LINE_BYTES_MAX` bytes.
    """
    for number in count(1):
        try:
            line = stream.readline(LINE_BYTES_MAX + 1)
        except (OSError, EOFError, LZMAError, zlib.error) as problem:
            raise error(path, number, f"cannot be read ({problem}), expected a whole file") from None
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise error(path, number, f"line of more than {LINE_BYTES_MAX} bytes, expected no more")
        if b"\0" in line:
            raise error(path, number, f"binary data (NUL at byte {line.index(0)}), expected JSON lines in UTF-8")
        yield number, line


def opened(path: Path, error: type[FileError]) -> BufferedReader:
    """The file is open for reading; raises `error` where the system says no."""
    try:
        return path.open("rb")
    except OSError as problem:
        raise error(path, None, f"cannot be read ({problem.strerror}), expected a readable file") from None


def complaint(problem: ValidationError) -> str:
    """What the first thing wrong with a line is, and what was expected there."""
    first = problem.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "json_invalid":
            return _not_json(first)
        case "union_tag_invalid":
            return f"unknown {where} {first['ctx']['tag']!r}, expected one of {first['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return f"{where} without {first['ctx']['discriminator']}, expected one that says what it is"
        case "missing":
            return f"{where} is missing, expected a value"
        case "extra_forbidden":
            return f"unknown key {where}, expected only known ones"
        case "value_error":
            return f"{where or 'line'} does not fit together ({first['ctx']['error']}), expected values that do"
    given, wanted = _SHORT.repr(first["input"]), first["msg"].removeprefix("Input should be ")
    return f"{where or 'line'} is {given}, expected {wanted}"


def _not_json(first: ErrorDetails) -> str:
    given, reason = first["input"], first["ctx"]["error"]
    try:
        given.decode() if isinstance(given, bytes) else given.encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as problem:
        return f"binary data (byte {problem.start}), expected JSON lines in UTF-8"
    reason = reason.replace("at line 1 column", "at byte")
    return f"not JSON ({reason}), expected one JSON object a line"
