"""What is changed in a tree's modules before a hybrid cache is made: as for any, and what state adds."""

import importlib
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from hicache_ref.adapters.sglang_himamba.traits import HybridTraits
from hicache_ref.adapters.sglang_hiradix import fitting
from hicache_ref.adapters.sglang_hiradix.engine import Clock
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.stepper import StepQueue, stopping
from hicache_ref.adapters.sglang_hiradix.substitutes import SERVER_ARGS


def fit(
    traits: HybridTraits, clock: Clock, missing: Callable[[Any, str], None], missing_state: Callable[[Any, str], None]
) -> None:
    """Caches of this tree have stepped threads, stepped storage, a clock of ours, and host pools as large as asked for.

    `missing_state(backend, hash)` is called for a state that storage is to have and has not.
    """
    fitting.fit(traits, clock, missing)
    traits.hybrid.Queue = StepQueue
    traits.hybrid.time = clock
    _step_states(traits.storage, missing_state, first=not traits.publishes_tiers)
    _shrink_state_pool(importlib.import_module(f"{PACKAGE}.srt.mem_cache.memory_pool_host").MambaPoolHost)


GET_STATES = "batch_get_v2"


def put_states(backend: Any) -> None:
    """The states that the backend was asked to put last are in storage."""
    _do_later(backend, "states_to_put")


def get_states(backend: Any) -> dict[str, list[bool]]:
    """The states that the backend was asked to get before their pages are in place: which of them, by pool."""
    return _do_later(backend, "states_to_get") or {}


def _do_later(backend: Any, what: str) -> Any:
    later = vars(backend).pop(what, None)
    return None if later is None else later()


def _step_states(storage: Any, missing: Callable[[Any, str], None], *, first: bool) -> None:
    """The calls of the backend that know of states stop too, but for the put, which is left for `put_states`.

    Where a state is read `first`, before its pages (0.5.10), that is left for `get_states`.
    """
    backend = storage.HiCacheFile
    put, read = backend.batch_set_v2, backend.batch_get_v2

    def tell(method: Any, self: Any, pages: int, keys: list[str], *rest: Any, **given: Any) -> Any:
        hits = min(pages, len(keys))
        return storage.PoolTransferResult(hits, {storage.PoolName.MAMBA: hits} if hits else {})

    def get(method: Any, self: Any, pages: int, transfers: list[Any], *rest: Any, **given: Any) -> Any:
        if not pages:
            return {each.name: [False] * len(each.keys) for each in transfers}
        for each in transfers:
            for key in each.keys:
                if not self.exists(f"{key}.{each.name}"):
                    missing(self, key)
        return method(self, transfers)

    def later(self: Any, transfers: list[Any], *rest: Any, **given: Any) -> Any:
        self.states_to_put = partial(put, self, list(transfers))
        return {each.name: [True] * len(each.keys or ()) for each in transfers}

    def get_later(self: Any, transfers: list[Any], *rest: Any, **given: Any) -> Any:
        self.states_to_get = partial(get, read, self, 1, list(transfers))
        return {each.name: [False] * len(each.keys or ()) for each in transfers}

    backend.batch_exists_v2 = stopping(backend.batch_exists_v2, "batch_exists_v2", tell)
    backend.batch_get_v2 = get_later if first else stopping(read, GET_STATES, get)
    backend.batch_set_v2 = later


def _shrink_state_pool(pool: Any) -> None:
    """The host pool of states has pageable memory and exactly the slots asked for (upstream: a ratio, and one more)."""
    original = pool.__init__

    @wraps(original)
    def init(self: Any, device_pool: Any, ratio: float, size: float, **given: Any) -> None:
        wanted = SERVER_ARGS.host_states
        original(self, device_pool, max(wanted / device_pool.size, 1.0) + 1.0, 0, **given | {"pin_memory": False})
        self.size = self.page_num = wanted
        self.clear()

    pool.__init__ = init
