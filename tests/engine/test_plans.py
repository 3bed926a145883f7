"""Plans of copies against the layouts that SGLang gives to its tensors.

The shape of each layout is written down here once more, as the dimensions of a row-major array, and every element is
looked up by its coordinates: so neither strides nor folding of the code under test are used to judge it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hicache_ref.engine import plan
from hicache_ref.engine.layout import (
    HOST_LAYOUTS,
    Layout,
    LayoutError,
    Place,
    PoolSpec,
    Slab,
    allocations,
    mha,
    mla,
    slabs,
    state,
)
from hicache_ref.engine.plan import CopyPlan, Route

PLANS = 10_000
"""Plans that are drawn in all."""

Byte = tuple[int, int]
"""An allocation and an offset in it."""

Copy = tuple[PoolSpec, Place, Place, list[tuple[int, int]], tuple[int, ...] | None]
"""What a route is asked for."""


def _index(shape: tuple[int, ...], at: tuple[int, ...]) -> int:
    """Where an element lies in a row-major array."""
    where = 0
    for size, place in zip(shape, at, strict=True):
        assert 0 <= place < size
        where = where * size + place
    return where


def _address(spec: PoolSpec, place: Place, part: int, layer: int, page: int, token: int, head: int, byte: int) -> Byte:
    """The byte of an element, by the shapes of SGLang's tensors."""
    pages, layers, tokens = place.pages, len(spec.layers), spec.page_size
    heads, width = spec.parts[part].heads, spec.parts[part].head_bytes
    before = sum(each.head_bytes for each in spec.parts[:part])
    buffer, begins, column = part, 0, byte
    if spec.kind == "mla" and place.layout != "page_first_kv_split":
        buffer, column, width = 0, before + byte, sum(each.head_bytes for each in spec.parts)
    if spec.kind == "mha" and place.layout != "device":
        buffer, begins = 0, sum(pages * layers * tokens * each.heads * each.head_bytes for each in spec.parts[:part])
    slot = page * tokens + token
    if place.layout == "device":
        return buffer * layers + layer, _index((pages * tokens, heads, width), (slot, head, column))
    shapes: dict[Layout, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "layer_first": ((layers, pages * tokens, heads, width), (layer, slot, head, column)),
        "page_first": ((pages * tokens, layers, heads, width), (slot, layer, head, column)),
        "page_first_direct": ((pages, layers, tokens, heads, width), (page, layer, token, head, column)),
        "page_head": ((pages, heads, tokens, layers, width), (page, head, token, layer, column)),
        "page_first_kv_split": ((pages, layers, tokens, heads, width), (page, layer, token, head, column)),
    }
    return buffer, begins + _index(*shapes[place.layout])


