"""Threads that run only when they are told to: each stops before it takes from a queue and before it asks storage.

Upstream's thread functions run as they are. In the module of the controller, `threading.Thread` is `StepThread` and
`Queue` is `StepQueue`; the three batched calls of the storage backend stop twice, before and after. A thread and its
tester pass a baton, so that one of them runs at a time, nothing sleeps, and every interleaving is the tester's.
"""

import queue
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

_STEPS_MAX = 100_000


class WouldBlock(AssertionError):
    """The scheduler waits for something that only a thread can bring, or for a thread that does not end."""


class Gone(BaseException):
    """Ends a thread whose cache was given up; upstream's `except Exception` does not catch it."""


class At(NamedTuple):
    """Where a thread stands: `start`, `get` (of `queue`), `wait`, `call` or `back` (of method `name`), or `end`."""

    kind: str
    queue: "StepQueue | None" = None
    name: str = ""
    keys: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What the backend is to answer: `pages` leading pages, or an exception; and `states` behind the last page."""

    pages: int
    raised: bool = False
    states: int = 0


class StepThread:
    """Stands for threading.Thread: `start` runs nothing, `step` runs to where it stops next."""

    running: "StepThread | None" = None
    """The thread that has the baton; None while the tester has it."""

    living: list["StepThread"] = []
    """Threads that were started and not given up, oldest first."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert target is not None
        self.target, self.args, self.kwargs = target, args, kwargs or {}
        self.name = name or getattr(target, "__name__", "thread")
        self.daemon = daemon
        self.at = At("new")
        self.holding: Any = None
        """What it took from a queue last, until it takes again."""

        self.died: BaseException | None = None
        self._mine, self._testers = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None

    @property
    def owner(self) -> Any:
        """The object whose method it runs."""
        return getattr(self.target, "__self__", None)

    def start(self) -> None:
        """It stands at its start."""
        self.at = At("start")
        StepThread.living.append(self)
        threading.Thread(target=self._body, daemon=True).start()

    def _body(self) -> None:
        self._mine.acquire()
        try:
            if self._answer is not Gone:
                self.target(*self.args, **self.kwargs)
        except Gone:
            pass
        except BaseException as error:
            self.died = error
        self.at, self.holding = At("end"), None
        self._testers.release()

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self.at.kind not in ("new", "end")

    def step(self, answer: Answer | None = None) -> At:
        """It has run on to where it stops next; a backend call at which it stood answers `answer`, or as it likes."""
        assert self.is_alive() and StepThread.running is None
        StepThread.running, self._answer = self, answer
        self._mine.release()
        self._testers.acquire()
        StepThread.running = None
        return self.at

    def pause(self, at: At) -> Any:
        """From inside the thread: the tester has the baton; returns its answer once it gives it back."""
        self.at = at
        self._testers.release()
        self._mine.acquire()
        if self._answer is Gone:
            raise Gone
        return self._answer

    def join(self, timeout: float | None = None) -> None:
        """It has ended. Time passes for the others: each that waits at an empty queue looks at its stop event once.

        Raises WouldBlock where it never ends; with a `timeout` it may be alive still.
        """
        for _ in range(_STEPS_MAX):
            if not self.is_alive():
                return
            self.step()
            for other in list(StepThread.living):
                if other is not self and other.is_alive() and (other.at.kind == "start" or other.is_idle()):
                    other.step()
        if timeout is None:
            raise WouldBlock(f"join of {self.name}")

    def is_idle(self) -> bool:
        """Whether it waits at an empty queue, or for an event."""
        return self.at.kind == "wait" or (self.at.queue is not None and not self.at.queue.queue)

    @classmethod
    def give_up_all(cls) -> None:
        """No thread is left."""
        for thread in cls.living:
            if thread.is_alive():
                thread._answer = Gone
                thread._mine.release()
                thread._testers.acquire()
        cls.living.clear()


class StepQueue(queue.Queue[Any]):
    """Stands for queue.Queue, and for a PriorityQueue of things that are ranked by when they were made.

    `shown` is how many items a scheduler can still take; None: all there are.
    """

    shown: int | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next item. In a thread it stops first, and raises Empty if it is stepped while there is none."""
        thread = StepThread.running
        if thread is None:
            if self.empty():
                raise queue.Empty if not block or timeout is not None else WouldBlock("get of an empty queue")
            if self.shown is not None:
                self.shown -= 1
            return self.queue.popleft()
        while True:
            thread.holding = None
            thread.pause(At("get", queue=self))
            if self.queue:
                thread.holding = self.queue.popleft()
                return thread.holding
            if not block or timeout is not None:
                raise queue.Empty

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """The item is the last one."""
        self.queue.append(item)

    def put_nowait(self, item: Any) -> None:
        """The item is the last one."""
        self.put(item)

    def get_nowait(self) -> Any:
        """The next item; raises Empty if there is none."""
        return self.get(False)

    def qsize(self) -> int:
        """How many items there are to take."""
        return len(self.queue) if self.shown is None else min(len(self.queue), self.shown)

    def empty(self) -> bool:
        """Whether there is none to take."""
        return not self.qsize()


class StepEvent(threading.Event):
    """Stands for threading.Event: a thread that waits for it stops, and looks when it is stepped."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set."""
        thread = StepThread.running
        if thread is None:
            return super().wait(timeout)
        thread.pause(At("wait"))
        return self.is_set()


class _Threading(types.ModuleType):
    Thread, Event = StepThread, StepEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


THREADING = _Threading("threading")
"""The module threading, but for its Thread and Event."""


def stopping(method: Callable[..., Any], name: str, obey: Callable[..., Any]) -> Callable[..., Any]:
    """The backend's `method`, which in a thread stops before it asks and after; `obey` asks it under an Answer."""

    def stops(self: Any, keys: list[str], *args: Any, **kwargs: Any) -> Any:
        thread = StepThread.running
        if thread is None:
            return method(self, keys, *args, **kwargs)
        answer = thread.pause(At("call", name=name, keys=tuple(keys)))
        if answer is None:
            result = method(self, keys, *args, **kwargs)
        elif answer.raised:
            raise OSError(f"{name} was told to fail")
        else:
            result = obey(method, self, answer.pages, keys, *args, **kwargs)
        thread.pause(At("back", name=name))
        return result

    return stops
