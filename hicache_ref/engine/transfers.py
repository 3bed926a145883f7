"""How SGLang's io backends copy a host layout: where indices have to be, in which order, and in how many calls.

A pair that does not go together is refused by name. Upstream: HiCacheController.move_indices, the host pools'
load_to_device_per_layer and backup_from_device_all_layer, ServerArgs._resolve_layout_io_compatibility (0.5.15), and
MambaPoolHost (0.5.23).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from hicache_ref.engine.layout import HostLayout, Kind, LayoutError
from hicache_ref.vocabulary.ids import Page

IoBackend = Literal["kernel", "direct", "kernel_ascend"]
IO_BACKENDS: tuple[IoBackend, ...] = get_args(IoBackend)
Direction = Literal["load", "backup"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
Memory = Literal["device", "host"]
Calls = Literal["each_layer", "all_layers", "all_with_first"]
"""A call for each layer; one call; or calls for each layer, the first of which copies all of them."""


class Way(NamedTuple):
    """How a direction is copied."""

    host_indices: Memory
    """Where the list of host pages has to be."""

    device_indices: Memory
    calls: Calls
    by_host_page: bool = False
    """Whether the pairs of pages are put in the order of their host pages."""


_KERNEL = Way("device", "device", "each_layer")
_DIRECT = Way("host", "host", "each_layer")
_LOADS: Mapping[tuple[IoBackend, HostLayout], Mapping[Kind, Way]] = {
    ("kernel", "layer_first"): {"mha": _KERNEL, "mla": _KERNEL, "state": _KERNEL},
    ("kernel", "page_first"): {"mha": _KERNEL, "mla": _KERNEL, "state": _KERNEL},
    ("kernel", "page_head"): {"mha": _KERNEL},
    ("direct", "layer_first"): dict.fromkeys(("mha", "mla", "state"), _DIRECT._replace(by_host_page=True)),
    ("direct", "page_first_direct"): {"mha": _DIRECT, "mla": _DIRECT, "state": _DIRECT},
    ("kernel_ascend", "page_first_direct"): {"mha": _DIRECT._replace(calls="all_with_first")},
    ("kernel_ascend", "page_first_kv_split"): {"mla": _DIRECT._replace(calls="all_with_first")},
}


def way(io: IoBackend, layout: HostLayout, kind: Kind, direction: Direction) -> Way:
    """How pools of this kind are copied. Raises LayoutError for a pair that is none."""
    kinds = _LOADS.get((io, layout), {})
    if kind not in kinds:
        fitting = ", ".join(f"{one} with {other}" for (one, other), some in _LOADS.items() if kind in some)
        raise LayoutError(f"io backend {io} with layout {layout} for a pool of kind {kind}, expected {fitting}")
    load = kinds[kind]
    return load if direction == "load" else load._replace(calls="all_layers")


def io_for(layout: HostLayout) -> IoBackend:
    """The io backend that copies this layout, the first one of the table."""
    return next(io for io, each in _LOADS if each == layout)


def arranged(pages: Sequence[tuple[Page, Page]], chosen: Way, direction: Direction) -> tuple[tuple[Page, Page], ...]:
    """The pairs (source, target) in the order in which they are copied; each target keeps its source."""
    if not chosen.by_host_page:
        return tuple(pages)
    host = 0 if direction == "load" else 1
    return tuple(sorted(pages, key=lambda pair: pair[host]))


def normalised(io: IoBackend, layout: HostLayout, store: str | None = None, *,
               rocm: bool = False) -> tuple[IoBackend, HostLayout]:  # fmt: skip
    """Io backend and layout that are used where these are asked for; what they are for is left to `way`."""
    if (io, layout) == ("kernel", "page_first_direct"):
        io = "direct"
    if (io, layout) == ("direct", "page_first"):
        layout = "page_first_direct"
    if rocm and (io, layout) == ("kernel", "page_first"):
        layout = "layer_first"
    if store == "mooncake" and layout == "layer_first" and io != "kernel_ascend":
        # It moves a page in at most two pieces, which layer_first has not.
        layout = "page_first" if io == "kernel" else "page_first_direct"
    return io, layout
