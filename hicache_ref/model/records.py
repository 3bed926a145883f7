"""Records of storage work: what a prefetch or a backup is, by the stage of its worker.

A stage is a type, so that a transition that cannot be is a record that cannot be built. Whether a request still
waits is told apart from the stage: closing (commit, revoke, abort) clears `rid`, and the I/O goes on without it.
Whether the worker was told to stop is a third matter: whatever is closed was, and an open one may be (terminate).
"""

from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, model_validator

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import KV_HOST, STATE_HOST, NodeId, PageHash, Pages, PoolName, RequestId
from hicache_ref.vocabulary.keys import PageKeys

Ref = tuple[PoolName, int]


@lru_cache(maxsize=1 << 10)
def _refs(pages: Pages, states: Pages) -> frozenset[Ref]:
    """Asked for at each batch, of the same pages."""
    return frozenset([*((KV_HOST, page) for page in pages), *((STATE_HOST, slot) for slot in states)])


class _Record(Frozen):
    """What every storage operation has. Page i of `pages` holds or gets the page of `hashes[i]`."""

    id: str
    pages: Pages = ()
    hashes: tuple[PageHash, ...]
    prefix: tuple[PageHash, ...] = ()
    """The hashes before the first of `hashes`, from the start of the sequence."""

    states: Pages = ()
    """State slots of a hybrid model: of a prefetch the one for its last page, of a backup one for each of `ends`."""

    cleared: bool = False
    """Storage was emptied under it: whatever it put before or reads, storage is not believed to have (HC-LIFE-09)."""

    @property
    def refs(self) -> frozenset[Ref]:
        """Its pages, as members of their pool."""
        return _refs(self.pages, self.states)


class _Prefetch(_Record):
    """A prefetch: storage pages are to become host pages below the anchor."""

    rid: RequestId | None
    """The request that waits, or None once the scheduler has closed it."""

    anchor: NodeId
    extra: str | None
    key: PageKeys
    """The pages asked for, beyond the anchor."""

    asked: int
    """Pages counted against the limit of running prefetches."""

    since: int
    """When its clock started, in milliseconds; -1 while it has not."""

    cancelled: bool = False
    """The worker stops at its next step."""

    @property
    def reads(self) -> frozenset[Ref]:
        """Nothing: a prefetch only writes host pages."""
        return frozenset()

    @property
    def writes(self) -> frozenset[Ref]:
        """The host pages that its I/O may still write, or that were given up under it."""
        return self.refs


class PrefetchQueued(_Prefetch):
    """The query has not been answered."""

    stage: Literal["queued"] = "queued"

    @model_validator(mode="after")
    def _all_or_no_pages(self) -> "PrefetchQueued":
        if len(self.pages) not in (0, len(self.hashes)):
            raise ValueError("a queued prefetch has a page for each hash, or none")
        return self


class PrefetchAnswered(_Prefetch):
    """The query said how many leading pages are there; the scheduler has to decide."""

    stage: Literal["answered"] = "answered"
    pages: Pages = Field(default=(), max_length=0)


class PrefetchReading(_Prefetch):
    """Pages are read batch by batch: `done` are in place, of which the scheduler knows `known`."""

    stage: Literal["reading"] = "reading"
    done: Annotated[int, Field(ge=0)] = 0
    known: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _exact(self) -> "PrefetchReading":
        if len(self.pages) != len(self.hashes) or not self.known <= self.done <= len(self.pages):
            raise ValueError("a reading prefetch has a page for each hash and counts within them")
        return self


class PrefetchEnded(_Prefetch):
    """The I/O has ended with `done` pages in place; a poll has to apply that."""

    stage: Literal["ended"] = "ended"
    done: Annotated[int, Field(ge=0)]
    known: Annotated[int, Field(ge=0)] = 0
    has_state: bool = False
    """Whether the state is in place."""

    @model_validator(mode="after")
    def _exact(self) -> "PrefetchEnded":
        if len(self.pages) != len(self.hashes) or not self.known <= self.done <= len(self.pages):
            raise ValueError("an ended prefetch has a page for each hash and counts within them")
        return self


class _Backup(_Record):
    """A backup to storage: settled host pages are put under their hashes."""

    done: Annotated[int, Field(ge=0)] = 0
    ends: tuple[PageHash, ...] = ()
    """Under which hash each of `states` is put, behind the last page."""

    @property
    def reads(self) -> frozenset[Ref]:
        """The host pages it puts."""
        return self.refs

    @property
    def writes(self) -> frozenset[Ref]:
        """Nothing."""
        return frozenset()

    @model_validator(mode="after")
    def _exact(self) -> "_Backup":
        if len(self.pages) != len(self.hashes) or self.done > len(self.pages) or len(self.states) != len(self.ends):
            raise ValueError("a backup has a page, or a slot, for each hash and counts within them")
        return self


class BackupWriting(_Backup):
    """Pages are put batch by batch; `done` are acknowledged."""

    stage: Literal["writing"] = "writing"


class BackupEnded(_Backup):
    """The I/O has ended with `done` pages put; a poll has to apply that."""

    stage: Literal["written"] = "written"
    states_done: Annotated[int, Field(ge=0)] = 0
    """So many leading states were put."""


Prefetch = PrefetchQueued | PrefetchAnswered | PrefetchReading | PrefetchEnded
Backup = BackupWriting | BackupEnded
Record = Annotated[Prefetch | Backup, Field(discriminator="stage")]

RECORD: TypeAdapter[Record] = TypeAdapter(Record)

_Stage = TypeVar("_Stage", PrefetchAnswered, PrefetchReading, PrefetchEnded, BackupEnded)


def at_stage(kind: type[_Stage], record: Prefetch | Backup, **changes: Any) -> _Stage:
    """The record at another stage, with these changes. Raises ValidationError for a transition that cannot be."""
    kept = {name: getattr(record, name) for name in kind.model_fields if name in type(record).model_fields}
    kept.pop("stage")
    return kind.model_validate(kept | changes)
