"""Lines of a trace on their way to a file: whole ones, many at a time."""

import os
from pathlib import Path

from pydantic_core import to_json

from hicache_ref.adapters.sglang_teller.nodes import CannotSay
from hicache_ref.jsonlines import LINE_BYTES_MAX
from hicache_ref.trace import TraceHeader, append_whole, dumps, unwritable

BYTES_HELD = 1 << 20


def begun(path: Path | str, header: TraceHeader) -> int:
    """The file at `path`, open and empty but for the header. Raises TraceError where it cannot be written."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        append_whole(file, dumps(header).encode() + b"\n", 0)
    except OSError as problem:
        raise unwritable(Path(path), None, problem) from None
    return file


class TraceWriter:
    """What is added to the open file reaches it whole lines at a time, in order; so many bytes at most are held back.

    `path` is its name in messages.
    """

    def __init__(self, file: int, path: str) -> None:
        self._path = Path(path)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._file = file
        self._written = os.lseek(file, 0, os.SEEK_END)
        self.steps = 0
        """Steps added so far: the number of the next one."""

    def step(self, op: bytes, rest: bytes) -> None:
        """The next step is added; `rest` is what stands after the operation, from its comma to the closing brace.

        Raises CannotSay where its line would be longer than a reader takes.
        """
        line = b'{"i":%d,"op":%b%b\n' % (self.steps, op, rest)
        if len(line) > LINE_BYTES_MAX:
            raise CannotSay(f"a step whose line has {len(line)} bytes, expected no more than {LINE_BYTES_MAX}")
        self._hold(line)
        self.steps += 1

    def end(self, why: str) -> None:
        """The line that says why the recording ends here is in the file, and the file is closed."""
        self._hold(b'{"ended":%b}\n' % to_json(why))
        self.close()

    def flush(self) -> None:
        """Everything added is with the operating system. Raises TraceError."""
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        try:
            append_whole(self._file, data, self._written)
        except OSError as problem:
            raise unwritable(self._path, None, problem) from None
        self._written += len(data)

    def close(self) -> None:
        """Everything added is in the file, and nothing more can be added. Raises TraceError."""
        try:
            self.flush()
        finally:
            os.close(self._file)

    def _hold(self, line: bytes) -> None:
        self._held.append(line)
        self._held_bytes += len(line)
        if self._held_bytes >= BYTES_HELD:
            self.flush()
