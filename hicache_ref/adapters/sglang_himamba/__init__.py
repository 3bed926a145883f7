"""Released SGLang's HiMambaRadixCache: KV and recurrent states, in a process of its own on any CPU.

It is driven as `sglang_hiradix` drives HiRadixCache, with the same threads, events, stubs and books. What is added here
is state: its pools, its slots in copies, and the slot that a request has.
"""

from collections.abc import Mapping

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_himamba.wheels import DEFAULT, root_of
from hicache_ref.adapters.sglang_hiradix.importing import CONTROLLER
from hicache_ref.adapters.sglang_hiradix.options import Offer

TREE = "sglang.srt.mem_cache.hi_mamba_radix_cache"

OFFER = Offer(
    name="sglang-himamba",
    package=__name__,
    cache_module="srt/mem_cache/hi_mamba_radix_cache.py",
    default=DEFAULT,
    root_of=lambda version, fetch: root_of(version, fetch=fetch),
    choices={"storage": ("file", "off"), "events": ("on", "off")},
    files={"tree": TREE, "controller": CONTROLLER},
)


def make(options: Mapping[str, str], fetch: bool, step_timeout: float) -> ProcessAdapter:
    """An adapter whose child process holds the caches of one release; the wheel is in the cache.

    Options as those of `sglang_hiradix.make`; and `tree` is a file in place of hi_mamba_radix_cache.py. Given files
    take the places of the modules of 0.5.15 unless a version or source is named. Raises AdapterError for what does not
    fit, and where the wheel cannot be had.
    """
    if {"tree", "controller"} & options.keys() and not {"version", "source"} & options.keys():
        options = {"version": "0.5.15", **options}
    return OFFER.adapter(options, fetch, step_timeout)
