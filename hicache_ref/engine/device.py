"""What the engine asks of a device: streams, events, copies, and lists of indices. Nothing else talks to one.

The semantics are CUDA's. A stream does its work in order, two streams in any order; an event stands for what a stream
had been given at the last record; what the host does comes before what it launches next.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from hicache_ref.engine.calls import Location
from hicache_ref.engine.plan import CopyPlan

Buffers = Sequence[memoryview]
"""The allocations of one pool, numbered as `layout.allocations` numbers them."""

INDICES = "indices"
"""The pool of all index lists."""


class Move(NamedTuple):
    """A plan, and the allocations that it is for."""

    plan: CopyPlan
    source: Buffers
    target: Buffers


Work = Callable[[], None]
"""What a stream does in its turn."""


class Stream(Protocol):
    """Work in order."""

    @property
    def name(self) -> str:
        """What it is called in records; no other stream has that name."""
        ...

    def wait(self, event: "Event") -> None:
        """What is launched from now on comes after what the event stands for now; nothing, if it never was recorded."""
        ...

    def copy(self, name: str, moves: Sequence[Move], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The bytes are moved in the stream's turn. Never waits for that. `name` begins with the ids of effects."""
        ...

    def launch(self, name: str, work: Sequence[Work], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The work is done in the stream's turn, in any number of pieces. Never waits for that."""
        ...


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Stream) -> None:
        """It stands for all that the stream has been given."""
        ...

    def query(self) -> bool:
        """Whether what it stands for is done; True if it never was recorded."""
        ...

    def synchronize(self) -> None:
        """What it stands for is done."""
        ...


class Indices(Protocol):
    """A list of indices in device memory. Its memory may be given to another list as soon as it is dropped."""

    @property
    def location(self) -> Location:
        """What a launch reads that uses it."""
        ...

    def record_stream(self, stream: Stream) -> None:
        """Once dropped, its memory stays until the stream has done what it has been given then."""
        ...

    def drop(self) -> None:
        """It is not used in further launches."""
        ...


class Device(Protocol):
    """A device, as the thread that calls sees it."""

    def stream(self, name: str) -> Stream:
        """A new stream."""
        ...

    def event(self) -> Event:
        """A new event, that was never recorded."""
        ...

    def indices(self, values: Iterable[int], stream: Stream) -> Indices:
        """A list with these values, written by the stream and in its order."""
        ...

    def allocate(self, size: int, *, pinned: bool = False) -> memoryview:
        """So many bytes, that no page holds by right; on host if `pinned`."""
        ...
