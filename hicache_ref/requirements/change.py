"""A step as the judges see it: the state before, what was asked and told, the state after."""

from typing import Any, Generic, Protocol, TypeVar

from hicache_ref.requirements.rows import Row
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import PageHash, PoolName


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

    __slots__ = ("_hashes", "after", "before", "memo", "op", "still", "told", "what")

    def __init__(self, before: View, op: OpT, what: StepLike, after: View) -> None:
        self.before = before
        self.op = op
        self.what = what
        self.told: ToldT = what.outcome  # type: ignore[assignment]
        self.after = after
        self.still = before.row is after.row
        """No node changed in any way."""

        self._hashes: tuple[PageHash, ...] | None = None
        self.memo: dict[str, Any] = {}
        """What several judges of one step need, made once."""

    @property
    def hashes(self) -> tuple[PageHash, ...]:
        """The hashes of the pages of the operation's key."""
        if self._hashes is None:
            self._hashes = self.after.hashes_of(self.op.key)  # type: ignore[attr-defined]
        return self._hashes


def came_from(change: Change[Any, Any], row: Row) -> Row | None:
    """The node of the state before that the row of the state after is, or was split off; None for a new one."""
    was = change.before.row.get(row.id)
    if was is None and row.hashes:
        was = change.before.where.get(row.hashes[-1], (None, 0))[0]
    return was
