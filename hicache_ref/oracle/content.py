"""What each page of an implementation holds, as far as the oracle knows.

Known from what the implementation was told to write and from the page pairs of the copies that it issued itself.
Ownership without content misses swapped slots, for page ids are compared only up to renaming.
"""

from collections.abc import Iterable, Mapping

from hicache_ref.model.records import Prefetch, PrefetchEnded, PrefetchReading, Record
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, KV_POOLS, STATE_DEVICE, STATE_HOST, TIER, PageHash, PoolName
from hicache_ref.vocabulary.observation import IssuedCopy, Observation

Stamps = dict[int, PageHash | None]


def is_read_for_nobody(record: Record | None, pool_name: PoolName, page: int) -> bool:
    """Whether a page of this storage work may be in place or not: its prefetch was told to stop, and it counts not."""
    if not isinstance(record, Prefetch) or not record.cancelled:
        return False
    if record.rid is None or not isinstance(record, PrefetchReading | PrefetchEnded):
        return True
    if pool_name == STATE_HOST:
        return not (isinstance(record, PrefetchEnded) and record.has_state)
    return page not in record.pages[: record.done]


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
                self._move(copy, len(copy.source), len(copy.source_states))
                continue
            self.running[copy.ticket] = copy
            (_, target), (_, state_target) = _pools(copy)
            self.emptied(target, copy.target)
            self.emptied(state_target, copy.target_states)

    def _move(self, copy: IssuedCopy, pages: int, states: int) -> None:
        (source, target), (state_source, state_target) = _pools(copy)
        for from_page, to_page in zip(copy.source[:pages], copy.target[:pages], strict=False):
            stamp = self.stamps[source].get(from_page)
            if stamp is None and source == KV_DEVICE:
                stamp = self.being_written.get(from_page)
            self.stamps[target][to_page] = stamp
        for from_slot, to_slot in zip(copy.source_states[:states], copy.target_states[:states], strict=False):
            stamp = self.stamps[state_source].get(from_slot)
            self.stamps[state_target][to_slot] = self._loaded(from_slot) if stamp is None else stamp

    def _loaded(self, slot: int) -> PageHash | None:
        """What a running load will put into the state slot on device: a copy that ends inside a step waits for it."""
        for copy in self.running.values():
            if copy.to == "device" and slot in copy.target_states:
                return self.stamps[STATE_HOST].get(copy.source_states[copy.target_states.index(slot)])
        return None

    def ended(self, ticket: str, pages: int, states: int) -> None:
        """The copy has ended with its first `pages` pages and `states` state slots in place."""
        copy = self.running.pop(ticket, None)
        if copy is not None:
            self._move(copy, pages, states)

    def taken(self, pages: tuple[int, ...]) -> None:
        """The request's new pages hold nothing."""
        self.emptied(KV_DEVICE, pages)

    def state_changed(self, slot: int, stamp: PageHash | None) -> None:
        """A pass has ended that changes this state slot."""
        self.stamps[STATE_DEVICE][slot] = stamp

    def emptied(self, pool_name: PoolName, pages: Iterable[int]) -> None:
        """Pages that were just taken hold nothing."""
        for page in pages:
            self.stamps[pool_name][page] = None

    def fetched(self, pool_name: PoolName, pages: Mapping[int, PageHash]) -> None:
        """A read from storage has put these pages on host, or this state."""
        self.stamps[pool_name].update(pages)

    def pass_began(self, writes: Mapping[int, PageHash]) -> None:
        """A pass writes these device pages."""
        self.being_written |= writes

    def pass_ended(self, wrote: Mapping[int, PageHash | None]) -> None:
        """The pass has ended; these device pages hold what it wrote."""
        for page, stamp in wrote.items():
            self.being_written.pop(page, None)
            self.stamps[KV_DEVICE][page] = stamp


def _pools(copy: IssuedCopy) -> tuple[tuple[PoolName, PoolName], tuple[PoolName, PoolName]]:
    """Source and target of the copy's pages, and of its state slots."""
    if copy.to == "request":
        return (KV_DEVICE, KV_DEVICE), (STATE_DEVICE, STATE_DEVICE)
    if copy.to == "host":
        return (KV_DEVICE, KV_HOST), (STATE_DEVICE, STATE_HOST)
    return (KV_HOST, KV_DEVICE), (STATE_HOST, STATE_DEVICE)
