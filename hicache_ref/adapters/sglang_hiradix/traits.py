"""What an SGLang source tree has, told from its classes and not from its version."""

import importlib
import inspect
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Self

from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.profile import EvictionPolicy

_CACHE = f"{PACKAGE}.srt.mem_cache"

_STRATEGIES: dict[EvictionPolicy, str] = {
    "lru": "LRUStrategy",
    "lfu": "LFUStrategy",
    "fifo": "FIFOStrategy",
    "mru": "MRUStrategy",
    "filo": "FILOStrategy",
    "priority": "PriorityStrategy",
    "slru": "SLRUStrategy",
}


def _module(name: str) -> ModuleType | None:
    """The module, or None where the source tree has none of that name (a stub is none)."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "__file__", None) else None


def found(names: tuple[str, ...], attribute: str) -> Any:
    """What is called `attribute` in the first of these modules that has it, None where none has."""
    for name in names:
        module = _module(name)
        if module is not None and hasattr(module, attribute):
            return getattr(module, attribute)
    return None


@dataclass(frozen=True)
class Traits:
    """The modules of a tree, and what can be read off them."""

    NAME: ClassVar[str] = "HiRadixCache"
    MODULE: ClassVar[str] = f"{_CACHE}.hiradix_cache"
    LAST: ClassVar[str] = "0.5.20"
    REGISTERS: ClassVar[str] = "register_mem_pool_host"
    """The call by which a backend is told of the last host pool."""

    hiradix: Any
    radix: Any
    controller: Any
    storage: Any

    @classmethod
    def read(cls) -> Self:
        """Those of the tree that imports come from. Raises AdapterError naming what is missing."""
        names = {
            "hiradix": cls.MODULE,
            "radix": f"{_CACHE}.radix_cache",
            "controller": f"{PACKAGE}.srt.managers.cache_controller",
            "storage": f"{_CACHE}.hicache_storage",
        }
        modules = {}
        for role, name in names.items():
            module = _module(name)
            if module is None:
                said = f"no module {name} in the source tree, expected one"
                raise AdapterError(f"{said}: {cls.NAME} ends with {cls.LAST}")
            modules[role] = module
        traits = cls(**modules)
        for owner, attribute in (
            (traits.hiradix, cls.NAME),
            (traits.controller, "HiCacheController"),
            (traits.storage, "HiCacheFile"),
        ):
            if not hasattr(owner, attribute):
                raise AdapterError(f"no {attribute} in {owner.__name__}, expected one")
        return traits

    @property
    def cache(self) -> Any:
        """The class of the cache."""
        return getattr(self.hiradix, self.NAME)

    @cached_property
    def init_params(self) -> Any:
        """The class CacheInitParams, None before 0.5.6, where a cache is made of flat keywords."""
        return found((f"{_CACHE}.cache_init_params",), "CacheInitParams")

    @cached_property
    def radix_key(self) -> Any:
        """The class RadixKey, None where a key is a plain list of tokens."""
        return getattr(self.radix, "RadixKey", None)

    @cached_property
    def has_token_arrays(self) -> bool:
        """Whether the tokens of a key are an array of 64-bit numbers and not a list."""
        return hasattr(self.radix, "array")

    @cached_property
    def has_bigrams(self) -> bool:
        """Whether a cache can be told that its units are pairs of tokens."""
        return self.init_params is not None and "is_eagle" in inspect.signature(self.init_params).parameters

    @cached_property
    def copies_in_threads(self) -> bool:
        """Whether copies are made by threads (0.5.1) and not by streams."""
        return hasattr(self.controller.HiCacheController, "write_thread_func_direct")

    @cached_property
    def allocates_before(self) -> bool:
        """Whether a prefetch has its host pages before its query is answered (up to 0.5.15)."""
        return "host_indices" in inspect.signature(self.controller.PrefetchOperation).parameters

    @cached_property
    def acknowledges_batches(self) -> bool:
        """Whether the scheduler is told of each batch read (0.5.20)."""
        return hasattr(self.controller, "PrefetchAck")

    @cached_property
    def backs_up_prefixes_only(self) -> bool:
        """Whether the backup of a node below an unbacked one is skipped (from 0.5.15)."""
        return hasattr(self.cache, "_replace_pending_write_through_node")

    @cached_property
    def attaches(self) -> bool:
        """Whether storage can come and go at run time (from 0.5.9)."""
        return hasattr(self.cache, "attach_storage_backend")

    @cached_property
    def attaches_policies(self) -> bool:
        """Whether an attach may bring a write policy (from 0.5.9)."""
        attach = getattr(self.cache, "attach_storage_backend", None)
        return attach is not None and "hicache_write_policy" in inspect.signature(attach).parameters

    @cached_property
    def hashes_natively(self) -> bool:
        """Whether page hashes come from an extension, of which nothing runs here."""
        return _module(f"{_CACHE}.cpp_utils.native_hash") is not None

    @cached_property
    def publishes_tiers(self) -> bool:
        """Whether events name the tier (from 0.5.15); before, they are too few to follow residency."""
        return hasattr(self.hiradix, "StorageMedium")

    @cached_property
    def evictions(self) -> frozenset[EvictionPolicy]:
        """The eviction policies that it offers."""
        strategies = _module(f"{_CACHE}.evict_policy")
        return frozenset(name for name, cls in _STRATEGIES.items() if hasattr(strategies, cls)) or frozenset({"lru"})

    @cached_property
    def preset(self) -> str:
        """The rules preset of the release that it is most like."""
        if self.acknowledges_batches:
            return "sglang-0.5.20"
        if not self.allocates_before:
            return "sglang-0.5.16"
        if self.backs_up_prefixes_only:
            return "sglang-0.5.15"
        if self.attaches:
            return "sglang-0.5.9"
        if self.init_params is not None:
            return "sglang-0.5.6"
        return "sglang-0.5.1" if self.copies_in_threads else "sglang-0.5.2"

    def described(self) -> str:
        """The classes found and the release that they are most like, in a few words."""
        classes = [self.NAME, "HiCacheController", "HiCacheFile"]
        classes += [name for name in ("CacheInitParams",) if self.init_params is not None]
        classes += [name for name in ("RadixKey",) if self.radix_key is not None]
        classes += [name for name in ("PrefetchAck",) if self.acknowledges_batches]
        return f"{', '.join(classes)}: most like {self.preset.removeprefix('sglang-')}"
