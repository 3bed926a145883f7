"""What the judges look at: the state by value, and who holds what, recomputed from pages and receipts.

A view is built once a step, by code of this folder alone. It copies what a later step could change, so that the
view of one step is the *before* of the next, and no state has to be cloned. What did not change is shared, so that
judges of that part need not be asked again.
"""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

from hicache_ref.model.state import Pass, Receipt, Request, State, Ticket
from hicache_ref.requirements.busy import NO_PAGES, Busy, busy_copy, busy_pass, busy_record
from hicache_ref.requirements.holders import NO_STORAGE, Copies, PoolView, StorageView, storage_view
from hicache_ref.requirements.rows import NOWHERE, Row, rows_of
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    ROOT,
    STATE_DEVICE,
    STATE_HOST,
    NodeId,
    PageHash,
    PoolName,
    ReceiptId,
    RequestId,
    TicketId,
)
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.profile import Profile

Part = Literal["nodes", "owners", "contents", "requests", "books", "receipts", "sums", "leaves", "policy", "storage"]
PART: dict[Part, int] = {part: 1 << at for at, part in enumerate(get_args(Part))}
"""The parts of a view that may change apart from each other, each with its bit."""

EVERYTHING = sum(PART.values())

_S = TypeVar("_S", dict[Any, Any], set[NodeId])


def _kept(new: _S, old: _S) -> _S:
    """The old one where nothing differs, else a copy of the new one."""
    return old if new == old else new.copy()


