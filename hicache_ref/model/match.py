"""Match and lock: what the cache holds of a key (upstream: match_prefix, inc_lock_ref)."""

from hicache_ref.model.state import Node, Receipt
from hicache_ref.model.tree import TreeRules
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, ROOT, STATE_DEVICE, STATE_HOST
from hicache_ref.vocabulary.operations import Lock, MatchPrefix, Unlock
from hicache_ref.vocabulary.outcomes import Done, Invalid, Matched


class MatchRules(TreeRules):
    """Looking up and pinning."""

    def requires_match_prefix(self, op: MatchPrefix) -> Invalid | None:
        """Any key may be asked for."""
        return None

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        """The path of `key` is used now, and split where the match ends."""
        # change
        reach = self.walk(self.pages(op.key), op.key.extra).node
        best = self._use(reach)
        # tell
        end = self.resident_end(best)
        device = [page for number in reversed(self.path(end.id)) for page in self.state.nodes[number].at[KV_DEVICE]]
        return Matched(
            device=tuple(device),
            host_hit=self.depth(best) - len(device),
            last_device_node=self.key_of(end),
            last_host_node=self.key_of(self._last_host_node(best)),
            best=self.key_of(best),
            branching=self._branching(reach, best),
            state_host_hit=self._state_host_hit(self._last_host_node(best)),
        )

    def _use(self, reach: Node) -> Node:
        """The best end at or above the node that the key reaches; its path is used now."""
        best = self.best_end(reach)
        self.touch(best.id)
        if KV_DEVICE not in best.at:
            self.facts.append("match_reaches_host")
        return best

    def best_end(self, node: Node) -> Node:
        """The deepest node at or above where a match can end: of a hybrid model one with a state (HC-STATE-03)."""
        while self.profile.state and not self.has_state(node):
            node = self.state.nodes[node.parent]
        return node

    def resident_end(self, node: Node) -> Node:
        """The deepest resident node at or above, of a hybrid model with its state; at least the root (HC-MATCH-01)."""
        while KV_DEVICE not in node.at or (self.profile.state and STATE_DEVICE not in node.at):
            node = self.state.nodes[node.parent]
        return node

    def _branching(self, reach: Node, best: Node) -> int:
        """How far KV alone reaches on device, in whole chunks, if that is beyond the best end (HC-STATE-04)."""
        while KV_DEVICE not in reach.at and self.rules.branching == "resident":
            reach = self.state.nodes[reach.parent]
        chunk = self.profile.sizes.state_chunk
        length = self.depth(reach) // chunk * chunk if self.profile.state else 0
        return length if length > self.depth(best) else 0

    def _last_host_node(self, best: Node) -> Node:
        """Where a prefetch would anchor: the deepest node with a host copy, or the best node itself."""
        if self.rules.last_host_node == "best":
            return best
        while best.id != ROOT and KV_HOST not in best.at:
            best = self.state.nodes[best.parent]
        return best

    def _state_host_hit(self, end: Node) -> int:
        """How many state slots a load down to this end takes: its own if that is on host only (HC-MATCH-02)."""
        return int(STATE_HOST in end.at and STATE_DEVICE not in end.at)

    def requires_lock(self, op: Lock) -> Invalid | None:
        """The receipt is new, and a node that the caller knows is there."""
        if op.receipt in self.state.receipts:
            return Invalid(why=f"receipt {op.receipt} is in use")
        if op.at == "node" and self.node_at(op.key) is None:
            return Invalid(why=f"no node ends at {op.key}")
        return None

    def on_lock(self, op: Lock) -> Done:
        """The path of the match's device end, of its best end, or of the node is pinned (HC-LOCK-02)."""
        # change
        best = self.node_at(op.key) if op.at == "node" else self._use(self.walk(self.pages(op.key), op.key.extra).node)
        assert best is not None
        end = self.resident_end(best) if op.at == "device" else best
        protected = self.state.protected
        pins = self.pin(self._lockable(end).id, evicted_too=self.rules.lock_evicted == "count")
        self.state.receipts[op.receipt] = Receipt(id=op.receipt, pins=pins)
        # tell
        if KV_DEVICE not in end.at:
            self.facts.append("lock_on_host_only")
        elif self.profile.state and STATE_DEVICE not in end.at:
            self.facts.append("lock_on_tombstone")
        return Done(evictable=protected - self.state.protected)

    def _lockable(self, node: Node) -> Node:
        """The node, or where a lock skips host-only nodes the deepest above that is resident."""
        while self.rules.lock_evicted == "skip" and KV_DEVICE not in node.at:
            node = self.state.nodes[node.parent]
        return node

    def requires_unlock(self, op: Unlock) -> Invalid | None:
        """The receipt was given and not yet used."""
        return None if op.receipt in self.state.receipts else Invalid(why=f"no receipt {op.receipt}")

    def on_unlock(self, op: Unlock) -> Done:
        """What the receipt pinned, and no other holder pins, is evictable again (HC-LOCK-02)."""
        # change
        protected = self.state.protected
        self.unpin(self.state.receipts.pop(op.receipt).pins)
        # tell
        return Done(evictable=protected - self.state.protected)
