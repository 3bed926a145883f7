"""Operations on the books as the judges see them: the pages that each one touches, recomputed from its parts."""

from typing import NamedTuple

from hicache_ref.model.records import Backup, BackupEnded, PrefetchEnded, Record
from hicache_ref.model.state import Pass, Ticket
from hicache_ref.vocabulary.ids import KV_DEVICE, PoolName

NO_PAGES: frozenset[int] = frozenset()


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

    @property
    def touched(self) -> tuple[frozenset[int], frozenset[int], frozenset[int], frozenset[int]]:
        """Device pages read and written, host pages read and written."""
        return self.device_reads, self.device_writes, self.host_reads, self.host_writes

    def reads(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it reads."""
        return self.device_reads if pool == KV_DEVICE else self.host_reads

    def writes(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it writes."""
        return self.device_writes if pool == KV_DEVICE else self.host_writes

    def lost(self, pool: PoolName) -> frozenset[int]:
        """The pages of this pool that it was to write and never will."""
        if self.doomed:
            return self.writes(pool)
        if self.live or not isinstance(self.record, Ticket):
            return NO_PAGES
        if (pool == KV_DEVICE) != (self.record.to == "device"):
            return NO_PAGES
        failed = self.record.parts[self.record.good or 0 :]
        return frozenset([page for part in failed for page in (part.device if pool == KV_DEVICE else part.host)])


def busy_copy(ticket: Ticket) -> Busy:
    """A copy; its pages are those of its parts."""
    if len(ticket.parts) == 1:
        device, host = frozenset(ticket.parts[0].device), frozenset(ticket.parts[0].host)
    else:
        device = frozenset([page for part in ticket.parts for page in part.device])
        host = frozenset([page for part in ticket.parts for page in part.host])
    live = ticket.good is None
    if ticket.to == "host":
        return Busy(ticket.id, live, ticket.doomed, device, NO_PAGES, NO_PAGES, host, ticket)
    return Busy(ticket.id, live, ticket.doomed, NO_PAGES, device, host, NO_PAGES, ticket)


def busy_pass(each: Pass) -> Busy:
    """A forward pass; what it writes are the pages for which it has hashes."""
    reads, writes = frozenset([page for _, page in each.reads]), frozenset(each.pages)
    return Busy(f"f:{each.id}", True, each.doomed, reads, writes, NO_PAGES, NO_PAGES, each)


def busy_record(record: Record) -> Busy:
    """Storage work: a prefetch writes its host pages, a backup reads them."""
    live = not isinstance(record, PrefetchEnded | BackupEnded)
    pages = frozenset(record.pages)
    if isinstance(record, Backup):
        return Busy(record.id, live, False, NO_PAGES, NO_PAGES, pages, NO_PAGES, record)
    return Busy(record.id, live, False, NO_PAGES, NO_PAGES, NO_PAGES, pages, record)
