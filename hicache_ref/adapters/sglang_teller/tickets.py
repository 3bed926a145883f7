"""Copies on their way, by the names that a trace has for them."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from hicache_ref.vocabulary.ids import TicketId
from hicache_ref.vocabulary.keys import handle_of

Direction = Literal["host", "device"]


class _Copy(NamedTuple):
    to: Direction
    node: int


class Copies:
    """What the cache has submitted and its scheduler has not seen ended, in order."""

    def __init__(self) -> None:
        self._live: dict[TicketId, _Copy] = {}
        self._ended: set[TicketId] = set()

    def submitted(self, to: Direction, node: int, text: str, tokens: int) -> TicketId:
        """The name of a copy that ends at this node, whose key has this text."""
        name = handle_of("h" if to == "host" else "d", text, tokens, self._live)
        self._live[name] = _Copy(to, node)
        return name

    def applied(
        self, host: Sequence[int], device: Sequence[int], at_once: Sequence[int]
    ) -> tuple[list[TicketId], list[TicketId]]:
        """A call is over, and copies of these nodes are not waited for. Those to host that it began itself had no name.

        `at_once` are the nodes of the latter.
        """
        gone = {"host": host, "device": device}
        found: dict[Direction, list[TicketId]] = {"host": [], "device": []}
        for name, copy in list(self._live.items()):
            if copy.node in gone[copy.to]:
                del self._live[name]
                if copy.to == "device" or copy.node not in at_once:
                    found[copy.to].append(name)
        return found["host"], found["device"]

    def to_end(self, names: Iterable[TicketId] | None = None) -> list[TicketId]:
        """Those of `names`, or else all to device, of which the trace does not say yet that they have ended."""
        if names is None:
            names = (name for name, copy in self._live.items() if copy.to == "device")
        found = [name for name in names if name not in self._ended]
        self._ended.update(found)
        return found

    def forget(self, names: Iterable[TicketId]) -> None:
        """Their ends are applied: others may have these names."""
        self._ended.difference_update(names)

    def __len__(self) -> int:
        return len(self._live)
