"""What the devices of this package have in common: who calls, who is told of it, and memory for index lists."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hicache_ref.engine.calls import Call, HostAccess, Location, Put, Take, Thread
from hicache_ref.engine.device import INDICES, Event, Stream

POISON = 0xA5
"""What fills memory that was not written: no page holds it by right."""

Watch = Callable[[Call], None]


class Hosts:
    """The host threads of a device; `watch` is called with each call, after it was made."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.host: Thread = "scheduler"
        """The host thread that calls now."""

        self._messages = 0

    @contextmanager
    def on(self, host: Thread) -> Iterator[None]:
        """Within, another host thread calls."""
        before, self.host = self.host, host
        try:
            yield
        finally:
            self.host = before

    def touch(self, name: str, reads: tuple[Location, ...] = (), writes: tuple[Location, ...] = ()) -> None:
        """The host thread touches memory itself."""
        self.watch(HostAccess(self.host, name, reads, writes))

    def put(self) -> int:
        """A message is handed over."""
        self._messages += 1
        self.watch(Put(self.host, self._messages))
        return self._messages

    def take(self, message: int) -> None:
        """The host thread has the message."""
        self.watch(Take(self.host, message))

    def allocate(self, size: int, *, pinned: bool = False) -> memoryview:
        """So many bytes of poison; all memory is the host's."""
        return memoryview(bytearray([POISON]) * size)


class Blocks:
    """Memory for index lists, as a caching allocator hands it out: what was dropped last is given away first."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []
        self._given_back: list[tuple[int, list[Event]]] = []

    def take(self) -> int:
        """A block that nobody uses."""
        for block, events in self._given_back[:]:
            if all(event.query() for event in events):
                self._given_back.remove((block, events))
                self._free.append(block)
        if not self._free:
            self._count += 1
            self._free.append(self._count)
        return self._free.pop()

    def give_back(self, block: int, events: list[Event]) -> None:
        """The block is free once what the events stand for is done."""
        if events:
            self._given_back.append((block, events))
        else:
            self._free.append(block)


class IndexList:
    """An index list in a block of memory that the next list may get."""

    def __init__(self, blocks: Blocks, event: Callable[[], Event]) -> None:
        self._blocks = blocks
        self._event = event
        self._users: list[Stream] = []
        self.location = Location(INDICES, blocks.take())

    def record_stream(self, stream: Stream) -> None:
        """Once dropped, its block stays until the stream has done what it has been given then."""
        self._users.append(stream)

    def drop(self) -> None:
        """Its block is free once the streams that use it are so far; the stream that wrote it needs no such wait."""
        events = [self._event() for _ in self._users]
        for event, stream in zip(events, self._users, strict=True):
            event.record(stream)
        self._blocks.give_back(self.location.page, events)
