"""A process that ends with storage work in flight; the first argument says how."""

import sys
import threading
import time
from collections.abc import Sequence

from hicache_ref.engine.cache import StoredCache
from hicache_ref.engine.settings import EngineSettings
from hicache_ref.storage.base import Buffer, StorageError
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.profile import Profile, Sizes

story = sys.argv[1]
in_call = threading.Event()


def tell(text: str) -> None:
    """The parent has the line, whatever happens next."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Store(MemoryBackend):
    """A slow store that tells of its end, or one that hangs."""

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """As the memory store, after a while or never."""
        in_call.set()
        time.sleep(1000 if story == "hangs" else 0.1)
        return super().write(keys, pages)

    def close(self) -> None:
        """As the memory store, told."""
        tell("store closed")
        super().close()


refusals = [StorageError("nobody answers")] if "failed" in story else []


def open_store() -> Store:
    """A store, unless the story is of one that cannot be opened at first."""
    if refusals:
        raise refusals.pop()
    return Store()


cache = StoredCache(
    Profile(sizes=Sizes(device_pages=50, host_pages=50)), open_store, EngineSettings(stop_timeout_s=1.0)
)
for _ in range(2 if "then" in story else 1):
    tell(f"attach {cache.step(ops.Attach()).kind}")
key = Key(tokens=tuple(range(40)))
cache.step(ops.TakePages(rid="r", n=40))
cache.step(ops.Forward(rid="r", key=key, start=0))
cache.step(ops.Insert(rid="r", key=key, start=0))
for _ in range(3):
    cache.pump()
    cache.step(ops.Poll(backups=9))
if cache.workers is not None:
    assert in_call.wait(20)
if story == "closed":
    cache.close()
tell("clean")
