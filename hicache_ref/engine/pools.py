"""Pools with bytes: a device pool and its host pool in one spec, and the page of either in one canonical form."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from hicache_ref.engine.calls import Location
from hicache_ref.engine.device import Buffers, Device, Move
from hicache_ref.engine.layout import HostLayout, Place, PoolSpec, allocations
from hicache_ref.engine.plan import Layers, Route, execute
from hicache_ref.engine.transfers import DIRECTIONS, Direction, IoBackend, Way, arranged, way
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
    """A device pool and the host pool that its pages go to, and the io backend that copies between them."""

    device: Pool
    host: Pool
    to_device: Way
    to_host: Way

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The model's layers that it has."""
        return self.device.spec.layers

    @cached_property
    def _outward(self) -> Route:
        return Route(self.device.spec, self.device.place, self.host.place)

    @cached_property
    def _inward(self) -> Route:
        return Route(self.device.spec, self.host.place, self.device.place)

    def moves(self, direction: Direction, device: Pages, host: Pages, layers: Layers = None) -> list[Move]:
        """What copies page i of one to page i of the other, in these layers or in all."""
        if direction == "backup":
            pages = arranged(list(zip(device, host, strict=True)), self.to_host, direction)
            return [Move(plan, self.device.buffers, self.host.buffers) for plan in self._outward.plans(pages, layers)]
        pages = arranged(list(zip(host, device, strict=True)), self.to_device, direction)
        return [Move(plan, self.host.buffers, self.device.buffers) for plan in self._inward.plans(pages, layers)]

    def way(self, direction: Direction) -> Way:
        """How this direction is copied."""
        return self.to_device if direction == "load" else self.to_host


def pool_pair(name: str, spec: PoolSpec, device: Device, counts: tuple[int, int], layout: HostLayout,
              io: IoBackend) -> PoolPair:  # fmt: skip
    """Both pools of so many pages on device and host.

    Raises LayoutError where the layout is not for such a pool, or the io backend does not copy it.
    """
    to_device, to_host = (way(io, layout, spec.kind, direction) for direction in DIRECTIONS)
    places = (Place("device", counts[0]), Place(layout, counts[1]))
    made = [
        Pool(f"{name}.{tier}", spec, place,
             [device.allocate(size, pinned=tier == "host") for size in allocations(spec, place)])
        for tier, place in zip(("device", "host"), places, strict=True)
    ]  # fmt: skip
    return PoolPair(made[0], made[1], to_device, to_host)
