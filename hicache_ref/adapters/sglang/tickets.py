"""Copies on their way, by the names that a trace has for them."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from hicache_ref.vocabulary.ids import TicketId
from hicache_ref.vocabulary.keys import handle_of

Direction = Literal["host", "device"]


class _Copy(NamedTuple):
    to: Direction
    node_id: int
    call: int
    """The number of the call in which it was submitted."""


class Copies:
    """What the cache has submitted and its scheduler has not seen ended, in order."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._live: dict[TicketId, _Copy] = {}
        self._ended: set[TicketId] = set()

    def submitted(self, to: Direction, node: Any, text: str, tokens: int, call: int) -> TicketId:
        """The name of a copy that ends at this node, whose key has this text."""
        name = handle_of("h" if to == "host" else "d", text, tokens, self._live)
        self._live[name] = _Copy(to, node.id, call)
        return name

    def applied(self, call: int) -> tuple[list[TicketId], list[TicketId]]:
        """Those to host and to device that the cache no longer waits for. Those of this very call had no name."""
        if not self._live:
            return [], []
        waits = {"host": self._cache.ongoing_write_through, "device": self._cache.ongoing_load_back}
        gone = {name: copy for name, copy in self._live.items() if copy.node_id not in waits[copy.to]}
        found: dict[Direction, list[TicketId]] = {"host": [], "device": []}
        for name, copy in gone.items():
            del self._live[name]
            if copy.call != call:
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
