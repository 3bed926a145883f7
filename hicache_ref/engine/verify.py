"""What a page must hold, computed from its hash, and the judge that compares.

A forward pass of the reference engine writes this pattern instead of attention state, so that any page can be told
right from wrong by the hash of the prefix that it stands for.
"""

from functools import lru_cache
from hashlib import shake_128

from hicache_ref.engine.pages import PageMemory, PagePool, Place
from hicache_ref.vocabulary.ids import PageHash

EXAMPLES_MAX = 10


class WrongBytes(Exception):
    """A page does not hold what its hash says."""


@lru_cache(maxsize=256)
def pattern(digest: PageHash, size: int, draft: bool = False) -> bytes:
    """The `size` bytes of the page with this hash; those of its draft page are others."""
    return shake_128(bytes.fromhex(digest) + (b"draft" if draft else b"")).digest(size)


class Verifier:
    """Compares pages with their patterns and counts; where it is not `enabled` it compares none.

    `strict`: the first wrong page raises WrongBytes.
    """

    def __init__(self, memory: PageMemory, *, strict: bool = True, enabled: bool = True) -> None:
        self._memory = memory
        self.enabled = enabled
        """Whether pages are compared at all."""

        self._strict = strict
        self.checked = 0
        self.wrong = 0
        self.examples: list[str] = []
        """The first few wrong pages: where, and when it was seen."""

    def write(self, place: Place, digest: PageHash) -> None:
        """The page holds its pattern, its draft page too."""
        for pools, draft in ((self._memory.pools, False), (self._memory.drafts, True)):
            if pools:
                pool = pools[place[0]]
                pool.view(place[1])[:] = pattern(digest, pool.page_bytes, draft)

    def expect(self, place: Place, digest: PageHash, when: str, *, draft: bool = False) -> None:
        """The page was compared; with `draft` its draft page too. Raises WrongBytes."""
        if not self.enabled:
            return
        self._compare(self._memory.pools[place[0]], place, digest, f"{when}: {place[0]}:{place[1]}", False)
        if draft:
            self._compare(self._memory.drafts[place[0]], place, digest, f"{when}: draft {place[0]}:{place[1]}", True)

    def _compare(self, pool: PagePool, place: Place, digest: PageHash, text: str, draft: bool) -> None:
        self.checked += 1
        if pool.view(place[1]).tobytes() == pattern(digest, pool.page_bytes, draft):
            return
        self.wrong += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)
        if self._strict:
            raise WrongBytes(f"{text} does not hold the page {digest[:12]}")
