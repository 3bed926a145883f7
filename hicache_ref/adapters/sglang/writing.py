"""Lines of a trace on their way to a file: whole ones, many at a time."""

import os
from pathlib import Path

from hicache_ref.trace import TraceHeader, append_whole, dumps, unwritable

LINES_HELD = 512
BYTES_HELD = 1 << 20


class TraceWriter:
    """The file at `path` begins with the header. What is added reaches it whole lines at a time, in order.

    Held back are at most so many lines and bytes. Raises TraceError where the file cannot be written.
    """

    def __init__(self, path: Path | str, header: TraceHeader) -> None:
        self._path = Path(path)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._written = 0
        self.steps = 0
        """Steps added so far: the number of the next one."""

        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as problem:
            raise unwritable(self._path, None, problem) from None
        self._hold(dumps(header).encode() + b"\n")
        self.flush()

    def step(self, op: bytes, rest: bytes) -> None:
        """The next step is added; `rest` is what stands after the operation, from its comma to the closing brace."""
        self._hold(b'{"i":%d,"op":%b%b\n' % (self.steps, op, rest))
        self.steps += 1

    def end(self, why: bytes) -> None:
        """The line that says why the recording ends here is in the file, and the file is closed."""
        self._hold(b'{"ended":%b}\n' % why)
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
        if self._file < 0:
            return
        try:
            self.flush()
        finally:
            os.close(self._file)
            self._file = -1

    def _hold(self, line: bytes) -> None:
        self._held.append(line)
        self._held_bytes += len(line)
        if len(self._held) >= LINES_HELD or self._held_bytes >= BYTES_HELD:
            self.flush()
