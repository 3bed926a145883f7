"""What of SGLang's wheel executes when its unified cache's tree core runs in Python."""

from pathlib import Path

from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_rust import SHA256S
from hicache_ref.adapters.sglang_rust.following import VERSION
from hicache_ref.adapters.wheels import fetched_wheel

_MODULES = (
    "disaggregation/kv_events", "environ", "mem_cache/base_prefix_cache", "mem_cache/cache_init_params",
    "mem_cache/cpp_utils/native_hash", "mem_cache/events", "mem_cache/evict_policy", "mem_cache/hicache_storage",
    "mem_cache/radix_cache", "mem_cache/unified_cache/__init__", "mem_cache/unified_cache/cache_action",
    "mem_cache/unified_cache/component_type", "mem_cache/unified_cache/components/__init__",
    "mem_cache/unified_cache/components/base", "mem_cache/unified_cache/components/full",
    "mem_cache/unified_cache/components/mamba", "mem_cache/unified_cache/components/swa",
    "mem_cache/unified_cache/unified_tree_core", "mem_cache/unified_cache/unified_tree_core_interface",
    "mem_cache/utils",
)  # fmt: skip

REAL = frozenset(f"{PACKAGE}.srt.{name.removesuffix('/__init__').replace('/', '.')}" for name in _MODULES)
"""The modules that execute; every other one is a stub."""


def root_of(*, fetch: bool) -> Path:
    """A folder with these modules, in the cache. Raises AdapterError."""
    members = [f"sglang/srt/{module}.py" for module in _MODULES]
    members.append(f"sglang-{VERSION}.dist-info/licenses/LICENSE")
    return fetched_wheel("sglang", VERSION, SHA256S, members, fetch=fetch, part="unified")


if __name__ == "__main__":
    root_of(fetch=True)
