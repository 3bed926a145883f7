"""SGLang's compiled tree core, made and spoken to: keys become arrays of tokens, pages become token slots.

Page p is slots p * page_size to p * page_size + page_size - 1, in that order, on both tiers.
"""

from array import array
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch  # also makes the libraries resident that the core is linked against

from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.hashing import key_hashes
from hicache_ref.vocabulary.ids import PageHash, Pages
from hicache_ref.vocabulary.keys import Key, pages_of, tokens_of
from hicache_ref.vocabulary.profile import Profile, WritePolicy

KV = 0
"""Upstream's ComponentType.FULL."""

STATE = 2
"""Upstream's ComponentType.MAMBA."""

_MODULE = "mem_cache"


class CoreMisbehaved(Exception):
    """The core returned something that its callers cannot work with."""


def load_bindings(file: Path) -> ModuleType:
    """The core's module. Raises AdapterError where the file is no such module for this Python and its torch."""
    try:
        loader = ExtensionFileLoader(_MODULE, str(file))
        spec = spec_from_file_location(_MODULE, file, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise AdapterError(f"cannot load {file} beside torch {torch.__version__}: {error}") from error
    return module


class Core:
    """One tree. `tree` is the binding itself, whose calls have upstream's names."""

    def __init__(self, bindings: Any, profile: Profile) -> None:
        self.bindings = bindings
        self.profile = profile
        self.page_size = profile.sizes.page_size
        self.components = (KV, STATE) if profile.state else (KV,)
        rules = profile.rules
        kind = bindings.RustBigramUnifiedTreeCoreBinding if profile.bigram else bindings.RustUnifiedTreeCoreBinding
        self.tree: Any = kind(
            bindings.TreeCoreInitParamsBinding(
                eviction_policy=rules.eviction,
                slru_protected_threshold=rules.slru_protected_threshold,
                page_size=self.page_size,
                device="cpu",
                enable_kv_cache_events=True,
                mamba_cache_chunk_size=profile.sizes.state_chunk if profile.state else None,
            ),
            list(self.components),
        )
        self.tree.set_hicache_enabled()
        self.follow(rules.write_policy)

    def follow(self, policy: WritePolicy) -> None:
        """Later inserts and evictions follow the policy (upstream: StorageAttachment._apply_policies)."""
        self.tree.set_is_write_back(policy == "write_back")
        self.tree.set_write_through_threshold(self.profile.rules.hits_before_backup(policy))

    def whole_pages(self, key: Key, count: int | None = None) -> tuple[int, ...]:
        """The tokens of the key's first `count` whole pages, or of all of them."""
        pages = pages_of(key.tokens, self.page_size, self.profile.bigram)
        return tokens_of(pages[:count], self.profile.bigram)

    def hashes(self, key: Key) -> tuple[PageHash, ...]:
        """The hash of the prefix that ends with each of the key's whole pages."""
        return key_hashes(key, self.page_size, self.profile.bigram)

    def page_count(self, key: Key) -> int:
        """The number of the key's whole pages."""
        return len(pages_of(key.tokens, self.page_size, self.profile.bigram))

    def match_params(self, tokens: Sequence[int], extra: str | None) -> Any:
        """The key as the core takes it."""
        return self.bindings.MatchParamsBinding(array("q", tokens), extra_key=extra)

    def release_params(self, receipt: Any) -> Any:
        """The whole of what an inc_lock_ref returned, as the paired dec_lock_ref takes it."""
        return self.bindings.DecLockRefParamsBinding(
            node_id=receipt.node_id,
            skipped_lock_components=list(receipt.skipped_lock_components),
            component_lock_uuids=receipt.component_lock_uuids,
            component_host_lock_uuids=receipt.component_host_lock_uuids,
        )

    def slots(self, pages: Sequence[int]) -> torch.Tensor:
        """The slots of `pages`: int64, page_size for each page."""
        size = self.page_size
        numbers = array("q", pages) if size == 1 else array("q", [p * size + j for p in pages for j in range(size)])
        return torch.frombuffer(numbers, dtype=torch.int64) if numbers else torch.empty(0, dtype=torch.int64)

    def pages(self, slots: torch.Tensor) -> Pages:
        """The pages that `slots` are. Raises CoreMisbehaved unless they are whole pages with their slots in order."""
        numbers: list[int] = slots.tolist()
        size = self.page_size
        if size == 1:
            return tuple(numbers)
        pages = tuple(first // size for first in numbers[::size])
        if [page * size + j for page in pages for j in range(size)] != numbers:
            raise CoreMisbehaved(f"slots {numbers}, expected whole pages of {size} slots in order")
        return pages

    def resident_pages(self, key: Key, count: int) -> Pages | None:
        """The device pages of the key's first `count` pages, or None if not all are resident. Changes nothing."""
        if count == 0:
            return ()
        matched, node, _ = self.tree.match_full_device_prefix(
            self.match_params(self.whole_pages(key, count), key.extra)
        )
        if matched < count * self.page_size:
            return None
        return self.pages(self.tree.collect_full_device_indices(node, self.root()))[:count]

    def root(self) -> int:
        """The node that is above every other, in every namespace."""
        root: int = self.tree.root_node_handle()
        return root
