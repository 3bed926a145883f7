"""Which io backend copies which host layout, and how: held against what SGLang does with each pair."""

from itertools import product
from typing import get_args

import pytest

from hicache_ref.engine.layout import HOST_LAYOUTS, HostLayout, Kind, LayoutError
from hicache_ref.engine.transfers import (
    IO_BACKENDS,
    Direction,
    IoBackend,
    Memory,
    arranged,
    normalised,
    way,
)

KINDS: tuple[Kind, ...] = get_args(Kind)
COPIED = {
    ("kernel", "layer_first", "mha"), ("kernel", "layer_first", "mla"), ("kernel", "layer_first", "state"),
    ("kernel", "page_first", "mha"), ("kernel", "page_first", "mla"), ("kernel", "page_first", "state"),
    ("kernel", "page_head", "mha"),
    ("direct", "layer_first", "mha"), ("direct", "layer_first", "mla"), ("direct", "layer_first", "state"),
    ("direct", "page_first_direct", "mha"), ("direct", "page_first_direct", "mla"),
    ("direct", "page_first_direct", "state"),
    ("kernel_ascend", "page_first_direct", "mha"), ("kernel_ascend", "page_first_kv_split", "mla"),
}  # fmt: skip


@pytest.mark.parametrize("direction", ["load", "backup"])
def test_every_pair_is_copied_or_refused_by_name(direction: Direction) -> None:
    """Goal: no pair is left open. Method: all of them."""
    for io, layout, kind in product(IO_BACKENDS, HOST_LAYOUTS, KINDS):
        if (io, layout, kind) in COPIED:
            way(io, layout, kind, direction)
        else:
            with pytest.raises(LayoutError, match=f"io backend {io} with layout {layout} for a pool of kind {kind}"):
                way(io, layout, kind, direction)


@pytest.mark.parametrize(
    ("io", "layout", "kind", "direction", "host", "device", "calls"),
    [
        ("kernel", "layer_first", "mha", "load", "device", "device", "each_layer"),
        ("kernel", "page_first", "mha", "backup", "device", "device", "all_layers"),
        ("direct", "page_first_direct", "mla", "load", "host", "host", "each_layer"),
        ("direct", "layer_first", "mha", "backup", "host", "host", "all_layers"),
        ("kernel_ascend", "page_first_kv_split", "mla", "load", "host", "host", "all_with_first"),
        ("kernel_ascend", "page_first_direct", "mha", "backup", "host", "host", "all_layers"),
    ],
)
def test_indices_lie_where_the_copy_reads_them(
    io: IoBackend, layout: HostLayout, kind: Kind, direction: Direction, host: Memory, device: Memory,
    calls: str,
) -> None:  # fmt: skip
    """Goal: kernels read device memory, the host its own. Method: where the lists are for known pairs."""
    chosen = way(io, layout, kind, direction)
    assert (host, device, calls) == (chosen.host_indices, chosen.device_indices, chosen.calls)


@pytest.mark.parametrize(
    ("direction", "expected"), [("load", ((1, 7), (4, 2), (9, 5))), ("backup", ((4, 2), (9, 5), (1, 7)))]
)
def test_direct_copies_of_layer_first_go_by_host_page(
    direction: Direction, expected: tuple[tuple[int, int], ...]
) -> None:
    """Goal: the host is read in its order, and pairs stay together. Method: three pairs out of order."""
    chosen = way("direct", "layer_first", "mha", direction)
    assert expected == arranged([(9, 5), (1, 7), (4, 2)], chosen, direction)


def test_other_copies_keep_their_order() -> None:
    """Goal: nothing else is moved. Method: the same pairs for every other way."""
    pages = [(9, 5), (1, 7), (4, 2)]
    for io, layout, kind in COPIED - {("direct", "layer_first", kind) for kind in KINDS}:
        assert tuple(pages) == arranged(pages, way(io, layout, kind, "load"), "load")


@pytest.mark.parametrize(
    ("asked", "store", "rocm", "used"),
    [
        (("kernel", "page_first_direct"), None, False, ("direct", "page_first_direct")),
        (("direct", "page_first"), None, False, ("direct", "page_first_direct")),
        (("kernel", "page_first"), None, True, ("kernel", "layer_first")),
        (("kernel", "page_first"), None, False, ("kernel", "page_first")),
        (("kernel", "layer_first"), "mooncake", False, ("kernel", "page_first")),
        (("direct", "layer_first"), "mooncake", False, ("direct", "page_first_direct")),
        (("kernel", "layer_first"), "file", False, ("kernel", "layer_first")),
        (("kernel_ascend", "layer_first"), "mooncake", False, ("kernel_ascend", "layer_first")),
        (("kernel", "page_head"), "mooncake", True, ("kernel", "page_head")),
    ],
)
def test_flags_become_what_is_used(
    asked: tuple[IoBackend, HostLayout], store: str | None, rocm: bool, used: tuple[IoBackend, HostLayout]
) -> None:
    """Goal: what is asked for becomes a pair that there is. Method: each rule of SGLang's, and what it leaves."""
    assert used == normalised(*asked, store, rocm=rocm)
