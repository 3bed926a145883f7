"""What was seen of a live cache, in the words of a trace: tree, locks and pools."""

from collections.abc import Iterator, Mapping, Sequence

from hicache_ref.adapters.sglang_teller.nodes import Nodes, Place, Shape
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.observation import Counts, Observation, Segment

OUTSIDE = "outside"
"""The request that stands for whoever holds device pages that are not in the tree."""

Pools = tuple[Sequence[Place], Sequence[Place], int, int]
"""Free device pages, as the allocator counts them; free host slots; evictable and protected tokens."""

SentNode = tuple[int, int, bool, bool, bool]
"""A node, that above it, whether it counts as protected, and whether it is on device and on host."""


def seen(shape: Shape, nodes: Nodes, pools: Pools, sent: Sequence[SentNode], queued: Pages,
         prefetches: Mapping[str, Pages]) -> Observation:  # fmt: skip
    """The cache at level tree. Device pages in no list and no segment are those of the one request `OUTSIDE`."""
    device, host, evictable, protected = pools
    free_device = tuple(page - 1 for place in device for page in nodes.slots(place))
    free_host = tuple(page for place in host for page in _free(nodes.slots(place), shape.page_size))
    segments = tuple(_segments(shape, nodes, sent))
    known = {page for each in segments for page in each.device or ()} | set(free_device)
    outside = tuple(page for page in range(shape.device_pages) if page not in known)
    counts = Counts(
        free_device=len(free_device), free_host=len(free_host),
        evictable=evictable // shape.page_size, protected=protected // shape.page_size,
    )  # fmt: skip
    return Observation(
        level="tree", counts=counts, free_device=free_device, free_host=free_host, segments=segments,
        requests={OUTSIDE: outside} if outside else {}, queued_host=queued, prefetch_host=dict(prefetches),
    )  # fmt: skip


def _segments(shape: Shape, nodes: Nodes, sent: Sequence[SentNode]) -> Iterator[Segment]:
    places = {number: index for index, (number, *_) in enumerate(sent)}
    for number, above, locked, on_device, on_host in sent:
        yield Segment(
            parent=places.get(above, -1),
            tokens=tuple(nodes.own_tokens(number, above)),
            extra=nodes.extra(number),
            device=nodes.whole_pages(nodes.device[number], shape.page_size, shape.device_offset) if on_device else None,
            host=nodes.whole_pages(nodes.host[number], shape.page_size, 0) if on_host else None,
            locked=locked,
        )


def _free(slots: Sequence[int], size: int) -> Iterator[int]:
    """The pages that begin in `slots`, as a list of free slots has them in any order."""
    return (slot // size for slot in slots if slot % size == 0)
