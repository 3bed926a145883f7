"""An attach that fails where the tester says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.traits import Traits, found
from hicache_ref.vocabulary.storage import AttachFailure

UNREADABLE = "{"
"""Settings that are no JSON."""

_FACTORY = (f"{PACKAGE}.srt.mem_cache.storage", f"{PACKAGE}.srt.mem_cache.storage.backend_factory")


@contextmanager
def failing(traits: Traits, fails: AttachFailure | None) -> Iterator[None]:
    """Within, no store can be opened, or no pool be registered with it."""
    if fails == "store":
        owner, name = found(_FACTORY, "StorageBackendFactory"), "create_backend"
    elif fails == "pools":
        owner, name = traits.storage.HiCacheFile, traits.REGISTERS
    else:
        yield
        return
    with patch.object(owner, name, _fail):
        yield


def _fail(*args: Any, **given: Any) -> Any:
    raise OSError("was told to fail")
