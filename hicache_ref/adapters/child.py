"""A child process that is spoken to in lines: bytes in, lines out, each exchange before a deadline."""

import os
import re
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from hicache_ref.adapters.failures import ProcessDied, ProcessHung, ProcessSpokeNonsense

_READ_BYTES = 1 << 16
_STDERR_LINES = 40
_STDERR_LINE_BYTES = 1 << 12
_LINE_BYTES_MAX = 1 << 28
_ENDING_SECONDS = 1.0

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""Escape sequences, and all other control codes but tabs and ends of lines."""


class Child:
    """A running command, in a process group of its own so that Ctrl-C reaches only us and all of it can be ended.

    It never outlives this process: it sees its standard input end, and is killed if that does not move it.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> None:
        """Raises OSError where the command cannot be started. `env` adds to this process's environment."""
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            process_group=0,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._unread = b""
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._drain = threading.Thread(target=_keep_tail, args=(self.process.stderr, self._stderr), daemon=True)
        self._drain.start()
        self._finalizer = weakref.finalize(self, _end, self.process, self._drain)

    def exchange(self, request: bytes, replies: int, timeout: float) -> list[bytes]:
        """The next `replies` lines of its standard output, after `request` was written to its standard input.

        Reading and writing take turns, so that neither side can wait for the other with a full pipe. Raises
        ProcessDied, ProcessHung after `timeout` seconds, or ProcessSpokeNonsense for a line without end.
        """
        deadline = time.monotonic() + timeout
        unsent = memoryview(request)
        lines: list[bytes] = []
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        unsent = self._send(unsent)
        if unsent:
            poll.register(self._in, select.POLLOUT)
        while True:
            *whole, self._unread = self._unread.split(b"\n", replies - len(lines))
            lines += whole
            if len(lines) == replies:
                return lines
            if len(self._unread) > _LINE_BYTES_MAX:
                raise ProcessSpokeNonsense("the implementation sent a line without end", stderr=self.stderr())
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(left, 0) * 1000))
            if not ready:
                raise ProcessHung(f"the implementation did not answer within {timeout:g} s", stderr=self.stderr())
            if self._in in ready:
                unsent = self._send(unsent)
                if not unsent:
                    poll.unregister(self._in)
            if self._out in ready:
                self._unread += self._receive()

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._in, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self) -> bytes:
        chunk = os.read(self._out, _READ_BYTES)
        if not chunk:
            raise self._death()
        return chunk

    def _death(self) -> ProcessDied:
        """How it ended. Its standard output may close a moment before it does."""
        try:
            code: int | None = self.process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        self._drain.join(_ENDING_SECONDS)
        raw = self._unread.decode(errors="replace")
        return ProcessDied(f"the implementation's process {_ending(code)}", raw=raw, stderr=self.stderr())

    def stderr(self) -> tuple[str, ...]:
        """The last lines of its standard error."""
        return tuple(self._stderr)

    def end(self) -> None:
        """It has been asked to end, then made to."""
        self._finalizer()

    def kill(self) -> None:
        """It is gone at once."""
        _signal_group(self.process, signal.SIGKILL)
        self._finalizer()


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its standard output"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def _keep_tail(stream: IO[bytes], tail: deque[str]) -> None:
    """Reads until the end, so that a child that says much is never kept waiting."""
    with open(stream.fileno(), "rb", closefd=False) as lines, stream:
        while line := lines.readline(_STDERR_LINE_BYTES):
            tail.append(plain(line.decode(errors="replace").rstrip("\n")))


def plain(text: str) -> str:
    """The text without what would move a terminal's cursor or change its colours."""
    return _CONTROL.sub("", text)


def _end(process: subprocess.Popen[bytes], drain: threading.Thread) -> None:
    """Asked by the end of its input, then by SIGTERM, then not asked."""
    assert process.stdin and process.stdout
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(_ENDING_SECONDS)
            break
        except subprocess.TimeoutExpired:
            _signal_group(process, number)
    process.wait()
    process.stdout.close()
    drain.join(_ENDING_SECONDS)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The group has had the signal, unless its leader has been waited for: its number may be another's by then."""
    if process.poll() is None:
        os.killpg(process.pid, number)
