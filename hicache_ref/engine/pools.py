"""Pools with bytes: a device pool and its host pool in one spec, and the page of either in one canonical form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hicache_ref.engine.calls import Location
from hicache_ref.engine.device import Buffers, Device, Move
from hicache_ref.engine.layout import HostLayout, Place, PoolSpec, allocations
from hicache_ref.engine.plan import Layers, Route, execute
from hicache_ref.vocabulary.ids import Page, Pages

ALONE = Place("device", 1)
"""One page in the layout that attention reads: its canonical form."""


@dataclass(frozen=True)
class Pool:
    """The pages of one tier, in the allocations of its layout."""

    name: str
    spec: PoolSpec
    place: Place
    buffers: Buffers

    @cached_property
    def _out(self) -> Route:
        return Route(self.spec, self.place, ALONE)

    @cached_property
    def _in(self) -> Route:
        return Route(self.spec, ALONE, self.place)

    @cached_property
    def _within(self) -> Route:
        return Route(self.spec, self.place, self.place)

    def read(self, page: Page, layers: Layers = None) -> bytes:
        """The page in canonical form, part by part and layer by layer; zeros for layers that are not asked for."""
        page_alone = [memoryview(bytearray(size)) for size in allocations(self.spec, ALONE)]
        for plan in self._out.plans([(page, 0)], layers):
            execute(plan, self.buffers, page_alone)
        return b"".join(page_alone)

    def write(self, page: Page, data: bytes, layers: Layers = None) -> None:
        """The page holds the canonical bytes, in the model's `layers` or in all."""
        whole, page_alone = memoryview(data), []
        for size in allocations(self.spec, ALONE):
            page_alone.append(whole[:size])
            whole = whole[size:]
        for plan in self._in.plans([(0, page)], layers):
            execute(plan, page_alone, self.buffers)

    def moves_within(self, source: Pages, target: Pages) -> list[Move]:
        """What copies page i of one list to page i of the other, in all layers."""
        plans = self._within.plans(list(zip(source, target, strict=True)))
        return [Move(plan, self.buffers, self.buffers) for plan in plans]

    def locations(self, pages: Iterable[Page], layers: Layers = None) -> tuple[Location, ...]:
        """What is touched by whoever touches these pages in the model's `layers` that the pool has."""
        touched = [layer for layer in self.spec.layers if layers is None or layer in layers]
        return tuple(Location(self.name, page, layer) for page in pages for layer in touched)


@dataclass(frozen=True)
class PoolPair:
    """A device pool and the host pool that its pages go to."""

    device: Pool
    host: Pool

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The model's layers that it has."""
        return self.device.spec.layers

    @cached_property
    def _to_host(self) -> Route:
        return Route(self.device.spec, self.device.place, self.host.place)

    @cached_property
    def _to_device(self) -> Route:
        return Route(self.device.spec, self.host.place, self.device.place)

    def moves(self, to_host: bool, device: Pages, host: Pages, layers: Layers = None) -> list[Move]:
        """What copies page i of one to page i of the other, in these layers or in all."""
        source, target = (self.device, self.host) if to_host else (self.host, self.device)
        pages = list(zip(device, host, strict=True) if to_host else zip(host, device, strict=True))
        route = self._to_host if to_host else self._to_device
        return [Move(plan, source.buffers, target.buffers) for plan in route.plans(pages, layers)]


def pool_pair(name: str, spec: PoolSpec, device: Device, counts: tuple[int, int], layout: HostLayout) -> PoolPair:
    """Both pools of so many pages on device and host. Raises LayoutError where the layout is not for such a pool."""
    places = (Place("device", counts[0]), Place(layout, counts[1]))
    sizes: Sequence[Sequence[int]] = [allocations(spec, place) for place in places]
    made = (
        Pool(f"{name}.{tier}", spec, place, [device.allocate(size, pinned=tier == "host") for size in some])
        for tier, place, some in zip(("device", "host"), places, sizes, strict=True)
    )
    return PoolPair(*made)
