"""What the threads of storage have done, noted where they do it, and told to the scheduler's thread when it looks.

A note is made after storage has answered and before the scheduler can learn of it, so that what a scheduler has seen
was always noted before.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """Storage has the first `hits` pages, or asking raised."""

    operation: Any
    hits: int
    raised: bool = False


class Read(NamedTuple):
    """`pages` leading pages of a batch are in place; `ends`: it was the last one, or cut short."""

    operation: Any
    pages: int
    ends: bool
    raised: bool = False


class Written(NamedTuple):
    """`pages` pages in all are in storage, and no more come."""

    operation: Any
    pages: int
    raised: bool = False


Note = Asked | Read | Written


class Threads:
    """Watches the functions by which a controller's threads use storage."""

    def __init__(self, controller: Any, page_size: int) -> None:
        self._controller = controller
        self._size = page_size
        self.notes: deque[Note] = deque()
        """What was noted since the last look, in order."""

    def stop(self) -> None:
        """Nothing is noted any more."""
        self.notes = deque(maxlen=0)

    def taken(self) -> Iterator[Note]:
        """Each note, which is none any more."""
        while self.notes:
            yield self.notes.popleft()

    def query(self, original: Any, operation: Any, *rest: Any, **more: Any) -> Any:
        """Stands for `_storage_hit_query`."""
        try:
            answer = original(operation, *rest, **more)
        except BaseException:
            self.notes.append(Asked(operation, 0, True))
            raise
        self.notes.append(Asked(operation, len(answer[0])))
        return answer

    def get_pages(self, original: Any, operation: Any, hashes: Any, *rest: Any, **more: Any) -> Any:
        """Stands for `page_get_func`: one batch is read."""
        before = operation.completed_tokens
        try:
            answer = original(operation, hashes, *rest, **more)
        except BaseException:
            self._note(Read(operation, 0, True, True))
            raise
        read = answer if isinstance(answer, int) else (operation.completed_tokens - before) // self._size
        self._done(operation, len(hashes), int(read))
        return answer

    def _done(self, operation: Any, asked: int, read: int) -> None:
        count, _ = operation.__dict__.get("recorded_pages", (0, 0))
        operation.recorded_pages = (count + read, 0)
        last = count + read >= len(operation.hash_value)
        self._note(Read(operation, read, read < asked or last or operation.is_terminated()))

    def _note(self, note: Read) -> None:
        if note.ends:
            note.operation.recorded_end = True
        self.notes.append(note)

    def transfer(self, original: Any, operation: Any, *rest: Any, **more: Any) -> Any:
        """Stands for `_page_transfer`: the I/O of a prefetch is over, if only because it was told to stop."""
        answer = original(operation, *rest, **more)
        if not operation.__dict__.get("recorded_end"):
            self._note(Read(operation, 0, True))
        return answer

    def backup(self, original: Any, operation: Any, *rest: Any, **more: Any) -> Any:
        """Stands for `_page_backup`."""
        try:
            answer = original(operation, *rest, **more)
        except BaseException:
            self.notes.append(Written(operation, operation.completed_tokens // self._size, True))
            raise
        self.notes.append(Written(operation, operation.completed_tokens // self._size))
        return answer
