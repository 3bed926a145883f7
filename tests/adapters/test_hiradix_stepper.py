"""Threads that run only when told to: where they stop, what they are answered, and how they end."""

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hicache_ref.adapters.sglang_hiradix.stepper import (
    THREADING,
    Answer,
    StepEvent,
    StepQueue,
    StepThread,
    WouldBlock,
    stopping,
)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    StepThread.give_up_all()


def started(target: Callable[[], object]) -> StepThread:
    """A thread that stands at its start."""
    thread = StepThread(target=target)
    thread.start()
    return thread


class Looping:
    """A thread function like upstream's: takes from a queue until it is told to stop, and notes what it took."""

    def __init__(self) -> None:
        self.queue = StepQueue()
        self.stop = False
        self.took: list[int] = []

    def run(self) -> None:
        """What was put was taken, in order."""
        while not self.stop:
            try:
                self.took.append(self.queue.get(block=True, timeout=1))
            except queue.Empty:
                continue


def test_a_thread_runs_only_when_it_is_stepped() -> None:
    """Goal: every interleaving is the tester's. Method: put items, look before and after each step."""
    looping = Looping()
    thread = started(looping.run)
    looping.queue.put(1)
    assert ("start", []) == (thread.at.kind, looping.took)
    assert "get" == thread.step().kind
    assert [] == looping.took
    thread.step()
    assert ([1], True) == (looping.took, thread.is_idle())


def test_a_step_at_an_empty_queue_lets_time_pass() -> None:
    """Goal: a thread looks at its stop event without sleeping. Method: stop it, step it, see it end."""
    looping = Looping()
    thread = started(looping.run)
    thread.step()
    looping.stop = True
    assert "end" == thread.step().kind
    assert not thread.is_alive()


def test_a_join_runs_the_thread_to_its_end_and_lets_time_pass_for_others() -> None:
    """Goal: nobody waits for what cannot come. Method: join one of two that were both told to stop."""
    first, second = Looping(), Looping()
    one, other = started(first.run), started(second.run)
    first.queue.put(7)
    first.stop = second.stop = True
    one.join()
    assert not one.is_alive()
    assert not other.is_alive()
    assert [] == first.took


def test_a_join_of_what_never_ends_is_reported() -> None:
    """Goal: no hang. Method: join a thread that nobody told to stop, without and with a time limit."""
    thread = started(Looping().run)
    with pytest.raises(WouldBlock, match="run"):
        thread.join()
    thread.join(timeout=10)
    assert thread.is_alive()


def test_a_scheduler_that_waits_for_a_thread_is_reported() -> None:
    """Goal: no hang. Method: take from an empty queue outside of a thread, in each way."""
    empty = StepQueue()
    with pytest.raises(WouldBlock):
        empty.get()
    with pytest.raises(queue.Empty):
        empty.get_nowait()


def test_a_scheduler_is_shown_what_was_agreed_on() -> None:
    """Goal: a poll takes a given number, however it counts. Method: three items, two of them shown."""
    shown = StepQueue()
    for item in (1, 2, 3):
        shown.put_nowait(item)
    shown.shown = 2
    assert (2, False) == (shown.qsize(), shown.empty())
    assert [1, 2] == [shown.get_nowait(), shown.get()]
    assert (0, True) == (shown.qsize(), shown.empty())
    shown.shown = None
    assert 3 == shown.get_nowait()


def test_a_backend_call_stops_twice_and_obeys() -> None:
    """Goal: what storage answers is the tester's. Method: a call as it likes, one told, one raising, one outside."""

    class Backend:
        def exists(self, keys: list[str]) -> int:
            return len(keys)

    def obey(method: Any, self: Any, pages: int, keys: list[str]) -> int:
        return min(pages, len(keys))

    call = stopping(Backend.exists, "exists", obey)
    results: list[object] = []

    def run() -> None:
        for _ in range(3):
            try:
                results.append(call(Backend(), ["a", "b"]))
            except OSError as error:
                results.append(str(error))

    thread = started(run)
    assert ("call", "exists", ("a", "b")) == (thread.step().kind, thread.at.name, thread.at.keys)
    assert "back" == thread.step().kind
    assert "call" == thread.step().kind
    assert "back" == thread.step(Answer(1)).kind
    thread.step()
    thread.step(Answer(0, raised=True))
    assert [2, 1, "exists was told to fail"] == results
    assert 2 == call(Backend(), ["a", "b"])


def test_an_exception_that_kills_a_thread_is_kept() -> None:
    """Goal: a dead thread says why. Method: a function that raises."""
    thread = started(lambda: {}["nothing"])
    thread.step()
    assert (False, KeyError) == (thread.is_alive(), type(thread.died))


def test_threads_are_given_up_without_a_trace() -> None:
    """Goal: a new cache has no old threads. Method: give up one that waits and one that never began."""
    looping = Looping()
    waiting, new = started(looping.run), started(looping.run)
    waiting.step()
    StepThread.give_up_all()
    assert [False, False, []] == [waiting.is_alive(), new.is_alive(), StepThread.living]
    assert (None, None) == (waiting.died, new.died)


def test_an_event_stops_the_thread_that_waits_for_it() -> None:
    """Goal: threads that wait for an event are stepped too. Method: step before and after it is set."""
    event = StepEvent()
    seen: list[bool] = []
    thread = started(lambda: [seen.append(event.wait(timeout=1)) for _ in range(2)])
    assert ("wait", True) == (thread.step().kind, thread.is_idle())
    thread.step()
    event.set()
    thread.step()
    assert [False, True] == seen
    assert event.wait(timeout=0)


def test_the_module_is_the_real_one_otherwise() -> None:
    """Goal: locks keep their meaning. Method: take one from the module that stands for threading."""
    assert (StepThread, StepEvent) == (THREADING.Thread, THREADING.Event)
    with THREADING.Lock():
        assert THREADING.current_thread() is THREADING.main_thread()
