"""What the rules of the kit work with: handles that are watched, pages between guards, and words for what broke."""

import hashlib
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hicache_ref.storage.base import Backend, Buffer, Stats
from hicache_ref.storage.config import StorageConfig, object_keys
from hicache_ref.storage.conformance.peer import Peer, page_bytes
from hicache_ref.storage.measured import Measured, measured
from hicache_ref.vocabulary.ids import PageHash

PAGE = 4096
"""Bytes of an ordinary page of the kit: what a rule finds does not depend on it."""

_GUARD = 64
_GUARD_BYTE = 0xC3
_UNTOUCHED = 0x5A
_STORY_CALLS = 12


class Broken(Exception):
    """A rule does not hold. `rule` where it is another than the one that is being judged."""

    def __init__(self, what: str, rule: str | None = None) -> None:
        super().__init__(what)
        self.what, self.rule = what, rule


class NotJudged(Exception):
    """The rule cannot be judged on this store; the text says why."""


@dataclass(frozen=True)
class Subject:
    """A store that can be opened again and again."""

    url: str
    open: Callable[[StorageConfig], Backend]
    """The handle that stays open while the store is checked."""

    guest: Callable[[StorageConfig], Backend]
    """Handles that come and go."""

    guest_url: str = ""
    """Under which another process opens it."""

    shared: bool | None = None
    """Whether other processes see its pages; None: that is tried."""


@dataclass(frozen=True)
class Terms:
    """How a check is made."""

    config: StorageConfig
    seed: int = 0
    timeout: float = 30.0
    """Seconds in which something has to happen."""

    patience: float = 30.0
    """Seconds that a store may take to give a key free whose writer was killed."""

    clear: bool = False
    """Whether the store may be emptied."""


@dataclass
class Log:
    """The calls of a rule, as they were answered."""

    calls: int = 0
    lines: list[str] = field(default_factory=list)
    operation: str = "open"
    """The last call."""

    through: str = ""
    """The handle, or the other process, that made it."""

    events: int = 0
    """What has happened so far; a check in which nothing happens any more hangs."""

    def began(self, operation: str, through: str) -> None:
        """The operation is under way."""
        self.events += 1
        self.operation, self.through = operation, through

    def add(self, operation: str, through: str, text: str) -> None:
        """The call is told; old ones are forgotten."""
        self.calls += 1
        self.began(operation, through)
        self.lines = [*self.lines[1 - _STORY_CALLS :], f"{through}: {text}"]


