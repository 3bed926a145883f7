"""The list of rules. Each module of this package adds its own; a rule returns how many subjects it judged."""

from collections.abc import Callable
from dataclasses import dataclass

from hicache_ref.storage.conformance.kit import Kit

Judge = Callable[[Kit], int]


@dataclass(frozen=True)
class Rule:
    """A numbered rule, and what judges it."""

    id: str
    judge: Judge

    @property
    def claim(self) -> str:
        """What is true of a store that keeps the rule, in a line."""
        return (self.judge.__doc__ or "").strip().splitlines()[0]


RULES: dict[str, Rule] = {}
"""Every rule by id, in the order in which they are judged."""


def rule(name: str) -> Callable[[Judge], Judge]:
    """The judge is the one of rule `name`."""

    def enter(judge: Judge) -> Judge:
        RULES[name] = Rule(name, judge)
        return judge

    return enter
