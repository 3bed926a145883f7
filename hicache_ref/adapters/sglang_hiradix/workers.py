"""The threads of storage, one operation at a time: a whole query, one batch read, one batch written.

Each works through its queue in order, so an operation behind another has to wait; and a thread that an exception has
killed does nothing more.
"""

from typing import Any

from hicache_ref.adapters.sglang_hiradix.books import Backup, Books, Fetch
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.stepper import Answer, At, StepThread
from hicache_ref.vocabulary.outcomes import Invalid, Refused

QUERIES, READS, WRITES, SYNCS = (
    "prefetch_thread_func",
    "prefetch_io_aux_func",
    "backup_thread_func",
    "prefetch_sync_thread_func",
)

COPIES = ("write_thread_func_direct", "load_thread_func_layer_by_layer")
"""Threads that copy, up to 0.5.1."""


def is_closed(operation: Any) -> bool:
    """Whether the scheduler has told the operation to stop."""
    asks = getattr(operation, "is_terminated", None) or getattr(operation, "is_done", None)
    return asks is not None and bool(asks())


class Workers:
    """The threads of one controller."""

    def __init__(self, engine: Engine, books: Books) -> None:
        self.engine = engine
        self.books = books

    def thread(self, role: str, operation: Any = None) -> StepThread | None:
        """The living thread of this role that works on the operation, else the newest one."""
        mine = [
            thread
            for thread in reversed(StepThread.living)
            if thread.name == role and thread.owner is self.engine.controller and thread.is_alive()
        ]
        busy = [thread for thread in mine if operation is not None and thread.holding is operation]
        return next(iter(busy + mine), None)

    def works_on(self, operation: Any) -> bool:
        """Whether a living thread has taken the operation and not yet come back for another."""
        return any(thread.is_alive() and thread.holding is operation for thread in StepThread.living)

    def deaths(self) -> tuple[str, ...]:
        """Which threads of this controller an exception has killed, and which exception."""
        mine = [each for each in StepThread.living if each.owner is self.engine.controller and each.died is not None]
        return tuple(f"{each.name} died of {each.died!r}" for each in mine)

    def go_on(self) -> None:
        """Each thread has begun what is first in its queue: it stands where it asks storage, or waits.

        What would be over without asking storage is left in the queue until the tester says so.
        """
        for role in (QUERIES, READS, WRITES):
            thread = self.thread(role)
            while thread is not None and thread.is_alive() and self._may_begin(thread):
                first = self._first(thread)
                thread.step()
                if not thread.is_alive():
                    self._mark_dead(first)
        for role in (SYNCS, *COPIES):
            thread = self.thread(role)
            if thread is not None and thread.at.kind == "start":
                thread.step()

    def _mark_dead(self, operation: Any) -> None:
        for fetch in self.books.fetches.values():
            if fetch.operation is operation:
                fetch.stage = "dead"

    def _may_begin(self, thread: StepThread) -> bool:
        if thread.at.kind == "start":
            return True
        first = self._first(thread)
        if first is None:
            # A wake-up that asks for nothing.
            return thread.at.kind == "get" and bool(thread.at.queue and thread.at.queue.queue)
        return thread.at.kind == "get" and not is_closed(first) and self._asks_storage(thread, first)

    def _asks_storage(self, thread: StepThread, operation: Any) -> bool:
        return thread.name == QUERIES or bool(operation.hash_value)

    @staticmethod
    def _first(thread: StepThread) -> Any:
        """The operation that the thread works on, else the first in its queue."""
        if thread.holding is not None:
            return thread.holding
        queue = thread.at.queue
        return queue.queue[0] if queue is not None and queue.queue else None

    def obstacle(self, role: str, operation: Any) -> Refused | Invalid | None:
        """Why the operation cannot go on now: there is none such, another is before it, or the thread is dead."""
        thread = self.thread(role, operation)
        if thread is None:
            return Refused(why=f"{role} is dead")
        first = self._first(thread)
        if first is operation:
            return None
        queued = thread.at.queue.queue if thread.at.queue is not None else ()
        ahead = [each.name for each in self._named() if each.operation is first]
        if operation in queued or thread.holding is not None:
            return Invalid(why=f"behind {', '.join(ahead) or 'another'}")
        return Invalid(why=f"{role} has no such operation")

    def _named(self) -> list[Fetch | Backup]:
        return [*self.books.fetches.values(), *self.books.backups.values()]

    # -- one operation ----------------------------------------------------------------------------------------------

    def query(self, fetch: Fetch, hits: int, raised: bool) -> None:
        """The whole query was answered with its first `hits` pages, or it raised."""
        thread = self._at_work(QUERIES, fetch.operation)
        left = hits
        while thread.is_alive() and thread.at.kind != "get":
            if thread.at.kind != "call":
                thread.step()
                continue
            batch = len(thread.at.keys)
            thread.step(Answer(min(left, batch), raised))
            left = max(0, left - batch)
        controller = self.engine.controller
        if not thread.is_alive():
            fetch.stage = "dead"
        elif fetch.operation in controller.prefetch_buffer.queue:
            fetch.stage = "reading"
        else:
            fetch.stage = "answered"
            self.books.answered.append(fetch)

    def read(self, fetch: Fetch, answer: Answer) -> Invalid | None:
        """So many pages of one batch were read, or it raised; what that means has been done."""
        thread = self._at_work(READS, fetch.operation)
        if answer.pages > self._batch(thread):
            return Invalid(why=f"the batch of {fetch.name} has {self._batch(thread)} pages")
        acks = getattr(self.engine.controller, "ack_prefetch_queue", None)
        before = len(acks.queue) if acks is not None else 0
        self._read_batch(thread, answer)
        sync = self.thread(SYNCS)
        while sync is not None and sync.is_alive() and not sync.is_idle():
            sync.step()
        if not thread.is_alive():
            fetch.stage = "dead"
            return None
        if thread.holding is not fetch.operation:
            fetch.stage = "ended"
        self.books.reads.append((fetch, len(acks.queue) - before if acks is not None else 0))
        return None

    def _read_batch(self, thread: StepThread, answer: Answer) -> None:
        self._one_batch(thread, answer)

    def write(self, backup: Backup, answer: Answer) -> Invalid | None:
        """So many pages of one batch were stored, or it raised; what that means has been done."""
        thread = self._at_work(WRITES, backup.operation)
        if answer.pages > self._batch(thread):
            return Invalid(why=f"the batch of {backup.name} has {self._batch(thread)} pages")
        self._one_batch(thread, answer)
        if thread.is_alive() and thread.holding is not backup.operation:
            self.books.written.append(backup)
        return None

    def _at_work(self, role: str, operation: Any) -> StepThread:
        """The thread, which has taken the operation from its queue."""
        thread = self.thread(role, operation)
        assert thread is not None
        if thread.at.kind == "get":
            thread.step()
        return thread

    def _batch(self, thread: StepThread) -> int:
        """Pages in the batch at which the thread stands; where it asks for none, any number is as good."""
        return len(thread.at.keys) if thread.at.kind == "call" else self.engine.profile.sizes.storage_batch

    @staticmethod
    def _one_batch(thread: StepThread, answer: Answer) -> At:
        """The thread has its answer and stands at the next batch, or at its queue."""
        if thread.at.kind == "call":
            thread.step(answer)
            if thread.is_alive():
                thread.step()
        while thread.is_alive() and thread.at.kind not in ("call", "get"):
            thread.step()
        return thread.at
