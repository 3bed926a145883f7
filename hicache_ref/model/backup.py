"""Backup: copies to host are submitted, chain root first (upstream: write_backup, _inc_hit_count)."""

from hicache_ref.model.evict import EvictRules
from hicache_ref.model.state import Node, Ticket
from hicache_ref.vocabulary.ids import KV, STATE, NodeId
from hicache_ref.vocabulary.operations import WriteBackup
from hicache_ref.vocabulary.outcomes import Invalid, Refused, Submitted


class BackupRules(EvictRules):
    """When and in which order nodes are copied to host."""

    def requires_write_backup(self, op: WriteBackup) -> Invalid | None:
        """A resident node without host copy ends at the key, and the policy is a write-through one."""
        if self.state.policy == "write_back":
            return Invalid(why="write_back backs up at eviction")
        node = self.node_at(op.key)
        if node is None or not self.lacking(node):
            return Invalid(why=f"no resident node without host copy ends at {op.key}")
        if self.rules.late_states == "insert" and self.is_arriving_on_host(node):
            return Invalid(why=f"a copy of {op.key} runs already")
        return None

    def on_write_backup(self, op: WriteBackup) -> Submitted | Refused:
        """Copies of the node and of what above it has no host copy are submitted, root first (HC-BACKUP-02)."""
        # change
        node = self.node_at(op.key)
        assert node is not None
        tickets = self.backup(node)
        # tell
        if not tickets:
            return Refused(why="host full")
        pages = sum(len(part.host) for ticket in tickets for part in ticket.parts if part.component == KV)
        return Submitted(tickets=tuple(ticket.id for ticket in tickets), pages=pages)

    def backup(self, node: Node) -> list[Ticket]:
        """As `on_write_backup`; stops at the first node for which there is no room on host.

        What is copied is pinned before room is made (HC-STATE-10).
        """
        tickets = []
        pins = self.pin(node.id, evicted_too=True)
        for number in self._scope(node):
            each = self.state.nodes[number]
            parts = self.take_on_host(each)
            if not parts:
                self.facts.append("backup_found_no_room")
                break
            if parts[0].component == STATE:
                self.facts.append("late_state")
            tickets.append(self.submit("host", each, parts, pinned=True))
        self.unpin(pins)
        if len(tickets) > 1:
            self.facts.append("backup_of_chain")
        return tickets

    def _scope(self, node: Node) -> list[NodeId]:
        """What one backup copies, by the rule `backup_scope`."""
        nodes = self.state.nodes
        if self.rules.backup_scope == "chain":
            return [
                number for number in reversed(self.path(node.id)) if number == node.id or self.is_due(nodes[number])
            ]
        if self.rules.backup_scope == "node_if_parent" and nodes[node.parent].host is None:
            return []
        return [node.id]

    def is_due(self, node: Node) -> bool:
        """Whether a hit on it or below takes the node to host; by the rule a late state waits for its insert."""
        lacking = self.lacking(node)
        return KV in lacking if self.rules.late_states == "insert" else bool(lacking)

    def count_hit(self, node: Node) -> bool:
        """The node was used once more; true if what it lacks on host is due to be backed up (HC-BACKUP-05)."""
        node.uses += 1
        if self.state.policy == "write_back":
            return False
        node.hits += 1
        wanted = self.rules.hits_before_backup(self.state.policy)
        return node.device is not None and node.hits >= wanted
