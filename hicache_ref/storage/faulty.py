"""A store that misbehaves as real ones do, on purpose and the same way each time.

Everything here is lawful: pages that are gone, puts that are refused, calls that fail. Wrong bytes never are, so they
are not here. Whether a fault strikes follows from the seed, the kind, the key and how often it was asked for, and from
nothing else: threads and batches do not change it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from hashlib import blake2b
from typing import Annotated

from pydantic import Field

from hicache_ref.storage.base import Backend, Buffer, Stats, StorageError, after, expect_pairs, flat, leading
from hicache_ref.vocabulary.base import Frozen

Chance = Annotated[float, Field(ge=0, le=1)]


class Faults(Frozen):
    """How often each kind strikes, from 0 to 1; each can be planted alone."""

    miss: Chance = 0
    """A read does not find the object, this time."""

    short: Chance = 0
    """A read breaks off half way: the buffer's first half is written, the answer is a miss."""

    error: Chance = 0
    """A call raises StorageError and does nothing."""

    delay: Chance = 0
    """A call takes `delay_seconds` longer."""

    vanish: Chance = 0
    """An object that `exists` has just counted is gone: that it was there was a hint."""

    refuse: Chance = 0
    """A put is refused and stores nothing."""

    wrong_length: Chance = 0
    """A put stores one byte less and says that all is well: the object is there and can never be read."""

    evict: Chance = 0
    """A put makes the store give up one object that it had: prefixes get holes."""

    delay_seconds: Annotated[float, Field(ge=0)] = 0.01


class FaultyBackend:
    """`inner` with faults."""

    def __init__(self, inner: Backend, faults: Faults, seed: int = 0,
                 sleep: Callable[[float], None] = time.sleep) -> None:  # fmt: skip
        self._inner = inner
        self._faults = faults
        self._seed = seed
        self._sleep = sleep
        self._lock = threading.Lock()
        self._asked: Counter[tuple[str, str]] = Counter()
        self._gone: set[str] = set()
        self._written: list[str] = []
        self.struck: Counter[str] = Counter()
        """How often each kind has struck."""

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys` are present from the first on; some of them may be gone right after."""
        self._before("exists", keys)
        run = min(self._inner.exists(keys), leading(key not in self._gone for key in keys))
        for key in keys[:run]:
            if self._strikes("vanish", key):
                self._gone.add(key)
        return run

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each key whether its buffer holds the object, as far as no fault strikes."""
        expect_pairs(keys, into)
        self._before("read", keys)
        found = self._inner.read(keys, into)
        for number, (key, view) in enumerate(zip(keys, into, strict=True)):
            if not found[number]:
                continue
            if key in self._gone or self._strikes("miss", key):
                found[number] = False
                _blot(view, 0)
            elif self._strikes("short", key):
                found[number] = False
                _blot(view, view.nbytes // 2)
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """For each key whether the store says that it has it."""
        expect_pairs(keys, pages)
        self._before("write", keys)
        return [self._write_one(key, page) for key, page in zip(keys, pages, strict=True)]

    def after(self, prefix: Sequence[str]) -> Backend:
        """The same store with the same faults, for calls whose keys follow those of `prefix`."""
        told = copy(self)
        told._inner = after(self._inner, prefix)
        return told

    def clear(self) -> None:
        """The store is empty."""
        self._inner.clear()
        with self._lock:
            self._gone.clear()
            self._written.clear()

    def stats(self) -> Stats:
        """What the inner store did."""
        return self._inner.stats()

    def close(self) -> None:
        """The inner store is closed."""
        self._inner.close()

    def _write_one(self, key: str, page: Buffer) -> bool:
        if self._strikes("refuse", key):
            return False
        self._evict(key)
        if page.nbytes and self._strikes("wrong_length", key):
            page = flat(page)[:-1]
        # A page that was given up cannot be put anew where the inner store still has it: the old bytes are there again.
        done = self._inner.write([key], [page])[0]
        with self._lock:
            self._gone.discard(key)
            self._written.append(key)
        return done

    def _evict(self, key: str) -> None:
        """One of the objects written so far is gone, if that strikes."""
        with self._lock:
            present = [each for each in self._written if each not in self._gone]
        if present and self._strikes("evict", key):
            self._gone.add(present[int(self._draw("victim", key) * len(present))])

    def _before(self, call: str, keys: Sequence[str]) -> None:
        """What strikes a call as a whole: drawn for its first key."""
        key = f"{call}:{keys[0] if keys else ''}"
        if self._strikes("delay", key):
            self._sleep(self._faults.delay_seconds)
        if self._strikes("error", key):
            raise StorageError(f"planted: {call} of {len(keys)} keys fails")

    def _strikes(self, kind: str, key: str) -> bool:
        chance: float = getattr(self._faults, kind)
        strikes = chance > 0 and self._draw(kind, key) < chance
        if strikes:
            with self._lock:
                self.struck[kind] += 1
        return strikes

    def _draw(self, kind: str, key: str) -> float:
        """A number from 0 to 1, the same for the same seed, kind, key and turn."""
        with self._lock:
            turn = self._asked[kind, key]
            self._asked[kind, key] += 1
        text = f"{self._seed}\0{kind}\0{turn}\0{key}".encode(errors="surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=8).digest()) / 2**64


def _blot(view: Buffer, start: int) -> None:
    """From `start` on, the buffer holds what no page is likely to."""
    flat(view)[start:] = b"\xa5" * (view.nbytes - start)
