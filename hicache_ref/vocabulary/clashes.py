"""Clashes: values of two rules that have no meaning together, each with the reason."""

from collections.abc import Mapping
from typing import NamedTuple

Value = str | int | bool | None


class Clash(NamedTuple):
    """`rule` = `value` has no meaning beside `other` = `forbidden`."""

    rule: str
    value: Value
    why: str
    other: str
    forbidden: Value

    def is_in(self, rules: Mapping[str, object]) -> bool:
        """Whether both rules have these values; rules that are not yet decided have none."""
        pairs = ((self.rule, self.value), (self.other, self.forbidden))
        return all(name in rules and rules[name] == value for name, value in pairs)

    def __str__(self) -> str:
        return f"{_said(self.rule, self.value)} {self.why}: it does not go with {_said(self.other, self.forbidden)}"


def _said(rule: str, value: Value) -> str:
    return f"{rule} {('off', 'on')[value] if isinstance(value, bool) else repr(value)}"


CLASHES: tuple[Clash, ...] = (
    Clash("backup_scope", "node", "leaves gaps on host", "contiguity", True),
    Clash("storage_put", "hit", "owes storage nothing before a hit", "attach_offers", True),
    Clash("write_back_offers", False, "owes storage nothing for an eviction's copy", "attach_offers", True),
    Clash("read_tail", "io_end", "gives up pages that a poll has yet to apply", "prefetch_progress", "polled"),
    Clash("split_stamps_state", True, "uses a state at which no match ends", "match_stamps_states", "end"),
)
"""All of them. `Rules` refuses each; the covering set of the tests walks what is left."""
