"""Locks: a receipt names what it pinned, and its release undoes exactly that (upstream: inc_lock_ref, dec_lock_ref)."""

from dataclasses import replace

from hicache_ref.model.leaves import LeafRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import Node, Receipt, Ticket
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, ROOT, STATE, STATE_DEVICE, STATE_HOST, Component, NodeId

Pins = tuple[tuple[Component, NodeId], ...]


class LockRules(LeafRules):
    """The ledger of pins. A node's lock count is the number of receipts and copies that name it (HC-LOCK-01)."""

    def path(self, number: NodeId) -> list[NodeId]:
        """The nodes from this one up to the one below the root."""
        nodes, above = self.state.nodes, []
        while number != ROOT:
            above.append(number)
            number = nodes[number].parent
        return above

    def pin(self, anchor: NodeId, *, evicted_too: bool) -> Pins:
        """The path of `anchor` is pinned: its resident nodes, and with `evicted_too` its host-only ones.

        The state of the anchor is pinned too, on device or with `evicted_too` on any tier; never one further up, for
        it is not needed to go on from the anchor (HC-STATE-06).
        """
        nodes = self.state.nodes
        pins: Pins = tuple((KV, n) for n in self.path(anchor) if evicted_too or KV_DEVICE in nodes[n].at)
        if anchor != ROOT and self._names_state(nodes[anchor], evicted_too):
            pins += ((STATE, anchor),)
        for component, number in pins:
            self._change_lock(self.state.nodes[number], component, +1)
        return pins

    def _names_state(self, node: Node, evicted_too: bool) -> bool:
        if self.profile.state and self.rules.lock_state == "to_come":
            return True
        return STATE_DEVICE in node.at or (evicted_too and STATE_HOST in node.at)

    def unpin(self, pins: Pins) -> None:
        """Each pin is undone once."""
        for component, number in pins:
            self._change_lock(self.state.nodes[number], component, -1)

    def _change_lock(self, node: Node, component: Component, by: int) -> None:
        """The lock count changes; on its way from or to 0 the node's pages change between evictable and protected."""
        was = node.locks[component]
        node.locks[component] = now = was + by
        if now < 0:
            raise ModelFault(f"lock count of node {node.id} fell below zero")
        if component == KV and bool(was) != bool(now):
            resident = len(node.at.get(KV_DEVICE, ()))
            self.state.protected += resident if now else -resident
            self.state.evictable += -resident if now else resident
            self.update_leaf(node.id)
        if component == STATE and not now:
            self.note_arrival(node)

    def note_arrival(self, node: Node) -> None:
        """By the rule host_states = arrived a state that is on host alone now, or unpinned there, is used by that."""
        if self.rules.host_states == "arrived" and STATE_HOST in node.at and STATE_DEVICE not in node.at:
            node.last[STATE] = self.tick()

    def lock_follows_split(self, lower: NodeId, upper: NodeId) -> None:
        """Whatever pins the lower half's KV pins the upper one's too (HC-LOCK-04)."""
        for held in self._ledger():
            if (KV, lower) in held.pins:
                self._rewrite(held, (*held.pins, (KV, upper)))

    def forget_node(self, number: NodeId) -> None:
        """Nothing pins a node that has left the tree."""
        for held in self._ledger():
            if any(name == number for _, name in held.pins):
                self._rewrite(held, tuple(pin for pin in held.pins if pin[1] != number))

    def receipts_naming(self, numbers: set[NodeId]) -> set[str]:
        """The callers' receipts that pin one of these nodes."""
        return {r.id for r in self.state.receipts.values() if any(number in numbers for _, number in r.pins)}

    def is_in_use(self, node: Node) -> bool:
        """Whether something pins the node, so that it may not be dropped."""
        return node.locks[KV] > 0

    def pinned_by(self, node: Node) -> set[str]:
        """The operations that keep the node without a lock: none here."""
        return set()

    def _ledger(self) -> list[Receipt | Ticket]:
        return [*self.state.receipts.values(), *self.state.tickets.values()]

    def _rewrite(self, held: Receipt | Ticket, pins: Pins) -> None:
        if isinstance(held, Ticket):
            self.state.tickets[held.id] = replace(held, pins=pins)
        else:
            self.state.receipts[held.id] = replace(held, pins=pins)
