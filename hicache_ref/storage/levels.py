"""A backend as an object with the methods that SGLang's controller calls, at its three levels.

Generic: one flat page a call or a list of them. Zero copy (`_v1`): pages of the host pool, by token slot. Multi-pool
(`_v2`): several named pools, each with its hit policy. Keys are page hashes; a page is as many objects as the
configuration says, and counts are in pages. A store that fails costs the call: the answer is a miss or a refusal.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from hicache_ref.storage.base import Backend, Buffer, Misuse, Stats, StorageClosed, StorageError, after, flat
from hicache_ref.storage.config import KV_POOL, StorageConfig, object_keys
from hicache_ref.storage.pools import PoolHits, PoolPresence, PoolTransfer, usable_prefix, whole_pages
from hicache_ref.vocabulary.ids import Page, PageHash

Naming = Callable[[StorageConfig, PageHash, str], tuple[str, ...]]
"""From a page of a pool to the keys of its objects."""


class HostPool(Protocol):
    """Host pages, as far as a store needs them."""

    page_size: int
    """Tokens a page; 1 for pools of state."""

    memory: Buffer
    """All pages, in one piece, that stays where it is."""

    def views(self, page: Page) -> Sequence[Buffer]:
        """The page's objects, in the order of `object_keys`."""


class HiCacheObject:
    """`backend` with the methods of SGLang's HiCacheStorage, for one rank's `config`."""

    def __init__(self, backend: Backend, config: StorageConfig, naming: Naming = object_keys) -> None:
        self._backend = backend
        self._config = config
        self._naming = naming
        self._pools: dict[str, HostPool] = {}

    # Generic.

    def exists(self, key: PageHash) -> bool:
        """Whether all of the page is there; a hint."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[PageHash], extra_info: object = None) -> int:
        """How many pages are there from the first on, without a gap (HC-STORE-20)."""
        return self._run_of(keys, KV_POOL, self._told(extra_info))

    def get(self, key: PageHash, target_location: Buffer, target_sizes: object = None) -> Buffer | None:
        """The target, which holds the page, or None."""
        answers = self.batch_get([key], [target_location])
        return None if answers is None else answers[0]

    def batch_get(self, keys: Sequence[PageHash], target_locations: Sequence[Buffer],
                  target_sizes: object = None) -> list[Buffer | None] | None:  # fmt: skip
        """For each page its target, which holds it, or None; None alone where the store did not answer."""
        views = [view for target in target_locations for view in self._cut(target)]
        try:
            found = self._backend.read(self._names(keys, KV_POOL), views)
        except StorageClosed:
            raise
        except StorageError:
            return None
        whole = whole_pages(found, self._width(KV_POOL))
        return [target if ok else None for target, ok in zip(target_locations, whole, strict=True)]

    def set(self, key: PageHash, value: Buffer, target_location: object = None, target_sizes: object = None) -> bool:
        """Whether the store has the page, these bytes or earlier ones."""
        return self.batch_set([key], [value])

    def batch_set(self, keys: Sequence[PageHash], values: Sequence[Buffer], target_locations: object = None,
                  target_sizes: object = None) -> bool:  # fmt: skip
        """Whether the store has all pages. If not, it may have some: `batch_exists` tells."""
        return all(self._put(keys, [self._cut(value) for value in values], KV_POOL, self._backend))

    # Zero copy.

    def register_mem_pool_host(self, mem_pool_host: HostPool) -> None:
        """`_v1` calls read and write the pages of this pool."""
        self.register_mem_host_pool_v2(mem_pool_host, KV_POOL)

    def batch_get_v1(
        self, keys: Sequence[PageHash], host_indices: Sequence[int], extra_info: object = None
    ) -> list[bool]:
        """For each page whether it is in its host page, named by the token slots; all false if those do not fit."""
        return self._get_into(KV_POOL, keys, host_indices, self._told(extra_info))

    def batch_set_v1(
        self, keys: Sequence[PageHash], host_indices: Sequence[int], extra_info: object = None
    ) -> list[bool]:
        """For each host page whether the store has it; all false if the token slots do not fit."""
        return self._set_from(KV_POOL, keys, host_indices, self._told(extra_info))

    # Multi-pool.

    def register_mem_host_pool_v2(self, host_pool: HostPool, host_pool_name: str) -> None:
        """`_v2` calls for pool `host_pool_name` read and write the pages of this pool."""
        self._pools[host_pool_name] = host_pool
        # Some stores move registered memory without a copy.
        if callable(register := getattr(self._backend, "register", None)):
            register(host_pool.memory)

    def batch_exists_v2(self, keys: Sequence[PageHash], pool_transfers: Sequence[PoolTransfer] = (),
                        extra_info: object = None) -> PoolHits:  # fmt: skip
        """What of the prefix every pool can restore (HC-STORE-46)."""
        kv_pages = self._run_of(keys, KV_POOL, self._told(extra_info))
        hit = keys[:kv_pages]
        return usable_prefix(kv_pages, [self._pool_presence(hit, each) for each in pool_transfers])

    def batch_get_v2(self, transfers: Sequence[PoolTransfer], extra_info: object = None) -> dict[str, list[bool]]:
        """By pool, for each page whether it is in its host page."""
        told = self._told(extra_info)
        return {each.name: self._get_into(each.name, each.keys, each.host_indices or (), told) for each in transfers}

    def batch_set_v2(self, transfers: Sequence[PoolTransfer], extra_info: object = None) -> dict[str, list[bool]]:
        """By pool, for each host page whether the store has it."""
        told = self._told(extra_info)
        return {each.name: self._set_from(each.name, each.keys, each.host_indices or (), told) for each in transfers}

    # All levels.

    def clear(self) -> bool:
        """Whether the store is empty now."""
        try:
            self._backend.clear()
        except StorageClosed:
            raise
        except StorageError:
            return False
        return True

    def get_stats(self) -> Stats:
        """What the backend did, in objects."""
        return self._backend.stats()

    def close(self) -> None:
        """The backend is closed."""
        self._backend.close()

    def _told(self, extra_info: object) -> Backend:
        """The backend, which knows what comes before the keys of the call where the caller tells it (HC-STORE-05)."""
        prefix = getattr(extra_info, "prefix_keys", None)
        return self._backend if prefix is None else after(self._backend, self._names(prefix, KV_POOL))

    def _names(self, keys: Sequence[PageHash], pool: str) -> list[str]:
        return [name for key in keys for name in self._naming(self._config, key, pool)]

    def _width(self, pool: str) -> int:
        """Objects a page."""
        return len(self._naming(self._config, "", pool))

    def _cut(self, page: Buffer) -> list[Buffer]:
        """The objects of a flat page: equal pieces, in order. Raises Misuse."""
        count = self._width(KV_POOL)
        if page.nbytes % count:
            raise Misuse(f"a page of {page.nbytes} bytes, expected {count} objects of one size")
        size = page.nbytes // count
        whole = flat(page)
        return [whole[part * size : (part + 1) * size] for part in range(count)]

    def _run_of(self, keys: Sequence[PageHash], pool: str, backend: Backend) -> int:
        """Pages that are there, from the first on; a page of which an object is missing ends the run (HC-STORE-45)."""
        try:
            return backend.exists(self._names(keys, pool)) // self._width(pool)
        except StorageClosed:
            raise
        except StorageError:
            return 0

    def _presence(self, keys: Sequence[PageHash], pool: str) -> tuple[bool, ...]:
        """For each page whether it is there. One query a gap, since stores answer in runs."""
        present: list[bool] = []
        while len(present) < len(keys):
            present += [True] * self._run_of(keys[len(present) :], pool, self._backend)
            if len(present) < len(keys):
                present.append(False)
        return tuple(present)

    def _pool_presence(self, keys: Sequence[PageHash], transfer: PoolTransfer) -> PoolPresence:
        present = self._presence(keys, transfer.name)
        return PoolPresence(
            name=transfer.name, present=present, policy=transfer.hit_policy, trailing=len(transfer.keys)
        )

    def _get_into(self, pool: str, keys: Sequence[PageHash], host_indices: Sequence[int],
                  backend: Backend) -> list[bool]:  # fmt: skip
        views = self._host_views(pool, keys, host_indices)
        if views is None:
            return [False] * len(keys)
        try:
            found = backend.read(self._names(keys, pool), [view for page in views for view in page])
        except StorageClosed:
            raise
        except StorageError:
            return [False] * len(keys)
        return whole_pages(found, self._width(pool))

    def _set_from(self, pool: str, keys: Sequence[PageHash], host_indices: Sequence[int],
                  backend: Backend) -> list[bool]:  # fmt: skip
        views = self._host_views(pool, keys, host_indices)
        return [False] * len(keys) if views is None else self._put(keys, views, pool, backend)

    def _put(self, keys: Sequence[PageHash], pages: Sequence[Sequence[Buffer]], pool: str,
             backend: Backend) -> list[bool]:  # fmt: skip
        try:
            done = backend.write(self._names(keys, pool), [view for page in pages for view in page])
        except StorageClosed:
            raise
        except StorageError:
            return [False] * len(keys)
        return whole_pages(done, self._width(pool))

    def _host_views(
        self, pool: str, keys: Sequence[PageHash], host_indices: Sequence[int]
    ) -> list[Sequence[Buffer]] | None:
        """The objects of the host pages that the token slots name; None unless they are whole pages, one a key."""
        host = self._pools.get(pool)
        if host is None:
            raise Misuse(f"no host pool {pool!r}, expected it to be registered first")
        size = host.page_size
        if len(host_indices) != len(keys) * size:
            return None
        runs = [host_indices[start : start + size] for start in range(0, len(host_indices), size)]
        if any(run[0] % size or list(run) != list(range(run[0], run[0] + size)) for run in runs):
            return None
        return [host.views(run[0] // size) for run in runs]
