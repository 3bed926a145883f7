"""Load back: host-only nodes get device pages, and a copy to fill them (upstream: load_back, init_load_back)."""

from hicache_ref.model.backup import BackupRules
from hicache_ref.model.state import Node, Part, Request
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, STATE, STATE_DEVICE, STATE_HOST, RequestId
from hicache_ref.vocabulary.operations import LoadBack
from hicache_ref.vocabulary.outcomes import Invalid, Refused, Submitted


class LoadRules(BackupRules):
    """Bringing back what is on host only."""

    def requires_load_back(self, op: LoadBack) -> Invalid | None:
        """A host-only node ends at the key; of a hybrid model one whose state is on host and not on device."""
        if op.rid is not None and not self.profile.state:
            return Invalid(why="the model has no state")
        if op.rid in self.state.requests or op.rid in self.state.passes:
            return Invalid(why=f"request {op.rid} is in use")
        node = self.node_at(op.key)
        if node is None or (node.device is not None and not self._lacks_state(node)):
            return Invalid(why=f"no host-only node ends at {op.key}")
        if self.profile.state and STATE_HOST not in node.at:
            return Invalid(why=f"no state is on host at {op.key}")
        return None

    def _lacks_state(self, node: Node) -> bool:
        return self.profile.state and STATE_DEVICE not in node.at

    def _is_being_loaded(self, node: Node) -> bool:
        """Whether a load that was submitted under write_back brings KV of the node (upstream: load_back_pending_id)."""
        loads = [each for each in self.state.tickets.values() if each.to == "device" and each.policy == "write_back"]
        return any((KV_DEVICE, page) in load.writes for load in loads for page in node.device or ())

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """The host-only chain that ends at the key is resident, and one copy fills it; or nothing is loaded.

        The chain and what is above it are pinned before room is made, and until the end is applied (HC-LOAD-02).
        """
        node = self.node_at(op.key)
        assert node is not None
        if self.rules.load_matches:
            self.touch(node.id)
        chain = self._host_only_chain(node)
        need = sum(len(each.key) for each in chain)
        gained = self.depth(node) - self.depth(self.resident_end(node))
        if gained * self.profile.sizes.page_size < self.profile.sizes.load_back_threshold:
            return Refused(why="below threshold")
        if op.quota is not None and need > op.quota:
            return Refused(why="over quota")
        if self.rules.load_under_load == "refused" and self._is_being_loaded(node):
            return Refused(why="another load has the node")
        # change
        short = need > self.free_count(KV_DEVICE)
        pins = self.pin(node.id, evicted_too=True)
        if chain and self.rules.load_keeps_state_above:
            pins += self.pin(chain[0].parent, evicted_too=False)
        states = 1 + (op.rid is not None) if self.profile.state else 0
        refused = self.device_room(need, states, for_copy=True)
        if refused is None:
            ticket = self.submit("device", node, self._take_for_load(chain, node, op.rid), pinned=True)
        self.unpin(pins)
        # tell
        if refused is not None:
            self.facts.append("load_found_no_room")
            return refused
        if short:
            self.facts.append("evicted_inside_load")
        return Submitted(tickets=(ticket.id,), pages=need)

    def _take_for_load(self, chain: list[Node], node: Node, rid: RequestId | None) -> tuple[Part, ...]:
        """The chain has device pages, the node a state slot, the request too; these are the parts of the copy."""
        for each in chain:
            self.place(each, KV_DEVICE, self.take(KV_DEVICE, len(each.key), ("node", each.id)))
        parts = [self.part(each, KV) for each in chain]
        if self.profile.state:
            self.place(node, STATE_DEVICE, self.take(STATE_DEVICE, 1, ("node", node.id)))
            parts.append(self.part(node, STATE))
            if self.rules.host_states == "arrived":
                node.last[STATE] = self.tick()
            self.facts.append("load_of_kv_and_state" if chain else "load_of_state")
        if rid is not None:
            slot = self.take(STATE_DEVICE, 1, ("request", rid))
            self.state.requests[rid] = Request(id=rid, pages=(), state=slot)
            parts.append(Part(component=STATE, device=slot, host=node.at[STATE_HOST]))
            self.facts.append("load_for_request")
        return tuple(parts)

    def _host_only_chain(self, node: Node) -> list[Node]:
        """The nodes without device copy on the path, nearest the root first."""
        path = [self.state.nodes[number] for number in reversed(self.path(node.id))]
        return [each for each in path if each.device is None]
