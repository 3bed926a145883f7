"""What is seen of a live cache: tree, locks and pools, in the words of a trace."""

from collections.abc import Mapping

from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.observe import queued_host, segments_of
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.observation import Counts, Observation

OUTSIDE = "outside"
"""The request that stands for whoever holds device pages that are not in the tree."""


def look(engine: Engine, prefetches: Mapping[str, Pages]) -> Observation:
    """The cache at level tree. Device pages in no list and no segment are those of the one request `OUTSIDE`."""
    free_device, free_host = tuple(engine.free_device()), tuple(engine.free_host())
    segments = tuple(segments_of(engine, shows_locks=True))
    known = {page for each in segments for page in each.device or ()} | set(free_device)
    outside = tuple(page for page in range(engine.profile.sizes.device_pages) if page not in known)
    counts = Counts(
        free_device=len(free_device), free_host=len(free_host),
        evictable=engine.cache.evictable_size() // engine.page_size,
        protected=engine.cache.protected_size() // engine.page_size,
    )  # fmt: skip
    return Observation(
        level="tree", counts=counts, free_device=free_device, free_host=free_host, segments=segments,
        requests={OUTSIDE: outside} if outside else {}, queued_host=queued_host(engine), prefetch_host=dict(prefetches),
    )  # fmt: skip
