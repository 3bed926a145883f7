"""The chooser of the exhaustive search: each answer that the rules leave open is given once."""

from collections.abc import Sequence

from hicache_ref.model.chooser import PolicyChooser
from hicache_ref.vocabulary.choices import Choice, CopyResult, Latitude, Victim
from hicache_ref.vocabulary.ids import PoolName, TicketId
from hicache_ref.vocabulary.keys import Key


class Branches(PolicyChooser):
    """Answers as told and plainly beyond that, and notes what else could have been answered.

    Which free pages are taken is not asked: they are all alike.
    """

    def __init__(self, told: tuple[int, ...], *, may_fail: bool) -> None:
        self.told = told
        self.may_fail = may_fail
        self.options: list[int] = []
        """How many answers there were, for each time that it was asked."""

        self.log: list[Choice] = []

    def _answer(self, options: int) -> int:
        at = len(self.options)
        self.options.append(options)
        return self.told[at] if at < len(self.told) else 0

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """Each in its turn."""
        index = self._answer(len(minima))
        self.log.append(Victim(pool=pool, answer=minima[index]))
        return index

    def copy_result(self, ticket: TicketId) -> bool:
        """It succeeded, and in its turn, where copies may fail, it failed."""
        good = self._answer(2 if self.may_fail else 1) == 0
        self.log.append(CopyResult(ticket=ticket, answer=good))
        return good

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """Each in its turn."""
        answer = options[self._answer(len(options))]
        self.log.append(Latitude(name=name, answer=answer))
        return answer

    def untold(self) -> list[tuple[int, ...]]:
        """What others are to be told, so that all ways are gone once."""
        first = len(self.told)
        return [
            (*self.told, *(0,) * (at - first), answer)
            for at in range(first, len(self.options))
            for answer in range(1, self.options[at])
        ]
