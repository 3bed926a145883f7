"""Pools and storage by value, and who holds which page, as those say who hold."""

from hicache_ref.model.records import Backup, Prefetch
from hicache_ref.model.state import FREE, Owner, State, Storage, no_storage
from hicache_ref.requirements.busy import NO_PAGES
from hicache_ref.vocabulary.ids import PageHash, Pages, PoolName


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
        "writes",
        "written",
    )

    def __init__(self, name: PoolName, state: State) -> None:
        pool = state.pools[name]
        self.name = name
        self.owner: list[Owner] = pool.owner[:]
        self.stamp: list[PageHash | None] = pool.stamp[:]
        self.draft: list[PageHash | None] = pool.draft[:]
        self.free: list[int] = pool.free[:]
        self.size = len(self.owner)
        self.held: dict[int, Owner] = dict.fromkeys(self.free, FREE)
        self.listed = len(self.held)
        """How many different pages the free list names."""

        self.claims = len(self.free)
        """How often a page is held; more than there are held pages if one is held twice."""

        self.unheld: tuple[int, ...] = ()
        """Pages that neither the free list nor a node nor a request holds."""

        self.touched: dict[int, str] = {}
        """Pages that operations on the books touch, and the last one that does."""

        self.written: frozenset[int] = NO_PAGES
        """Pages that operations on the books write."""

        self.writes = 0
        """How often; more than there are written pages if two write one."""

    def hold(self, pages: Pages, holder: Owner) -> None:
        """Each of `pages` is held by `holder`."""
        self.claims += len(pages)
        held = self.held
        for page in pages:
            held[page] = holder

    def contents(self, pages: Pages) -> tuple[PageHash | None, ...]:
        """What these pages hold."""
        return tuple([self.stamp[page] for page in pages])

    def touch(self, name: str, reads: frozenset[int], writes: frozenset[int]) -> None:
        """The operation of this name touches these pages."""
        touched = self.touched
        for page in reads:
            touched[page] = name
        for page in writes:
            touched[page] = name
        if writes:
            self.written |= writes
            self.writes += len(writes)

    def equals(self, other: "PoolView") -> bool:
        """The same pages are free, owned and written."""
        same = self.free == other.free and self.owner == other.owner
        return same and self.stamp == other.stamp and self.draft == other.draft

    def find_unheld(self) -> None:
        """Once all holders are known, the rest is."""
        if len(self.held) != self.size:
            self.unheld = tuple([page for page in range(self.size) if page not in self.held])


class StorageView:
    """The storage part of the state by value."""

    __slots__ = (
        "answers", "attached", "backend", "believed", "believed_draft", "loaded", "occupied", "open", "owed", "reads",
        "records", "release", "reported", "settings", "writes",
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
        self.loaded = storage.loaded.copy()

    @property
    def prefetches(self) -> list[Prefetch]:
        """The prefetches on the books, in the order of submission."""
        return [record for record in self.records.values() if isinstance(record, Prefetch)]

    @property
    def backups(self) -> list[Backup]:
        """The writes on the books, in the order of submission."""
        return [record for record in self.records.values() if isinstance(record, Backup)]

    def prefetch(self, name: str | None) -> Prefetch | None:
        """The prefetch of this name, if it is on the books."""
        record = None if name is None else self.records.get(name)
        return record if isinstance(record, Prefetch) else None

    def hold(self, host: PoolView) -> None:
        """Open prefetches and the release queue hold their host pages."""
        for name in self.open.values():
            record = self.records.get(name)
            if record is not None:
                host.hold(record.pages, ("prefetch", name))
        if self.release:
            host.hold(tuple(self.release), ("queue", ""))

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
            and self.settings == other.settings
            and (self.attached, self.backend, self.occupied) == (other.attached, other.backend, other.occupied)
        )


NO_STORAGE = StorageView(no_storage())
"""Stands for the storage of all caches that have none, so that they need not be told apart."""


def storage_view(storage: Storage) -> StorageView:
    """The storage part by value; `NO_STORAGE` where nothing is attached and nothing is left of it."""
    if (
        storage.attached or storage.records or storage.open or storage.release or storage.owed or storage.believed
        or storage.answers or storage.reads or storage.writes or storage.reported or storage.loaded or storage.occupied
        or storage.believed_draft
    ):  # fmt: skip
        return StorageView(storage)
    return NO_STORAGE
