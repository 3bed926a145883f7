"""JSON lines as files: lines of bounded length go out, and every complaint names file, line and what was expected."""

import zlib
from collections.abc import Iterator
from gzip import GzipFile
from io import BufferedIOBase, BufferedReader
from itertools import count
from lzma import LZMAError, LZMAFile
from pathlib import Path
from reprlib import Repr

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

LINE_BYTES_MAX = 8 * 2**20
"""A longer line is no line of ours: reading stops before it fills the memory."""

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}

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


def lines(path: Path, stream: BufferedReader, error: type[FileError]) -> Iterator[tuple[int, bytes]]:
    """Each line of `stream` has been given with its number from 1 and its newline, if it has one.

    A stream compressed by gzip or xz is unpacked, whatever the name of its file. Raises `error` where the stream
    breaks off, begins with a byte order mark, holds a NUL byte or a number that JSON does not have, or has a line above
    `LINE_BYTES_MAX` bytes.
    """
    unpacked: BufferedIOBase | None = None
    for number in count(1):
        try:
            unpacked = unpacked or _unpacked(stream)
            line = unpacked.readline(LINE_BYTES_MAX + 1)
        except (OSError, EOFError, LZMAError, zlib.error) as problem:
            raise error(path, number, f"cannot be read ({problem}), expected a whole file") from None
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            raise error(path, number, f"line of more than {LINE_BYTES_MAX} bytes, expected no more")
        for mark, encoding in _BYTE_ORDER_MARKS.items():
            if number == 1 and line.startswith(mark):
                raise error(path, 1, f"a byte order mark of {encoding}, expected JSON lines in UTF-8 without one")
        if b"\0" in line:
            raise error(path, number, f"binary data (NUL at byte {line.index(0)}), expected JSON lines in UTF-8")
        if _has_no_number(line):
            raise error(path, number, "a number NaN or Infinity, which JSON does not have, expected an integer")
        yield number, line


def _unpacked(stream: BufferedReader) -> BufferedIOBase:
    """The bytes in the stream, which its first bytes may call compressed."""
    head = stream.peek(6)
    if head.startswith(b"\x1f\x8b"):
        return GzipFile(fileobj=stream)
    return LZMAFile(stream) if head.startswith(b"\xfd7zXZ\0") else stream


def _has_no_number(line: bytes) -> bool:
    """Whether the line is JSON but for NaN or Infinity outside of strings."""
    if b"NaN" not in line and b"Infinity" not in line:
        return False
    try:
        from_json(line)
    except ValueError:
        return False
    try:
        from_json(line, allow_inf_nan=False)
    except ValueError:
        return True
    return False


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
