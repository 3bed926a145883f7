"""One HiMambaRadixCache of any release, with its four pools and its controller, made for a profile."""

from collections.abc import Sequence
from typing import Any

import torch

from hicache_ref.adapters.sglang_himamba.traits import HybridTraits
from hicache_ref.adapters.sglang_hiradix.engine import Engine, StillWaiting, accepted
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.pages import LAYERS, Slots
from hicache_ref.adapters.sglang_hiradix.substitutes import SERVER_ARGS, Bag
from hicache_ref.adapters.sglang_hiradix.traits import found
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key

_CACHE = f"{PACKAGE}.srt.mem_cache"
_REQUESTS = 8
_CONTEXT = 256
_ONE_NUMBER = (1, 1, 1)


def _state_parameters() -> Bag:
    """Of each state layer one convolution and one temporal state, of one 64-bit number each."""
    kinds = Bag(conv=torch.int64, temporal=torch.int64)
    return Bag(shape=Bag(conv=[_ONE_NUMBER], temporal=_ONE_NUMBER), dtype=kinds, layers=list(_STATE_LAYERS))


_FULL_LAYERS = range(LAYERS)
_STATE_LAYERS = range(LAYERS, 2 * LAYERS)


class HybridEngine(Engine):
    """A cache as `make` left it, of pages of one token. State slots are counted as the profile does."""

    traits: HybridTraits
    layout = "page_first_direct"
    state_slots = Slots(1, 1)
    """Upstream keeps state slot 0 for padding; on host there is no such slot."""

    host_state_slots = Slots(1, 0)

    # -- making -----------------------------------------------------------------------------------------------------

    def _make_pools(self) -> None:
        """The device pools and their allocators are new; the host pools will be as large as the profile says."""
        sizes = self.profile.sizes
        memory = f"{_CACHE}.memory_pool"
        self.req_to_token_pool = accepted(
            found((memory,), "HybridReqToTokenPool"), size=_REQUESTS, mamba_size=sizes.device_states,
            mamba_spec_state_size=_REQUESTS, max_context_len=_CONTEXT, device="cpu", enable_memory_saver=False,
            cache_params=_state_parameters(), mamba_layer_ids=list(_STATE_LAYERS), enable_mamba_extra_buffer=False,
            enable_overlap_schedule=False,
        )  # fmt: skip
        self.states = self.req_to_token_pool.mamba_pool
        self.state_allocator = getattr(self.req_to_token_pool, "mamba_allocator", self.states)
        common = {"size": sizes.device_pages, "page_size": 1, "dtype": torch.int64, "device": "cpu"}
        hybrid = accepted(
            found((memory,), "HybridLinearKVPool"), **common, head_num=1, head_dim=1,
            full_attention_layer_ids=list(_FULL_LAYERS), enable_kvcache_transpose=False, mamba_pool=self.states,
        )  # fmt: skip
        self.kv = hybrid.full_kv_pool
        kind = found((f"{_CACHE}.allocator.token", f"{_CACHE}.allocator"), "TokenToKVPoolAllocator")
        self.allocator = accepted(kind, **common, kvcache=hybrid, need_sort=False)
        SERVER_ARGS.__dict__.update(
            host_tokens=sizes.host_pages, host_states=sizes.host_states, mamba_cache_chunk_size=sizes.state_chunk
        )

    def _find_host(self) -> None:
        """The host pools are known and hold nothing."""
        self.copier = self.controller.mem_pool_host
        self.host, self.host_states = self.cache.full_kv_pool_host, self.cache.mamba_pool_host
        for buffer in (self.host.kv_buffer, *self._host_state_tensors()):
            buffer.zero_()

    def _host_state_tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.host_states.temporal_buffer, *self.host_states.conv_buffer)

    # -- calls ------------------------------------------------------------------------------------------------------

    def insert_with_state(self, key: Key, slots: torch.Tensor, state: Pages, start: int, *, chunked: bool) -> Any:
        """What insert returns: the length that was there, and whether there was a state."""
        made = self._request(
            "InsertParams", key=self.key(key.tokens, key.extra), value=slots, mamba_value=self.state_slots.slots(state),
            prev_prefix_len=start, chunked=chunked,
        )  # fmt: skip
        return self.cache.insert(made)

    def evict_states(self, count: int) -> None:
        """State slots on device were given up, at least as many unless none is left that may be."""
        self.cache.evict(self._request("EvictParams", num_tokens=0, mamba_num=count))

    def take_state(self) -> Pages:
        """A new slot, after one eviction if need be; none where there is no room.

        As upstream's match does for a request that is to go on from a node, and the scheduler for one that is not.
        """
        if not self.state_allocator.available_size():
            self.evict_states(1)
        taken = self.state_allocator.alloc(1)
        return () if taken is None else self.state_slots.pages(taken)

    def copy_state(self, source: Pages, target: Pages) -> None:
        """The target slot holds what the source does (upstream: on the forward stream)."""
        self.states.copy_from(self.state_slots.slots(source), self.state_slots.slots(target))

    def load(self, node: Any, quota: int | None, request: Any) -> Any:
        """The slots of a load that was submitted, None where the cache did not see fit."""
        return self.cache.load_back(node, quota, req=request)

    def gives_up_waiting(self, milliseconds: int) -> bool:
        """Whether a reset that waits for backups would go on without them after so long; else it waits on."""
        self.clock.now, self.clock.wakes = 0.0, milliseconds / 1000
        try:
            self.cache._flush_pending_storage_backups_before_reset()
        except StillWaiting:
            return False
        finally:
            self.clock.now = self.clock.wakes = None
        return True

    def reset(self) -> None:
        """As the scheduler flushes: the tree, then the allocators (upstream: flush_cache)."""
        super().reset()
        self.state_allocator.clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    def evictable(self) -> int:
        """Tokens that the cache counts as evictable."""
        return int(self.cache.full_evictable_size())

    def protected(self) -> int:
        """Tokens that the cache counts as locked."""
        return int(self.cache.full_protected_size())

    @staticmethod
    def locks(node: Any) -> int:
        """How many locks keep the node's KV."""
        return int(node.full_lock_ref)

    def states_of(self, node: Any) -> tuple[Pages | None, Pages | None, bool | None]:
        """The node's state slots on device and on host, and whether the state is locked."""
        device, host = node.mamba_value, node.mamba_host_value
        return (
            None if device is None else self.state_slots.pages(device),
            None if host is None else self.host_state_slots.pages(host),
            node.mamba_lock_ref > 0,
        )

    def free_states(self) -> list[int]:
        """Free state slots on device as the allocator has them."""
        return [slot - 1 for slot in self.state_allocator.free_slots.tolist()]

    def free_host_states(self) -> list[int]:
        """Free state slots on host as the pool has them."""
        slots: list[int] = self.host_states.free_slots.tolist()
        for chunk in getattr(self.host_states, "release_slots", ()):
            slots += chunk.tolist()
        return slots

    def host_buffers(self) -> list[torch.Tensor]:
        """As `device_buffers`; each page has all its layers together."""
        both = self.host.kv_buffer
        return [both[kv][:, layer] for kv in range(2) for layer in range(LAYERS)]

    def state_buffers(self) -> Sequence[torch.Tensor]:
        """Temporal states of each layer, then convolution states, as storage keeps them: one number a slot."""
        cache = self.states.mamba_cache
        return [*cache.temporal, *cache.conv[0]]

    def host_state_buffers(self) -> Sequence[torch.Tensor]:
        """As `state_buffers`."""
        return [buffer[:, layer] for buffer in self._host_state_tensors() for layer in range(LAYERS)]
