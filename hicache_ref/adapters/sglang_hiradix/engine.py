"""One HiRadixCache of any release, with its pools and controller, made for a profile and called in one way."""

import inspect
import json
import os
import types
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from hicache_ref.adapters.sglang_hiradix.failing import UNREADABLE, failing
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.pages import LAYERS, Slots
from hicache_ref.adapters.sglang_hiradix.substitutes import PEER, SERVER_ARGS
from hicache_ref.adapters.sglang_hiradix.traits import Traits, found
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key, pages_of, tokens_of
from hicache_ref.vocabulary.profile import Profile, WritePolicy
from hicache_ref.vocabulary.storage import AttachFailure, StorageSettings

_CACHE = f"{PACKAGE}.srt.mem_cache"
_FOLDER_SETTING = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
_NO_MAXIMUM_SECONDS = 1e12
_ANY_RATIO = 2.0
_TWO_RANKS = 2


class StillWaiting(Exception):
    """Who slept until the clock's `wakes` sleeps again."""


class Clock(types.ModuleType):
    """Stands for the module `time` in the tree's modules: every look is a moment later, or it is `now`."""

    def __init__(self) -> None:
        super().__init__("time")
        self.ticks = 0
        self.now: float | None = None
        self.wakes: float | None = None
        """When a sleep that begins at `now` ends."""

    def monotonic(self) -> float:
        """In seconds while `now` is set, else a number greater than all before."""
        if self.now is not None:
            return self.now
        self.ticks += 1
        return float(self.ticks)

    perf_counter = time = monotonic

    def sleep(self, seconds: float) -> None:
        """Nothing was waited for: threads run when the tester says so. Raises StillWaiting after `wakes`."""
        if self.now is not None and self.wakes is not None:
            if self.now >= self.wakes:
                raise StillWaiting
            self.now = self.wakes


@lru_cache(maxsize=256)
def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def accepted(function: Any, **given: Any) -> Any:
    """The function called with those of the keywords that it knows."""
    known = _parameters(getattr(function, "__func__", function))
    return function(**{name: value for name, value in given.items() if name in known})


