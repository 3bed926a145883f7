"""The order of calls, judged by vector clocks, against the rules of streams and events and against plain sets."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

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
    Wait,
)
from hicache_ref.engine.happens_before import Ordering, Race

X, Y = Location("kv", 0), Location("kv", 1)


def _race(calls: Sequence[Call]) -> str | None:
    """What is found in the calls."""
    ordering = Ordering()
    try:
        for call in calls:
            ordering.take(call)
    except Race as race:
        return str(race)
    return None


def _write(stream: str, name: str = "w", place: Location = X) -> Launch:
    return Launch("main", stream, name, writes=(place,))


def _read(stream: str, name: str = "r", place: Location = X) -> Launch:
    return Launch("main", stream, name, reads=(place,))


ORDERED: dict[str, list[Call]] = {
    "one stream": [_write("a"), _read("a")],
    "reads only": [_read("a"), _read("b")],
    "other places": [_write("a"), _write("b", place=Y)],
    "wait for a record": [_write("a"), Record("main", 1, "a"), Wait("main", "b", 1), _read("b")],
    "wait after a read": [_read("a"), Record("main", 1, "a"), Wait("main", "b", 1), _write("b")],
    "a true answer": [_write("a"), Record("main", 1, "a"), Query("main", 1, True), _read("b")],
    "an event that is waited for by the host": [
        _write("a"), Record("main", 1, "a"), Synchronize("main", 1), HostAccess("main", "h", reads=(X,)),
    ],
    "a stream that is waited for": [_write("a"), StreamSynchronize("main", "a"), _read("b")],
    "two hops": [
        _write("a"), Record("main", 1, "a"), Wait("main", "b", 1), Record("main", 2, "b"), Wait("main", "c", 2),
        _read("c"),
    ],
    "the host before its launch": [HostAccess("main", "h", writes=(X,)), _read("a")],
    "a message": [
        _write("a"), Record("main", 1, "a"), Synchronize("main", 1), Put("main", 7), Take("io", 7),
        HostAccess("io", "h", reads=(X,)),
    ],
    "the record at the time of the wait": [
        _write("a"), Record("main", 1, "a"), Wait("main", "b", 1), Record("main", 1, "c"), _read("b"),
    ],
}  # fmt: skip
RACES: dict[str, list[Call]] = {
    "two streams": [_write("a"), _read("b")],
    "a write after a read": [_read("a"), _write("b")],
    "a record before the work": [Record("main", 1, "a"), _write("a"), Wait("main", "b", 1), _read("b")],
    "a wait before the record": [_write("a"), Wait("main", "b", 1), Record("main", 1, "a"), _read("b")],
    "an event recorded anew elsewhere": [
        _write("a"), Record("main", 1, "a"), Record("main", 1, "c"), Wait("main", "b", 1), _read("b"),
    ],
    "a false answer": [_write("a"), Record("main", 1, "a"), Query("main", 1, False), _read("b")],
    "an event that was never recorded": [_write("a"), Query("main", 1, True), _read("b")],
    "another thread's answer": [
        _write("a"), Record("main", 1, "a"), Query("main", 1, True), HostAccess("io", "h", reads=(X,)),
    ],
    "a message from before": [
        Put("main", 7), _write("a"), StreamSynchronize("main", "a"), Take("io", 7), HostAccess("io", "h", reads=(X,)),
    ],
    "the host beside its stream": [_write("a"), HostAccess("main", "h", reads=(X,))],
    "a thread and a stream of one name": [_write("a"), HostAccess("a", "h", reads=(X,))],
    "the second of two readers": [
        _read("a"), _read("b"), Record("main", 1, "b"), Wait("main", "c", 1), _write("c"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_is_no_race(name: str) -> None:
    """Goal: no false alarm. Method: each way in which CUDA orders two accesses."""
    assert _race(ORDERED[name]) is None


@pytest.mark.parametrize("name", RACES)
def test_what_is_not_ordered_is_a_race(name: str) -> None:
    """Goal: no missing wait is overlooked. Method: what looks like order and is none."""
    assert _race(RACES[name]) is not None


def test_a_race_names_both_accesses_and_the_place() -> None:
    """Goal: whoever reads it can look. Method: the words of one."""
    expected = "load on b reads kv:0 layer 0, and nothing makes it wait for fill on a, which wrote it"
    assert expected == _race([_write("a", "fill"), _read("b", "load")])


THREADS, STREAMS, EVENTS = ("main", "a"), ("a", "b", "c"), (1, 2)


def _drawn(rng: random.Random) -> list[Call]:
    """Calls of two host threads on three streams, two events and two places."""
    calls: list[Call] = []
    for sent in range(rng.randrange(3, 10)):
        host, stream, event = rng.choice(THREADS), rng.choice(STREAMS), rng.choice(EVENTS)
        place = (rng.choice((X, Y)),)
        reads, writes = (place, ()) if rng.random() < 0.5 else ((), place)
        calls.append(
            rng.choice(
                [
                    Launch(host, stream, "l", reads, writes), Launch(host, stream, "l", reads, writes),
                    HostAccess(host, "h", reads, writes), Record(host, event, stream), Record(host, event, stream),
                    Wait(host, stream, event), Wait(host, stream, event), Query(host, event, rng.random() < 0.7),
                    Synchronize(host, event), StreamSynchronize(host, stream), Put(host, sent),
                ]
            )
        )  # fmt: skip
        if isinstance(calls[-1], Put):
            calls.append(Take(rng.choice(THREADS), sent))
    return calls


def _is_ordered(calls: Sequence[Call]) -> bool:
    """Whether a path leads from each access to every later one that it conflicts with.

    Each stream and host thread carries the set of all calls that what it does next comes after.
    """
    on_stream: dict[str, set[int]] = {}
    on_host: dict[str, set[int]] = {}
    recorded: dict[int, set[int]] = {}
    messages: dict[int, set[int]] = {}
    accesses: list[tuple[int, bool, Location]] = []
    for index, call in enumerate(calls):
        host = on_host.setdefault(call.host, set())
        seen: set[int] = set()
        if isinstance(call, Launch | HostAccess):
            stream = on_stream.setdefault(call.stream, set()) if isinstance(call, Launch) else host
            seen = stream | host
            for place, writes in product((X, Y), (False, True)):
                if place in (call.writes if writes else call.reads):
                    for other, wrote, where in accesses:
                        if where == place and (wrote or writes) and other not in seen:
                            return False
                    accesses.append((index, writes, place))
            stream |= seen | {index}
        elif isinstance(call, Record):
            on_stream.setdefault(call.stream, set()).update(host)
            recorded[call.event] = set(on_stream[call.stream])
        elif isinstance(call, Wait):
            on_stream.setdefault(call.stream, set()).update(recorded.get(call.event, set()))
        elif isinstance(call, Synchronize) or (isinstance(call, Query) and call.done):
            host |= recorded.get(call.event, set())
        elif isinstance(call, StreamSynchronize):
            host |= on_stream.get(call.stream, set())
        elif isinstance(call, Put):
            messages[call.message] = set(host)
        elif isinstance(call, Take):
            host |= messages[call.message]
    return True


def test_clocks_and_a_plain_search_agree() -> None:
    """Goal: epochs and clocks lose nothing. Method: 20,000 drawn sequences, beside sets of all that came before."""
    found = {True: 0, False: 0}
    for seed in range(20_000):
        calls = _drawn(random.Random(seed))
        ordered = _is_ordered(calls)
        assert ordered == (_race(calls) is None), calls
        found[ordered] += 1
    assert min(found.values()) > 3_000