def _elements(spec: PoolSpec, layers: Collection[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Part, layer of the pool, token, head and byte of all elements of a page in these layers of the model."""
    for part, layer in product(range(len(spec.parts)), range(len(spec.layers))):
        if spec.layers[layer] in layers:
            sizes = (spec.page_size, spec.parts[part].heads, spec.parts[part].head_bytes)
            yield from ((part, layer, *rest) for rest in product(*map(range, sizes)))


def _moves(plans: tuple[CopyPlan, ...]) -> list[tuple[Byte, Byte]]:
    """Every byte that the plans move, by source and target."""
    return [
        ((piece.source.buffer, piece.source.offset + byte), (piece.target.buffer, piece.target.offset + byte))
        for each in plans for piece in each.pieces() for byte in range(piece.size)
    ]  # fmt: skip


@st.composite
def _pools(draw: st.DrawFn) -> tuple[PoolSpec, list[Layout]]:
    """A small pool, and the layouts that it can have."""
    layers = draw(st.sampled_from([[0, 1], [0, 1, 2], [1, 4], [0, 3, 5], [2]]))
    small, page_size = st.sampled_from([2, 3, 1]), draw(st.sampled_from([2, 4, 3, 1]))
    every: list[Layout] = ["device", *HOST_LAYOUTS]
    kind = draw(st.sampled_from(["mha", "mla", "state"]))
    if kind == "mha":
        spec = mha(layers, draw(small), draw(small), 1, page_size, v_head_dim=draw(st.none() | small))
        return spec, [each for each in every if each != "page_first_kv_split"]
    if kind == "mla":
        return mla(layers, draw(small), draw(small), 1, page_size), [each for each in every if each != "page_head"]
    return state(layers, {"temporal": draw(small), "conv": draw(small)}), every[:4]


@st.composite
def _copies(draw: st.DrawFn) -> Copy:
    spec, layouts = draw(_pools())
    sizes = st.sampled_from([3, 2, 4, 1])
    source = Place(draw(st.sampled_from(layouts)), draw(sizes))
    target = Place(draw(st.sampled_from(layouts)), draw(sizes))
    targets = draw(st.permutations(range(target.pages)))[: draw(sizes)]
    pages = [(draw(st.integers(0, source.pages - 1)), page) for page in targets]
    return spec, source, target, pages, draw(st.sampled_from([None, spec.layers[-1:], (0, 1, 6), ()]))


def _judge(copy: Copy) -> None:
    """Each element of the pages and layers is moved, and nothing else."""
    spec, source, target, pages, layers = copy
    moves = _moves(Route(spec, source, target).plans(pages, layers))
    expected = {
        _address(spec, target, part, layer, page, *rest): _address(spec, source, part, layer, origin, *rest)
        for part, layer, *rest in _elements(spec, spec.layers if layers is None else layers)
        for origin, page in pages
    }
    assert len(expected) == len(moves), "a byte is written twice, or one is missing"
    assert expected == {written: read for read, written in moves}


@settings(max_examples=PLANS, deadline=None)
@given(_copies())
def test_a_plan_moves_each_element_of_its_pages_and_layers_and_nothing_else(copy: Copy) -> None:
    """Goal: a plan is exact. Method: every byte of drawn copies, by the coordinates of its element."""
    _judge(copy)


def _joined_by_source(blocks: Sequence[plan._Block]) -> list[plan._Block]:
    """Blocks are joined that lie one behind the other in the source, wherever they go."""
    one_sided = [each._replace(plane=each.plane._replace(target=each.plane.source)) for each in blocks]
    kept = {each.plane.source: each for each in blocks}
    return [each._replace(plane=kept[each.plane.source].plane) for each in _joined(one_sided)]


def _widened_by_target(block: plan._Block) -> plan._Block:
    """Pieces are one where they follow one another in the target, wherever they come from."""
    for axis in block.axes:
        if axis.strides.target == block.width:
            return _widened_by_target(block._replace(axes=block.axes - {axis}, width=block.width * axis.length))
    return block


def _with_the_longest_axis_alone(block: plan._Block) -> Iterator[tuple[plan._Shape, plan.Plane]]:
    """What lies along the other axis is left out."""
    yield next(_with_one_axis(block))


def _blocks_of_the_pools_own_layers(*args: Any) -> list[plan._Block]:
    """Layers are taken for those of the pool, which numbers them from 0."""
    spec, source, target, layers = args
    numbered = PoolSpec.model_construct(
        kind=spec.kind, parts=spec.parts, layers=tuple(range(len(spec.layers))), page_size=spec.page_size
    )
    return _blocks(numbered, source, target, layers)


def _slabs_with_short_pages(spec: PoolSpec, place: Place) -> Mapping[tuple[int, int], Slab]:
    """A page is a token shorter where it has more than one."""
    short = spec.page_size > 1
    return {key: each._replace(page=each.page - each.token * short) for key, each in slabs(spec, place).items()}


def _slabs_with_k_for_v(spec: PoolSpec, place: Place) -> Mapping[tuple[int, int], Slab]:
    """On device the first part is taken for all."""
    found = slabs(spec, place)
    return {key: found[0, key[1]] for key in found} if place.layout == "device" else found


_joined, _with_one_axis, _blocks = plan._joined, plan._with_one_axis, plan._blocks


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_joined", _joined_by_source),
        ("_widened", _widened_by_target),
        ("_with_one_axis", _with_the_longest_axis_alone),
        ("_blocks", _blocks_of_the_pools_own_layers),
        ("slabs", _slabs_with_short_pages),
        ("slabs", _slabs_with_k_for_v),
    ],
)
def test_a_planted_fault_of_the_planner_is_found(name: str, fault: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the judgement can fail. Method: one step of the planner goes wrong, in 500 drawn copies."""
    monkeypatch.setattr(plan, name, fault)
    judged = settings(max_examples=500, deadline=None, database=None, phases=[Phase.generate])(given(_copies())(_judge))
    with pytest.raises(AssertionError):
        judged()


@settings(max_examples=300, deadline=None)
@given(_pools(), st.integers(1, 4))
def test_allocations_hold_all_pages_and_no_more(pool: tuple[PoolSpec, list[Layout]], pages: int) -> None:
    """Goal: memory is as large as it has to be. Method: the elements of all pages fill the allocations."""
    spec, layouts = pool
    for layout in layouts:
        place = Place(layout, pages)
        sizes = allocations(spec, place)
        used = {
            _address(spec, place, part, layer, page, *rest)
            for part, layer, *rest in _elements(spec, spec.layers)
            for page in range(pages)
        }
        assert {(buffer, offset) for buffer, size in enumerate(sizes) for offset in range(size)} == used
        assert pages * spec.page_bytes == sum(sizes)


LLAMA = mha(4, 8, 128, 2, 16)
DEEPSEEK = mla(4, 512, 64, 2, 16)


@pytest.mark.parametrize(
    ("spec", "layout", "layers", "expected"),
    [
        (LLAMA, "layer_first", (2,), [(2, 1, 32768)]),
        (LLAMA, "page_first", (2,), [(2, 16, 2048)]),
        (LLAMA, "page_first_direct", (2,), [(2, 1, 32768)]),
        (LLAMA, "page_head", (2,), [(16, 16, 256)]),
        (LLAMA, "page_first", None, [(8, 16, 2048)]),
        (DEEPSEEK, "layer_first", (2,), [(1, 1, 18432)]),
        (DEEPSEEK, "page_first", None, [(4, 16, 1152)]),
        (DEEPSEEK, "page_first_kv_split", (2,), [(1, 16, 1024), (1, 16, 128)]),
    ],
)
def test_runs_are_as_long_as_both_layouts_allow(
    spec: PoolSpec, layout: Layout, layers: tuple[int, ...] | None, expected: list[tuple[int, int, int]]
) -> None:
    """Goal: no copy is cut finer than needed. Method: planes, runs and bytes of known pairs."""
    plans = Route(spec, Place("device", 9), Place(layout, 9)).plans([(1, 2)], layers)
    assert expected == [(len(each.planes), each.runs, each.run_bytes) for each in plans]


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head"])
def test_a_page_between_two_places_of_one_page_first_layout_is_one_run_of_k_and_one_of_v(layout: Layout) -> None:
    """Goal: layers that lie together go together. Method: a copy within one layout, as staging makes it."""
    (found,) = Route(LLAMA, Place(layout, 3), Place(layout, 7)).plans([(2, 5)])
    assert (2, 1, LLAMA.page_bytes // 2) == (len(found.planes), found.runs, found.run_bytes)


def test_offsets_strides_and_runs_are_multiples_of_the_granule() -> None:
    """Goal: an engine can choose its words by it. Method: every piece of a plan with an odd size."""
    (found,) = Route(mha(2, 3, 20, 2, 4), Place("device", 5), Place("page_head", 5)).plans([(0, 1)])
    assert 40 == found.granule
    for piece in found.pieces():
        assert 0 == piece.source.offset % 40 == piece.target.offset % 40 == piece.size % 40


@pytest.mark.parametrize(
    ("spec", "target", "pages", "words"),
    [
        (LLAMA, Place("page_first_kv_split", 3), [(0, 0)], "layout page_first_kv_split of a pool of kind mha"),
        (DEEPSEEK, Place("page_head", 3), [(0, 0)], "layout page_head of a pool of kind mla"),
        (LLAMA, Place("layer_first", 0), [], "a pool of 0 pages, expected at least 1"),
        (LLAMA, Place("layer_first", 3), [(0, 3)], "page 3 of the target, expected one of its 3"),
        (LLAMA, Place("layer_first", 3), [(3, 0)], "page 3 of the source, expected one of its 3"),
        (LLAMA, Place("layer_first", 3), [(0, -1)], "page -1 of the target"),
        (LLAMA, Place("layer_first", 3), [(0, 1), (2, 1)], "written twice"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    spec: PoolSpec, target: Place, pages: list[tuple[int, int]], words: str
) -> None:
    """Goal: nothing is guessed. Method: layouts, sizes and pages that do not fit."""
    with pytest.raises(LayoutError, match=words):
        Route(spec, Place("device", 3), target).plans(pages)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: mha([2, 1], 1, 1, 1, 1), "expected them rising"),
        (lambda: mha([], 1, 1, 1, 1), "at least 1 item"),
        (lambda: mha(1, 0, 1, 1, 1), "greater than 0"),
        (lambda: PoolSpec(kind="state", parts=state([0], {"x": 1}).parts, layers=(0,), page_size=2), "expected 1"),
        (lambda: PoolSpec(kind="mla", parts=LLAMA.parts, layers=(0,), page_size=2), "expected one head"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(made: object, words: str) -> None:
    """Goal: a wrong pool is refused when it is made. Method: layers, sizes and heads that do not fit."""
    assert callable(made)
    with pytest.raises(ValueError, match=words):
        made()


def test_the_elements_of_a_page_are_its_bytes() -> None:
    """Goal: one size of a page. Method: its elements are counted."""
    for spec in (mha(2, 2, 3, 1, 2), mla(2, 3, 1, 1, 2), state([1, 4], {"temporal": 5, "conv": 2})):
        assert spec.page_bytes == len(list(_elements(spec, spec.layers)))
    assert 4 * 2 * 16 * 8 * 128 * 2 == LLAMA.page_bytes == prod((4, 2, 16, 8, 128, 2))
