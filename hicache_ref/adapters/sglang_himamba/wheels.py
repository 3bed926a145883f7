"""The releases of SGLang that have a HiMambaRadixCache and are driven here: their wheels, and what of them executes."""

from pathlib import Path

from hicache_ref.adapters.sglang_hiradix import wheels as hiradix
from hicache_ref.adapters.sglang_hiradix.wheels import Release
from hicache_ref.adapters.wheels import fetched_wheel
from hicache_ref.vocabulary.adapter import AdapterError

DEFAULT = "0.5.17"
"""The last release with a HiMambaRadixCache."""

_SRT = "sglang/srt"

_HYBRID = (
    "mem_cache/hi_mamba_radix_cache", "mem_cache/hybrid_cache/hybrid_cache_controller", "mem_cache/mamba_radix_cache",
    "mem_cache/memory_pool_host",
)  # fmt: skip
_ASSEMBLED = ("mem_cache/allocator/mamba", "mem_cache/hybrid_cache/hybrid_pool_assembler")


def _release(version: str, *more: str) -> Release:
    """The release as HiRadixCache needs it, and more of it."""
    known = hiradix.RELEASES[version]
    return Release(known.sha256, tuple(dict.fromkeys((*known.modules, *_HYBRID, *more))))


RELEASES: dict[str, Release] = {
    "0.5.10.post1": _release("0.5.10.post1"),
    "0.5.15": _release("0.5.15", *_ASSEMBLED),
    "0.5.16": _release("0.5.16", *_ASSEMBLED),
    "0.5.17": Release(
        "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16",
        tuple(name for name in _release("0.5.16", *_ASSEMBLED).modules if name != "mem_cache/session_radix_cache"),
    ),
}


def root_of(version: str, *, fetch: bool) -> Path:
    """A folder with the modules of that release, in the cache. Raises AdapterError."""
    release = RELEASES.get(version)
    if release is None:
        known = ", ".join(RELEASES)
        raise AdapterError(f"unknown version {version!r} of sglang-himamba, expected one of {known}, or source=DIR")
    members = [f"{_SRT}/{module}.py" for module in release.modules]
    members.append(f"sglang-{version}.dist-info/licenses/LICENSE")
    return fetched_wheel("sglang", version, {release.sha256}, members, fetch=fetch, part="himamba")


if __name__ == "__main__":
    for each in RELEASES:
        root_of(each, fetch=True)
