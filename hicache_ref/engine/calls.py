"""What is called on a device, as records: streams, events, launches, host accesses, and messages between host threads.

A run on the simulated device and a run on a real one give the same records, and one checker reads both
(`happens_before`). Semantics are CUDA's.
"""

from typing import NamedTuple

from hicache_ref.vocabulary.ids import Page

Thread = str
"""A host thread or a stream, by name; the work of each is in order."""


class Location(NamedTuple):
    """What copies and passes touch at once: one layer of one page. Index lists are pages of a pool of their own."""

    pool: str
    page: Page
    layer: int = 0

    def __str__(self) -> str:
        return f"{self.pool}:{self.page} layer {self.layer}"


class Launch(NamedTuple):
    """The host thread puts work on the stream."""

    host: Thread
    stream: Thread
    name: str
    """The id of the effect that it carries out, and more where that takes several launches."""

    reads: tuple[Location, ...] = ()
    writes: tuple[Location, ...] = ()


class HostAccess(NamedTuple):
    """The host thread touches memory itself."""

    host: Thread
    name: str
    reads: tuple[Location, ...] = ()
    writes: tuple[Location, ...] = ()


class Record(NamedTuple):
    """The event stands for all work of the stream so far, and no more for what it stood for."""

    host: Thread
    event: int
    stream: Thread


class Wait(NamedTuple):
    """Later work of the stream comes after what the event stands for at this call; nothing if it was never recorded."""

    host: Thread
    stream: Thread
    event: int


class Query(NamedTuple):
    """The host asked whether what the event stands for is done; an event that was never recorded is."""

    host: Thread
    event: int
    done: bool


class Synchronize(NamedTuple):
    """The host waited until what the event stands for was done."""

    host: Thread
    event: int


class StreamSynchronize(NamedTuple):
    """The host waited until all work of the stream was done."""

    host: Thread
    stream: Thread


class Put(NamedTuple):
    """The host thread hands a message over: what it did before comes before what the taker does next."""

    host: Thread
    message: int


class Take(NamedTuple):
    """The host thread has taken the message."""

    host: Thread
    message: int


Call = Launch | HostAccess | Record | Wait | Query | Synchronize | StreamSynchronize | Put | Take
