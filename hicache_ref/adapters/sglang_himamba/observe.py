"""What can be seen of a hybrid cache after a step: as of any, and where each state slot is and what it holds."""

from typing import Any

from hicache_ref.adapters.sglang_himamba.books import HybridWatch
from hicache_ref.adapters.sglang_himamba.engine import HybridEngine
from hicache_ref.adapters.sglang_hiradix.books import Fetch
from hicache_ref.adapters.sglang_hiradix.observe import ObservedCaller
from hicache_ref.adapters.sglang_hiradix.pages import rows_of
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.observation import LEVELS, Level, Observation


class HybridObserver(ObservedCaller):
    """A caller that shows the cache, states too."""

    engine: HybridEngine
    watch: HybridWatch

    def observe(self, level: Level) -> Observation:
        """As of any cache; state slots and their owners at `pages`, what they hold at `bytes`, own check at rest."""
        seen = super().observe(level)
        if not LEVELS.index(level):
            return seen
        fetched = {name: self._state_of(fetch) for name, fetch in self.books.fetches.items()}
        states: dict[str, Any] = {
            "free_device_state": tuple(self.engine.free_states()),
            "free_host_state": tuple(self.engine.free_host_states()),
            "request_states": {rid: each.state for rid, each in self.books.requests.items()},
            "held_device_state": tuple(sorted(self.books.held_states)),
            "prefetch_states": {name: slots for name, slots in fetched.items() if slots},
            "self_check": self._complaint(seen),
        }
        if seen.contents is not None:
            states["contents"] = seen.contents | self._states_read(seen, states)
        return seen.model_copy(update=states)

    def _state_of(self, fetch: Fetch) -> Pages:
        """The host slot that a prefetch has for a state, while a request waits for it."""
        transfers = (getattr(fetch.operation, "pool_transfers", None) or ()) if self.is_open(fetch) else ()
        return tuple(slot for each in transfers for slot in self.engine.host_state_slots.pages(each.host_indices))

    def _states_read(self, seen: Observation, states: dict[str, Any]) -> dict[str, str]:
        """What each state slot that anybody holds was found to hold."""
        device = {slot for each in seen.segments for slot in each.device_state or ()}
        device |= {slot for slots in states["request_states"].values() for slot in slots}
        device |= set(states["held_device_state"])
        host = {slot for each in seen.segments for slot in each.host_state or ()}
        host |= {slot for slots in states["prefetch_states"].values() for slot in slots}
        contents: dict[str, str] = {}
        engine = self.engine
        self._read("device_state", rows_of(engine.state_buffers()), engine.state_slots.offset, device, contents)
        self._read("host_state", rows_of(engine.host_state_buffers()), 0, host, contents)
        return contents

    def _complaint(self, seen: Observation) -> str | None:
        """What upstream's check for idle servers raises; it is made where nothing is locked and nothing runs."""
        if self.books.pending() or any(each.locked or each.state_locked for each in seen.segments):
            return None
        try:
            self.engine.cache.sanity_check()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            of_states = "Incorrect LRU list, self.mamba=True" in text
            by_match = of_states and self.watch.states_are_in_order_but_for_matches()
            return f"{text}{'; matches alone have moved states' if by_match else ''}"
        return None
