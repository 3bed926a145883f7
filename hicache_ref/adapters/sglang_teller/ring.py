"""Shared memory by which a server hands over raw records to the process that writes its trace. It never waits.

The memory is a ring of fixed size. The server puts bulky bytes into it where it meets them, and every so often all
small records since the last time, in one piece: a frame. Positions count bytes since the beginning and only grow. The
reader looks every few milliseconds, for to wake it would cost the server more than most calls; a pipe whose other end
closes tells it that there is no server any more. What was handed over outlives the server.
"""

import marshal
import os
import select
from array import array
from collections.abc import Iterator
from mmap import MAP_POPULATE, MAP_SHARED, mmap
from typing import Any

RING_BYTES = 1 << 26
FULL_BYTES = 1 << 20
"""Of a frame that is to be handed over, if not before."""

_HEAD_BYTES = 4096
_HEAD, _TAIL, _WHY_BYTES, _WHY = 0, 1, 2, 24
_FRAME_WORDS = 3
_FRAME_BYTES = 8 * _FRAME_WORDS
_MARSHAL = 2
"""The version of the format that does not look for what it has written already."""

_WORD = 8
_LOOKS_MS = (1, 20)
"""Between looks at an empty ring there are so many milliseconds: at first, and when nothing has come for long."""

CLOSED = "closed"
"""What the writer says at a proper end."""

Span = tuple[int, int]
"""Where bytes are in the ring, and how many."""

Sent = bytes | Span
"""Bytes, or where they are."""


class Behind(Exception):
    """What is to be handed over has no room, for the reader is too slow or gone; the text says so."""


def _start(position: int, count: int, size: int) -> int:
    """Where `count` bytes stand that come at `position`: they are in one piece."""
    at = position % size
    return position if at + count <= size else position + size - at


def made_memory(size: int) -> int:
    """The file descriptor of new memory for a ring of `size` bytes. Raises OSError."""
    memory = os.memfd_create("hicache-ref-record")
    os.ftruncate(memory, _HEAD_BYTES + size)
    return memory


class _Ring:
    def __init__(self, memory: int, size: int) -> None:
        self._map = mmap(memory, _HEAD_BYTES + size, MAP_SHARED | MAP_POPULATE)
        self._size = size
        self._words = memoryview(self._map)[:_HEAD_BYTES].cast("Q")
        self._bytes = memoryview(self._map)[_HEAD_BYTES:]


class Writer(_Ring):
    """The server's end. `memory` is that of the ring, `rope` the end of a pipe that is open for as long as this is."""

    def __init__(self, memory: int, rope: int, size: int = RING_BYTES) -> None:
        super().__init__(memory, size)
        self._rope = rope
        self._tail = 0
        self._begin_frame(0)
        self.is_full = False
        """Whether it is time to hand over what is there."""

        self.records: list[Any] = []
        """What is not handed over yet, one record behind the other: its kind, and what belongs to it."""

    def _begin_frame(self, position: int) -> None:
        self._frame = _start(position, _FRAME_BYTES, self._size)
        self._next = self._frame + _FRAME_BYTES

    def put(self, data: bytes | bytearray) -> Span:
        """The bytes are in the ring. Raises Behind."""
        count = len(data)
        at = self.room(count)
        self._bytes[at : at + count] = data
        return at, count

    def place(self, span: Span) -> memoryview:
        """The bytes of the ring there, to be written to."""
        at, count = span
        return self._bytes[at : at + count]

    def room(self, count: int) -> int:
        """Where in the ring there are `count` bytes, which are taken; they begin at a word. Raises Behind."""
        start = _start(self._next + -self._next % _WORD, count, self._size)
        end = start + count
        if end - self._tail > self._size:
            self._tail = self._words[_TAIL]
            if end - self._tail > self._size:
                raise Behind("the trace is incomplete: it was not written as fast as calls came")
        self._next = end
        if end - self._frame > FULL_BYTES:
            self.is_full = True
        return start % self._size

    def flush(self) -> None:
        """All records are the reader's, whatever becomes of this process. Raises Behind."""
        at, count = self.put(marshal.dumps(self.records, _MARSHAL))
        self.records.clear()
        self.is_full = False
        start = self._frame % self._size
        caught_up = self._words[_TAIL] == self._frame
        # What was written a moment ago is at hand: a ring that is not needed whole is not used whole.
        again = caught_up and start > self._size // 4
        self._begin_frame(self._next + -self._next % (self._size if again else _WORD))
        self._bytes[start : start + _FRAME_BYTES].cast("Q")[:] = memoryview(array("Q", (at, count, self._frame)))
        self.room(0)
        self._words[_HEAD] = self._frame

    def is_behind(self) -> bool:
        """Whether the reader has not come to the end of what was handed over."""
        return self._words[_TAIL] != self._words[_HEAD]

    def taken(self) -> int:
        """Up to where the reader has come."""
        return self._words[_TAIL]

    def end(self, why: str) -> None:
        """The reader knows that this is the end, and why. What was not handed over is not."""
        text = why.encode(errors="replace")[: _HEAD_BYTES - _WHY]
        self._map[_WHY : _WHY + len(text)] = text
        self._words[_WHY_BYTES] = len(text)
        os.close(self._rope)


class Reader(_Ring):
    """The other end. `rope` is the other end of the writer's pipe."""

    def __init__(self, memory: int, rope: int, size: int) -> None:
        super().__init__(memory, size)
        self._waits = select.poll()
        self._waits.register(rope, select.POLLIN)
        self._at = 0

    def frames(self) -> Iterator[list[Any]]:
        """Each list of records that was handed over; it ends when the writer has. Spans are good until the next one."""
        shortest, longest = _LOOKS_MS
        open_, pause = True, shortest
        while True:
            head = self._words[_HEAD]
            if self._at < head:
                pause = shortest
            while self._at < head:
                yield self._frame()
                self._words[_TAIL] = self._at
            if not open_ and self._at >= self._words[_HEAD]:
                return
            # The writer says nothing through the pipe: what can be read there is its end.
            open_ = open_ and not self._waits.poll(pause)
            pause = min(2 * pause, longest)

    def _frame(self) -> list[Any]:
        start = self._at % self._size
        at, count, self._at = self._bytes[start : start + _FRAME_BYTES].cast("Q")
        records: list[Any] = marshal.loads(self.bytes((at, count)))
        return records

    def bytes(self, span: Span) -> memoryview:
        """What stands there."""
        at, count = span
        return self._bytes[at : at + count]

    def why(self) -> str | None:
        """What the writer said at its end, None where it said nothing."""
        count = self._words[_WHY_BYTES]
        return self._map[_WHY : _WHY + count].decode(errors="replace") if count else None
