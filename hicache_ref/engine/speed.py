"""How fast pages come from storage and go there through the whole engine, beside a plain loop over the same files."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import TemporaryDirectory

from hicache_ref.engine.cache import ALL_ENDS, StoredCache
from hicache_ref.engine.settings import EngineSettings, naming
from hicache_ref.engine.workers import KV_POOL
from hicache_ref.storage.files import FilesBackend
from hicache_ref.storage.speed import plain_read, plain_write, timed
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_HOST
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Progressed
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

PAGES = 1000
PAGE_BYTES = 64 * 1024
PAGE_TOKENS = 1
"""SGLang's default: a page is what one token leaves, and 64 KiB are what models of a few billion weights leave."""

BATCH = 512
"""Pages between two ends that the scheduler sees. Upstream's 128 cost some percent, and let a prefetch be cancelled no
sooner: that is between two calls of the store, of 32 pages each."""

ROUNDS = 25
ROWS = ("prefetch files vs plain read", "backup files vs plain write")
MEMORY = "/dev/shm"
"""Where the folder is, if there is such a place: what a disk does at the time would hide what we do."""


class Row(Frozen):
    """One comparison: medians in `unit`; `ratio` is ours over the other's, where both took turns the median of that."""

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
    with TemporaryDirectory(prefix="hicache-speed-", dir=MEMORY if os.path.isdir(MEMORY) else None) as folder:
        run = _Run(Path(folder), pages, page_bytes)
        with run.cache, _young_garbage_only():
            for number in range(rounds):
                run.round(number)
    size = pages * page_bytes / 1e6
    return [_row(ROWS[0], size, run.reads), _row(ROWS[1], size, run.writes)]


@contextmanager
def _young_garbage_only() -> Iterator[None]:
    """Meanwhile the garbage collector looks at nothing that is there now: how much that is, is not our doing."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _row(name: str, size: float, seconds: Sequence[tuple[float, float]]) -> Row:
    ours, other = zip(*seconds, strict=True)
    ratio = median(its / mine for mine, its in seconds)
    return Row(name=name, ours=size / median(ours), other=size / median(other), unit="MB/s", ratio=ratio)


class _Run:
    """One cache with room for a prompt, and the folder that it stores to."""

    def __init__(self, folder: Path, pages: int, page_bytes: int) -> None:
        self.folder = folder
        self.pages = pages
        self.page_bytes = page_bytes
        sizes = Sizes(device_pages=pages, host_pages=2 * pages, page_size=PAGE_TOKENS, storage_batch=BATCH)
        profile = Profile(rules=Rules(write_policy="write_through"), sizes=sizes)
        settings = EngineSettings(page_bytes=page_bytes, verify=False)
        self.cache = StoredCache(profile, lambda: FilesBackend(folder / "store"), settings)
        self.cache.step(ops.Attach(settings=StorageSettings(prefetch_policy="wait_complete", prefetch_threshold=1)))
        self._naming = naming(profile, settings)
        self.reads: list[tuple[float, float]] = []
        """Seconds of each prefetch, and of the plain read beside it; `writes` has backups and plain writes."""

        self.writes: list[tuple[float, float]] = []

    def round(self, number: int) -> None:
        """The same bytes have gone both ways, by the engine and plainly: to storage, then back."""
        cache = self.cache
        key = Key(tokens=tuple(range(number * 10**6, number * 10**6 + self.pages * PAGE_TOKENS)))
        names = self._naming(chain(cache.model.pages(key), None), KV_POOL)
        plain, views = self.folder / f"plain-{number}", cache.memory.pools[KV_HOST].views(range(self.pages))
        plain.mkdir()
        self._bring_to_host(key)
        self.writes.append(timed(number, self._backup, lambda: plain_write(str(plain), names, views)))
        rmtree(plain)
        cache.step(ops.Evict(n=self.pages))
        cache.step(ops.EvictHost(n=2 * self.pages))
        store = str(self.folder / "store")
        # What is read for the first time after it was written comes slower: uncounted, so that both are spared that.
        plain_read(store, names, views)
        self.reads.append(timed(number, lambda: self._prefetch(key), lambda: plain_read(store, names, views)))
        cache.step(ops.EvictHost(n=2 * self.pages))
        cache.step(ops.ClearStorage())

    def _bring_to_host(self, key: Key) -> None:
        """All pages of the key are on host, and nothing of them in storage."""
        self.cache.step(ops.TakePages(rid="r", n=self.pages))
        self.cache.step(ops.Forward(rid="r", key=key, start=0))
        self.cache.step(ops.Insert(rid="r", key=key, start=0))
        self.cache.pump()

    def _backup(self) -> None:
        """Storage has acknowledged all that is on host."""
        self._until(lambda: not self.cache.model.pending())

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
