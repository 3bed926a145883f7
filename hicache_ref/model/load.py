"""Load back: host-only nodes get device pages, and a copy to fill them (upstream: load_back, init_load_back)."""

from hicache_ref.model.backup import BackupRules
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.operations import LoadBack
from hicache_ref.vocabulary.outcomes import Invalid, Refused, Submitted


class LoadRules(BackupRules):
    """Bringing back what is on host only."""

    def requires_load_back(self, op: LoadBack) -> Invalid | None:
        """A host-only node ends at the key."""
        node = self.node_at(op.key)
        if node is None or node.device is not None:
            return Invalid(why=f"no host-only node ends at {op.key}")
        return None

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """The host-only chain that ends at the key is resident, and one copy fills it; or nothing is loaded.

        The chain and what is above it are pinned before room is made, and until the end is applied (HC-LOAD-02).
        """
        node = self.node_at(op.key)
        assert node is not None
        chain = self._host_only_chain(node)
        need = sum(len(each.key) for each in chain)
        if need * self.profile.sizes.page_size < self.profile.sizes.load_back_threshold:
            return Refused(why="below threshold")
        if op.quota is not None and need > op.quota:
            return Refused(why="over quota")
        # change
        short = need > self.free_count(KV_DEVICE)
        pins = self.pin(node.id, evicted_too=True)
        refused = self.device_room(need, for_copy=True)
        if refused is None:
            for each in chain:
                self.place(each, KV_DEVICE, self.take(KV_DEVICE, len(each.key), ("node", each.id)))
            ticket = self.submit("device", chain, pinned=True)
        self.unpin(pins)
        # tell
        if refused is not None:
            self.facts.append("load_found_no_room")
            return refused
        if short:
            self.facts.append("evicted_inside_load")
        return Submitted(tickets=(ticket.id,), pages=need)

    def _host_only_chain(self, node: Node) -> list[Node]:
        """The nodes without device copy on the path, nearest the root first."""
        path = [self.state.nodes[number] for number in reversed(self.path(node.id))]
        return [each for each in path if each.device is None]
