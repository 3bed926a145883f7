"""How fast the files backend is, beside loops that do the least that could be done."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from hicache_ref.storage.files import FilesBackend, FilesOptions

BATCH = 128
"""Pages a call: upstream's batch."""


class Row(NamedTuple):
    """One comparison; ours and other in pages a second, ratio is ours over other."""

    name: str
    ours: float
    other: float
    ratio: float


def files_against_plain(folder: Path, pages: int = 1000, page_bytes: int = 65536, rounds: int = 9,
                        options: FilesOptions | None = None) -> tuple[Row, Row]:  # fmt: skip
    """Reading into buffers that are there, against open-readinto-close; writing, against a temporary file and rename.

    The two take turns, and the ratio is the median over the rounds: what else runs on the machine hits both.
    """
    size = pages * page_bytes
    source, target = memoryview(os.urandom(size)), memoryview(bytearray(size))
    parts = [(start, start + page_bytes) for start in range(0, size, page_bytes)]
    given, taken = ([whole[start:end] for start, end in parts] for whole in (source, target))
    keys = [f"{number:064x}" for number in range(pages)]
    writes: list[tuple[float, float]] = []
    reads: list[tuple[float, float]] = []
    for turn in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as plain, tempfile.TemporaryDirectory(dir=folder) as ours:
            backend = FilesBackend(ours, options)
            put, get = partial(_put, backend, keys, given), partial(_get, backend, keys, taken)
            writes.append(timed(turn, put, partial(plain_write, plain, keys, given)))
            reads.append(timed(turn, get, partial(plain_read, plain, keys, taken)))
            backend.close()
    return _row("files read vs plain read", pages, reads), _row("files write vs plain write", pages, writes)


def timed(turn: int, ours: Callable[[], None], other: Callable[[], None]) -> tuple[float, float]:
    """Seconds of each; who is first changes with the turn."""
    seconds = {}
    for call in (ours, other) if turn % 2 else (other, ours):
        began = time.perf_counter()
        call()
        seconds[call] = time.perf_counter() - began
    return seconds[ours], seconds[other]


def _row(name: str, pages: int, seconds: Sequence[tuple[float, float]]) -> Row:
    ours, other = (pages / median(column) for column in zip(*seconds, strict=True))
    return Row(name, ours, other, median(theirs / mine for mine, theirs in seconds))


def _put(backend: FilesBackend, keys: Sequence[str], pages: Sequence[memoryview]) -> None:
    for start in range(0, len(keys), BATCH):
        backend.write(keys[start : start + BATCH], pages[start : start + BATCH])


def _get(backend: FilesBackend, keys: Sequence[str], into: Sequence[memoryview]) -> None:
    for start in range(0, len(keys), BATCH):
        if not all(backend.read(keys[start : start + BATCH], into[start : start + BATCH])):
            raise AssertionError("a page that was just written is a miss")


def plain_write(folder: str, keys: Sequence[str], pages: Sequence[memoryview]) -> None:
    """Each page is in a file named by its key: written under another name, then renamed."""
    for key, page in zip(keys, pages, strict=True):
        path = f"{folder}/{key}.bin"
        with open(f"{path}.tmp", "wb") as file:
            file.write(page)
        os.replace(f"{path}.tmp", path)


def plain_read(folder: str, keys: Sequence[str], into: Sequence[memoryview]) -> None:
    """Each buffer holds the bytes of its key's file, as many as it has room for."""
    for key, view in zip(keys, into, strict=True):
        with open(f"{folder}/{key}.bin", "rb") as file:
            file.readinto(view)
