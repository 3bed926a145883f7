"""The process that writes the trace of a live cache, from the raw records that the cache's own process hands over.

It imports neither torch nor SGLang. It is a process of its own so that a server waits for none of this work; it has no
parent, so that whoever ends a server and all below it leaves it the time to write what was handed over.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import hicache_ref
from hicache_ref.adapters.sglang_teller.nodes import Shape
from hicache_ref.adapters.sglang_teller.ring import RING_BYTES, Writer, made_memory

LOST = "the trace is incomplete: the process that writes it has gone"
_SAID_BYTES = 1 << 12


class Job(NamedTuple):
    """What the process is told: file descriptors of the ring, the pipes and the trace, and what the cache is."""

    memory: int
    size: int
    rope: int
    answer: int
    trace: int
    path: str
    shape: Shape


class Teller:
    """The process that writes, from the server's side."""

    def __init__(self, trace: int, path: str, shape: Shape, size: int = RING_BYTES) -> None:
        """It writes to the open file `trace`, which is its own from now on. Raises OSError."""
        memory = made_memory(size)
        rope, end = os.pipe()
        self._answer, answer = os.pipe()
        job = Job(memory, size, rope, answer, trace, path, shape)
        path = os.pathsep.join(filter(None, (str(Path(hicache_ref.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        subprocess.run(
            [sys.executable, "-m", "hicache_ref.adapters.sglang_teller", json.dumps(job)],
            pass_fds=(memory, rope, answer, trace), env=os.environ | {"PYTHONPATH": path}, check=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.ring = Writer(memory, end, size)
        for each in (memory, rope, answer, trace):
            os.close(each)
        os.set_blocking(self._answer, False)
        self._said = b""
        self.is_finished = False
        """Whether it was waited for."""

    def said(self) -> str | None:
        """Why it writes no more, None while it does."""
        try:
            self._said += os.read(self._answer, _SAID_BYTES)
        except BlockingIOError:
            return None
        ended: str | None = json.loads(self._said or b"{}").get("ended", LOST)
        return ended

    def finished(self) -> dict[str, Any]:
        """The process has written everything handed over; what it says of itself."""
        self.is_finished = True
        os.set_blocking(self._answer, True)
        with os.fdopen(self._answer, "rb") as stream:
            said: dict[str, Any] = json.loads(self._said + stream.read() or b"{}")
        return said
