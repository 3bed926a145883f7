"""Whether two accesses to one place are ordered: vector clocks over the calls on a device.

Order can only point backwards in the order of calls, so one look at a sequence of calls decides for every interleaving
that a device could make of it: a missing wait is found though the bytes came out right.
"""

from collections import defaultdict
from typing import NamedTuple

from hicache_ref.engine.calls import (
    Call,
    HostAccess,
    Launch,
    Location,
    Put,
    Query,
    Record,
    StreamSynchronize,
    Synchronize,
    Take,
    Thread,
    Wait,
)

Clock = dict[Thread, int]
"""For each thread, how many of its accesses come before."""


class Race(AssertionError):
    """Two accesses to one place, one of them a write, and nothing orders them."""


class _Access(NamedTuple):
    """The last access of a thread to a place."""

    thread: Thread
    time: int
    name: str


class Ordering:
    """The order that the calls so far have made. Raises Race at the first access that is not ordered."""

    def __init__(self) -> None:
        self._clocks: defaultdict[Thread, Clock] = defaultdict(dict)
        self._events: dict[int, Clock] = {}
        """What an event stands for: the clock of its stream at the last record."""

        self._messages: dict[int, Clock] = {}
        self._written: dict[Location, _Access] = {}
        self._read: defaultdict[Location, dict[Thread, _Access]] = defaultdict(dict)
        """By thread, the last read since the last write."""

    def take(self, call: Call) -> None:
        """The call has been made. Raises Race."""
        host = f"thread {call.host}"  # A stream may have the name of a thread.
        match call:
            case Launch(_, stream, name, reads, writes):
                self._join(stream, self._clocks[host])
                self._access(stream, name, reads, writes)
            case HostAccess(_, name, reads, writes):
                self._access(host, name, reads, writes)
            case Record(_, event, stream):
                self._join(stream, self._clocks[host])
                self._events[event] = dict(self._clocks[stream])
            case Wait(_, stream, event):
                self._join(stream, self._events.get(event, {}))
            case Query(_, event, done):
                self._join(host, self._events.get(event, {}) if done else {})
            case Synchronize(_, event):
                self._join(host, self._events.get(event, {}))
            case StreamSynchronize(_, stream):
                self._join(host, self._clocks[stream])
            case Put(_, message):
                self._messages[message] = dict(self._clocks[host])
            case Take(_, message):
                self._join(host, self._messages.pop(message))

    def _join(self, thread: Thread, other: Clock) -> None:
        """What the thread does next comes after all that `other` has seen."""
        clock = self._clocks[thread]
        for name, time in other.items():
            if time > clock.get(name, 0):
                clock[name] = time

    def _access(self, thread: Thread, name: str, reads: tuple[Location, ...], writes: tuple[Location, ...]) -> None:
        """The thread has read and written these places. Raises Race."""
        clock = self._clocks[thread]
        mine = _Access(thread, clock.get(thread, 0) + 1, name)
        clock[thread] = mine.time
        for place in reads:
            self._expect_after(self._written.get(place), mine, f"reads {place}", "wrote")
        for place in writes:
            self._expect_after(self._written.get(place), mine, f"writes {place}", "wrote")
            for other in self._read[place].values():
                self._expect_after(other, mine, f"writes {place}", "reads")
        for place in reads:
            self._read[place][thread] = mine
        for place in writes:
            self._written[place] = mine
            self._read.pop(place, None)

    def _expect_after(self, other: _Access | None, mine: _Access, does: str, did: str) -> None:
        if other is not None and self._clocks[mine.thread].get(other.thread, 0) < other.time:
            raise Race(
                f"{mine.name} on {mine.thread} {does}, and nothing makes it wait for {other.name} on {other.thread}, "
                f"which {did} it"
            )
