"""What a copy between two layouts of one pool moves: a plan of strided runs, that knows neither layouts nor devices.

A plan is planes x pages x runs x run bytes. An engine executes plans and nothing else. A correct plan writes no byte
twice, and exactly the bytes of its pages and layers, each from the same element on the other side.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import NamedTuple

from hicache_ref.engine.layout import LayoutError, Place, PoolSpec, Slab, slabs
from hicache_ref.vocabulary.ids import Page


class Spot(NamedTuple):
    """A byte: an allocation of one side, and the offset in it."""

    buffer: int
    offset: int


class Plane(NamedTuple):
    """Where page 0 of a plan begins on both sides."""

    source: Spot
    target: Spot


class Steps(NamedTuple):
    """Bytes from one to the next on both sides."""

    source: int
    target: int


Layers = tuple[int, ...] | None
"""Layers of the model, or all."""


class Piece(NamedTuple):
    """Bytes in one piece on both sides."""

    source: Spot
    target: Spot
    size: int


@dataclass(frozen=True)
class CopyPlan:
    """Of each plane and each pair of pages, `runs` runs of `run_bytes` bytes; offsets and strides are in bytes."""

    planes: tuple[Plane, ...]
    pages: tuple[tuple[Page, Page], ...]
    """Page of the source, page of the target."""

    page_strides: Steps
    runs: int
    run_strides: Steps
    run_bytes: int

    @property
    def size(self) -> int:
        """The bytes that it moves."""
        return len(self.planes) * len(self.pages) * self.runs * self.run_bytes

    @property
    def granule(self) -> int:
        """The largest number of bytes of which all offsets, strides and lengths are multiples."""
        offsets = [spot.offset for plane in self.planes for spot in plane]
        strides = self.run_strides if self.runs > 1 else ()
        return gcd(self.run_bytes, *self.page_strides, *strides, *offsets)

    def pieces(self) -> Iterator[Piece]:
        """Every run of every page of every plane."""
        for source, target in self.planes:
            for page, other in self.pages:
                begin, end = page * self.page_strides.source, other * self.page_strides.target
                for run in range(self.runs):
                    yield Piece(
                        Spot(source.buffer, source.offset + begin + run * self.run_strides.source),
                        Spot(target.buffer, target.offset + end + run * self.run_strides.target),
                        self.run_bytes,
                    )


def execute(plan: CopyPlan, source: Sequence[memoryview], target: Sequence[memoryview]) -> None:
    """The plan is carried out between the allocations of both sides, run by run: what an engine is compared with."""
    size, runs = plan.run_bytes, range(plan.runs)
    (read_page, write_page), (read_run, write_run) = plan.page_strides, plan.run_strides
    for (read_from, read_first), (write_to, write_first) in plan.planes:
        reads, writes = source[read_from], target[write_to]
        for page, other in plan.pages:
            # Local names and no records here: with runs of 8 KiB this loop is most of what is not the copy itself.
            read, write = read_first + page * read_page, write_first + other * write_page
            for _ in runs:
                writes[write : write + size] = reads[read : read + size]
                read += read_run
                write += write_run


class Route:
    """The way from one place to another of pools with one spec: plans for any pages.

    Raises LayoutError for a layout that such a pool cannot have.
    """

    def __init__(self, spec: PoolSpec, source: Place, target: Place) -> None:
        self._spec = spec
        self._source, self._target = source, target
        self._slabs = slabs(spec, source), slabs(spec, target)
        self._known: dict[Layers, tuple[tuple[_Shape, tuple[Plane, ...]], ...]] = {}
        """By layers, what does not depend on pages."""

    def plans(self, pages: Sequence[tuple[Page, Page]], layers: Layers = None) -> tuple[CopyPlan, ...]:
        """The plans that copy the pages, of the model's `layers` that the pool has or of all.

        `pages` are pairs of source and target. Most copies are one plan; parts of different sizes are one each, and no
        pages or layers are none. Raises LayoutError for a page that a side has not, and one that is written twice.
        """
        self._expect(pages)
        if layers not in self._known:
            self._known[layers] = self._shapes(layers)
        return tuple(CopyPlan(planes, tuple(pages), *shape) for shape, planes in self._known[layers] if pages)

    def _expect(self, pages: Sequence[tuple[Page, Page]]) -> None:
        for pair in pages:
            for side, place, page in zip(("source", "target"), (self._source, self._target), pair, strict=True):
                if not 0 <= page < place.pages:
                    raise LayoutError(f"page {page} of the {side}, expected one of its {place.pages}")
        if len({page for _, page in pages}) < len(pages):
            raise LayoutError("a page of the target is written twice, expected each once")

    def _shapes(self, layers: Layers) -> tuple[tuple["_Shape", tuple[Plane, ...]], ...]:
        found: dict[_Shape, list[Plane]] = defaultdict(list)
        for block in _in_long_runs(_blocks(self._spec, *self._slabs, layers)):
            for shape, plane in _with_one_axis(block):
                found[shape].append(plane)
        return tuple((shape, tuple(planes)) for shape, planes in found.items())


class _Axis(NamedTuple):
    """So many pieces, with these strides from one to the next."""

    length: int
    strides: Steps


class _Block(NamedTuple):
    """Pieces of `width` bytes along some axes, beginning at a plane."""

    plane: Plane
    page_strides: Steps
    axes: frozenset[_Axis]
    width: int


_Shape = tuple[Steps, int, Steps, int]
"""Of a plan: strides of pages, runs, strides of runs, bytes of a run."""


def _blocks(spec: PoolSpec, source: Mapping[tuple[int, int], Slab], target: Mapping[tuple[int, int], Slab],
            layers: Layers) -> list[_Block]:  # fmt: skip
    """A block for each part of each layer, whose pieces are heads of tokens."""
    found = []
    for number, layer in enumerate(spec.layers):
        if layers is not None and layer not in layers:
            continue
        for index, part in enumerate(spec.parts):
            there, here = source[index, number], target[index, number]
            axes = {
                _Axis(part.heads, Steps(there.head, here.head)), _Axis(spec.page_size, Steps(there.token, here.token))
            }  # fmt: skip
            plane = Plane(Spot(there.buffer, there.offset), Spot(here.buffer, here.offset))
            some = frozenset(axis for axis in axes if axis.length > 1)
            found.append(_Block(plane, Steps(there.page, here.page), some, part.head_bytes))
    return found


def _in_long_runs(blocks: list[_Block]) -> list[_Block]:
    """The same bytes, with whatever lies in one piece on both sides made one."""
    while True:
        longer = _joined(sorted(map(_widened, blocks)))
        if len(longer) == len(blocks) and longer == sorted(blocks):
            return longer
        blocks = longer


def _widened(block: _Block) -> _Block:
    """Its pieces are longer where those along an axis lie one behind the other on both sides."""
    for axis in block.axes:
        if axis.strides == (block.width, block.width):
            return _widened(block._replace(axes=block.axes - {axis}, width=block.width * axis.length))
    return block


def _joined(blocks: Sequence[_Block]) -> list[_Block]:
    """Blocks whose pieces lie one behind the other on both sides are one."""
    found: list[_Block] = []
    for block in blocks:
        last = found[-1] if found else None
        if (
            last is not None
            and (last.page_strides, last.axes) == (block.page_strides, block.axes)
            and all(
                (spot.buffer, spot.offset + last.width) == other
                for spot, other in zip(last.plane, block.plane, strict=True)
            )
        ):
            found[-1] = last._replace(width=last.width + block.width)
        else:
            found.append(block)
    return found


def _with_one_axis(block: _Block) -> Iterator[tuple[_Shape, Plane]]:
    """The block by planes whose runs go along its longest axis."""
    *others, (runs, strides) = sorted({_Axis(1, Steps(0, 0)), *block.axes})
    for numbers in product(*(range(axis.length) for axis in others)):
        moved = [(axis.strides, number) for axis, number in zip(others, numbers, strict=True)]
        begins = (
            Spot(spot.buffer, spot.offset + sum(step[side] * number for step, number in moved))
            for side, spot in enumerate(block.plane)
        )
        yield (block.page_strides, runs, strides, block.width), Plane(*begins)
