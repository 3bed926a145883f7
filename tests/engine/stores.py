"""Stores that tests can hold up, and a cache with what is always needed around it."""

import threading
from collections.abc import Callable, Sequence

from hicache_ref.engine.cache import StoredCache
from hicache_ref.engine.settings import EngineSettings
from hicache_ref.storage.base import Buffer
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Done, Outcome
from hicache_ref.vocabulary.profile import Profile
from hicache_ref.vocabulary.storage import StorageSettings

PATIENCE_SECONDS = 20.0
"""How long a test waits for what must come; only a failure takes as long."""

SETTINGS = StorageSettings(prefetch_threshold=1, prefetch_policy="wait_complete")
ATTACH = ops.Attach(settings=SETTINGS)
SMALL = EngineSettings(page_bytes=32, draft_bytes=8, stop_timeout_s=0.4)
KEY = Key(tokens=(1, 2, 3))


class HeldBackend(MemoryBackend):
    """A memory store whose calls of the kinds in `held` wait for `release`, and fail as `failing` says."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.held = set(held)
        self.answers_first = False
        """Whether a query that waits has its answer by then, from before whatever happens meanwhile."""

        self.failing: dict[str, Callable[[Sequence[str]], BaseException | None]] = {}
        self.entered = threading.Semaphore(0)
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.closed = 0
        self._gate = threading.Event()

    def release(self) -> None:
        """Calls that wait go on, and later ones do not wait."""
        self._gate.set()

    def hold(self, *kinds: str) -> None:
        """From now on calls of these kinds wait."""
        self.held = set(kinds)
        self._gate.clear()

    def wait_for_call(self) -> None:
        """One more call has begun. Raises TimeoutError."""
        if not self.entered.acquire(timeout=PATIENCE_SECONDS):
            raise TimeoutError("no call of the store, expected one")

    def _pass(self, kind: str, keys: Sequence[str]) -> None:
        self.calls.append((kind, tuple(keys)))
        self.entered.release()
        if kind in self.held and not self._gate.wait(PATIENCE_SECONDS):
            raise TimeoutError("held for too long, expected a release")
        error = self.failing[kind](keys) if kind in self.failing else None
        if error is not None:
            raise error

    def exists(self, keys: Sequence[str]) -> int:
        """As the memory store."""
        answer = super().exists(keys) if self.answers_first else None
        self._pass("exists", keys)
        return super().exists(keys) if answer is None else answer

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """As the memory store."""
        self._pass("read", keys)
        return super().read(keys, into)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """As the memory store."""
        self._pass("write", keys)
        return super().write(keys, pages)

    def close(self) -> None:
        """As the memory store, counted."""
        self.closed += 1
        super().close()


class RefusesOne(HeldBackend):
    """A held store that has no room for the page under `key`."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """As the memory store, false for that page."""
        taken = [(key, page) for key, page in zip(keys, pages, strict=True) if key != self._key]
        super().write([key for key, _ in taken], [page for _, page in taken])
        return [key != self._key for key in keys]


def attached(backend: HeldBackend, profile: Profile | None = None, settings: EngineSettings = SMALL) -> StoredCache:
    """A cache on this store."""
    cache = StoredCache(profile or Profile(), lambda: backend, settings)
    assert Done() == cache.step(ATTACH)
    return cache


def storage_threads() -> list[str]:
    """The names of the workers' threads in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("storage_")]


def insert(cache: StoredCache, key: Key) -> None:
    """The key has been computed and is resident, all of it in pages of one request."""
    pages = len(cache.model.pages(key))
    cache.step(ops.TakePages(rid="maker", n=pages))
    cache.step(ops.Forward(rid="maker", key=key, start=0))
    cache.step(ops.Insert(rid="maker", key=key, start=0))


def store(cache: StoredCache, key: Key) -> None:
    """The key is in storage and on no other tier."""
    insert(cache, key)
    assert () == cache.settle(PATIENCE_SECONDS)
    sizes = cache.model.profile.sizes
    cache.step(ops.Evict(n=sizes.device_pages))
    assert () == cache.settle(PATIENCE_SECONDS)
    cache.step(ops.EvictHost(n=sizes.host_pages))


def fetch(cache: StoredCache, key: Key, rid: str = "r") -> Outcome:
    """What a request is told that waited for its prefetch, without what the step counts, which a poll may have."""
    cache.step(ops.Prefetch(rid=rid, key=key))
    cache.settle(PATIENCE_SECONDS)
    return cache.step(ops.Progress(rid=rid)).model_copy(update={"prefetched": None})
