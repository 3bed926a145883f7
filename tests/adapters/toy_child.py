"""A child process for the tests of the transport: an object whose `take_pages` does what its number says."""

import os
import sys
import time
from collections.abc import Callable

from hicache_ref.adapters.inproc import InProcess
from hicache_ref.adapters.serving import serve
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Level
from hicache_ref.vocabulary.profile import Profile

RAISE, PANIC, DIE, HANG, PRINT, FLOOD = 1, 2, 3, 4, 5, 6


class PanicException(BaseException):
    """As a Rust panic comes out of pyo3: no Exception."""


def _raise() -> None:
    raise ValueError("no such page")


def _panic() -> None:
    raise PanicException("index out of bounds")


def _die() -> None:
    sys.stderr.write("first words\nlast words\n")
    sys.stderr.flush()
    os._exit(7)


def _hang() -> None:
    time.sleep(3600)


def _print() -> None:
    os.write(1, b"printed by native code\n")
    sys.stdout.write("printed by Python\n")
    sys.stdout.flush()


def _flood() -> None:
    sys.stderr.write("a line that nobody waits for\n" * 100_000)


ACTS: dict[int, Callable[[], None]] = {
    RAISE: _raise,
    PANIC: _panic,
    DIE: _die,
    HANG: _hang,
    PRINT: _print,
    FLOOD: _flood,
}


class Toy:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def reset(self, profile: Profile) -> None:
        """As new; a profile called `unknown` is refused."""
        if profile.name == "unknown":
            raise AdapterError("profile unknown: rule eviction is 'mru', expected 'lru'")
        self.asked = 0

    def take_pages(self, rid: str, n: int) -> dict[str, object]:
        """`n` pages, after the act of that number."""
        self.asked += 1
        ACTS.get(n, lambda: None)()
        return {"kind": "took", "pages": tuple(range(n))}

    def match_prefix(self, key: Key) -> dict[str, object]:
        """The whole key, page by token."""
        nowhere = Key(tokens=())
        return {
            "kind": "matched",
            "device": key.tokens,
            "host_hit": 0,
            "last_device_node": key,
            "last_host_node": nowhere,
            "best": key,
        }

    def observe(self, level: Level) -> dict[str, object]:
        """How often it was asked, as free pages."""
        return {"level": level, "counts": {"free_device": self.asked}}


if __name__ == "__main__":
    serve(InProcess(Toy(), Description(name="toy", version="1", level="counts")))
