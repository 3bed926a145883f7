"""What each page of an implementation holds, as far as the oracle knows.

Known from what the implementation was told to write and from the page pairs of the copies that it issued itself.
Ownership without content misses swapped slots, for page ids are compared only up to renaming.
"""

from collections.abc import Iterable, Mapping

from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, KV_POOLS, TIER, PageHash, PoolName
from hicache_ref.vocabulary.observation import IssuedCopy, Observation

Stamps = dict[int, PageHash | None]


class Content:
    """Content stamps of the implementation's pages."""

    def __init__(self) -> None:
        self.stamps: dict[PoolName, Stamps] = {pool_name: {} for pool_name in TIER}
        self.running: dict[str, IssuedCopy] = {}
        self.being_written: dict[int, PageHash] = {}
        """Device pages that a running pass writes, and what."""

    def read(self, contents: Mapping[str, PageHash]) -> None:
        """What the implementation's pages were seen to hold, by `tier:page`, is all that they hold."""
        for pool_name, tier in TIER.items():
            tier_name = tier if pool_name in KV_POOLS else f"{tier}_state"
            mine = (item for item in contents.items() if item[0].startswith(f"{tier_name}:"))
            self.stamps[pool_name] = {int(name.partition(":")[2]): digest for name, digest in mine}

    def issued(self, observation: Observation) -> None:
        """Copies that the implementation asked for in this step, in order; one without ticket has ended in it."""
        for copy in observation.copies:
            if copy.ticket is None:
                self._move(copy, len(copy.source))
                continue
            self.running[copy.ticket] = copy
            self._forget(copy.to, copy.target)

    def _forget(self, to: str, pages: tuple[int, ...]) -> None:
        target = self.stamps[KV_DEVICE if to == "device" else KV_HOST]
        for page in pages:
            target[page] = None

    def _move(self, copy: IssuedCopy, count: int) -> None:
        source, target = (KV_HOST, KV_DEVICE) if copy.to == "device" else (KV_DEVICE, KV_HOST)
        for from_page, to_page in zip(copy.source[:count], copy.target[:count], strict=False):
            stamp = self.stamps[source].get(from_page)
            if stamp is None and source == KV_DEVICE:
                stamp = self.being_written.get(from_page)
            self.stamps[target][to_page] = stamp

    def ended(self, ticket: str, pages: int) -> None:
        """The copy has ended with its first `pages` pages in place."""
        copy = self.running.pop(ticket, None)
        if copy is not None:
            self._move(copy, pages)

    def taken(self, pages: tuple[int, ...]) -> None:
        """The request's new pages hold nothing."""
        self._forget("device", pages)

    def emptied(self, pool_name: PoolName, pages: Iterable[int]) -> None:
        """Pages that were just taken hold nothing."""
        for page in pages:
            self.stamps[pool_name][page] = None

    def fetched(self, pages: Mapping[int, PageHash]) -> None:
        """A read from storage has put these pages on host."""
        self.stamps[KV_HOST].update(pages)

    def pass_began(self, writes: Mapping[int, PageHash]) -> None:
        """A pass writes these device pages."""
        self.being_written |= writes

    def pass_ended(self, wrote: Mapping[int, PageHash | None]) -> None:
        """The pass has ended; these device pages hold what it wrote."""
        for page, stamp in wrote.items():
            self.being_written.pop(page, None)
            self.stamps[KV_DEVICE][page] = stamp
