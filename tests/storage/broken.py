"""Stores that are wrong in one way each. Every one of these has been a fault of a real store, or nearly."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

from hicache_ref.storage.base import Buffer, Stats, StorageError
from hicache_ref.storage.memory import MemoryBackend


class CountsAllPresent(MemoryBackend):
    """`exists` counts every key that is present, gaps or not."""

    def exists(self, keys: Sequence[str]) -> int:
        return sum(super(CountsAllPresent, self).exists([key]) for key in keys)


class StaleAbsence(MemoryBackend):
    """What was once asked for and absent stays absent to `exists`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.absent: set[str] = set()

    def exists(self, keys: Sequence[str]) -> int:
        run = super().exists(list(itertools.takewhile(lambda key: key not in self.absent, keys)))
        self.absent.update(keys[run : run + 1])
        return run


class EmptyBatchFails(MemoryBackend):
    """A call without keys raises."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        if not keys:
            raise StorageError("no keys")
        return super().read(keys, into)


class AnswersTwice(MemoryBackend):
    """A missing `continue`: a key that is absent is answered twice."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        found = super().read(keys, into)
        return [each for hit in found for each in ([hit] if hit else [hit, hit])]


class SaysYesToAll(MemoryBackend):
    """A read answers true for what is absent, and leaves the buffer as it was."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        super().read(keys, into)
        return [True] * len(keys)


class StopsAtTheFirstMiss(MemoryBackend):
    """A batch ends at its first miss; what follows is told to be absent."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        found = super().read(keys, into)
        run = list(itertools.takewhile(bool, found))
        return run + [False] * (len(found) - len(run))


class WritesUpToTheFirstKept(MemoryBackend):
    """A batch ends at the first key that was there, and all of it is told to be stored."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        new = list(itertools.takewhile(lambda key: not self.exists([key]), keys))
        super().write(new, pages[: len(new)])
        return [True] * len(keys)


class Replaces(MemoryBackend):
    """The last put wins."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        for key in keys:
            self._shelf.objects.pop(key, None)
        return super().write(keys, pages)


class WritesBeside(MemoryBackend):
    """A read writes one byte too many."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        found = super().read(keys, into)
        for hit, view in zip(found, into, strict=True):
            memory = view.obj
            if hit and isinstance(memory, bytearray) and view.nbytes < len(memory):
                # The buffers of the kit are filled before they are read into: that is how they are found here.
                memory[memory.index(bytes(view)) + view.nbytes] ^= 0xFF
        return found


class FillsShortBuffers(MemoryBackend):
    """A buffer that is too small gets the object's beginning."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        found = super().read(keys, into)
        for number, (key, view) in enumerate(zip(keys, into, strict=True)):
            stored = self._shelf.objects.get(key, b"")
            if len(stored) > view.nbytes:
                view[:] = stored[: view.nbytes]
                found[number] = True
        return found


class ReadsShort(MemoryBackend):
    """The last eight bytes of a large object are not read."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        kept = [bytes(view[-8:]) for view in into]
        found = super().read(keys, into)
        for hit, view, tail in zip(found, into, kept, strict=True):
            if hit and view.nbytes > 4096:
                view[-8:] = tail
        return found


class SwapsNeighbours(MemoryBackend):
    """In a batch, each page goes to the buffer of its neighbour."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        order = sorted(range(len(keys)), key=lambda number: number ^ 1 if number ^ 1 < len(keys) else number)
        found = super().read([keys[number] for number in order], into)
        return [found[number] for number in order]


class ForgetsTheEmpty(MemoryBackend):
    """A put of an empty page reports success and stores nothing."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        full = [(key, page) for key, page in zip(keys, pages, strict=True) if page.nbytes]
        super().write([key for key, _ in full], [page for _, page in full])
        return [True] * len(keys)


class CutsLarge(MemoryBackend):
    """What is over 8 MiB is cut, and told to be stored."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        return super().write(keys, [page[: 8 << 20] for page in pages])


class Renames(MemoryBackend):
    """Keys go through a function on their way in and out."""

    change: Callable[[str], str] = staticmethod(lambda key: key)

    def exists(self, keys: Sequence[str]) -> int:
        return super().exists([self.change(key) for key in keys])

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        return super().read([self.change(key) for key in keys], into)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        return super().write([self.change(key) for key in keys], pages)


class SlashesAreDashes(Renames):
    """A key's slashes become dashes."""

    change = staticmethod(lambda key: key.replace("/", "-"))


