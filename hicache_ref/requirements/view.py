"""What the judges look at: the state by value, and who holds what, recomputed from pages and receipts.

A view is built once a step, by code of this folder alone. It copies what a later step could change, so that the
view of one step is the *before* of the next, and no state has to be cloned.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from hicache_ref.model.state import FREE, Owner, Pass, State, Ticket
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, ROOT, NodeId, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import ChildKey, Key, PageKeys, pages_of
from hicache_ref.vocabulary.profile import Profile

_NO_PAGES: frozenset[int] = frozenset()


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


class Busy(NamedTuple):
    """A copy or a forward pass on the books, and the pages that it touches, by pool."""

    name: str
    live: bool
    """The world still works on it; a copy that ended and was not applied is not live."""

    doomed: bool
    device_reads: frozenset[int]
    device_writes: frozenset[int]
    host_reads: frozenset[int]
    host_writes: frozenset[int]
    record: Ticket | Pass

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
        if self.live or isinstance(self.record, Pass):
            return _NO_PAGES
        failed = self.record.parts[self.record.good or 0 :]
        to = KV_DEVICE if self.record.to == "device" else KV_HOST
        pages = (page for part in failed for page in (part.device if to == KV_DEVICE else part.host))
        return frozenset(pages) if pool == to else _NO_PAGES


class PoolView:
    """A pool by value, and its holders as those say who hold: the free list, nodes and requests."""

    __slots__ = ("claims", "free", "held", "name", "owner", "size", "stamp", "touched", "unheld", "written")

    def __init__(self, name: PoolName, state: State) -> None:
        pool = state.pools[name]
        self.name = name
        self.owner: list[Owner] = pool.owner[:]
        self.stamp: list[PageHash | None] = pool.stamp[:]
        self.free: list[int] = pool.free[:]
        self.size = len(self.owner)
        self.held: dict[int, Owner] = dict.fromkeys(self.free, FREE)
        self.claims = len(self.free)
        """How often a page is held; more than there are held pages if one is held twice."""

        self.unheld: tuple[int, ...] = ()
        """Pages that neither the free list nor a node nor a request holds."""

        self.touched: dict[int, str] = {}
        """Pages that operations on the books touch, and the last one that does."""

        self.written: frozenset[int] = _NO_PAGES
        """Pages that operations on the books write."""

    def hold(self, pages: Pages, holder: Owner) -> None:
        """Each of `pages` is held by `holder`."""
        self.claims += len(pages)
        held = self.held
        for page in pages:
            held[page] = holder

    def touch(self, busy: Busy, reads: frozenset[int], writes: frozenset[int]) -> None:
        """The operation touches these pages."""
        name, touched = busy.name, self.touched
        for page in reads:
            touched[page] = name
        for page in writes:
            touched[page] = name
        self.written |= writes

    def contents(self, pages: Pages) -> tuple[PageHash | None, ...]:
        """What these pages hold."""
        stamp = self.stamp
        return tuple([stamp[page] for page in pages])


class View:
    """The state by value, prepared for judging."""

    def __init__(self, state: State, profile: Profile) -> None:
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
        self._take_nodes(state)
        self.pins = self._take_pins()
        self.busy = self._take_busy() if state.tickets or state.passes else {}
        for pool in (self.device, self.host):
            if len(pool.held) != pool.size:
                pool.unheld = tuple([page for page in range(pool.size) if page not in pool.held])
        self._where: dict[PageHash, tuple[Row, int]] | None = None
        self._residency: tuple[frozenset[PageHash], frozenset[PageHash]] | None = None

    def _take_nodes(self, state: State) -> None:
        """Rows of all nodes, each with the row above, and the pages of nodes that do not hold what the node says."""
        self.row: dict[NodeId, Row] = {}
        make, rows, device, host = tuple.__new__, self.row, self.device, self.host
        for number, node in state.nodes.items():
            at, children = node.at, node.children
            rows[number] = make(
                Row,
                (
                    number, node.parent, node.key, node.extra, node.hashes, at.get(KV_DEVICE), at.get(KV_HOST),
                    node.locks[KV], node.hits, node.priority, node.born,
                    tuple(children.items()) if children else (), node.last[KV],
                ),
            )  # fmt: skip
        self.root = rows.get(ROOT, NOWHERE)
        self.pairs = [(row, rows.get(row.parent, NOWHERE)) for number, row in rows.items() if number != ROOT]
        self.rows = [pair[0] for pair in self.pairs]
        self.unlike: list[tuple[Row, PoolView, Pages]] = []
        """Copies of nodes whose pages do not all hold the node's hashes."""

        for row in self.rows:
            if row.device is not None:
                device.hold(row.device, ("node", row.id))
                if device.contents(row.device) != row.hashes:
                    self.unlike.append((row, device, row.device))
            if row.host is not None:
                host.hold(row.host, ("node", row.id))
                if host.contents(row.host) != row.hashes:
                    self.unlike.append((row, host, row.host))
        for request in self.requests.values():
            device.hold(request.pages, ("request", request.id))

    def _take_pins(self) -> dict[NodeId, int]:
        """How many receipts and copies name each node."""
        pins: dict[NodeId, int] = {}
        for receipt in self.receipts.values():
            for _, number in receipt.pins:
                pins[number] = pins.get(number, 0) + 1
        for ticket in self.tickets.values():
            for _, number in ticket.pins:
                pins[number] = pins.get(number, 0) + 1
        return pins

    def _take_busy(self) -> dict[str, Busy]:
        """All operations on the books in the order of submission, copies first; their pages are touched."""
        found = [*map(_busy_copy, self.tickets.values()), *map(_busy_pass, self.passes.values())]
        for busy in found:
            self.device.touch(busy, busy.device_reads, busy.device_writes)
            self.host.touch(busy, busy.host_reads, busy.host_writes)
        return {busy.name: busy for busy in found}

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

    def differs(self, other: "View") -> str | None:
        """The first thing that is not the same in both views, in words; None if there is none."""
        for name in _FIELDS:
            if getattr(self, name) != getattr(other, name):
                return name.replace("_", " ")
        for mine, its in zip(self.pools(), other.pools(), strict=True):
            if (mine.owner, mine.stamp, mine.free) != (its.owner, its.stamp, its.free):
                return f"pool {mine.name}"
        return None


