"""What an SGLang source tree with a HiMambaRadixCache has, told from its classes and not from its version."""

import importlib
from functools import cached_property
from typing import Any, ClassVar

from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE, REAL
from hicache_ref.adapters.sglang_hiradix.traits import Traits

_CACHE = f"{PACKAGE}.srt.mem_cache"

HYBRID = f"{_CACHE}.hybrid_cache.hybrid_cache_controller"

HYBRID_REAL = REAL | {
    f"{_CACHE}.allocator.mamba",
    f"{_CACHE}.hi_mamba_radix_cache",
    HYBRID,
    f"{_CACHE}.hybrid_cache.hybrid_pool_assembler",
    f"{_CACHE}.mamba_radix_cache",
}
"""The modules that execute, as far as a release has them."""


class HybridTraits(Traits):
    """As of HiRadixCache; `hiradix` is the module of the hybrid cache."""

    NAME: ClassVar[str] = "HiMambaRadixCache"
    MODULE: ClassVar[str] = f"{_CACHE}.hi_mamba_radix_cache"
    LAST: ClassVar[str] = "0.5.17"
    REGISTERS: ClassVar[str] = "register_mem_host_pool_v2"

    @cached_property
    def hybrid(self) -> Any:
        """The module of the hybrid controller."""
        return importlib.import_module(HYBRID)

    @cached_property
    def has_bigrams(self) -> bool:
        """The class has a page size of one token and no pairs."""
        return False

    @cached_property
    def backs_up_prefixes_only(self) -> bool:
        """Whether the backup of a node below an unbacked one is skipped (from 0.5.15, as nodes came to be told)."""
        return self.publishes_tiers

    @cached_property
    def names_best_node(self) -> bool:
        """Whether a match says where a load would start (from 0.5.15)."""
        return "best_match_node" in importlib.import_module(f"{_CACHE}.base_prefix_cache").MatchResult._fields

    @cached_property
    def preset(self) -> str:
        """The rules preset of the release that it is most like."""
        if not self.allocates_before:
            return "sglang-himamba-0.5.16"
        return "sglang-himamba-0.5.15" if self.publishes_tiers else "sglang-himamba-0.5.10"
