"""How fast pages come from storage and go there through the whole engine, beside a plain loop over the same files."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hicache_ref.engine.cache import ALL_ENDS, StoredCache
from hicache_ref.engine.settings import EngineSettings
from hicache_ref.storage.files import FilesBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_HOST
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Progressed
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

PAGES = 1000
PAGE_BYTES = 64 * 1024
PAGE_TOKENS = 16
ROUNDS = 7


class Row(NamedTuple):
    """One comparison; `ratio` is ours over the other's, `unit` what both are counted in."""

    name: str
    ours: float
    other: float
    unit: str
    ratio: float


def storage_rows(pages: int = PAGES, page_bytes: int = PAGE_BYTES, rounds: int = ROUNDS) -> list[Row]:
    """Prefetch and backup of one prompt of `pages` pages of `page_bytes` bytes, in MB/s; medians of `rounds`.

    Through model, workers and a folder of files, beside a loop that reads the same files into the same memory, and one
    that writes the same pages to temporary files and renames them. The two take turns, and the ratio is the median over
    the rounds: what else runs on the machine hits both.
    """
    with TemporaryDirectory(prefix="hicache-speed-") as folder:
        run = _Run(Path(folder), pages, page_bytes)
        with run.cache:
            times = [run.round(number) for number in range(rounds)]
    prefetch, read, backup, write = zip(*times, strict=True)
    size = pages * page_bytes / 1e6
    return [
        _row("prefetch files vs plain read", size, prefetch, read),
        _row("backup files vs plain write", size, backup, write),
    ]


def _row(name: str, size: float, ours: Sequence[float], other: Sequence[float]) -> Row:
    ratio = median(its / mine for mine, its in zip(ours, other, strict=True))
    return Row(name, size / median(ours), size / median(other), "MB/s", ratio)


class _Run:
    """One cache with room for a prompt, and the folder that it stores to."""

    def __init__(self, folder: Path, pages: int, page_bytes: int) -> None:
        self.folder = folder
        self.pages = pages
        self.page_bytes = page_bytes
        sizes = Sizes(device_pages=pages, host_pages=2 * pages, page_size=PAGE_TOKENS, storage_batch=128)
        self.cache = StoredCache(
            Profile(rules=Rules(write_policy="write_through"), sizes=sizes),
            lambda: FilesBackend(folder / "store"),
            EngineSettings(page_bytes=page_bytes, verify=False),
        )
        self.cache.step(ops.Attach(settings=StorageSettings(prefetch_policy="wait_complete", prefetch_threshold=1)))

    def round(self, number: int) -> tuple[float, float, float, float]:
        """Seconds for a prefetch, a plain read, a backup and a plain write of the same bytes."""
        key = Key(tokens=tuple(range(number * 10**6, number * 10**6 + self.pages * PAGE_TOKENS)))
        before = set(self._files())
        backup = self._backup(key)
        written = _seconds(lambda: self._plain_write(self.folder / f"plain-{number}"))
        files = sorted(set(self._files()) - before)
        self.cache.step(ops.Evict(n=self.pages))
        self.cache.step(ops.EvictHost(n=2 * self.pages))
        prefetch = _seconds(lambda: self._prefetch(key))
        read = _seconds(lambda: self._plain_read(files))
        self.cache.step(ops.EvictHost(n=2 * self.pages))
        return prefetch, read, backup, written

    def _files(self) -> list[str]:
        with os.scandir(self.folder / "store") as entries:
            return [entry.path for entry in entries if entry.is_file()]

    def _backup(self, key: Key) -> float:
        """Seconds from the moment that the pages are on host until storage has acknowledged all."""
        cache = self.cache
        cache.step(ops.TakePages(rid="r", n=self.pages))
        cache.step(ops.Forward(rid="r", key=key, start=0))
        cache.step(ops.Insert(rid="r", key=key, start=0))
        cache.pump()
        return _seconds(lambda: self._until(lambda: not cache.model.pending()))

    def _prefetch(self, key: Key) -> None:
        self.cache.step(ops.Prefetch(rid="r", key=key))
        self._until(self._has_come)

    def _has_come(self) -> bool:
        outcome = self.cache.step(ops.Progress(rid="r"))
        return isinstance(outcome, Progressed) and outcome.done

    def _until(self, is_there: Callable[[], bool]) -> None:
        """The scheduler's loop: what has ended is applied, then the next end is waited for."""
        while True:
            self.cache.step(ALL_ENDS)
            if is_there():
                return
            self.cache.pump(block=True)

    def _plain_read(self, files: list[str]) -> None:
        host = self.cache.memory.pools[KV_HOST]
        for page, path in enumerate(files):
            with open(path, "rb", buffering=0) as file:
                file.readinto(host.view(page))

    def _plain_write(self, folder: Path) -> None:
        folder.mkdir()
        host = self.cache.memory.pools[KV_HOST]
        for page in range(self.pages):
            with open(f"{folder}/draft", "wb", buffering=0) as file:
                file.write(host.view(page))
            os.rename(f"{folder}/draft", f"{folder}/{page}")


def _seconds(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
