"""The one interface of a store, what may go wrong with it, and how its work is counted.

A store keeps pages under keys. It promises little: presence is a hint, a page may go at any time, and nothing says that
the pages of a prefix go together. What it does promise is bytes: a read gives exactly what was put first, or nothing.
"""

import importlib
import threading
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from hicache_ref.vocabulary.base import Frozen

Buffer = memoryview
"""Contiguous bytes of a page's object, writable where they are read into; nothing is kept of it after a call."""


class StorageError(Exception):
    """The store could not do what it was asked. It costs this call, never the caller's thread, never a page."""


class StorageClosed(StorageError):
    """The handle was used after it was closed."""


class Unsupported(StorageError):
    """The store has no such operation."""


class Malformed(StorageError):
    """The store gave what is no answer to the call: too many, too few, or no truth value (HC-STORE-22)."""


class Misuse(ValueError):
    """The caller asked for what cannot be: bad URL, option or configuration, or lists of different lengths."""


class Stats(Frozen):
    """What a handle did since it was opened, in objects and bytes."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    """Misses because what was stored is torn or corrupt; they count as misses too."""

    stored: int = 0
    kept: int = 0
    """Writes of a key that was there already; the earlier bytes stay."""

    refused: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class Backend(Protocol):
    """A store, opened. Several threads may use one handle at once. Every call but `close` may raise StorageError."""

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys`, from the first on, are present without a gap; a hint (HC-STORE-20)."""

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """One answer a key: its buffer holds the whole object, or a miss and the buffer's content means nothing.

        An object of another length than its buffer is a miss. Raises Misuse for lists of different lengths.
        """

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """One answer a key: the store has a whole object under it, these bytes or earlier ones, or it refused.

        The pages may be overwritten as soon as this returns. Raises Misuse for lists of different lengths.
        """

    def clear(self) -> None:
        """No object that was there is left. Raises Unsupported where the store cannot do that."""

    def stats(self) -> Stats:
        """What this handle did; nothing changes."""

    def close(self) -> None:
        """The handle is closed, what it stored stays; a second time nothing happens."""


class PrefixBackend(Backend, Protocol):
    """A store that files objects by what comes before them, and so wants to know it."""

    def after(self, prefix: Sequence[str]) -> Backend:
        """The same store, for calls whose keys follow those of `prefix`, a chain from its first key (HC-STORE-05)."""


def after(backend: Backend, prefix: Sequence[str]) -> Backend:
    """The store for calls whose keys follow those of `prefix`; as it is where it does not want to know."""
    told: Callable[[Sequence[str]], Backend] | None = getattr(backend, "after", None)
    return backend if told is None else told(prefix)


class Tally:
    """Counts that several threads may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, **counts: int) -> None:
        """The counts of these names, which are fields of Stats, are so much higher."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def stats(self) -> Stats:
        """The counts at this moment."""
        with self._lock:
            return Stats(**self._counts)


class Handle:
    """What every backend of this package shares: it is open until it is closed, and its work is counted."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._closed = False
        self._closing = threading.Lock()

    def expect_open(self) -> None:
        """The handle is open. Raises StorageClosed."""
        if self._closed:
            raise StorageClosed(f"{type(self).__name__} is closed, expected an open one")

    def stats(self) -> Stats:
        """What this handle did; nothing changes."""
        self.expect_open()
        return self.tally.stats()

    def close(self) -> None:
        """The handle is closed, what it stored stays; a second time nothing happens."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        """What the handle held is free; called once."""

    def _count_reads(self, found: Sequence[bool], into: Sequence[Buffer], damaged: int = 0) -> None:
        hits = sum(found)
        size = sum(view.nbytes for ok, view in zip(found, into, strict=True) if ok)
        self.tally.add(hits=hits, misses=len(found) - hits, damaged=damaged, bytes_read=size)


def flat(view: Buffer) -> Buffer:
    """The buffer as single bytes, so that it can be cut by bytes."""
    return view if (view.format == "B" and view.ndim == 1) or not view.nbytes else view.cast("B")


def leading(present: Iterable[bool]) -> int:
    """How many are true before the first that is not."""
    count = 0
    for each in present:
        if not each:
            break
        count += 1
    return count


def expect_pairs(keys: Sequence[str], buffers: Sequence[Buffer]) -> None:
    """There is one buffer a key. Raises Misuse."""
    if len(keys) != len(buffers):
        raise Misuse(f"{len(buffers)} buffers, expected one for each of {len(keys)} keys")


def required(module: str, *, extra: str) -> Any:
    """The optional module. Raises StorageError naming the package's extra that brings it."""
    try:
        found: ModuleType = importlib.import_module(module)
    except ImportError as error:
        raise StorageError(f"{module}: {error}, expected it to be installed: hicache-ref[{extra}]") from error
    return found


Checked = TypeVar("Checked", bound=Frozen)


def checked(model: type[Checked], values: dict[str, Any], what: str) -> Checked:
    """The values as a record. Raises Misuse, one line naming key and value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "values"
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields) or "none"
            raise Misuse(f"{what}: unknown option {name!r}, expected one of: {known}") from None
        raise Misuse(f"{what}: {name} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}") from None
