"""Where the bytes of a pool lie: its parts, and the order of the axes in each layout. No torch.

A pool keeps *parts*: K and V, a latent and its rope, states. Each part has, for every layer, page, token and head, some
bytes that always lie together. A layout is an order of those axes, and says what is an allocation of its own.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Annotated, Literal, NamedTuple, Self, get_args

from pydantic import Field, PositiveInt, model_validator

from hicache_ref.vocabulary.base import Frozen

Kind = Literal["mha", "mla", "state"]
HostLayout = Literal["layer_first", "page_first", "page_first_direct", "page_head", "page_first_kv_split"]
Layout = Literal["device", HostLayout]
"""`device` is the one that attention reads: an allocation for each layer."""

HOST_LAYOUTS: tuple[HostLayout, ...] = get_args(HostLayout)

Axis = Literal["layer", "page", "token", "head"]

_ORDERS: Mapping[Layout, tuple[Axis, ...]] = {
    "device": ("page", "token", "head"),
    "layer_first": ("layer", "page", "token", "head"),
    "page_first": ("page", "token", "layer", "head"),
    "page_first_direct": ("page", "layer", "token", "head"),
    "page_head": ("page", "head", "token", "layer"),
    "page_first_kv_split": ("page", "layer", "token", "head"),
}
"""Outermost axis first."""

_LAYOUTS: Mapping[Kind, frozenset[Layout]] = {
    "mha": frozenset({"device", "layer_first", "page_first", "page_first_direct", "page_head"}),
    "mla": frozenset({"device", "layer_first", "page_first", "page_first_direct", "page_first_kv_split"}),
    "state": frozenset({"device", "layer_first", "page_first", "page_first_direct"}),
}


class LayoutError(ValueError):
    """A pool cannot be laid out so."""


class Part(Frozen):
    """One kind of bytes that a pool keeps for each layer and token, in heads of one size."""

    name: str
    head_bytes: PositiveInt
    """Bytes of one head of one token."""

    heads: PositiveInt = 1


class PoolSpec(Frozen):
    """What a pool keeps for a page."""

    kind: Kind
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    layers: Annotated[tuple[int, ...], Field(min_length=1)]
    """The model's layers that have such parts, rising; the pool numbers them from 0."""

    page_size: PositiveInt
    """Tokens a page."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers {self.layers}, expected them rising, each once")
        if self.kind == "state" and self.page_size != 1:
            raise ValueError(f"page size {self.page_size} of a state, expected 1: a state is of one token")
        if self.kind != "mha" and any(part.heads > 1 for part in self.parts):
            raise ValueError(f"parts with heads in a pool of kind {self.kind}, expected one head")
        return self

    @property
    def page_bytes(self) -> int:
        """Bytes of one page: all parts, layers and tokens."""
        return self.page_size * len(self.layers) * sum(part.heads * part.head_bytes for part in self.parts)


def mha(layers: int | Sequence[int], heads: int, head_dim: int, itemsize: int, page_size: int,
        v_head_dim: int | None = None) -> PoolSpec:  # fmt: skip
    """A pool of K and V; sizes are in elements of `itemsize` bytes (upstream: MHATokenToKVPool)."""
    dims = {"k": head_dim, "v": head_dim if v_head_dim is None else v_head_dim}
    parts = tuple(Part(name=name, heads=heads, head_bytes=dim * itemsize) for name, dim in dims.items())
    return PoolSpec(kind="mha", parts=parts, layers=_numbered(layers), page_size=page_size)


def mla(layers: int | Sequence[int], latent: int, rope: int, itemsize: int, page_size: int) -> PoolSpec:
    """A pool of latents, each with its rope behind it; sizes as for `mha` (upstream: MLATokenToKVPool)."""
    parts = tuple(Part(name=name, head_bytes=dim * itemsize) for name, dim in (("latent", latent), ("rope", rope)))
    return PoolSpec(kind="mla", parts=parts, layers=_numbered(layers), page_size=page_size)


def state(layers: Sequence[int], parts: Mapping[str, int]) -> PoolSpec:
    """A pool of recurrent states in these layers; by part, the bytes of a slot in one layer (upstream: MambaPool)."""
    named = tuple(Part(name=name, head_bytes=size) for name, size in parts.items())
    return PoolSpec(kind="state", parts=named, layers=tuple(layers), page_size=1)


def _numbered(layers: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(range(layers)) if isinstance(layers, int) else tuple(layers)


class Place(NamedTuple):
    """A pool of `pages` pages in one layout."""

    layout: Layout
    pages: int


class Slab(NamedTuple):
    """Where one part of one layer lies: an allocation, its first byte, and the bytes from one to the next of each axis.

    Allocations are numbered as in `allocations`.
    """

    buffer: int
    offset: int
    page: int
    token: int
    head: int


def slabs(spec: PoolSpec, place: Place) -> Mapping[tuple[int, int], Slab]:
    """Where each (part, layer of the pool) lies. Raises LayoutError."""
    return _laid_out(spec, place)[0]


def allocations(spec: PoolSpec, place: Place) -> tuple[int, ...]:
    """The bytes of each allocation of a pool that is laid out so. Raises LayoutError."""
    return _laid_out(spec, place)[1]


@lru_cache(maxsize=256)
def _laid_out(spec: PoolSpec, place: Place) -> tuple[Mapping[tuple[int, int], Slab], tuple[int, ...]]:
    """What `slabs` and `allocations` say."""
    found: dict[tuple[int, int], Slab] = {}
    sizes: list[int] = []
    # SGLang has K and V of all layers in one tensor on host, and everything else in tensors of its own.
    together = spec.kind == "mha" and place.layout != "device"
    for parts, layers in _regions(spec, place):
        if not sizes or not together:
            sizes.append(0)
        strides, size = _strides(spec, place, parts, layers)
        first = sizes[-1]
        for part in parts:
            for number, layer in enumerate(layers):
                offset = first + number * strides["layer"]
                found[part, layer] = Slab(len(sizes) - 1, offset, strides["page"], strides["token"], strides["head"])
            first += spec.parts[part].head_bytes
        sizes[-1] += size
    return found, tuple(sizes)


def _regions(spec: PoolSpec, place: Place) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Parts and layers that one order of axes describes, in the order in which they lie. Raises LayoutError."""
    if place.layout not in _LAYOUTS[spec.kind]:
        known = ", ".join(sorted(_LAYOUTS[spec.kind]))
        raise LayoutError(f"layout {place.layout} of a pool of kind {spec.kind}, expected one of {known}")
    if place.pages < 1:
        raise LayoutError(f"a pool of {place.pages} pages, expected at least 1")
    every_part, every_layer = range(len(spec.parts)), range(len(spec.layers))
    joined = spec.kind == "mla" and place.layout != "page_first_kv_split"
    parts = [every_part] if joined else [range(part, part + 1) for part in every_part]
    layers = [range(layer, layer + 1) for layer in every_layer] if place.layout == "device" else [every_layer]
    return list(product(parts, layers))


def _strides(spec: PoolSpec, place: Place, parts: Sequence[int],
             layers: Sequence[int]) -> tuple[Mapping[Axis, int], int]:  # fmt: skip
    """Bytes from one to the next along each axis of a region, and the bytes of all of it."""
    counts: Mapping[Axis, int] = {
        "layer": len(layers), "page": place.pages, "token": spec.page_size, "head": spec.parts[parts[0]].heads
    }  # fmt: skip
    strides: dict[Axis, int] = {"layer": 0}
    size = sum(spec.parts[part].head_bytes for part in parts)
    for axis in reversed(_ORDERS[place.layout]):
        strides[axis] = size
        size *= counts[axis]
    return strides, size
