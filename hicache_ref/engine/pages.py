"""Page memory: one array of bytes a pool, page i at i * page_bytes, and the pages of a draft model beside it."""

from collections.abc import Iterable

from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, Page, PoolName
from hicache_ref.vocabulary.profile import Profile

Place = tuple[PoolName, Page]
"""A page of a pool."""


class PagePool:
    """`count` pages of `page_bytes` bytes each, all zero at first."""

    def __init__(self, count: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._bytes = memoryview(bytearray(count * page_bytes))

    def view(self, page: Page) -> memoryview:
        """The page itself, to be read and written: `page_bytes` single bytes. Nothing is copied."""
        start = page * self.page_bytes
        return self._bytes[start : start + self.page_bytes]

    def views(self, pages: Iterable[Page]) -> list[memoryview]:
        """`view` of each page, in order."""
        whole, size = self._bytes, self.page_bytes
        return [whole[page * size : (page + 1) * size] for page in pages]


class PageMemory:
    """The pages of both tiers. `drafts` has the same pools for the draft model, and none where there is no such model.

    `page_bytes` and `draft_bytes` are bytes a page.
    """

    def __init__(self, profile: Profile, page_bytes: int, draft_bytes: int) -> None:
        counts: dict[PoolName, int] = {KV_DEVICE: profile.sizes.device_pages, KV_HOST: profile.sizes.host_pages}
        self.pools = {name: PagePool(count, page_bytes) for name, count in counts.items()}
        self.drafts = {name: PagePool(count, draft_bytes) for name, count in counts.items()} if profile.draft else {}

    def copy(self, source: Place, target: Place) -> None:
        """The target page holds what the source page holds, its draft page too (HC-DRAFT-02)."""
        for pools in (self.pools, self.drafts):
            if pools:
                pools[target[0]].view(target[1])[:] = pools[source[0]].view(source[1])
