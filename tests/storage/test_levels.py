"""A backend with the methods that SGLang's controller calls, at all three levels."""

from collections.abc import Callable, Sequence

import pytest

from hicache_ref.storage.base import Backend, Buffer, Misuse, StorageClosed
from hicache_ref.storage.config import StorageConfig, object_keys
from hicache_ref.storage.faulty import Faults, FaultyBackend
from hicache_ref.storage.foreign import SglangExtraInfo
from hicache_ref.storage.levels import HiCacheObject
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.storage.pools import PoolTransfer
from tests.storage.pages import view

CONFIG = StorageConfig(model_name="m", page_size=2)
K_AND_V = CONFIG.model_copy(update={"split_k_v": True})
HASHES = [f"{number:064x}" for number in range(6)]
SIZE = 64


class HostPages:
    """Host pages in one piece of memory, each of so many objects."""

    def __init__(self, pages: int, page_size: int = 2, objects: int = 1) -> None:
        self.page_size = page_size
        self.memory = memoryview(bytearray(pages * SIZE))
        self._objects = objects

    def views(self, page: int) -> Sequence[Buffer]:
        whole, size = self.page(page), SIZE // self._objects
        return [whole[start : start + size] for start in range(0, SIZE, size)]

    def page(self, page: int) -> Buffer:
        """The bytes of a page."""
        return self.memory[page * SIZE : (page + 1) * SIZE]


