"""Pages and what they hold: slots become pages, and each page's bytes spell the hash of its prefix.

A page of n slots is filled with n numbers for each layer, for keys and for values, all made from the first 64 bits of
its hash and from where they stand. So a page that holds anything else than one whole page of KV shows that.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hicache_ref.vocabulary.hashing import block_hash
from hicache_ref.vocabulary.ids import PageHash, Pages

Rows = Sequence[Sequence[int]]
"""The numbers of all slots of a pool: keys of each layer, then values."""

LAYERS = 2
_KV = 2
_MIXED = "mixed"
"""Stands in contents for a page that holds no whole page of anything known."""


class Torn(Exception):
    """Slots that are no whole pages in order."""


class Slots:
    """The translation of one pool: page p is slots (p + offset) * size and those after it."""

    def __init__(self, size: int, offset: int) -> None:
        self.size = size
        self.offset = offset

    def pages(self, slots: torch.Tensor | None) -> Pages:
        """The pages that `slots` are. Raises Torn unless they are whole pages with their slots in order."""
        if slots is None:
            return ()
        numbers: list[int] = slots.tolist()
        size, offset = self.size, self.offset
        if size == 1:
            return tuple(number - offset for number in numbers)
        firsts = numbers[::size]
        if len(numbers) % size or any(first % size for first in firsts):
            raise Torn(f"slots {numbers}, expected whole pages of {size} slots")
        for start, first in enumerate(firsts):
            if numbers[start * size : (start + 1) * size] != list(range(first, first + size)):
                raise Torn(f"slots {numbers}, expected whole pages of {size} slots in order")
        return tuple(first // size - offset for first in firsts)

    def slots(self, pages: Iterable[int]) -> torch.Tensor:
        """The slots of these pages: int64, `size` for each."""
        size, offset = self.size, self.offset
        numbers = [(page + offset) * size + j for page in pages for j in range(size)]
        return torch.tensor(numbers, dtype=torch.int64)


class Stamps:
    """What pages are filled with, and what filling a page was found to have."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._known: dict[int, tuple[PageHash, tuple[int, ...]]] = {}

    def filling(self, digest: PageHash) -> tuple[int, ...]:
        """The numbers of a page of this hash: keys of each layer, then values, `page_size` of them each."""
        first = block_hash(digest) & ~0xFFFF
        known = self._known.get(first)
        if known is None:
            count = _KV * LAYERS * self.page_size
            known = self._known[first] = (digest, tuple(_signed(first + number) for number in range(count)))
        return known[1]

    def fill(self, buffers: Sequence[torch.Tensor], slots: torch.Tensor, digests: Sequence[PageHash]) -> None:
        """The slots of each page, in order, hold the page of that hash; `buffers` are keys by layer, then values."""
        size = self.page_size
        fillings = [self.filling(digest) for digest in digests]
        for row, buffer in enumerate(buffers):
            numbers = [number for filling in fillings for number in filling[row * size : (row + 1) * size]]
            buffer.view(-1)[slots] = torch.tensor(numbers, dtype=torch.int64)

    def flat_page(self, digest: PageHash, like: torch.Tensor) -> torch.Tensor:
        """The page of this hash as storage keeps it: the numbers of `filling`, shaped as `like`."""
        return torch.tensor(self.filling(digest), dtype=torch.int64).view(like.shape)

    def flat_state(self, digest: PageHash) -> torch.Tensor:
        """The state at the end of the page of this hash as storage keeps it: the bytes of `filling`."""
        return torch.tensor(self.filling(digest), dtype=torch.int64).view(torch.uint8)

    def held(self, rows: Rows, page: int) -> str | None:
        """The hash of what a page holds; None where it was never written, `mixed` for anything unknown.

        `rows` are the numbers of all slots of the pool, row by row as in `fill`; `page` counts from slot 0.
        """
        size = self.page_size
        start = page * size
        first = rows[0][start]
        known = self._known.get(first)
        if known is not None:
            numbers = [number for row in rows for number in row[start : start + size]]
            return known[0] if tuple(numbers) == known[1] else _MIXED
        return _MIXED if any(number for row in rows for number in row[start : start + size]) else None


def rows_of(buffers: Iterable[Any]) -> list[list[int]]:
    """The numbers of each buffer."""
    return [buffer.reshape(-1).tolist() for buffer in buffers]


def _signed(number: int) -> int:
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number
