"""Released SGLang's HiRadixCache, with its controller and pools, in a process of its own on any CPU.

Nothing of upstream is rewritten. Its modules are imported as they are, among stubs of all others; copies end, storage
answers and threads go on when the tester says so; tree, pools, queues and bytes are read from upstream's own objects.
"""

from collections.abc import Mapping

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_hiradix.importing import CONTROLLER
from hicache_ref.adapters.sglang_hiradix.options import Offer
from hicache_ref.adapters.sglang_hiradix.wheels import DEFAULT, root_of

OFFER = Offer(
    name="sglang-hiradix",
    package=__name__,
    cache_module="srt/mem_cache/hiradix_cache.py",
    default=DEFAULT,
    root_of=lambda version, fetch: root_of(version, fetch=fetch),
    choices={"storage": ("file", "off"), "events": ("on", "off")},
    files={"controller": CONTROLLER},
)


def make(options: Mapping[str, str], fetch: bool, step_timeout: float) -> ProcessAdapter:
    """An adapter whose child process holds the caches of one release; the wheel is in the cache.

    Options: `version` of a release, or `source`, a folder that has `sglang/` or `python/sglang/`; `storage` is file
    or off; `events` is on or off (on where they name tiers); `controller` a file in place of cache_controller.py;
    `preload` a file that is run once the modules are imported; `batch` the pages in one batch of storage (as the
    profile says). Raises AdapterError for anything else, and where the wheel cannot be had.
    """
    return OFFER.adapter(options, fetch, step_timeout)