def page(number: int) -> bytes:
    """A page whose halves differ."""
    return bytes([number]) * (SIZE // 2) + bytes([number + 100]) * (SIZE // 2)


def slots(*pages: int) -> list[int]:
    """The token slots of host pages of two tokens."""
    return [slot for each in pages for slot in (2 * each, 2 * each + 1)]


@pytest.mark.parametrize("config", [CONFIG, K_AND_V], ids=["one object", "K and V"])
def test_the_generic_level(config: StorageConfig) -> None:
    """Goal: flat pages in and out. Method: some of four pages put; single calls, batches, and what is absent."""
    store = HiCacheObject(MemoryBackend(), config)
    targets = [view(bytes(SIZE)) for _ in range(4)]

    assert store.set(HASHES[0], view(page(0)))
    assert store.batch_set([HASHES[1], HASHES[3]], [view(page(1)), view(page(3))])
    assert (True, False) == (store.exists(HASHES[0]), store.exists(HASHES[2]))
    assert (2, 0, 1) == (store.batch_exists(HASHES), store.batch_exists(HASHES[2:]), store.batch_exists(HASHES[3:]))
    found = store.batch_get(HASHES[:4], targets)
    assert found is not None
    assert [page(0), page(1), None, page(3)] == [None if each is None else bytes(each) for each in found]
    assert store.get(HASHES[3], targets[0]) is targets[0]
    assert store.get(HASHES[2], targets[0]) is None
    assert store.clear()
    assert 0 == store.batch_exists(HASHES)


def test_a_page_without_one_of_its_objects_is_absent() -> None:
    """Goal: HC-STORE-45, counts are in pages. Method: three pages as K and V; the second page's V is never stored."""
    backend = MemoryBackend()
    store = HiCacheObject(backend, K_AND_V)
    for number, digest in enumerate(HASHES[:3]):
        names = object_keys(K_AND_V, digest)[: 1 if number == 1 else 2]
        backend.write(names, [view(page(number)[: SIZE // 2])] * len(names))
    targets = [view(bytes(SIZE)) for _ in range(3)]
    found = store.batch_get(HASHES[:3], targets)

    assert (1, 1) == (store.batch_exists(HASHES[:3]), store.batch_exists(HASHES[2:3]))
    assert found is not None
    assert [True, False, True] == [each is not None for each in found]
    assert 3 == backend.exists([name for digest in HASHES[:3] for name in object_keys(K_AND_V, digest)])


@pytest.mark.parametrize("config", [CONFIG, K_AND_V], ids=["one object", "K and V"])
def test_the_zero_copy_level(config: StorageConfig) -> None:
    """Goal: host pages by token slots. Method: pages put from some slots, got into others, one of them absent."""
    store = HiCacheObject(MemoryBackend(), config)
    host = HostPages(8, objects=len(config.parts()))
    store.register_mem_pool_host(host)
    for number in range(3):
        host.page(number)[:] = page(number)

    assert [True, True] == store.batch_set_v1(HASHES[:2], slots(0, 2))
    assert [True, False, True] == store.batch_get_v1([HASHES[1], HASHES[5], HASHES[0]], slots(7, 6, 5))
    assert (page(2), page(0)) == (bytes(host.page(7)), bytes(host.page(5)))


@pytest.mark.parametrize("indices", [[0, 1], [0, 1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 4], [2, 3, 1, 0], []])
def test_slots_that_are_no_pages_move_nothing(indices: list[int]) -> None:
    """Goal: a wrong count, or a page that is none, is a no. Method: two keys and slots that do not fit."""
    store = HiCacheObject(MemoryBackend(), CONFIG)
    host = HostPages(4)
    store.register_mem_pool_host(host)

    assert [False, False] == store.batch_set_v1(HASHES[:2], indices)
    assert [False, False] == store.batch_get_v1(HASHES[:2], indices)
    assert 0 == store.batch_exists(HASHES)


def test_the_multi_pool_level() -> None:
    """Goal: pools by name, each with its policy. Method: KV of four pages, state at the third; then KV with a gap."""
    store = HiCacheObject(MemoryBackend(), CONFIG)
    kv, state = HostPages(6), HostPages(2, page_size=1)
    store.register_mem_pool_host(kv)
    store.register_mem_host_pool_v2(state, "mamba")
    for number in range(4):
        kv.page(number)[:] = page(number)
    state.page(1)[:] = page(9)
    put = [
        PoolTransfer(name="kv", keys=tuple(HASHES[:4]), host_indices=tuple(slots(0, 1, 2, 3))),
        PoolTransfer(name="mamba", keys=(HASHES[2],), host_indices=(1,)),
    ]
    asked = PoolTransfer(name="mamba", keys=("any",), hit_policy="trailing_pages")

    assert {"kv": [True] * 4, "mamba": [True]} == store.batch_set_v2(put)
    hits = store.batch_exists_v2(HASHES, [asked])
    assert (3, {"kv": 4, "mamba": 3}, (3,)) == (hits.usable, hits.pages, hits.restorable)
    assert 4 == store.batch_exists_v2(HASHES).usable
    assert 0 == store.batch_exists_v2(HASHES, [asked.model_copy(update={"hit_policy": "all_pages"})]).usable
    got = store.batch_get_v2([PoolTransfer(name="mamba", keys=(HASHES[2], HASHES[1]), host_indices=(0, 1))])
    assert ({"mamba": [True, False]}, page(9)) == (got, bytes(state.page(0)))
    assert {"mamba": [False]} == store.batch_get_v2([PoolTransfer(name="mamba", keys=(HASHES[2],))])


def test_a_store_that_fails_costs_the_call() -> None:
    """Goal: no error of a store ends a worker. Method: every call of every level on a store that always fails."""
    store = HiCacheObject(FaultyBackend(MemoryBackend(), Faults(error=1)), CONFIG)
    host = HostPages(2)
    store.register_mem_pool_host(host)

    assert (0, False) == (store.batch_exists(HASHES), store.exists(HASHES[0]))
    assert (None, None) == (store.get(HASHES[0], host.page(0)), store.batch_get(HASHES[:1], [host.page(0)]))
    assert (False, False) == (store.set(HASHES[0], host.page(0)), store.batch_set(HASHES[:1], [host.page(0)]))
    assert [False] == store.batch_get_v1(HASHES[:1], slots(0))
    assert [False] == store.batch_set_v1(HASHES[:1], slots(0))
    assert 0 == store.batch_exists_v2(HASHES, [PoolTransfer(name="mamba")]).usable


def test_mistakes_of_the_caller_are_told() -> None:
    """Goal: what is no failure of the store is not hidden. Method: no pool, an odd page, lists that differ, closed."""
    store = HiCacheObject(MemoryBackend(), K_AND_V)

    with pytest.raises(Misuse, match="no host pool 'kv', expected it to be registered first"):
        store.batch_get_v1(HASHES[:1], slots(0))
    with pytest.raises(Misuse, match="a page of 63 bytes, expected 2 objects of one size"):
        store.set(HASHES[0], view(bytes(63)))
    with pytest.raises(Misuse, match="2 buffers, expected one for each of 4 keys"):
        store.batch_set(HASHES[:2], [view(bytes(SIZE))])
    assert 0 == store.get_stats().stored
    store.close()
    with pytest.raises(StorageClosed):
        store.exists(HASHES[0])


class Registers(MemoryBackend):
    """A store that wants to know the memory that pages lie in."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: list[Buffer] = []

    def register(self, pool: Buffer) -> None:
        """The memory is known."""
        self.registered.append(pool)


def test_a_store_learns_the_host_memory() -> None:
    """Goal: pages are moved without a copy where that can be. Method: two pools, registered with such a store."""
    backend = Registers()
    store = HiCacheObject(backend, CONFIG)
    pools = [HostPages(2), HostPages(1, page_size=1)]
    store.register_mem_pool_host(pools[0])
    store.register_mem_host_pool_v2(pools[1], "mamba")

    assert [pool.memory for pool in pools] == backend.registered


class NotesPrefixes(MemoryBackend):
    """A store that notes what it is told to come before the keys of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[list[str]] = []

    def after(self, prefix: Sequence[str]) -> Backend:
        """The store itself."""
        self.told.append(list(prefix))
        return self


@pytest.mark.parametrize("config", [CONFIG, K_AND_V], ids=["one object", "K and V"])
def test_prefix_keys_reach_the_store(config: StorageConfig) -> None:
    """Goal: what SGLang tells beside the keys is not lost. Method: each call that takes it, with hashes and without."""
    backend = NotesPrefixes()
    store = HiCacheObject(backend, config)
    host = HostPages(8, objects=len(config.parts()))
    store.register_mem_pool_host(host)
    transfer = PoolTransfer(name="kv", keys=HASHES[2:3], host_indices=slots(0))
    info = SglangExtraInfo(prefix_keys=list(HASHES[:2]))
    calls: list[Callable[[object], object]] = [
        lambda info: store.batch_exists(HASHES[2:3], info),
        lambda info: store.batch_set_v1(HASHES[2:3], slots(0), info),
        lambda info: store.batch_get_v1(HASHES[2:3], slots(0), info),
        lambda info: store.batch_exists_v2(HASHES[2:3], (), info),
        lambda info: store.batch_set_v2([transfer], info),
        lambda info: store.batch_get_v2([transfer], info),
    ]
    expected = [name for digest in HASHES[:2] for name in object_keys(config, digest)]

    for call in calls:
        call(None)
        assert [] == backend.told
        call(info)
        assert [expected] == backend.told
        backend.told.clear()
