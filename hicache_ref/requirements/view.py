"""What the judges look at: the state by value, and who holds what, recomputed from pages and receipts.

A view is built once a step, by code of this folder alone. It copies what a later step could change, so that the
view of one step is the *before* of the next, and no state has to be cloned.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hicache_ref.model.state import State
from hicache_ref.requirements.busy import NO_PAGES, Busy, busy_copy, busy_pass, busy_record
from hicache_ref.requirements.holders import NO_STORAGE, PoolView, storage_view
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, ROOT, NodeId, PageHash, Pages
from hicache_ref.vocabulary.keys import ChildKey, Key, PageKeys, pages_of
from hicache_ref.vocabulary.profile import Profile


class Row(NamedTuple):
    """A node by value. What a look-up may change comes last."""

    id: NodeId
    parent: NodeId
    key: PageKeys
    extra: str | None
    hashes: tuple[PageHash, ...]
    device: Pages | None
    host: Pages | None
    lock: int
    hits: int
    priority: int
    born: int
    children: tuple[tuple[ChildKey, NodeId], ...]
    last: int


NOWHERE = Row(-2, -2, (), None, (), None, None, 0, 0, 0, 0, (), 0)
"""Stands for a parent that is not in the tree."""


class View:
    """The state by value, prepared for judging; operations that `earlier` knows are not taken apart again."""

    def __init__(self, state: State, profile: Profile, earlier: "View | None" = None) -> None:
        self.profile = profile
        self.rules = profile.rules
        self.policy = state.policy
        self.clock = state.clock
        self.evictable = state.evictable
        self.protected = state.protected
        self.device_leaves = state.device_leaves.copy()
        self.host_leaves = state.host_leaves.copy()
        self.receipts = state.receipts.copy()
        self.tickets = state.tickets.copy()
        self.requests = state.requests.copy()
        self.passes = state.passes.copy()
        self.device = PoolView(KV_DEVICE, state)
        self.host = PoolView(KV_HOST, state)
        self.row: dict[NodeId, Row] = {}
        self.unlike: list[tuple[Row, PoolView, Pages]] = []
        """Copies of nodes whose pages do not all hold the node's hashes."""

        self._take_nodes(state)
        self.root = self.row.get(ROOT, NOWHERE)
        self.pairs: list[tuple[Row, Row]]
        """All nodes but the root, each with the one above it."""

        rows = self.row
        self.pairs = [(row, rows.get(row[1], NOWHERE)) for row in rows.values() if row[0] != ROOT]
        self.rows = [pair[0] for pair in self.pairs]
        for request in self.requests.values():
            self.device.hold(request.pages, ("request", request.id))
        self.storage = storage_view(state.storage)
        self.has_storage = self.storage is not NO_STORAGE
        """Storage is attached, or something of it is left."""

        if self.has_storage:
            self.storage.hold(self.host)
        self.pins: dict[NodeId, int] = {}
        """How many receipts and copies name each node."""

        self._take_pins()
        self.busy: dict[str, Busy] = {}
        """All operations on the books in the order of submission, copies first."""

        if self.tickets or self.passes or self.storage.records:
            self._take_busy({} if earlier is None else earlier.busy)
        self.device.find_unheld()
        self.host.find_unheld()
        self._where: dict[PageHash, tuple[Row, int]] | None = None
        self._residency: tuple[frozenset[PageHash], frozenset[PageHash]] | None = None
        self._storage_pins: frozenset[NodeId] | None = None

    def _take_nodes(self, state: State) -> None:
        make, rows, on_device, on_host = tuple.__new__, self.row, self.device, self.host
        device_stamp, host_stamp = on_device.stamp, on_host.stamp
        for number, node in state.nodes.items():
            at, children, hashes = node.at, node.children, node.hashes
            device, host = at.get(KV_DEVICE), at.get(KV_HOST)
            rows[number] = row = make(
                Row,
                (
                    number, node.parent, node.key, node.extra, hashes, device, host, node.locks[KV], node.hits,
                    node.priority, node.born, tuple(children.items()) if children else (), node.last[KV],
                ),
            )  # fmt: skip
            if device:
                on_device.hold(device, ("node", number))
                if tuple([device_stamp[page] for page in device]) != hashes:
                    self.unlike.append((row, on_device, device))
            if host:
                on_host.hold(host, ("node", number))
                if tuple([host_stamp[page] for page in host]) != hashes:
                    self.unlike.append((row, on_host, host))

    def _take_pins(self) -> None:
        pins = self.pins
        for held in (self.receipts, self.tickets):
            for each in held.values():
                for _, number in each.pins:
                    pins[number] = pins.get(number, 0) + 1

    def _take_busy(self, known: dict[str, Busy]) -> None:
        for ticket in self.tickets.values():
            old = known.get(ticket.id)
            self._add_busy(old if old is not None and old.record is ticket else busy_copy(ticket))
        for each in self.passes.values():
            old = known.get(f"f:{each.id}")
            self._add_busy(old if old is not None and old.record is each else busy_pass(each))
        for name, record in self.storage.records.items():
            old = known.get(name)
            self._add_busy(old if old is not None and old.record is record else busy_record(record))

    def _add_busy(self, busy: Busy) -> None:
        self.busy[busy.name] = busy
        self.device.touch(busy.name, busy.device_reads, busy.device_writes)
        if busy.host_reads or busy.host_writes:
            self.host.touch(busy.name, busy.host_reads, busy.host_writes)

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
                opened = map(self.storage.prefetch, self.storage.open.values())
                pins.update([record.anchor for record in opened if record is not None])
                read = NO_PAGES.union(*[record.pages for record in self.storage.backups])
                pins.update([row.id for row in self.rows if row.host is not None and not read.isdisjoint(row.host)])
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

    def pools(self) -> tuple[PoolView, PoolView]:
        """Device, host."""
        return self.device, self.host

    def equals(self, other: "View") -> bool:
        """Nothing differs. Written out, for it is asked in every step."""
        return (
            self.clock == other.clock
            and self.row == other.row
            and self.tickets == other.tickets
            and self.requests == other.requests
            and self.passes == other.passes
            and self.receipts == other.receipts
            and self.device.equals(other.device)
            and self.host.equals(other.host)
            and self.device_leaves == other.device_leaves
            and self.host_leaves == other.host_leaves
            and (self.policy, self.evictable, self.protected) == (other.policy, other.evictable, other.protected)
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
        return "pool " + (self.host if self.device.equals(other.device) else self.device).name


_FIELDS = (
    "clock", "row", "receipts", "tickets", "requests", "passes", "device_leaves", "host_leaves", "policy", "evictable",
    "protected",
)  # fmt: skip