class KeysAreCut(Renames):
    """Keys are cut after 255 characters."""

    change = staticmethod(lambda key: key[:255])


class KeysHaveNoCase(Renames):
    """Keys are folded to lower case, as on some file systems."""

    change = staticmethod(str.lower)


class TagsOnlyPuts(MemoryBackend):
    """The tenant's tag goes before the key in a put and a read, and not in `exists`."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        return super().read([f"tenant/{key}" for key in keys], into)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        return super().write([f"tenant/{key}" for key in keys], pages)


class KeepsReferences(MemoryBackend):
    """A put keeps the caller's buffer, and no copy."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        for key, page in zip(keys, pages, strict=True):
            self._shelf.objects.setdefault(key, page)  # type: ignore[arg-type]
        return [True] * len(keys)


class PutsInPieces(MemoryBackend):
    """A large object is put in two halves, with time between."""

    lock = threading.Lock()

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        for key, page in zip(keys, pages, strict=True):
            half = page.nbytes // 2
            first = bytearray(self._shelf.objects.get(key, bytes(page.nbytes)))
            if len(first) != page.nbytes or (page.nbytes != 100_003 and self.exists([key])):
                continue
            first[:half] = page[:half]
            self._shelf.objects[key] = bytes(first)
            if page.nbytes == 100_003:
                time.sleep(0.002)
            second = bytearray(self._shelf.objects[key])
            second[half:] = page[half:]
            self._shelf.objects[key] = bytes(second)
            self.tally.add(stored=1, bytes_written=page.nbytes)
        return [True] * len(keys)


class ClearForgetsHalf(MemoryBackend):
    """`clear` leaves every second object."""

    def clear(self) -> None:
        for key in list(self._shelf.objects)[::2]:
            del self._shelf.objects[key]


class SecondCloseFails(MemoryBackend):
    """Closing twice raises."""

    def close(self) -> None:
        self.expect_open()
        super().close()


class CloseTakesThePages(MemoryBackend):
    """What a handle stored is gone when it is closed."""

    def _let_go(self) -> None:
        self._shelf.objects.clear()


class AnswersWhenClosed(MemoryBackend):
    """A closed handle goes on answering."""

    def expect_open(self) -> None:
        pass


class CountsBatches(MemoryBackend):
    """A batch of hits is counted as one."""

    def stats(self) -> Stats:
        return super().stats().model_copy(update={"hits": 1})


class NeverStores(MemoryBackend):
    """Every put is refused."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        return [False] * len(keys)


class PutsRaise(MemoryBackend):
    """Every put raises; the disk that is told to be full is another one each time."""

    puts = 0

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        self.puts += 1
        raise StorageError(f"disk {self.puts} is full")


class FindsItsOwnAlone(MemoryBackend):
    """A handle finds what it has put itself, and nothing of another's."""

    def __init__(self, name: str) -> None:
        super().__init__()


class Hangs(MemoryBackend):
    """A read of two keys never ends."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        if len(keys) == 2:
            threading.Event().wait()
        return super().read(keys, into)


BROKEN: dict[type[MemoryBackend], str] = {
    CountsAllPresent: "HC-STORE-20",
    StaleAbsence: "HC-STORE-23",
    EmptyBatchFails: "HC-STORE-21",
    AnswersTwice: "HC-STORE-22",
    SaysYesToAll: "HC-STORE-24",
    StopsAtTheFirstMiss: "HC-STORE-28",
    WritesUpToTheFirstKept: "HC-STORE-28",
    Replaces: "HC-STORE-25",
    WritesBeside: "HC-STORE-26",
    FillsShortBuffers: "HC-STORE-27",
    ReadsShort: "HC-STORE-24",
    SwapsNeighbours: "HC-STORE-24",
    ForgetsTheEmpty: "HC-STORE-29",
    CutsLarge: "HC-STORE-29",
    SlashesAreDashes: "HC-STORE-30",
    KeysAreCut: "HC-STORE-30",
    KeysHaveNoCase: "HC-STORE-30",
    TagsOnlyPuts: "HC-STORE-23",
    KeepsReferences: "HC-STORE-31",
    PutsInPieces: "HC-STORE-32",
    ClearForgetsHalf: "HC-STORE-35",
    SecondCloseFails: "HC-STORE-36",
    CloseTakesThePages: "HC-STORE-36",
    AnswersWhenClosed: "HC-STORE-39",
    CountsBatches: "HC-STORE-40",
    NeverStores: "HC-STORE-23",
    FindsItsOwnAlone: "HC-STORE-23",
}
"""Each with the rule that has to notice it."""
