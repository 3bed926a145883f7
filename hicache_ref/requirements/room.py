"""Room on device: what a request or a load asks for, and whether it could be had."""

from dataclasses import dataclass
from typing import Any

from hicache_ref.requirements.backup import may_lose_state
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import STATE_DEVICE, NodeId
from hicache_ref.vocabulary.operations import TakePages


@dataclass(frozen=True)
class Wanted:
    """The device pages and state slots that an operation asks for, and the nodes that it pins while it does."""

    pages: int
    slots: int
    path: frozenset[NodeId]
    """Nodes whose pages it pins."""

    states: frozenset[NodeId]
    """Nodes whose states it pins."""

    def could_be_had(self, view: View) -> bool:
        """Whether enough is free or may be evicted, of both."""
        evictable = sum([len(row.device or ()) for row in view.rows if not row.lock and row.id not in self.path])
        if self.pages > len(view.device.free) + evictable:
            return False
        return not view.states or self.slots_could_be_had(view)

    def slots_could_be_had(self, view: View) -> bool:
        """Whether enough state slots are free or may be evicted."""
        loose = [number for number in may_lose_state(view, STATE_DEVICE) if number not in self.states]
        return self.slots <= len(view.states[0].free) + len(loose)


def wanted_by(change: Change[Any, Any]) -> Wanted:
    """What a load or a request that takes pages asks for, as the state before it says."""
    before, op = change.before, change.op
    hybrid = bool(before.states)
    if isinstance(op, TakePages):
        found = before.cached(before.hashes_of(op.prefix)) if op.prefix is not None else []
        path = [row.id for row, _ in found]
        return Wanted(op.n, int(hybrid and op.rid not in before.requests), frozenset(path), frozenset(path[-1:]))
    found = before.cached(change.hashes)
    path = [row.id for row, _ in found]
    below = next((row for row, _ in found if row.device is None), None)
    above = [below.parent] if below is not None and before.rules.load_keeps_state_above else []
    pages = sum([row.device is None for row, _ in found])
    return Wanted(pages, 1 + (op.rid is not None) if hybrid else 0, frozenset(path), frozenset((*path[-1:], *above)))
