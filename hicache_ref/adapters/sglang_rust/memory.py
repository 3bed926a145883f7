"""What the pages of one pool hold: numbers in buffers, as KV and states are, moved by the pages that the core named."""

from collections.abc import Collection, Iterator, Sequence

import torch

from hicache_ref.adapters.sglang_hiradix.pages import LAYERS, Slots, Stamps
from hicache_ref.vocabulary.ids import PageHash, Pages

_ROWS = 2 * LAYERS


class Memory:
    """The buffers of a pool: keys of each layer, then values, one number a slot."""

    def __init__(self, count: int, stamps: Stamps) -> None:
        self.count = count
        self._stamps = stamps
        self._slots = Slots(stamps.page_size, 0)
        self._buffers = torch.zeros((_ROWS, count * stamps.page_size), dtype=torch.int64)

    def write(self, pages: Pages, digests: Sequence[PageHash]) -> None:
        """Each page holds what belongs to its hash."""
        self._stamps.fill(tuple(self._buffers), self._slots.slots(pages), digests)

    def erase(self, pages: Pages) -> None:
        """The pages hold nothing, so that nothing old is taken for what should have been put there."""
        self._buffers[:, self._slots.slots(pages)] = 0

    def copy(self, other: "Memory", sources: Pages, targets: Pages) -> None:
        """Each target, here, holds what its source holds in the other pool."""
        self._buffers[:, self._slots.slots(targets)] = other._buffers[:, other._slots.slots(sources)]

    def read(self, without: Collection[int]) -> Iterator[tuple[int, str]]:
        """Each page that holds anything, and the hash of that; all pages but these."""
        rows = self._buffers.tolist()
        for page in set(range(self.count)).difference(without):
            held = self._stamps.held(rows, page)
            if held is not None:
                yield page, held