_FIELDS = (
    "row", "receipts", "tickets", "requests", "passes", "device_leaves", "host_leaves", "policy", "clock",
    "evictable", "protected",
)  # fmt: skip


def _busy_copy(ticket: Ticket) -> Busy:
    """The pages are recomputed from the parts."""
    if len(ticket.parts) == 1:
        device, host = frozenset(ticket.parts[0].device), frozenset(ticket.parts[0].host)
    else:
        device = frozenset([page for part in ticket.parts for page in part.device])
        host = frozenset([page for part in ticket.parts for page in part.host])
    live = ticket.good is None
    if ticket.to == "host":
        return Busy(ticket.id, live, ticket.doomed, device, _NO_PAGES, _NO_PAGES, host, ticket)
    return Busy(ticket.id, live, ticket.doomed, _NO_PAGES, device, host, _NO_PAGES, ticket)


def _busy_pass(each: Pass) -> Busy:
    reads, writes = frozenset([page for _, page in each.reads]), frozenset(each.pages)
    return Busy(f"f:{each.id}", True, each.doomed, reads, writes, _NO_PAGES, _NO_PAGES, each)


class StepLike(Protocol):
    """What a step told and did."""

    @property
    def outcome(self) -> object:
        """What the caller is told."""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What the world is asked to do."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What was published."""

    @property
    def facts(self) -> tuple[str, ...]:
        """What is worth having been reached."""

    @property
    def victims(self) -> tuple[tuple[PoolName, PageHash], ...]:
        """Evicted nodes in order, by the hash of their last page."""


OpT = TypeVar("OpT")
ToldT = TypeVar("ToldT")


class Change(Generic[OpT, ToldT]):
    """A step as the judges see it: the state before, what was asked, what was told, the state after."""

    __slots__ = ("_hashes", "after", "before", "memo", "op", "told", "what")

    def __init__(self, before: View, op: OpT, what: StepLike, after: View) -> None:
        self.before = before
        self.op = op
        self.what = what
        self.told: ToldT = what.outcome  # type: ignore[assignment]
        self.after = after
        self._hashes: tuple[PageHash, ...] | None = None
        self.memo: dict[str, Any] = {}
        """What several judges of one step need, made once."""

    @property
    def hashes(self) -> tuple[PageHash, ...]:
        """The hashes of the pages of the operation's key."""
        if self._hashes is None:
            self._hashes = self.after.hashes_of(self.op.key)  # type: ignore[attr-defined]
        return self._hashes
