"""Pools and storage by value, and who holds which page, as those say who hold."""

from collections.abc import Iterable, Iterator

from hicache_ref.model.records import Backup, Prefetch
from hicache_ref.model.state import FREE, Owner, State, Storage, no_storage
from hicache_ref.requirements.busy import NO_PAGES
from hicache_ref.vocabulary.ids import NodeId, PageHash, Pages, PoolName

Copies = list[tuple[Pages, NodeId, tuple[PageHash, ...]]]
"""The copies of nodes in one pool: pages, node, and what the node says that they hold."""


class PoolView:
    """A pool by value, and its holders as those say who hold: the free list, nodes and requests."""

    __slots__ = (
        "claims",
        "draft",
        "free",
        "held",
        "listed",
        "name",
        "owner",
        "size",
        "stamp",
        "touched",
        "unheld",
        "unlike",
        "writes",
        "written",
    )

    def __init__(self, name: PoolName, state: State, earlier: "PoolView | None") -> None:
        pool = state.pools[name]
        self.name = name
        self.owner: list[Owner]
        self.stamp: list[PageHash | None]
        self.draft: list[PageHash | None]
        self.free: list[int]
        if earlier is None:
            self.owner, self.stamp, self.draft, self.free = pool.owner[:], pool.stamp[:], pool.draft[:], pool.free[:]
        else:
            self.owner = earlier.owner if earlier.owner == pool.owner else pool.owner[:]
            self.stamp = earlier.stamp if earlier.stamp == pool.stamp else pool.stamp[:]
            self.draft = earlier.draft if earlier.draft == pool.draft else pool.draft[:]
            self.free = earlier.free if earlier.free == pool.free else pool.free[:]
        self.size = len(self.owner)
        self.held: dict[int, Owner]
        """Who holds each page that is held at all."""

        self.listed: int
        """How many different pages the free list names."""

        self.claims: int
        """How often a page is held; more than there are held pages if one is held twice."""

        self.unheld: tuple[int, ...]
        """Pages that neither the free list nor a node nor a request holds."""

        self.unlike: list[tuple[NodeId, Pages]]
        """Copies of nodes whose pages do not all hold the node's hashes."""

        self.touched: dict[int, str]
        """Pages that operations on the books touch, and the last one that does."""

        self.written: frozenset[int]
        """Pages that operations on the books write."""

        self.writes: int
        """How often; more than there are written pages if two write one."""

    def take_holders(self, copies: Copies, others: Iterable[tuple[Pages, Owner]]) -> None:
        """The free list, the nodes and the others hold their pages; the rest is unheld."""
        held: dict[int, Owner] = dict.fromkeys(self.free, FREE)
        self.listed, claims = len(held), len(self.free)
        for pages, number, _ in copies:
            claims += len(pages)
            holder: Owner = ("node", number)
            for page in pages:
                held[page] = holder
        for pages, holder in others:
            claims += len(pages)
            for page in pages:
                held[page] = holder
        self.held, self.claims = held, claims
        self.unheld = () if len(held) == self.size else tuple([p for p in range(self.size) if p not in held])

    def take_contents(self, copies: Copies) -> None:
        """Copies that do not hold what their node says are known."""
        stamp = self.stamp
        self.unlike = [
            (number, pages) for pages, number, hashes in copies if tuple([stamp[page] for page in pages]) != hashes
        ]

    def take_touched(self, touching: Iterable[tuple[str, frozenset[int], frozenset[int]]]) -> None:
        """Each of these operations, by name, touches what it reads and what it writes."""
        touched: dict[int, str] = {}
        written, writes = NO_PAGES, 0
        for name, reads, writing in touching:
            for page in reads:
                touched[page] = name
            for page in writing:
                touched[page] = name
            if writing:
                written |= writing
                writes += len(writing)
        self.touched, self.written, self.writes = touched, written, writes

    def share_holders(self, other: "PoolView") -> None:
        """Holders are those of the other view: nothing that says who holds has changed."""
        self.held, self.claims, self.listed, self.unheld = other.held, other.claims, other.listed, other.unheld

    def share_touched(self, other: "PoolView") -> None:
        """Touched is what was in the other view: the books have not changed."""
        self.touched, self.written, self.writes = other.touched, other.written, other.writes

    def has_same_owners(self, other: "PoolView") -> bool:
        """Owner map and free list have not changed since the other view, from which this one was made."""
        return self.free is other.free and self.owner is other.owner

    def has_same_contents(self, other: "PoolView") -> bool:
        """What the pages hold has not changed since the other view, from which this one was made."""
        return self.stamp is other.stamp and self.draft is other.draft

    def contents(self, pages: Pages) -> tuple[PageHash | None, ...]:
        """What these pages hold."""
        return tuple([self.stamp[page] for page in pages])

    def equals(self, other: "PoolView") -> bool:
        """The same pages are free, owned and written."""
        same = self.free == other.free and self.owner == other.owner
        return same and self.stamp == other.stamp and self.draft == other.draft


