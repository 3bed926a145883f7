"""A simulated device: what its streams do when is drawn, copies are torn, memory is poisoned, and every call is told.

Between two calls of the host the device does some of its work, and only what CUDA orders is in order. So bytes go wrong
here where they may on a device, and `watch` sees the calls from which `happens_before` finds what did not go wrong.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hicache_ref.engine.calls import (
    Call,
    Launch,
    Location,
    Query,
    Record,
    Synchronize,
    Wait,
)
from hicache_ref.engine.device import Event, Move, Stream, Work
from hicache_ref.engine.hosts import Blocks, Hosts, IndexList, Watch
from hicache_ref.engine.plan import execute

BREATHS = (0, 0, 1, 3, 10, 30)
"""Steps that the device may do between two calls of the host: it lags behind, or is done with everything."""

Draw = Callable[[int], int]
"""A number from 0 to less than the one given."""


def _nothing() -> None:
    """What writes an index: of index lists only the order is simulated."""


class Deadlock(AssertionError):
    """The host waits for work that no stream can do."""


@dataclass(eq=False)
class _Mark:
    """One record of an event, in the queue of its stream."""

    done: bool = False


class SimulatedStream:
    """A queue of steps, marks to set, and marks to wait for."""

    def __init__(self, device: "SimulatedDevice", name: str) -> None:
        self._device = device
        self.name = name
        self.queue: deque[Work | tuple[str, _Mark]] = deque()

    def wait(self, event: Event) -> None:
        """What is launched from now on comes after the event's last record."""
        assert isinstance(event, SimulatedEvent)
        if event.mark is not None:
            self.queue.append(("wait", event.mark))
        self._device.call(Wait(self._device.host, self.name, event.number))

    def copy(self, name: str, moves: Sequence[Move], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The copy is in the queue, a step for each page of each plane."""
        self.launch(name, list(_torn(moves)), reads, writes)

    def launch(self, name: str, work: Sequence[Work], reads: Sequence[Location], writes: Sequence[Location]) -> None:
        """The work is in the queue; that of other streams may come between any two pieces."""
        self.queue.extend(work)
        self._device.call(Launch(self._device.host, self.name, name, tuple(reads), tuple(writes)))

    @property
    def can_go_on(self) -> bool:
        """Whether its next step can be done."""
        if not self.queue:
            return False
        first = self.queue[0]
        return not isinstance(first, tuple) or first[0] == "set" or first[1].done

    def go_on(self) -> None:
        """The next step is done."""
        first = self.queue.popleft()
        if isinstance(first, tuple):
            first[1].done = True
        else:
            first()


def _torn(moves: Sequence[Move]) -> Iterator[Work]:
    """A step for each page of each plane: on a device a page may be there while the next one is not."""
    for plan, source, target in moves:
        for plane in plan.planes:
            for pair in plan.pages:
                yield partial(execute, replace(plan, planes=(plane,), pages=(pair,)), source, target)


class SimulatedEvent:
    """An event; each record makes a new mark."""

    def __init__(self, device: "SimulatedDevice", number: int) -> None:
        self._device = device
        self.number = number
        self.mark: _Mark | None = None

    def record(self, stream: Stream) -> None:
        """It stands for all that the stream has been given."""
        assert isinstance(stream, SimulatedStream)
        self.mark = _Mark()
        stream.queue.append(("set", self.mark))
        self._device.call(Record(self._device.host, self.number, stream.name))

    def query(self) -> bool:
        """Whether what it stands for is done; True if it never was recorded."""
        self._device.breathe()
        done = self.mark is None or self.mark.done
        self._device.watch(Query(self._device.host, self.number, done))
        return done

    def synchronize(self) -> None:
        """What it stands for is done."""
        mark = self.mark
        if mark is not None:
            self._device.run_until(lambda: mark.done)
        self._device.watch(Synchronize(self._device.host, self.number))


class SimulatedDevice(Hosts):
    """Streams whose steps are drawn by `draw`; `watch` is called with each call, after it was made."""

    def __init__(self, draw: Draw, watch: Watch) -> None:
        super().__init__(watch)
        self._draw = draw
        self._streams: list[SimulatedStream] = []
        self._events = 0
        self._blocks = Blocks()

    # -- what the engine calls ----------------------------------------------------------------------------------------

    def stream(self, name: str) -> SimulatedStream:
        """A new stream."""
        self._streams.append(SimulatedStream(self, name))
        return self._streams[-1]

    def event(self) -> SimulatedEvent:
        """A new event, that was never recorded."""
        self._events += 1
        return SimulatedEvent(self, self._events)

    def indices(self, values: Iterable[int], stream: Stream) -> IndexList:
        """A list, in the block that became free last, or else in a new one."""
        made = IndexList(self._blocks, self.event)
        stream.launch("indices", [_nothing for _ in values], (), (made.location,))
        return made

    def close(self) -> None:
        """There is nothing to end."""

    # -- the device's own work ----------------------------------------------------------------------------------------

    def call(self, call: Call) -> None:
        """The host has made the call, and the device does some of its work."""
        self.watch(call)
        self.breathe()

    def breathe(self) -> None:
        """Some steps are done, as many as are drawn."""
        for _ in range(BREATHS[self._draw(len(BREATHS))]):
            if not self._step():
                return

    def run_until(self, is_reached: Callable[[], bool]) -> None:
        """So many steps are done. Raises Deadlock where no stream can go on before."""
        while not is_reached():
            if not self._step():
                raise Deadlock("no stream can go on, expected one to do what the host waits for")

    def drain(self) -> None:
        """Everything is done. Raises Deadlock."""
        self.run_until(lambda: not any(stream.queue for stream in self._streams))

    def _step(self) -> bool:
        """One step of one stream is done, if one can go on."""
        able = [stream for stream in self._streams if stream.can_go_on]
        if able:
            able[self._draw(len(able))].go_on()
        return bool(able)
