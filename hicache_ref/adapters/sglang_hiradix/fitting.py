"""What is changed in a tree's modules before a cache is made: names replaced, nothing rewritten."""

import importlib
from collections.abc import Callable
from typing import Any

from hicache_ref.adapters.sglang_hiradix.engine import Clock
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.stepper import THREADING, StepQueue, stopping
from hicache_ref.adapters.sglang_hiradix.substitutes import SERVER_ARGS, TRANSFERS, Bag, NativeHash
from hicache_ref.adapters.sglang_hiradix.traits import Traits, found

_CACHE = f"{PACKAGE}.srt.mem_cache"


def fit(traits: Traits, clock: Clock, missing: Callable[[Any, str], None]) -> None:
    """Caches of this tree have stepped threads, stepped storage, a clock of ours, and ordinary host memory.

    `missing(backend, hash)` is called for a page that storage is to have and has not.
    """
    traits.controller.threading = traits.hiradix.threading = THREADING
    traits.controller.Queue = traits.controller.PriorityQueue = StepQueue
    traits.hiradix.time = traits.radix.time = clock
    # Each cache would be kept, and detached, until the process ends.
    traits.hiradix.atexit = Bag(lambda *_: None)
    for name in ("memory_pool_host", "pool_host.mha"):
        module = _loaded(f"{_CACHE}.{name}")
        if module is not None:
            vars(module).update(TRANSFERS)
    native = _loaded(f"{_CACHE}.cpp_utils.native_hash")
    if native is not None:
        native._load_native_hash_module = lambda: NativeHash
    _step_storage(traits.storage.HiCacheFile, missing)
    _shrink_host_pools()


def set_batch(traits: Traits, pages: int) -> None:
    """One batch of storage is `pages` pages in every cache made from now on."""
    for module in (traits.controller, traits.storage):
        if hasattr(module, "STORAGE_BATCH_SIZE"):
            module.STORAGE_BATCH_SIZE = pages
    if traits.copies_in_threads:
        for name in ("_page_transfer", "_page_backup"):
            _replace_literal(getattr(traits.controller.HiCacheController, name), pages)


_LITERAL_BATCH = 8


def _replace_literal(function: Any, pages: int) -> None:
    """Where the batch is a literal in a function (0.5.1), that constant is another."""
    original = vars(function).setdefault("original_code", function.__code__)
    constants = tuple(pages if each == _LITERAL_BATCH else each for each in original.co_consts)
    function.__code__ = original.replace(co_consts=constants)


def _loaded(name: str) -> Any:
    module = importlib.import_module(name)
    return module if getattr(module, "__file__", None) else None


def _step_storage(backend: Any, missing: Callable[[Any, str], None]) -> None:
    backend.batch_exists = stopping(backend.batch_exists, "batch_exists", _tell_hits)
    backend.batch_set = stopping(backend.batch_set, "batch_set", _set_leading)

    def get_leading(method: Any, self: Any, pages: int, keys: list[str], targets: Any, *rest: Any, **given: Any) -> Any:
        for key in keys[:pages]:
            if not self.exists(key):
                missing(self, key)
        read = method(self, keys[:pages], targets[:pages], *rest, **given)
        return [*read, *[None] * (len(keys) - pages)]

    backend.batch_get = stopping(backend.batch_get, "batch_get", get_leading)


def _tell_hits(method: Any, self: Any, pages: int, keys: list[str], *rest: Any, **given: Any) -> int:
    return min(pages, len(keys))


def _set_leading(method: Any, self: Any, pages: int, keys: list[str], values: Any, *rest: Any, **given: Any) -> bool:
    stored = method(self, keys[:pages], values[:pages], *rest, **given)
    return bool(stored) and pages >= len(keys)


def _shrink_host_pools() -> None:
    """A host pool has pageable memory and exactly the tokens asked for, however they compare with the device's.

    Upstream sizes it by a ratio, rounds in ways that changed, and up to 0.5.6 insists on more than the device has.
    """
    pool = found((f"{_CACHE}.pool_host.base", f"{_CACHE}.memory_pool_host"), "HostKVCache")
    original = pool.__init__

    def init(self: Any, device_pool: Any, ratio: float, size: float, page_size: int, layout: str, *rest: Any,
             **given: Any) -> None:  # fmt: skip
        wanted = SERVER_ARGS.host_tokens
        ratio = max(wanted / device_pool.size, 1.0) + 2.0
        if rest:
            rest = (False, *rest[1:])
        else:
            given["pin_memory"] = False
        original(self, device_pool, ratio, size, page_size, layout, *rest, **given)
        self.size = wanted
        if hasattr(self, "page_num"):
            self.page_num = wanted // page_size
        self.clear()

    pool.__init__ = init
