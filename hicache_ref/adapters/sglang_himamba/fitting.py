"""What is changed in a tree's modules before a hybrid cache is made: as for any, and what state adds."""

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

from hicache_ref.adapters.sglang_himamba.traits import HybridTraits
from hicache_ref.adapters.sglang_hiradix import fitting
from hicache_ref.adapters.sglang_hiradix.engine import Clock
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.stepper import StepQueue
from hicache_ref.adapters.sglang_hiradix.substitutes import SERVER_ARGS


def fit(traits: HybridTraits, clock: Clock, missing: Callable[[Any, str], None]) -> None:
    """Caches of this tree have stepped threads, a clock of ours, and host pools as large as asked for."""
    fitting.fit(traits, clock, missing)
    traits.hybrid.Queue = StepQueue
    traits.hybrid.time = clock
    _shrink_state_pool(importlib.import_module(f"{PACKAGE}.srt.mem_cache.memory_pool_host").MambaPoolHost)


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
