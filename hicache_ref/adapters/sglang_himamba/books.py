"""What the adapter keeps beside a hybrid cache: as beside any, and state slots in copies and under passes."""

from collections.abc import Mapping
from typing import Any

import torch

from hicache_ref.adapters.sglang_himamba.engine import HybridEngine
from hicache_ref.adapters.sglang_hiradix.books import Books, Watch
from hicache_ref.vocabulary.ids import Pages


class HybridWatch(Watch):
    """Notes what a cache asks for, state slots too."""

    def __init__(self, engine: HybridEngine, books: Books) -> None:
        super().__init__(engine, books)
        self.hybrid = engine
        self.freed: list[int] = []
        """Device pages that were given up since somebody emptied this."""

        self._matched: dict[int, float] = {}
        """Node -> when a match last used it and what is above it."""

        self._wrap(engine.state_allocator, "free", self._free_states)
        self._wrap(engine.cache, "_match_post_processor", self._match)

    def states_moved(self, given: Mapping[str, Any]) -> tuple[Pages, Pages]:
        """State slots on device and on host of what a copy was asked with, pair by pair."""
        device: Pages = ()
        host: Pages = ()
        for each in given.get("pool_transfers") or ():
            device += self.hybrid.state_slots.pages(each.device_indices)
            host += self.hybrid.host_state_slots.pages(each.host_indices)
        return device, host

    def _free(self, original: Any, slots: torch.Tensor) -> Any:
        """As of any cache; what is given up is noted."""
        self.freed += self.engine.device_slots.pages(slots)
        return super()._free(original, slots)

    def _free_states(self, original: Any, slots: torch.Tensor) -> Any:
        """Slots that a pass changes are kept back until it has ended; what is freed again is free, as in the pool."""
        now: list[int] = []
        for slot in self.hybrid.state_slots.pages(slots):
            changing = [rid for rid, each in self.books.passes.items() if slot in each.state]
            if changing and slot not in self.books.held_states:
                self.books.held_states[slot] = f"f:{changing[-1]}"
            else:
                now.append(slot)
        return original(self.hybrid.state_slots.slots(now)) if now else None

    def _match(self, original: Any, params: Any, value: Any, best: Any, *rest: Any) -> Any:
        told = original(params, value, best, *rest)
        while best.parent is not None:
            self._matched[best.id], best = best.last_access_time, best.parent
        return told

    def states_are_in_order_but_for_matches(self) -> bool:
        """Whether states lie in the order of their last use, if what matches have moved was used then.

        Before 0.5.16 a node has one time, for its KV and its state.
        """
        states = self.hybrid.cache.mamba_lru_list
        used: list[float] = []
        node = states.head.mamba_next
        while node is not states.tail:
            said = getattr(node, "mamba_last_access_time", node.last_access_time)
            used.append(max(said, self._matched.get(node.id, said)))
            node = node.mamba_next
        return used == sorted(used, reverse=True)
