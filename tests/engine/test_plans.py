"""Plans of copies against the layouts that SGLang gives to its tensors.

The shape of each layout is written down here once more, as the dimensions of a row-major array, and every element is
looked up by its coordinates: so neither strides nor folding of the code under test are used to judge it.
"""

from collections.abc import Iterator
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_ref.engine.layout import (
    HOST_LAYOUTS,
    Layout,
    LayoutError,
    Place,
    PoolSpec,
    allocations,
    mha,
    mla,
    state,
)
from hicache_ref.engine.plan import CopyPlan, copy_plans

PLANS = 10_000
"""Plans that are drawn in all."""

Byte = tuple[int, int]
"""An allocation and an offset in it."""


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


def _elements(spec: PoolSpec, layers: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Part, layer of the pool, token, head and byte of all elements of a page in these layers of the model."""
    for part, layer in product(range(len(spec.parts)), range(len(spec.layers))):
        if spec.layers[layer] in layers:
            sizes = (spec.page_size, spec.parts[part].heads, spec.parts[part].head_bytes)
            yield from ((part, layer, *rest) for rest in product(*map(range, sizes)))


def _moves(plans: tuple[CopyPlan, ...]) -> list[tuple[Byte, Byte]]:
    """Every byte that the plans move, by source and target."""
    return [
        ((piece.source.buffer, piece.source.offset + byte), (piece.target.buffer, piece.target.offset + byte))
        for plan in plans for piece in plan.pieces() for byte in range(piece.size)
    ]  # fmt: skip


@st.composite
def _pools(draw: st.DrawFn) -> tuple[PoolSpec, list[Layout]]:
    """A small pool, and the layouts that it can have."""
    layers = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=3)))
    small, page_size = st.integers(1, 3), draw(st.integers(1, 4))
    every: list[Layout] = ["device", *HOST_LAYOUTS]
    kind = draw(st.sampled_from(["mha", "mla", "state"]))
    if kind == "mha":
        spec = mha(layers, draw(small), draw(small), 1, page_size, v_head_dim=draw(st.none() | small))
        return spec, [each for each in every if each != "page_first_kv_split"]
    if kind == "mla":
        return mla(layers, draw(small), draw(small), 1, page_size), [each for each in every if each != "page_head"]
    return state(layers, {"temporal": draw(small), "conv": draw(small)}), every[:4]


@st.composite
def _copies(draw: st.DrawFn) -> tuple[PoolSpec, Place, Place, list[tuple[int, int]], list[int] | None]:
    spec, layouts = draw(_pools())
    source = Place(draw(st.sampled_from(layouts)), draw(st.integers(1, 4)))
    target = Place(draw(st.sampled_from(layouts)), draw(st.integers(1, 4)))
    targets = draw(st.lists(st.integers(0, target.pages - 1), unique=True, max_size=target.pages))
    pages = [(draw(st.integers(0, source.pages - 1)), page) for page in targets]
    return spec, source, target, pages, draw(st.none() | st.lists(st.integers(0, 6), max_size=3))


@settings(max_examples=PLANS, deadline=None)
@given(_copies())
def test_a_plan_moves_each_element_of_its_pages_and_layers_and_nothing_else(
    copy: tuple[PoolSpec, Place, Place, list[tuple[int, int]], list[int] | None],
) -> None:
    spec, source, target, pages, layers = copy
    moves = _moves(copy_plans(spec, source, target, pages, layers))
    expected = {
        _address(spec, target, part, layer, page, *rest): _address(spec, source, part, layer, origin, *rest)
        for part, layer, *rest in _elements(spec, list(spec.layers) if layers is None else layers)
        for origin, page in pages
    }
    assert len(expected) == len(moves), "a byte is written twice, or one is missing"
    assert expected == {written: read for read, written in moves}


@settings(max_examples=300, deadline=None)
@given(_pools(), st.integers(1, 4))
def test_allocations_hold_all_pages_and_no_more(pool: tuple[PoolSpec, list[Layout]], pages: int) -> None:
    spec, layouts = pool
    for layout in layouts:
        place = Place(layout, pages)
        sizes = allocations(spec, place)
        used = {
            _address(spec, place, part, layer, page, *rest)
            for part, layer, *rest in _elements(spec, list(spec.layers))
            for page in range(pages)
        }
        assert {(buffer, offset) for buffer, size in enumerate(sizes) for offset in range(size)} == used
        assert pages * spec.page_bytes == sum(sizes)


LLAMA = mha(4, 8, 128, 2, 16)
DEEPSEEK = mla(4, 512, 64, 2, 16)


@pytest.mark.parametrize(
    ("spec", "layout", "layers", "expected"),
    [
        (LLAMA, "layer_first", [2], [(2, 1, 32768)]),
        (LLAMA, "page_first", [2], [(2, 16, 2048)]),
        (LLAMA, "page_first_direct", [2], [(2, 1, 32768)]),
        (LLAMA, "page_head", [2], [(16, 16, 256)]),
        (LLAMA, "page_first", None, [(8, 16, 2048)]),
        (DEEPSEEK, "layer_first", [2], [(1, 1, 18432)]),
        (DEEPSEEK, "page_first", None, [(4, 16, 1152)]),
        (DEEPSEEK, "page_first_kv_split", [2], [(1, 16, 1024), (1, 16, 128)]),
    ],
)
def test_runs_are_as_long_as_both_layouts_allow(
    spec: PoolSpec, layout: Layout, layers: list[int] | None, expected: list[tuple[int, int, int]]
) -> None:
    plans = copy_plans(spec, Place("device", 9), Place(layout, 9), [(1, 2)], layers)
    assert expected == [(len(plan.planes), plan.runs, plan.run_bytes) for plan in plans]


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head"])
def test_a_page_between_two_places_of_one_page_first_layout_is_one_run_of_k_and_one_of_v(layout: Layout) -> None:
    (plan,) = copy_plans(LLAMA, Place(layout, 3), Place(layout, 7), [(2, 5)])
    assert (2, 1, LLAMA.page_bytes // 2) == (len(plan.planes), plan.runs, plan.run_bytes)


def test_offsets_strides_and_runs_are_multiples_of_the_granule() -> None:
    (plan,) = copy_plans(mha(2, 3, 20, 2, 4), Place("device", 5), Place("page_head", 5), [(0, 1)])
    assert 40 == plan.granule
    for piece in plan.pieces():
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
    with pytest.raises(LayoutError, match=words):
        copy_plans(spec, Place("device", 3), target, pages)


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
    assert callable(made)
    with pytest.raises(ValueError, match=words):
        made()


def test_the_elements_of_a_page_are_its_bytes() -> None:
    for spec in (mha(2, 2, 3, 1, 2), mla(2, 3, 1, 1, 2), state([1, 4], {"temporal": 5, "conv": 2})):
        assert spec.page_bytes == len(list(_elements(spec, list(spec.layers))))
    assert 4 * 2 * 16 * 8 * 128 * 2 == LLAMA.page_bytes == prod((4, 2, 16, 8, 128, 2))
