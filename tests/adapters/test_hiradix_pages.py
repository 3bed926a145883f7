"""Slots and pages, and the bytes by which a page says what it holds."""

import pytest

from hicache_ref.vocabulary.hashing import chain

pytest.importorskip("torch")

import torch

from hicache_ref.adapters.sglang_hiradix.pages import LAYERS, Slots, Stamps, Torn, rows_of

FIRST, SECOND = chain(((1, 2), (3, 4)), None)


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (1, 1), (4, 0), (4, 1)])
def test_pages_and_slots_are_each_others_inverse(size: int, offset: int) -> None:
    """Goal: upstream's padding page is no page of ours. Method: there and back, out of order."""
    slots = Slots(size, offset)
    assert (3, 0, 7) == slots.pages(slots.slots((3, 0, 7)))
    assert [(3 + offset) * size] == slots.slots((3,)).tolist()[:1]
    assert () == slots.pages(None)


@pytest.mark.parametrize("numbers", [[0, 1, 2], [1, 2, 3, 4], [0, 1, 3, 2], [0, 1, 4, 5]])
def test_torn_pages_are_no_pages(numbers: list[int]) -> None:
    """Goal: slots that upstream mixes up are told. Method: runs of slots that are not whole pages of four in order."""
    with pytest.raises(Torn):
        Slots(4, 0).pages(torch.tensor(numbers))


def test_a_page_says_its_hash() -> None:
    """Goal: contents are read back from bytes. Method: fill two pages, read them, one never written, one torn."""
    stamps = Stamps(2)
    buffers = [torch.zeros(8, 1, 1, dtype=torch.int64) for _ in range(2 * LAYERS)]
    stamps.fill(buffers, torch.tensor([2, 3, 6, 7]), (FIRST, SECOND))
    rows = rows_of(buffers)
    assert [None, FIRST, None, SECOND] == [stamps.held(rows, page) for page in range(4)]
    buffers[-1].view(-1)[3] = 0
    assert "mixed" == stamps.held(rows_of(buffers), 1)
    buffers[0].view(-1)[0] = 5
    assert "mixed" == stamps.held(rows_of(buffers), 0)


def test_a_page_for_storage_has_the_same_numbers() -> None:
    """Goal: what is put into storage for the tester is what a pass would have written. Method: compare both."""
    stamps = Stamps(2)
    like = torch.zeros(2, LAYERS, 2, 1, 1, dtype=torch.int64).flatten()
    assert list(stamps.filling(FIRST)) == stamps.flat_page(FIRST, like).tolist()