class StorageView:
    """The storage part of the state by value."""

    __slots__ = (
        "answers", "attached", "backend", "believed", "believed_draft", "believed_states", "loaded", "occupied", "open",
        "owed", "owed_states", "reads", "records", "release", "reported", "reported_states", "settings", "writes",
    )  # fmt: skip

    def __init__(self, storage: Storage) -> None:
        self.attached = storage.attached
        self.backend = storage.backend
        self.settings = storage.settings
        self.occupied = storage.occupied
        self.records = storage.records.copy()
        self.open = storage.open.copy()
        self.answers = storage.answers[:]
        self.reads = storage.reads[:]
        self.writes = storage.writes[:]
        self.release = storage.release[:]
        self.owed = storage.owed.copy()
        self.believed = storage.believed.copy()
        self.believed_draft = storage.believed_draft.copy()
        self.reported = storage.reported.copy()
        self.owed_states = storage.owed_states.copy()
        self.believed_states = storage.believed_states.copy()
        self.reported_states = storage.reported_states.copy()
        self.loaded = storage.loaded.copy()

    @property
    def prefetches(self) -> list[Prefetch]:
        """The prefetches on the books, in the order of submission."""
        return [record for record in self.records.values() if isinstance(record, Prefetch)]

    @property
    def backups(self) -> list[Backup]:
        """The writes on the books, in the order of submission."""
        return [record for record in self.records.values() if isinstance(record, Backup)]

    @property
    def opened(self) -> list[Prefetch]:
        """The open prefetches, in the order in which their requests opened them."""
        return [record for record in map(self.prefetch, self.open.values()) if record is not None]

    def prefetch(self, name: str | None) -> Prefetch | None:
        """The prefetch of this name, if it is on the books."""
        record = None if name is None else self.records.get(name)
        return record if isinstance(record, Prefetch) else None

    def holders(self) -> Iterator[tuple[Pages, Owner]]:
        """Open prefetches and the release queue, with the host pages that they hold."""
        for name in self.open.values():
            record = self.records.get(name)
            if record is not None:
                yield record.pages, ("prefetch", name)
        if self.release:
            yield tuple(self.release), ("queue", "")

    def state_holders(self) -> list[tuple[Pages, Owner]]:
        """Open prefetches with their state slots on host."""
        opened = [(name, self.records.get(name)) for name in self.open.values()]
        return [(record.states, ("prefetch", name)) for name, record in opened if record is not None]

    def equals(self, other: "StorageView") -> bool:
        """Nothing of it differs. Written out, for it is asked in every step."""
        if self is other:
            return True
        return (
            self.records == other.records
            and self.open == other.open
            and (self.answers, self.reads, self.writes) == (other.answers, other.reads, other.writes)
            and self.release == other.release
            and self.owed == other.owed
            and self.believed == other.believed
            and self.believed_draft == other.believed_draft
            and self.reported == other.reported
            and self.loaded == other.loaded
            and self.owed_states == other.owed_states
            and self.believed_states == other.believed_states
            and self.reported_states == other.reported_states
            and self.settings == other.settings
            and (self.attached, self.backend, self.occupied) == (other.attached, other.backend, other.occupied)
        )


NO_STORAGE = StorageView(no_storage())
"""Stands for the storage of all caches that have none, so that they need not be told apart."""


def storage_view(storage: Storage, earlier: StorageView | None) -> StorageView:
    """The storage part by value, the earlier one where nothing changed; `NO_STORAGE` where nothing is there or left."""
    if (
        storage.attached or storage.records or storage.open or storage.release or storage.owed or storage.believed
        or storage.answers or storage.reads or storage.writes or storage.reported or storage.loaded or storage.occupied
        or storage.believed_draft or storage.owed_states or storage.believed_states or storage.reported_states
    ):  # fmt: skip
        view = StorageView(storage)
        return earlier if earlier is not None and view.equals(earlier) else view
    return NO_STORAGE
