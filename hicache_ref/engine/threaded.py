"""A device of the CPU: each stream is a thread, and an event a flag that the thread sets in its turn.

The semantics are those of `simulated`; the interleaving is the machine's own. Whoever waits for a thread raises what
its work has raised.
"""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from queue import SimpleQueue

from hicache_ref.engine.calls import Launch, Location, Query, Record, Synchronize, Wait
from hicache_ref.engine.device import Event, Move, Stream, Work
from hicache_ref.engine.hosts import Blocks, Hosts, IndexList, Watch
from hicache_ref.engine.plan import execute

PATIENCE_S = 30.0
"""Seconds after which a wait for a stream is given up."""


class ThreadedStream:
    """A thread that does what it is given, in order, until it is given None."""

    def __init__(self, device: "ThreadedDevice", name: str) -> None:
        self._device = device
        self.name = name
        self.failed: BaseException | None = None
        """What its work raised first."""

        self._work: SimpleQueue[Work | None] = SimpleQueue()
        # A daemon: work that hangs must not keep the interpreter from ending.
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, work: Work | None) -> None:
        """The work is done in its turn; with None the thread ends."""
        self._work.put(work)

    def wait(self, event: Event) -> None:
        """What is launched from now on comes after the event's last record."""
        assert isinstance(event, ThreadedEvent)
        if event.mark is not None:
            self.give(partial(_expect_set, event.mark, event.number))
        self._device.watch(Wait(self._device.host, self.name, event.number))

    def copy(self, name: str, moves: Sequence[Move], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The copy is done in the stream's turn."""
        self.launch(name, [lambda: _copy(moves)], reads, writes)

    def launch(self, name: str, work: Sequence[Work], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The work is done in the stream's turn."""
        for each in work:
            self.give(each)
        self._device.watch(Launch(self._device.host, self.name, name, tuple(reads), tuple(writes)))

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:
                # What comes later must not hang: whoever waits for it is told instead.
                self.failed = self.failed or error


def _copy(moves: Sequence[Move]) -> None:
    for plan, source, target in moves:
        execute(plan, source, target)


def _expect_set(mark: threading.Event, number: int) -> None:
    """The flag is set. Raises TimeoutError after `PATIENCE_S`."""
    if not mark.wait(PATIENCE_S):
        raise TimeoutError(f"event {number} is not done after {PATIENCE_S} s")


class ThreadedEvent:
    """An event; each record makes a new flag."""

    def __init__(self, device: "ThreadedDevice", number: int) -> None:
        self._device = device
        self._stream: ThreadedStream | None = None
        self.number = number
        self.mark: threading.Event | None = None

    def record(self, stream: Stream) -> None:
        """It stands for all that the stream has been given."""
        assert isinstance(stream, ThreadedStream)
        self._stream, self.mark = stream, threading.Event()
        stream.give(self.mark.set)
        self._device.watch(Record(self._device.host, self.number, stream.name))

    def query(self) -> bool:
        """Whether what it stands for is done; True if it never was recorded."""
        done = self.mark is None or self.mark.is_set()
        self._device.watch(Query(self._device.host, self.number, done))
        return done

    def synchronize(self) -> None:
        """What it stands for is done. Raises what its stream raised, and TimeoutError after `PATIENCE_S`."""
        if self.mark is not None:
            _expect_set(self.mark, self.number)
        if self._stream is not None and self._stream.failed is not None:
            raise self._stream.failed
        self._device.watch(Synchronize(self._device.host, self.number))


class ThreadedDevice(Hosts):
    """Streams that are threads, over memory of the host. `close` ends them."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._streams: list[ThreadedStream] = []
        self._events = 0
        self._blocks = Blocks()

    def stream(self, name: str) -> ThreadedStream:
        """A new thread."""
        self._streams.append(ThreadedStream(self, name))
        return self._streams[-1]

    def event(self) -> ThreadedEvent:
        """A new event, that was never recorded."""
        self._events += 1
        return ThreadedEvent(self, self._events)

    def indices(self, values: Iterable[int], stream: Stream) -> IndexList:
        """A list, in the block that became free last, or else in a new one."""
        made = IndexList(self._blocks, self.event)
        stream.launch("indices", [lambda: None], (), (made.location,))
        return made

    def close(self) -> None:
        """The threads end when they have done what they were given."""
        for stream in self._streams:
            stream.give(None)
        self._streams.clear()
