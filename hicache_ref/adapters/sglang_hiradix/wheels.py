"""The releases of SGLang that have a HiRadixCache and are driven here: their wheels, and what of them executes."""

from pathlib import Path
from typing import NamedTuple

from hicache_ref.adapters.wheels import fetched_wheel
from hicache_ref.vocabulary.adapter import AdapterError

DEFAULT = "0.5.20"
"""The last release with a HiRadixCache."""

_SRT = "sglang/srt"

_ALWAYS = (
    "disaggregation/kv_events", "managers/cache_controller", "mem_cache/base_prefix_cache",
    "mem_cache/hicache_storage", "mem_cache/hiradix_cache", "mem_cache/memory_pool", "mem_cache/radix_cache",
)  # fmt: skip
_ONE_FILE_A_POOL = ("mem_cache/allocator", "mem_cache/memory_pool_host")
_CONFIGURED = (
    "environ", "mem_cache/cache_init_params", "mem_cache/evict_policy", "mem_cache/storage/__init__",
    "mem_cache/storage/backend_factory", "mem_cache/utils",
)  # fmt: skip
_FOLDERS = (
    "mem_cache/allocator/base", "mem_cache/allocator/paged", "mem_cache/allocator/token",
    "mem_cache/cpp_utils/native_hash", "mem_cache/events", "mem_cache/pool_host/base", "mem_cache/pool_host/common",
    "mem_cache/storage/file/__init__", "mem_cache/storage/file/lru_file_evictor",
)  # fmt: skip


class Release(NamedTuple):
    """A wheel by the SHA-256 of its file for CPython 3.11 on Linux x86_64 or any, and the modules that execute."""

    sha256: str
    modules: tuple[str, ...]


RELEASES: dict[str, Release] = {
    "0.5.1.post3": Release(
        "f92f56f6fa6320012872da1fe37317e665df556af0272eff67af8afb3993ec0c", (*_ALWAYS, *_ONE_FILE_A_POOL)
    ),
    "0.5.2": Release("83aae146f3913ed0802bb1ea356facff47efe0e7d18041a3f143de9ef6e44b2c", (*_ALWAYS, *_ONE_FILE_A_POOL)),
    "0.5.6": Release(
        "c32b6a5bafcda41c2f299ed4a1fbe8401946076b4e010fe8feb5b8a9712bf66b", (*_ALWAYS, *_ONE_FILE_A_POOL, *_CONFIGURED)
    ),
    "0.5.9": Release(
        "8a936c4d25fea605f44254e533cff2144c73ceffbc1f8738aba393461bbb64d1", (*_ALWAYS, *_ONE_FILE_A_POOL, *_CONFIGURED)
    ),
    "0.5.10.post1": Release(
        "a854a68b11caf6b4b55c241a44378a7cdede7ede325db85c955f131506703bc6", (*_ALWAYS, *_ONE_FILE_A_POOL, *_CONFIGURED)
    ),
    "0.5.15": Release(
        "21492759b4b99e117bd81610f633422f3fdae2896c2cde6931eab886deccc44f",
        (*_ALWAYS, *_CONFIGURED, *_FOLDERS, "mem_cache/memory_pool_host", "mem_cache/session_radix_cache"),
    ),
    "0.5.16": Release(
        "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
        (*_ALWAYS, *_CONFIGURED, *_FOLDERS, "mem_cache/pool_host/mha", "mem_cache/session_radix_cache"),
    ),
    "0.5.20": Release(
        "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
        (*_ALWAYS, *_CONFIGURED, *_FOLDERS, "mem_cache/pool_host/mha", "mem_cache/l2_transfer"),
    ),
}


def root_of(version: str, *, fetch: bool) -> Path:
    """A folder with the modules of that release, in the cache. Raises AdapterError."""
    release = RELEASES.get(version)
    if release is None:
        known = ", ".join(RELEASES)
        raise AdapterError(f"unknown version {version!r} of sglang-hiradix, expected one of {known}, or source=DIR")
    members = [f"{_SRT}/{module}.py" for module in release.modules]
    members.append(f"sglang-{version}.dist-info/licenses/LICENSE")
    return fetched_wheel("sglang", version, {release.sha256}, members, fetch=fetch)


if __name__ == "__main__":
    for each in RELEASES:
        root_of(each, fetch=True)
