"""A store that files pages by their prefix is told what comes before each call, from the start (HC-STORE-05)."""

from collections.abc import Sequence

import pytest

from hicache_ref.engine.cache import StoredCache
from hicache_ref.engine.settings import naming
from hicache_ref.engine.workers import WorkerSettings
from hicache_ref.storage.base import Backend, Buffer
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Progressed
from hicache_ref.vocabulary.profile import Profile, Sizes
from tests.engine.stores import PATIENCE_SECONDS, SETTINGS, SMALL, fetch, insert

PROFILE = Profile(sizes=Sizes(storage_batch=3))
WHOLE = Key(tokens=(1, 2, 3, 4, 5))
HALF = Key(tokens=(1, 2))
NAMES = naming(PROFILE, SMALL)(chain(tuple((token,) for token in WHOLE.tokens), None, False), "kv")


class ByPrefix(MemoryBackend):
    """A memory store that notes for each call what it was told to come before, or None where it was not told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[str] | None, list[str]]] = []
        self.prefix: list[str] | None = None

    def after(self, prefix: Sequence[str]) -> Backend:
        """A handle that notes the same list."""
        told = ByPrefix()
        told._shelf, told.calls, told.prefix = self._shelf, self.calls, list(prefix)
        return told

    def exists(self, keys: Sequence[str]) -> int:
        """As the memory store, noted."""
        self.calls.append(("exists", self.prefix, list(keys)))
        return super().exists(keys)

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """As the memory store, noted."""
        self.calls.append(("read", self.prefix, list(keys)))
        return super().read(keys, into)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """As the memory store, noted."""
        self.calls.append(("write", self.prefix, list(keys)))
        return super().write(keys, pages)


def calls_of_a_round_trip(*, told: bool, call_pages: int) -> list[tuple[str, list[str] | None, list[str]]]:
    """The calls of a store while two nodes of one path are stored and the lower one, and then both, are fetched."""
    backend = ByPrefix()
    settings = SMALL.model_copy(update={"workers": WorkerSettings(call_pages=call_pages)})
    with StoredCache(PROFILE, lambda: backend, settings) as cache:
        cache.step(ops.Attach(settings=SETTINGS.model_copy(update={"pass_prefix_keys": told})))
        insert(cache, HALF)
        cache.settle(PATIENCE_SECONDS)
        cache.step(ops.TakePages(rid="maker", n=3))
        cache.step(ops.Forward(rid="maker", key=WHOLE, start=2))
        cache.step(ops.Insert(rid="maker", key=WHOLE, start=2))
        for host_pages in (3, 5):
            assert () == cache.settle(PATIENCE_SECONDS)
            cache.step(ops.Evict(n=5))
            cache.settle(PATIENCE_SECONDS)
            cache.step(ops.EvictHost(n=host_pages))
            assert Progressed(done=True, loaded=host_pages) == fetch(cache, WHOLE)
    return backend.calls


@pytest.mark.parametrize("call_pages", [1, 2, 8])
def test_what_comes_before_reaches_the_store(call_pages: int) -> None:
    """Goal: every call can be filed by its prefix. Method: two nodes, batches of 3, each cut into calls."""
    calls = calls_of_a_round_trip(told=True, call_pages=call_pages)

    assert {"exists", "read", "write"} == {kind for kind, _, _ in calls}
    for _, prefix, keys in calls:
        assert prefix is not None
        assert NAMES[: len(prefix) + len(keys)] == [*prefix, *keys]
    assert {0, 2} <= {len(prefix or ()) for _, prefix, _ in calls}


def test_nothing_is_told_where_the_settings_do_not_ask() -> None:
    """Goal: the setting decides. Method: the same trip without it."""
    assert {None} == {prefix and tuple(prefix) for _, prefix, _ in calls_of_a_round_trip(told=False, call_pages=2)}
