"""Operations on the books as the judges see them: the pages that each one touches, recomputed from its parts."""

from collections.abc import Iterator
from typing import NamedTuple

from hicache_ref.model.records import Backup, BackupEnded, PrefetchEnded, Record
from hicache_ref.model.state import Pass, Receipt, Ticket
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV, KV_DEVICE, KV_POOLS, STATE_DEVICE, STATE_HOST, NodeId, PoolName

NO_PAGES: frozenset[int] = frozenset()

Slot = tuple[PoolName, int]
Slots = frozenset[Slot]
NO_SLOTS: Slots = frozenset()

Touched = tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int], Slots, Slots]
"""Device pages read and written, host pages read and written, state slots read and written."""


class Busy(NamedTuple):
    """A copy, a forward pass or storage work on the books, and the pages that it touches, by pool."""

    name: str
    live: bool
    """The world still works on it; a copy that ended and was not applied is not live."""

    doomed: bool
    device_reads: frozenset[int]
    device_writes: frozenset[int]
    host_reads: frozenset[int]
    host_writes: frozenset[int]
    record: Ticket | Pass | Record
    state_reads: Slots = NO_SLOTS
    """State slots that it reads, each with its pool."""

    state_writes: Slots = NO_SLOTS

    @property
    def touched(self) -> "Touched":
        """What it reads and writes, tier by tier."""
        kv = self.device_reads, self.device_writes, self.host_reads, self.host_writes
        return *kv, self.state_reads, self.state_writes

    def reads(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it reads."""
        if pool in KV_POOLS:
            return self.device_reads if pool == KV_DEVICE else self.host_reads
        return frozenset([slot for name, slot in self.state_reads if name == pool])

    def writes(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it writes."""
        if pool in KV_POOLS:
            return self.device_writes if pool == KV_DEVICE else self.host_writes
        return frozenset([slot for name, slot in self.state_writes if name == pool])

    def lost(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it was to write and never will."""
        if self.doomed:
            return self.writes(pool)
        if self.live or not isinstance(self.record, Ticket):
            return NO_PAGES
        pairs = moves(self.record, self.record.good or 0, None)
        return frozenset([page for _, (name, page) in pairs if name == pool])


def kv_pins(held: Receipt | Ticket) -> list[NodeId]:
    """The nodes whose KV it pins."""
    return [number for component, number in held.pins if component == KV]


def moves(ticket: Ticket, first: int = 0, end: int | None = None) -> Iterator[tuple[Slot, Slot]]:
    """Source and target of every page of these parts of the copy."""
    for part in ticket.parts[first:end]:
        for device, host in zip(part.device, part.host, strict=True):
            above: Slot = (DEVICE[part.component], device)
            below: Slot = ((DEVICE if ticket.to == "request" else HOST)[part.component], host)
            yield (above, below) if ticket.to == "host" else (below, above)


def busy_copy(ticket: Ticket) -> Busy:
    """A copy; its pages are those of its parts."""
    kv = [part for part in ticket.parts if part.component == KV]
    if len(kv) == 1:
        device, host = frozenset(kv[0].device), frozenset(kv[0].host)
    else:
        device = frozenset([page for part in kv for page in part.device])
        host = frozenset([page for part in kv for page in part.host])
    live, states = ticket.good is None, (NO_SLOTS, NO_SLOTS)
    if len(kv) < len(ticket.parts):
        pairs = [pair for pair in moves(ticket) if pair[0][0] not in KV_POOLS]
        states = frozenset([source for source, _ in pairs]), frozenset([target for _, target in pairs])
    if ticket.to == "host":
        return Busy(ticket.id, live, ticket.doomed, device, NO_PAGES, NO_PAGES, host, ticket, *states)
    return Busy(ticket.id, live, ticket.doomed, NO_PAGES, device, host, NO_PAGES, ticket, *states)


def busy_pass(each: Pass) -> Busy:
    """A forward pass; what it writes are the pages for which it has hashes, and the request's state."""
    reads, writes = frozenset([page for _, page in each.reads]), frozenset(each.pages)
    changes = frozenset([(STATE_DEVICE, slot) for slot in each.state])
    return Busy(f"f:{each.id}", True, each.doomed, reads, writes, NO_PAGES, NO_PAGES, each, NO_SLOTS, changes)


def busy_record(record: Record) -> Busy:
    """Storage work: a prefetch writes its host pages, a backup reads them."""
    live = not isinstance(record, PrefetchEnded | BackupEnded)
    pages = frozenset(record.pages)
    slots = frozenset([(STATE_HOST, slot) for slot in record.states]) if record.states else NO_SLOTS
    if isinstance(record, Backup):
        return Busy(record.id, live, False, NO_PAGES, NO_PAGES, pages, NO_PAGES, record, slots, NO_SLOTS)
    return Busy(record.id, live, False, NO_PAGES, NO_PAGES, NO_PAGES, pages, record, NO_SLOTS, slots)