class Watched:
    """A handle whose calls are logged under its name and whose answers have the right form (HC-STORE-22)."""

    def __init__(self, inner: Backend, log: Log, name: str) -> None:
        self.inner = inner
        self._log = log
        self._name = name

    def exists(self, keys: Sequence[str]) -> int:
        """As the store answers: a number from 0 to the number of keys."""
        answer = self._call("exists", f"{_told(keys)}", self.inner.exists, keys)
        if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer <= len(keys):
            raise Broken(f"exists of {len(keys)} keys answers {answer!r}, expected a number up to that", "HC-STORE-22")
        return answer

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """As the store answers: true or false a key."""
        sizes = ", ".join(sorted({str(view.nbytes) for view in into}))
        return self._booleans("read", keys, f"{_told(keys)} into buffers of {sizes or 0}", self.inner.read, into)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """As the store answers: true or false a key."""
        sizes = ", ".join(sorted({str(page.nbytes) for page in pages}))
        return self._booleans("write", keys, f"{_told(keys)} of {sizes or 0} bytes", self.inner.write, pages)

    def clear(self) -> None:
        """The store was asked to be empty."""
        self._call("clear", "", self.inner.clear)

    def stats(self) -> Stats:
        """What the store says."""
        answer: Stats = self._call("stats", "", self.inner.stats)
        return answer

    def measured(self) -> Measured:
        """What the store has measured since it was asked last."""
        answer: Measured = self._call("measured", "", measured, self.inner)
        return answer

    def close(self) -> None:
        """The handle was closed."""
        self._call("close", "", self.inner.close)

    def _booleans(self, name: str, keys: Sequence[str], told: str, call: Callable[..., Any],
                  buffers: Sequence[Buffer]) -> list[bool]:  # fmt: skip
        answers = self._call(name, told, call, keys, buffers)
        if not isinstance(answers, list) or not all(isinstance(each, bool) for each in answers):
            raise Broken(f"{name} answers {answers!r}, expected a list of true and false", "HC-STORE-22")
        if len(answers) != len(keys):
            raise Broken(f"{name} of {len(keys)} keys gives {len(answers)} answers", "HC-STORE-22")
        return answers

    def _call(self, name: str, told: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._log.began(name, self._name)
        try:
            answer = call(*arguments)
        except Exception as error:
            self._log.add(name, self._name, f"{name}({told}) raises {type(error).__name__}: {error}")
            raise
        self._log.add(name, self._name, f"{name}({told}) -> {_told(answer) if isinstance(answer, list) else answer}")
        return answer


def _changes(usual: StorageConfig, config: StorageConfig) -> str:
    """What the configuration states otherwise than usual."""
    return ", ".join(f"{name}={value}" for name, value in config if value != getattr(usual, name))


def _told(items: Sequence[object]) -> str:
    """A list in few words: the items themselves if they are short."""
    if items and all(isinstance(each, bool) for each in items):
        text = ", ".join(str(each).lower() for each in items[:8])
        return f"[{text}{', ...' if len(items) > 8 else ''}]"
    return f"{len(items)} key{'' if len(items) == 1 else 's'}"


class Kit:
    """A rule's means: keys and pages of its own, handles that are closed behind it, processes that are ended."""

    def __init__(self, subject: Subject, opened: Backend, rule: str, run: str, terms: Terms) -> None:
        self.subject = subject
        self.names_by_config = bool(getattr(opened, "names_by_config", False))
        """Whether the store makes its own names from the configuration, as SGLang's do; else the kit does."""

        self.config = terms.config
        self.patience = terms.patience
        self.may_clear = terms.clear
        self.log = Log()
        self.main = Watched(opened, self.log, "handle 1")
        """The handle that stays open."""

        self.random = random.Random(f"{terms.seed}/{rule}")
        self._seed = terms.seed
        # Keys are new in each run, for what was put once stays; order and moments follow from the seed.
        self._name = f"{run}/{rule}"
        self._handles: list[Watched] = []
        self._peers: list[Peer] = []

    def open(self, config: StorageConfig | None = None) -> Watched:
        """Another handle onto the store."""
        name = f"handle {len(self._handles) + 2}"
        self.log.began("open", name)
        handle = Watched(self.subject.guest(config or self.config), self.log, name)
        self.log.add("open", name, f"open({_changes(self.config, config or self.config)})")
        self._handles.append(handle)
        return handle

    def under(self, config: StorageConfig) -> Watched:
        """A handle of one who stores under `config`."""
        return self.open(config) if self.names_by_config else self.main

    def peer(self) -> Peer:
        """A process that has the store open. Raises NotJudged where it would not see the same pages."""
        if self.subject.shared is False:
            raise NotJudged("no other process sees the pages of this store")
        name = f"process {len(self._peers) + 1}"
        self.log.began("open", name)
        peer = Peer(self.subject.guest_url, self.config, partial(self.log.began, through=name))
        self._peers.append(peer)
        peer.greet()
        return peer

    def end(self, *, hung: bool = False) -> None:
        """No process of this rule is left, and no handle unless a call on one hangs."""
        for peer in self._peers:
            peer.end()
        for handle in [] if hung else self._handles:
            # What goes wrong with these is found by the rule about closing.
            with suppress(Exception):
                handle.inner.close()

    def hash(self, name: str) -> PageHash:
        """A page hash that nobody else has."""
        return hashlib.sha256(f"{self._name}/{name}".encode()).hexdigest()

    def key(self, name: str, config: StorageConfig | None = None) -> str:
        """The key of an object that nobody else has."""
        digest = self.hash(name)
        return digest if self.names_by_config else object_keys(config or self.config, digest)[0]

    def keys(self, name: str, count: int) -> list[str]:
        """So many keys."""
        return [self.key(f"{name}{number}") for number in range(count)]

    def page(self, name: str, size: int = PAGE) -> bytes:
        """Bytes that belong to the name and the seed."""
        return page_bytes(self._seed, name, size)

    def recipe(self, name: str, size: int) -> tuple[int, str, int]:
        """From which another process makes the page of that name."""
        return self._seed, name, size

    def put(self, handle: Watched, keys: Sequence[str], pages: Sequence[bytes]) -> list[bool]:
        """The answers to a put of these pages, from memory that can be written to."""
        return handle.write(keys, [memoryview(bytearray(page)) for page in pages])

    def stored(self, handle: Watched, keys: Sequence[str], pages: Sequence[bytes]) -> None:
        """The pages are stored. Raises Broken (HC-STORE-23): a quiet store has no reason to refuse."""
        answers = self.put(handle, keys, pages)
        if not all(answers):
            raise Broken(f"the put of {answers.count(False)} of {len(keys)} ordinary pages is refused", "HC-STORE-23")

    def get(self, handle: Watched, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | None]:
        """For each key what its buffer holds, or None for a miss. Raises Broken (HC-STORE-26) for a broken guard."""
        starts, end = [], _GUARD
        for size in sizes:
            starts.append(end)
            end += size + _GUARD
        memory = bytearray([_GUARD_BYTE]) * end
        views = []
        for start, size in zip(starts, sizes, strict=True):
            memory[start : start + size] = bytes([_UNTOUCHED]) * size
            views.append(memoryview(memory)[start : start + size])
        found = handle.read(keys, views)
        kept = [memory[start - _GUARD : start] for start in starts] + [memory[end - _GUARD :]]
        if any(guard != bytes([_GUARD_BYTE]) * _GUARD for guard in kept):
            raise Broken("a read wrote beside its buffer", "HC-STORE-26")
        return [bytes(view) if hit else None for hit, view in zip(found, views, strict=True)]

    def expect(self, handle: Watched, keys: Sequence[str], pages: Sequence[bytes], rule: str | None = None) -> int:
        """Every key gives its page. Raises Broken."""
        for number, found in enumerate(self.get(handle, keys, [len(page) for page in pages])):
            if found is None:
                raise Broken(f"page {number} of {len(keys)} was stored and is not found", rule or "HC-STORE-23")
            if found != pages[number]:
                what = f"page {number} of {len(keys)}: {_difference(found, pages[number])}"
                raise Broken(what, rule or "HC-STORE-24")
        return len(keys)

    def whole_or_refused(self, handle: Watched, keys: Sequence[str], pages: Sequence[bytes], answers: Sequence[bool],
                         rule: str) -> int:  # fmt: skip
        """What a put answered is so: a stored page is found whole, a refused one is absent. Raises Broken."""
        for key, page, answer in zip(keys, pages, answers, strict=True):
            if answer:
                self.expect(handle, [key], [page], rule)
            else:
                self.expect_absent(handle, [key], len(page), rule)
        return len(keys)

    def expect_absent(self, handle: Watched, keys: Sequence[str], size: int = PAGE, rule: str | None = None) -> int:
        """No key gives anything, none is said to be there. Raises Broken."""
        for number, found in enumerate(self.get(handle, keys, [size] * len(keys))):
            if found is not None:
                what = f"key {number} of {len(keys)} was never stored and gives {len(found)} bytes"
                raise Broken(what, rule or "HC-STORE-24")
        for key in keys:
            if handle.exists([key]):
                raise Broken("a key that was never stored is said to be present", rule or "HC-STORE-20")
        return len(keys)


def _difference(found: bytes, expected: bytes) -> str:
    """Where the bytes differ, in words."""
    first = next(place for place, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    differing = sum(a != b for a, b in zip(found, expected, strict=True))
    if all(byte == _UNTOUCHED for byte in found):
        return "the read answers true and left its buffer as it was"
    if found[first:] == bytes([_UNTOUCHED]) * (len(found) - first):
        return f"the read answers true and filled only {first} of {len(found)} bytes"
    return f"{differing} of {len(found)} bytes differ from those stored, the first at {first}"
