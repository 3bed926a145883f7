"""The third tier: stores, the names of what they keep, and the kit that tries any of them.

A store is opened by `open_backend(URL, config)` and has the calls of `Backend`. `HiCacheObject` gives it the methods
that SGLang's controller calls; `conformance.check` tries what every store has to keep.
"""

from hicache_ref.storage.base import Backend, Misuse, Stats, StorageClosed, StorageError, Unsupported
from hicache_ref.storage.config import StorageConfig, object_keys
from hicache_ref.storage.levels import HiCacheObject
from hicache_ref.storage.registry import open_backend
from hicache_ref.storage.settings import parse_settings

__all__ = [
    "Backend",
    "HiCacheObject",
    "Misuse",
    "Stats",
    "StorageClosed",
    "StorageConfig",
    "StorageError",
    "Unsupported",
    "object_keys",
    "open_backend",
    "parse_settings",
]
