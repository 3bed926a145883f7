"""What the rules leave open is asked of a chooser; it is asked only where more than one answer is lawful.

`PolicyChooser` answers as a plain implementation would, `DrawnChooser` by lot, `ReplayChooser` as recorded. Each
keeps a log of what it was asked, for the trace line.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from hicache_ref.vocabulary.choices import Choice, CopyResult, Latitude, TookThese, Victim
from hicache_ref.vocabulary.ids import Pages, PoolName, TicketId
from hicache_ref.vocabulary.keys import Key


class Chooser(Protocol):
    """Answers where more than one step is lawful."""

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """`count` of the `free` pages; asked once an allocation."""

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """The index of the node to evict among those that the policy ranks equal."""

    def copy_result(self, ticket: TicketId) -> bool:
        """Whether a copy that ends inside the step succeeded."""

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """One of `options` at a point that a rule leaves open."""


class PolicyChooser:
    """The plain answers: the page freed last, the first victim, copies succeed."""

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """The pages that were freed last, so that what was just given up is used again at once."""
        return tuple(free[-count:])

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """The first."""
        return 0

    def copy_result(self, ticket: TicketId) -> bool:
        """It succeeded."""
        return True

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """The first option."""
        return options[0]


POLICY = PolicyChooser()


class DrawnChooser(PolicyChooser):
    """Answers by lot and logs them. `fail_share` of the copies that end inside a step fail."""

    def __init__(self, rng: random.Random, fail_share: float = 0.1) -> None:
        self.rng = rng
        self.fail_share = fail_share
        self.log: list[Choice] = []

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """The pages freed last, or any; both are common in real pools."""
        if self.rng.random() < 0.8:
            return super().pages(pool, free, count)
        answer = tuple(self.rng.sample(free, count))
        self.log.append(TookThese(pool=pool, answer=answer))
        return answer

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """Any of them."""
        index = self.rng.randrange(len(minima))
        self.log.append(Victim(pool=pool, answer=minima[index]))
        return index

    def copy_result(self, ticket: TicketId) -> bool:
        """It failed in `fail_share` of the cases."""
        answer = self.rng.random() >= self.fail_share
        self.log.append(CopyResult(ticket=ticket, answer=answer))
        return answer

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """Any option."""
        answer = self.rng.choice(list(options))
        self.log.append(Latitude(name=name, answer=answer))
        return answer


class ReplayChooser(PolicyChooser):
    """Answers as recorded while the record fits, and plainly from where it does not."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self.left = list(choices)

    def _next(self, ask: str) -> Choice | None:
        if self.left and self.left[0].ask == ask:
            return self.left.pop(0)
        return None

    def pages(self, pool: PoolName, free: Sequence[int], count: int) -> Pages:
        """The recorded pages if all of them are free."""
        choice = self.left[0] if self.left else None
        fits = isinstance(choice, TookThese) and choice.pool == pool and len(choice.answer) == count
        if fits and isinstance(choice, TookThese) and set(choice.answer) <= set(free):
            self.left.pop(0)
            return choice.answer
        return super().pages(pool, free, count)

    def victim(self, pool: PoolName, minima: Sequence[Key]) -> int:
        """The recorded node if it is among them."""
        choice = self._next("victim")
        if isinstance(choice, Victim) and choice.answer in minima:
            return list(minima).index(choice.answer)
        return 0

    def copy_result(self, ticket: TicketId) -> bool:
        """As recorded."""
        choice = self._next("copy_result")
        return choice.answer if isinstance(choice, CopyResult) else True

    def latitude(self, name: str, options: Sequence[str]) -> str:
        """As recorded, if it is still an option."""
        choice = self._next("latitude")
        return choice.answer if isinstance(choice, Latitude) and choice.answer in options else options[0]
