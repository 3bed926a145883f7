"""A store in this process: a dictionary. For tests, and as the shortest honest backend."""

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from hicache_ref.storage.base import Buffer, Handle, expect_pairs, flat, leading


class Shelf:
    """What handles of one name share; it is gone with the last of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, bytes] = {}


_SHELVES: WeakValueDictionary[str, Shelf] = WeakValueDictionary()


class MemoryBackend(Handle):
    """A handle onto the shelf called `name`; without a name, onto one of its own."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._shelf = _SHELVES.setdefault(name, Shelf()) if name else Shelf()

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys` are present from the first on."""
        self.expect_open()
        return leading(key in self._shelf.objects for key in keys)

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each key whether its buffer holds the object."""
        self.expect_open()
        expect_pairs(keys, into)
        found = []
        for key, view in zip(keys, into, strict=True):
            stored = self._shelf.objects.get(key)
            hit = stored is not None and len(stored) == view.nbytes
            if hit and stored:
                flat(view)[:] = stored
            found.append(hit)
        self._count_reads(found, into)
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """For each key true: it has these bytes, or keeps those it had."""
        self.expect_open()
        expect_pairs(keys, pages)
        for key, page in zip(keys, pages, strict=True):
            with self._shelf.lock:
                kept = key in self._shelf.objects
                if not kept:
                    self._shelf.objects[key] = bytes(page)
            self.tally.add(kept=kept, stored=not kept, bytes_written=0 if kept else page.nbytes)
        return [True] * len(keys)

    def clear(self) -> None:
        """The shelf is empty."""
        self.expect_open()
        with self._shelf.lock:
            self._shelf.objects.clear()