class Engine:
    """A cache as `make` left it. Lengths and indices are upstream's: tokens and slots."""

    layout = "layer_first"
    req_to_token_pool: Any = None

    def __init__(self, traits: Traits, profile: Profile, folder: str, clock: Clock, *, events: bool) -> None:
        self.traits = traits
        self.profile = profile
        self.folder = folder
        self.clock = clock
        self.publishes = events
        self.page_size = profile.sizes.page_size
        # Upstream keeps slot 0 (page 0 where pages are larger) for padding; on host there is no such page.
        self.device_slots = Slots(self.page_size, 1)
        self.host_slots = Slots(self.page_size, 0)
        self.cache: Any = None

    # -- making -----------------------------------------------------------------------------------------------------

    def make(self, settings: StorageSettings | None) -> None:
        """Cache, controller and pools are new; storage is on from the start where `settings` say how."""
        os.environ[_FOLDER_SETTING] = self.folder
        self._answer_for_a_server(settings)
        self._make_pools()
        params = self.traits.init_params
        common = {
            "req_to_token_pool": self.req_to_token_pool, "token_to_kv_pool_allocator": self.allocator,
            "page_size": self.page_size, "tp_cache_group": torch.distributed.group.WORLD, "enable_metrics": True,
        }  # fmt: skip
        if params is None:
            self.cache = accepted(self.traits.cache, **common, **SERVER_ARGS.__dict__, model_name="model")
        else:
            rules = self.profile.rules
            made = accepted(
                params, **common, disable=False, is_eagle=self.profile.bigram, eviction_policy=rules.eviction,
                enable_kv_cache_events=self.publishes,
            )  # fmt: skip
            self.cache = self.traits.cache(params=made, server_args=SERVER_ARGS)
        self.controller = self.cache.cache_controller
        self._find_host()
        self._follow_profile(settings)

    def _find_host(self) -> None:
        """The host pool is known and holds nothing; `copier` is what upstream asks to copy."""
        self.host = self.copier = self.cache.token_to_kv_pool_host
        self.host.kv_buffer.zero_()

    def _answer_for_a_server(self, settings: StorageSettings | None) -> None:
        rules = self.profile.rules
        SERVER_ARGS.__dict__.update(
            hicache_ratio=_ANY_RATIO, hicache_size=0, hicache_write_policy=rules.write_policy,
            hicache_io_backend="direct", hicache_mem_layout=self.layout, served_model_name="model",
            hicache_storage_backend=None if settings is None else "file", disable_hicache_numa_detect=True,
            hicache_storage_prefetch_policy="timeout" if settings is None else settings.prefetch_policy,
            hicache_storage_backend_extra_config=None if settings is None else self._extra_config(settings),
            hicache_host_memory_mode="cache", extra_metric_labels=None,
        )  # fmt: skip

    def _extra_config(self, settings: StorageSettings) -> str:
        """The settings as upstream's JSON."""
        longest = settings.prefetch_timeout_max
        return json.dumps(
            {
                "prefetch_threshold": settings.prefetch_threshold,
                "prefetch_timeout_base": settings.prefetch_timeout_base,
                "prefetch_timeout_per_ki_token": settings.prefetch_timeout_per_ki_token,
                "prefetch_timeout_max": _NO_MAXIMUM_SECONDS if longest is None else longest,
                "hicache_storage_pass_prefix_keys": settings.pass_prefix_keys,
                **settings.extra,
            }
        )

    def _make_pools(self) -> None:
        """The device pool and its allocator are new; the host pool will have as many pages as the profile says."""
        sizes, size = self.profile.sizes, self.page_size
        memory = found((f"{_CACHE}.memory_pool",), "MHATokenToKVPool")
        common = {"size": sizes.device_pages * size, "page_size": size, "dtype": torch.int64, "device": "cpu"}
        self.kv = accepted(
            memory, **common, head_num=1, head_dim=1, layer_num=LAYERS, enable_memory_saver=False,
            enable_alt_stream=False,
        )  # fmt: skip
        name = "TokenToKVPoolAllocator" if size == 1 else "PagedTokenToKVPoolAllocator"
        inner = "token" if size == 1 else "paged"
        kind = found((f"{_CACHE}.allocator.{inner}", f"{_CACHE}.allocator"), name)
        self.allocator = accepted(kind, **common, kvcache=self.kv, need_sort=False)
        SERVER_ARGS.__dict__["host_tokens"] = sizes.host_pages * size

    def _follow_profile(self, settings: StorageSettings | None) -> None:
        """What a release has no setting for is as the profile says, as far as it is a number of upstream's own."""
        cache, sizes, rules = self.cache, self.profile.sizes, self.profile.rules
        cache.tp_world_size = _TWO_RANKS
        cache.load_back_threshold = sizes.load_back_threshold
        strategy: Any = getattr(cache, "eviction_strategy", None)
        if hasattr(strategy, "protected_threshold"):
            strategy.protected_threshold = rules.slru_protected_threshold
        self._set_threshold()
        self._set_batch()
        if settings is not None and not hasattr(cache, "_parse_storage_backend_extra_config"):
            # Up to 0.5.5 a constant of 256 tokens, which no small cache ever reaches.
            cache.prefetch_threshold = settings.prefetch_threshold
            self.controller.prefetch_threshold = max(settings.prefetch_threshold, self.page_size)
            cache.prefetch_timeout = settings.prefetch_timeout_base

    def _set_threshold(self) -> None:
        """Where the profile names a number of hits, it rules; upstream sets its own with each policy."""
        threshold = self.profile.rules.write_through_threshold
        if threshold is not None:
            self.cache.write_through_threshold = threshold

    def _set_batch(self) -> None:
        if hasattr(self.controller, "storage_batch_size"):
            self.controller.storage_batch_size = self.profile.sizes.storage_batch

    # -- keys -------------------------------------------------------------------------------------------------------

    def whole_tokens(self, key: Key, pages: int | None = None) -> tuple[int, ...]:
        """The tokens of the key's first `pages` whole pages, or of all of them."""
        return tokens_of(pages_of(key.tokens, self.page_size, self.profile.bigram)[:pages], self.profile.bigram)

    def page_count(self, key: Key) -> int:
        """The number of the key's whole pages."""
        return len(pages_of(key.tokens, self.page_size, self.profile.bigram))

    def key(self, tokens: Sequence[int], extra: str | None) -> Any:
        """The key as this release takes it."""
        listed = self.tokens(tokens)
        return listed if self.traits.radix_key is None else self.traits.radix_key(listed, extra)

    def tokens(self, tokens: Sequence[int]) -> Any:
        """Tokens as this release takes them."""
        return array("q", tokens) if self.traits.has_token_arrays else list(tokens)

    def tokens_of_node(self, node: Any) -> tuple[int, ...]:
        """The node's own tokens; in bigram mode they begin with the one shared with the node above."""
        tokens = getattr(node.key, "token_ids", node.key)
        if self.profile.bigram and len(tokens) and isinstance(tokens[0], tuple):
            return (*(pair[0] for pair in tokens), tokens[-1][1])
        return tuple(tokens)

    def extra_of_node(self, node: Any) -> str | None:
        """The node's namespace."""
        extra: str | None = getattr(node.key, "extra_key", None)
        return extra

    def key_of_node(self, node: Any) -> Key:
        """The whole key that ends at this node; the root has no tokens and no namespace."""
        parts, each = [], node
        while each.parent is not None:
            parts.append(self.tokens_of_node(each))
            each = each.parent
        tokens: tuple[int, ...] = ()
        for part in reversed(parts):
            tokens += part[1:] if tokens and self.profile.bigram else part
        return Key(tokens=tokens, extra=self.extra_of_node(node) if parts else None)

    # -- calls ------------------------------------------------------------------------------------------------------

    def _request(self, name: str, **given: Any) -> Any:
        """Upstream's parameter object of this name, None where the release takes plain arguments."""
        kind = self._kind(name)
        return None if kind is None else accepted(kind, **given)

    @staticmethod
    @lru_cache(maxsize=16)
    def _kind(name: str) -> Any:
        return found((f"{_CACHE}.base_prefix_cache",), name)

    def match(self, key: Key) -> Any:
        """What match_prefix returns."""
        made = self.key(key.tokens, key.extra)
        return self.cache.match_prefix(self._request("MatchPrefixParams", key=made) or made)

    def insert(self, key: Key, slots: torch.Tensor, *, chunked: bool, priority: int) -> int:
        """How many tokens were in the tree already; the key is whole pages and `slots` as long."""
        made = self.key(self.whole_tokens(key), key.extra)
        given: dict[str, Any] = {"key": made, "value": slots, "chunked": chunked, "priority": priority}
        request = self._request("InsertParams", **given)
        if request is None:
            count: int = accepted(self.cache.insert, **given)
            return count
        return int(self.cache.insert(request).prefix_len)

    def load(self, node: Any, quota: int | None, request: Any) -> Any:
        """The slots of a load that was submitted, None where the cache did not see fit."""
        return self.cache.load_back(node, quota)

    def evictable(self) -> int:
        """Tokens that the cache counts as evictable."""
        return int(self.cache.evictable_size())

    def pages_grown(self, answer: Any) -> int | None:
        """By how many pages a lock or an unlock says that what can be evicted grew; None where it says nothing."""
        tokens = getattr(answer, "delta", answer)
        return None if tokens is None else int(tokens) // self.page_size

    def protected(self) -> int:
        """Tokens that the cache counts as locked."""
        return int(self.cache.protected_size())

    @staticmethod
    def locks(node: Any) -> int:
        """How many locks keep the node's pages."""
        return int(node.lock_ref)

    def states_of(self, node: Any) -> tuple[Pages | None, Pages | None, bool | None]:
        """The node's state slots on device and on host, and whether the state is locked: none here."""
        return None, None, None

    def evict(self, tokens: int) -> None:
        """Device tokens were given up, at least as many unless no evictable leaf is left."""
        self.cache.evict(self._request("EvictParams", num_tokens=tokens) or tokens)

    def handle(self, rid: str) -> Any:
        """The request as this release names it."""
        kind = self._kind("CacheRequestHandle")
        return rid if kind is None else kind(rid, 0)

    def prefetch(self, rid: str, anchor: Any, key: Key, start: int) -> None:
        """As the scheduler asks for the tokens from unit `start` on (upstream: _prefetch_kvcache)."""
        given: dict[str, Any] = {"extra_key": key.extra}
        if getattr(self.cache, "hicache_storage_pass_prefix_keys", False):
            given["prefix_keys"] = list(anchor.get_prefix_hash_values(anchor))
        known = _parameters(self.traits.cache.prefetch_from_storage)
        self.cache.prefetch_from_storage(
            self.handle(rid), anchor, self.tokens(key.tokens[start:]), anchor.get_last_hash_value(),
            **{name: value for name, value in given.items() if name in known},
        )  # fmt: skip

    def progress(self, rid: str, seconds: float, agreed: int | None) -> bool:
        """Whether the request may go on at this time; the other rank has `agreed` pages at most, if that is said."""
        self.clock.now = None
        judge = self.cache.can_terminate_prefetch

        def judged(operation: Any) -> Any:
            self.clock.now = seconds
            try:
                return judge(operation)
            finally:
                self.clock.now = None
                # Ranks agree on whether to stop first: that is not what the other one is asked here.
                PEER.tokens = None if agreed is None else agreed * self.page_size

        self.cache.can_terminate_prefetch = judged
        try:
            return bool(self.cache.check_prefetch_progress(self.handle(rid)))
        finally:
            PEER.tokens = None
            del self.cache.can_terminate_prefetch

    def attach(self, backend: str, settings: StorageSettings, policy: WritePolicy | None,
               fails: AttachFailure | None) -> str | None:  # fmt: skip
        """Storage is attached at run time, with this write policy if one is given; or what upstream says against it.

        What `fails` does so in this call only.
        """
        config = UNREADABLE if fails == "settings" else self._extra_config(settings)
        brought = {} if policy is None else {"hicache_write_policy": policy}
        with failing(self.traits, fails):
            done, said = self.cache.attach_storage_backend(
                storage_backend=backend,
                storage_backend_extra_config_json=config,
                served_model_name="model",
                hicache_storage_prefetch_policy=settings.prefetch_policy,
                **brought,
            )
        self._set_batch()
        self._set_threshold()
        return None if done else str(said)

    def detach(self) -> str | None:
        """No storage is attached; or what upstream says against it."""
        done, said = self.cache.detach_storage_backend()
        return None if done else str(said)

    def shut_down(self) -> str | None:
        """Likewise, whatever runs, as at the end of the process; upstream says nothing then."""
        self.cache.shutdown()
        return "storage is still attached" if self.cache.enable_storage else None

    def reset(self) -> None:
        """As the scheduler flushes: the tree, then the allocator (upstream: flush_cache).

        Upstream keeps the write policy that an attach has brought; after a reset of ours that of the profile rules.
        """
        self.cache.reset()
        self.allocator.clear()
        rules = self.profile.rules
        self.controller.write_policy = rules.write_policy
        self.cache.write_through_threshold = rules.hits_before_backup(rules.write_policy)

    # -- pools ------------------------------------------------------------------------------------------------------

    def free_device(self) -> list[int]:
        """The allocator's free pages as its lists have them."""
        pages: list[int] = []
        for name in ("free_pages", "free_slots", "release_pages", "release_slots"):
            listed = getattr(self.allocator, name, None)
            if listed is not None and len(listed):
                pages += listed.tolist()
        return [page - 1 for page in pages]

    def free_host(self) -> list[int]:
        """The host pool's free pages as its lists have them."""
        slots: list[int] = self.host.free_slots.tolist()
        for chunk in getattr(self.host, "release_slots", ()):
            slots += chunk.tolist()
        size = self.page_size
        return slots if size == 1 else [slot // size for slot in slots if slot % size == 0]

    def device_buffers(self) -> list[torch.Tensor]:
        """Keys of each layer, then values: one number a slot."""
        return [*self.kv.k_buffer, *self.kv.v_buffer]

    def host_buffers(self) -> list[torch.Tensor]:
        """As `device_buffers`."""
        both = self.host.kv_buffer
        return [both[kv][layer] for kv in range(2) for layer in range(LAYERS)]