class View:
    """The state by value, prepared for judging. What did not change since `earlier` is shared with it, by identity."""

    def __init__(self, state: State, profile: Profile, earlier: "View | None" = None) -> None:
        self.profile = profile
        self.rules = profile.rules
        self.policy = state.policy
        self.draft = state.draft
        self.clock = state.clock
        self.evictable = state.evictable
        self.protected = state.protected
        old: View = _NOTHING if earlier is None else earlier
        self.device_leaves: set[NodeId] = _kept(state.device_leaves, old.device_leaves)
        self.host_leaves: set[NodeId] = _kept(state.host_leaves, old.host_leaves)
        self.receipts: dict[ReceiptId, Receipt] = _kept(state.receipts, old.receipts)
        self.tickets: dict[TicketId, Ticket] = _kept(state.tickets, old.tickets)
        self.requests: dict[RequestId, Request] = _kept(state.requests, old.requests)
        self.passes: dict[RequestId, Pass] = _kept(state.passes, old.passes)
        self.device: PoolView = PoolView(KV_DEVICE, state, old.device)
        self.host: PoolView = PoolView(KV_HOST, state, old.host)
        self.states: tuple[PoolView, ...] = ()
        """State slots on device and on host; of a model without state none."""

        if profile.state:
            earlier_states = old.states or (None, None)
            both = zip((STATE_DEVICE, STATE_HOST), earlier_states, strict=True)
            self.states = tuple([PoolView(name, state, before) for name, before in both])
        self.storage: StorageView = storage_view(state.storage, old.storage)
        self.has_storage = self.storage is not NO_STORAGE
        """Storage is attached, or something of it is left."""

        self.row: dict[NodeId, Row]
        self.pairs: list[tuple[Row, Row]]
        """All nodes but the root, each with the one above it."""

        self.rows: list[Row]
        self.sums: tuple[int, int]
        """Device pages of unlocked nodes, and of locked ones."""

        self._where: dict[PageHash, tuple[Row, int]] | None
        self._copies: tuple[Copies, ...]
        self._take_nodes(state, old)
        self.root: Row = self.row.get(ROOT, NOWHERE)
        self.pins: dict[NodeId, int]
        self.state_pins: dict[NodeId, int]
        """How many receipts and copies name the KV of each node; likewise its state."""

        self.busy: dict[str, Busy]
        """All operations on the books in the order of submission, copies first."""

        self._take_books(old)
        self._take_pools(old)
        self._residency: tuple[frozenset[PageHash], frozenset[PageHash]] | None = None
        self._storage_pins: frozenset[NodeId] | None = None
        if self.row is old.row and self.busy is old.busy:
            self._residency = old._residency
            if self.storage is old.storage:
                self._storage_pins = old._storage_pins

    def _take_nodes(self, state: State, old: "View") -> None:
        rows = rows_of(state)
        if rows == old.row:
            self.row, self.pairs, self.rows, self.sums = old.row, old.pairs, old.rows, old.sums
            self._where, self._copies = old._where, old._copies
            return
        self.row, self._where = rows, None
        self.pairs = [(row, rows.get(row.parent, NOWHERE)) for row in rows.values() if row.id != ROOT]
        self.rows = [pair[0] for pair in self.pairs]
        protected = sum([len(row.device) for row in self.rows if row.lock and row.device is not None])
        self.sums = sum([len(row.device) for row in self.rows if row.device is not None]) - protected, protected
        self._copies = (
            [(row.device, row.id, row.hashes) for row in self.rows if row.device],
            [(row.host, row.id, row.hashes) for row in self.rows if row.host],
        )
        if self.states:
            self._copies += (
                [(row.device_state, row.id, row.hashes[-1:]) for row in self.rows if row.device_state],
                [(row.host_state, row.id, row.hashes[-1:]) for row in self.rows if row.host_state],
            )

    def _take_books(self, old: "View") -> None:
        """Operations that the earlier view knows are not taken apart again."""
        same_tickets = self.tickets is old.tickets
        if same_tickets and self.receipts is old.receipts:
            self.pins, self.state_pins = old.pins, old.state_pins
        else:
            self.pins, self.state_pins = {}, {}
            for held in (self.receipts, self.tickets):
                for each in held.values():
                    for component, number in each.pins:
                        pins = self.pins if component == KV else self.state_pins
                        pins[number] = pins.get(number, 0) + 1
        records = self.storage.records
        if same_tickets and self.passes is old.passes and records == old.storage.records:
            self.busy = old.busy
            return
        known, busy = old.busy, {}
        for ticket in self.tickets.values():
            was = known.get(ticket.id)
            busy[ticket.id] = was if was is not None and was.record is ticket else busy_copy(ticket)
        for running in self.passes.values():
            name = f"f:{running.id}"
            was = known.get(name)
            busy[name] = was if was is not None and was.record is running else busy_pass(running)
        for name, record in records.items():
            was = known.get(name)
            busy[name] = was if was is not None and was.record is record else busy_record(record)
        self.busy = busy

    def _take_pools(self, old: "View") -> None:
        """Who holds, touches and fills which page is found out anew where it may have changed."""
        same_rows, same_busy = self.row is old.row, self.busy is old.busy
        device, host, storage = self.device, self.host, self.storage
        if same_rows and device.free is old.device.free and self.requests is old.requests:
            device.share_holders(old.device)
        else:
            device.take_holders(
                self._copies[0], [(each.pages, ("request", each.id)) for each in self.requests.values()]
            )
        if same_rows and host.free is old.host.free and storage is old.storage:
            host.share_holders(old.host)
        else:
            host.take_holders(self._copies[1], storage.holders() if self.has_storage else ())
        if self.states:
            self._take_states()
        olds = (old.device, old.host, *(old.states or (None, None)))
        for pool, was, copies in zip(self.pools(), olds, self._copies, strict=False):
            if was is not None and same_rows and pool.stamp is was.stamp:
                pool.unlike = was.unlike
            else:
                pool.take_contents(copies)
        if same_busy:
            device.share_touched(old.device)
            host.share_touched(old.host)
        else:
            busy = self.busy.values()
            device.take_touched([(each.name, each.device_reads, each.device_writes) for each in busy])
            host.take_touched([(each.name, each.host_reads, each.host_writes) for each in busy])

    def _take_states(self) -> None:
        """Who holds and touches which state slot is found out."""
        device, host = self.states
        device.take_holders(self._copies[2], [(each.state, ("request", each.id)) for each in self.requests.values()])
        host.take_holders(self._copies[3], self.storage.state_holders() if self.has_storage else ())
        for pool in self.states:
            touching = [(each.name, each.reads(pool.name), each.writes(pool.name)) for each in self.busy.values()]
            pool.take_touched(touching)

    def changed(self, old: "View") -> int:
        """The parts that are not the same in `old`, the view from which this one was made: the sum of their bits."""
        changed = 0
        if self.row is not old.row:
            changed |= PART["nodes"]
        pairs = tuple(zip(self.pools(), old.pools(), strict=True))
        if not all(pool.has_same_owners(was) for pool, was in pairs):
            changed |= PART["owners"]
        if not all(pool.has_same_contents(was) for pool, was in pairs):
            changed |= PART["contents"]
        if self.requests is not old.requests:
            changed |= PART["requests"]
        if self.busy is not old.busy:
            changed |= PART["books"]
        if self.receipts is not old.receipts:
            changed |= PART["receipts"]
        if self.device_leaves is not old.device_leaves or self.host_leaves is not old.host_leaves:
            changed |= PART["leaves"]
        if self.evictable != old.evictable or self.protected != old.protected:
            changed |= PART["sums"]
        if (self.policy, self.draft) != (old.policy, old.draft):
            changed |= PART["policy"]
        if self.storage is not old.storage:
            changed |= PART["storage"]
        return changed

    # -- look-ups, made when asked for ------------------------------------------------------------------------------

    @property
    def where(self) -> dict[PageHash, tuple[Row, int]]:
        """Every cached page by its hash: the row that has it, and its index there."""
        if self._where is None:
            self._where = {digest: (row, at) for row in self.rows for at, digest in enumerate(row.hashes)}
        return self._where

    @property
    def residency(self) -> tuple[frozenset[PageHash], frozenset[PageHash]]:
        """The hashes of the pages on device, and of those on host into which no copy is on the books."""
        if self._residency is None:
            written = self.host.written
            self._residency = (
                frozenset([digest for row in self.rows if row.device is not None for digest in row.hashes]),
                frozenset(
                    [
                        digest
                        for row in self.rows
                        if row.host is not None and not (written and written.intersection(row.host))
                        for digest in row.hashes
                    ]
                ),
            )
        return self._residency

    @property
    def storage_pins(self) -> frozenset[NodeId]:
        """The nodes that storage work keeps: anchors of open prefetches, and those that a write on the books reads."""
        if self._storage_pins is None:
            pins: set[NodeId] = set()
            if self.storage.records:
                pins.update([record.anchor for record in self.storage.opened])
                read = NO_PAGES.union(*[record.pages for record in self.storage.backups])
                pins.update([row.id for row in self.rows if row.host is not None and not read.isdisjoint(row.host)])
                states = NO_PAGES.union(*[record.states for record in self.storage.backups])
                if states:
                    pins.update([row.id for row in self.rows if not states.isdisjoint(row.host_state or ())])
            self._storage_pins = frozenset(pins)
        return self._storage_pins

    def cached(self, hashes: Iterable[PageHash]) -> list[tuple[Row, int]]:
        """The longest cached prefix of these pages, page by page."""
        found, where = [], self.where
        for digest in hashes:
            place = where.get(digest)
            if place is None:
                break
            found.append(place)
        return found

    def hashes_of(self, key: Key) -> tuple[PageHash, ...]:
        """The hashes of the key's whole pages."""
        bigram = self.profile.bigram
        pages = pages_of(key.tokens, self.profile.sizes.page_size, bigram)
        return chain(pages, namespace_seed(key.extra), bigram)

    def page_count(self, key: Key) -> int:
        """The number of whole pages of the key."""
        return len(pages_of(key.tokens, self.profile.sizes.page_size, self.profile.bigram))

    def up(self, row: Row) -> Iterator[Row]:
        """The row and all above it, the root excluded; ends at the first that is not in the tree."""
        rows = self.row
        for _ in range(len(rows)):
            if row.id == ROOT or row is NOWHERE:
                return
            yield row
            row = rows.get(row.parent, NOWHERE)

    def below(self) -> dict[NodeId, list[Row]]:
        """The children of each node, by what they say of their parent."""
        found: dict[NodeId, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.parent, []).append(row)
        return found

    def pools(self) -> tuple[PoolView, ...]:
        """Device, host, and of a hybrid model the state slots of both."""
        return self.device, self.host, *self.states

    def pool(self, name: PoolName) -> PoolView:
        """The pool of this name."""
        return next(pool for pool in self.pools() if pool.name == name)

    def equals(self, other: "View") -> bool:
        """Nothing differs."""
        return (
            self.clock == other.clock
            and all(getattr(self, name) == getattr(other, name) for name in _FIELDS)
            and all(map(PoolView.equals, self.pools(), other.pools()))
            and self.storage.equals(other.storage)
        )

    def differs(self, other: "View") -> str | None:
        """The first thing that is not the same in both views, in words; None if there is none."""
        if self.equals(other):
            return None
        for name in _FIELDS:
            if getattr(self, name) != getattr(other, name):
                return name.replace("_", " ")
        if not self.storage.equals(other.storage):
            return "storage"
        pairs = zip(self.pools(), other.pools(), strict=True)
        return "pool " + next(pool.name for pool, its in pairs if not pool.equals(its))


_FIELDS = (
    "clock", "row", "receipts", "tickets", "requests", "passes", "device_leaves", "host_leaves", "policy", "evictable",
    "protected",
)  # fmt: skip

_NOTHING: Any = SimpleNamespace(
    row=None, device_leaves=None, host_leaves=None, receipts=None, tickets=None, requests=None, passes=None,
    device=None, host=None, states=(), storage=None, busy={},
)  # fmt: skip
"""Stands for the view before the first one: nothing is shared with it."""
