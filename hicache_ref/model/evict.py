"""Eviction: victims in the order of the configured policy, on both tiers (upstream: evict, evict_host)."""

import heapq
from collections.abc import Callable, Iterator

from hicache_ref.model.copies import CopyRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import Node, Part, Ticket
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV, KV_DEVICE, KV_HOST, ROOT, STATE, NodeId, Pages, PoolName
from hicache_ref.vocabulary.operations import Evict, EvictHost
from hicache_ref.vocabulary.outcomes import Evicted, Invalid, Refused
from hicache_ref.vocabulary.profile import EvictionPolicy

Rank = tuple[int, ...]

RANK: dict[EvictionPolicy, Callable[[Node, int, int], Rank]] = {
    "lru": lambda node, count, protected: (node.last[KV],),
    "lfu": lambda node, count, protected: (count, node.last[KV]),
    "fifo": lambda node, count, protected: (node.born, node.last[KV]),
    "mru": lambda node, count, protected: (-node.last[KV],),
    "filo": lambda node, count, protected: (-node.born, node.last[KV]),
    "priority": lambda node, count, protected: (node.priority, node.last[KV]),
    "slru": lambda node, count, protected: (int(count >= protected), node.last[KV]),
}
"""Smaller is evicted first (HC-EVICT-02; upstream: evict_policy). `count` is how often the node was used."""


class EvictRules(CopyRules):
    """Making room."""

    def requires_evict(self, op: Evict) -> Invalid | None:
        """A positive number of pages is asked for."""
        return Invalid(why="n must be positive") if op.n <= 0 else None

    def on_evict(self, op: Evict) -> Evicted:
        """At least `n` device pages were given up, or no evictable leaf remains (HC-EVICT-03)."""
        # change, tell
        return self.evict_device(op.n)

    def requires_evict_host(self, op: EvictHost) -> Invalid | None:
        """A positive number of pages is asked for."""
        return Invalid(why="n must be positive") if op.n <= 0 else None

    def on_evict_host(self, op: EvictHost) -> Evicted:
        """At least `n` host pages were given up, or no evictable host leaf remains (HC-EVICT-03)."""
        # change, tell
        return self.evict_host(op.n)

    def evict_device(self, count: int) -> Evicted:
        """As `on_evict`."""
        tally = self.tally(KV_DEVICE)
        for node in self._victims(KV_DEVICE, self.state.device_leaves):
            self.evict_device_leaf(node)
            if tally.given() >= count:
                break
        self.protect_no_more()
        return tally.end()

    def evict_device_leaf(self, node: Node) -> None:
        """The leaf has no device copy, unless it must stay: demoted, backed up first, or gone with its host copy.

        Of a hybrid model no leaf of the tree is demoted without its state: no match could end there (HC-STATE-08).
        """
        if node.host is not None and (not self.lacking(node) or self.rules.dead_ends == "stay"):
            self.facts.append("state_lost_by_demotion" if node.children and self.lacking(node) else "demoted")
            self.leave_device(node)
        elif self.state.policy == "write_back" and self._write_back(node):
            if self.rules.write_back_protects:
                self.just_backed.append(node.id)
                self.update_leaf(node.id)
        elif node.id not in self.state.nodes:
            self.facts.append("left_under_write_back")
        elif node.host is not None and node.children:
            self.facts.append("state_lost_by_demotion")
            self.leave_device(node)
        else:
            self.protect_no_more()
            self._drop(node)

    def is_host_leaf(self, node: Node) -> bool:
        """Also not backed up by the eviction under way, where that protects (upstream: flush_staged)."""
        return super().is_host_leaf(node) and node.id not in self.just_backed

    def protect_no_more(self) -> None:
        """What the eviction under way has backed up may be evicted from host."""
        backed, self.just_backed = self.just_backed, []
        for number in backed:
            self.update_leaf(number)

    def take_on_host(self, node: Node) -> tuple[Part, ...]:
        """The node has room on host for what it lacks there, all of it or none; returns the parts of a copy of it.

        It is pinned while room is made, or a cascade from below could take it (HC-STATE-10).
        """
        missing = self.lacking(node)
        if missing and KV not in missing:
            self.facts.append("state_follows_its_kv")
        pins = self.pin(node.id, evicted_too=True)
        fits = self.host_room(len(node.key) if KV in missing else 0, int(STATE in missing))
        self.unpin(pins)
        if not fits or node.id not in self.state.nodes:
            return ()
        for each in missing:
            self.place(node, HOST[each], self.take(HOST[each], len(node.at[DEVICE[each]]), ("node", node.id)))
        return tuple(self.part(node, each) for each in missing)

    def _write_back(self, node: Node) -> bool:
        """The node is on host only, its copy submitted or, under the blocking rule, ended; False if that cannot be."""
        if not self._is_copied_by_eviction(node):
            return False
        if self.rules.write_back_copy == "staged":
            self.facts.append("staged")
        self.leave_device(node)
        return True

    def copy_before_state_goes(self, node: Node) -> None:
        """By the rule write_back_states = copied what a node that stays has on device is copied (HC-STATE-26)."""
        wanted = self.rules.write_back_states == "copied" and self.state.policy == "write_back" and node.host is None
        if wanted and self._is_copied_by_eviction(node):
            self.facts.append("state_copied_before_it_goes")

    def _is_copied_by_eviction(self, node: Node) -> bool:
        """What the node lacks on host is copied, by the rule `write_back_copy`; False without room, or if it failed."""
        parts = self.take_on_host(node)
        if not parts:
            self.facts.append("eviction_found_no_room")
            return False
        ticket = self.submit("host", node, parts, pinned=False)
        return self.rules.write_back_copy == "staged" or self._end_inside_step(ticket)

    def _end_inside_step(self, ticket: Ticket) -> bool:
        """The copy has ended and that was applied; whether it ended well."""
        done = not ticket.doomed and self.choose.copy_result(ticket.id)
        if done:
            self.rely_on(ticket.reads)
        self.land(ticket, len(ticket.parts) if done else 0)
        self.evicting = True
        self.apply_end(self.state.tickets[ticket.id])
        self.evicting = False
        return done

    def _drop(self, node: Node) -> bool:
        """The node has left the tree with all below it; False if something there is pinned (HC-EVICT-05)."""
        below = self.subtree(node)
        if any(self.is_in_use(each) for each in below):
            return False
        if len(below) > 1:
            self.facts.append("dropped_with_host_only_below")
        self.drop_subtree(node)
        return True

    def evict_host(self, count: int) -> Evicted:
        """As `on_evict_host`."""
        tally = self.tally(KV_HOST)
        for node in self._victims(KV_HOST, self.state.host_leaves):
            self.remove(node)
            if tally.given() >= count:
                break
        return tally.end()

    def _victims(self, pool_name: PoolName, leaves: set[NodeId]) -> Iterator[Node]:
        """Victims in the order of the policy, from the *kept* leaf set: a stale one has to show (HC-EVICT-01).

        Evicting a node can make a leaf of the nearest node above that is left; of a hybrid model also of another, for
        what goes from host to make room may take a tombstone along. A node that stays is not tried again.
        """
        nodes, heap = self.state.nodes, [(self._rank(number), number) for number in leaves]
        heapq.heapify(heap)
        while heap:
            least = heap[0][0]
            tied = [heapq.heappop(heap)[1]]
            while heap and heap[0][0] == least:
                tied.append(heapq.heappop(heap)[1])
            tied = [number for number in tied if number in leaves]
            if not tied:
                continue
            pick = self.choose.victim(pool_name, [self.key_of(nodes[n]) for n in tied]) if len(tied) > 1 else 0
            node = nodes[tied.pop(pick)]
            for number in tied:
                heapq.heappush(heap, (least, number))
            self.victims.append((pool_name, node.hashes[-1]))
            path = self.path(node.parent)
            before = frozenset(leaves) if self.profile.state else None
            yield node
            new = {next((number for number in path if number in nodes), ROOT)} & leaves
            if before is not None:
                new |= leaves - before
            for number in new:
                heapq.heappush(heap, (self._rank(number), number))

    def _rank(self, number: NodeId) -> Rank:
        node = self.state.nodes.get(number)
        if node is None:
            raise ModelFault(f"leaf {number} is not in the tree")
        return RANK[self.rules.eviction](node, self.use_count(node), self.rules.slru_protected_threshold)

    def use_count(self, node: Node) -> int:
        """How often the node was used, as lfu and slru count it (HC-EVICT-10)."""
        return node.uses if self.rules.eviction_counts == "uses" else node.hits

    def tally(self, pool_name: PoolName) -> "Tally":
        """What is given up in this pool is counted from now on."""
        return Tally(self, pool_name)

    def asked(self, short: int, need: int) -> int:
        """How many pages are to be evicted for a copy that needs `need` and lacks `short`."""
        return need if self.rules.eviction_asks == "need" else short

    def device_room(self, count: int, states: int = 0, *, for_copy: bool = False) -> Refused | None:
        """`count` device pages and so many state slots are free: at once, or after evicting once (HC-EVICT-06).

        By the reference rule nothing is evicted for what cannot succeed. What was given up and is still touched has
        to be waited for.
        """
        short = count - self.free_count(KV_DEVICE)
        if short <= 0:
            return None
        if short > self.state.evictable:
            enough = short <= self.state.evictable + len(self.left_to_operations(KV_DEVICE))
            if for_copy and self.rules.evict_device_for_hopeless:
                self.evict_device(self.asked(short, count))
            holders = self.touching(KV_DEVICE, self.left_to_operations(KV_DEVICE)) if enough else ()
            return Refused(why="device full", wait_for=tuple(sorted(holders)))
        self.evict_device(self.asked(short, count) if for_copy else short)
        if count <= self.free_count(KV_DEVICE):
            return None
        self.facts.append("room_has_to_be_waited_for")
        waiting = self.touching(KV_DEVICE, self.left_to_operations(KV_DEVICE)) | self._keepers_of_leaves()
        return Refused(why="device full", wait_for=tuple(sorted(waiting)))

    def _keepers_of_leaves(self) -> set[str]:
        """The operations without which more device leaves could have been dropped."""
        leaves = [self.state.nodes[number] for number in self.state.device_leaves]
        return {name for leaf in leaves for node in self.subtree(leaf) for name in self.pinned_by(node)}

    def left_to_operations(self, pool_name: PoolName) -> Pages:
        """The pages that were given up, and that operations still touch."""
        if not self.state.tickets and not self.state.passes:
            return ()
        return tuple(page for page, held in enumerate(self.state.pools[pool_name].owner) if held[0] == "op")

    def host_room(self, count: int, states: int = 0) -> bool:
        """Whether `count` host pages and so many state slots are free, after evicting once if need be (HC-EVICT-06).

        By the reference rule nothing is evicted for what cannot succeed.
        """
        short = count - self.free_count(KV_HOST)
        if short > 0 and (self.rules.evict_host_for_hopeless or self._host_can_free(short)):
            self.evict_host(self.asked(short, count))
        # What a cascade gave up may still be written, and is not free.
        while self.profile.state and (short := count - self.free_count(KV_HOST)) > 0 and self._host_can_free(short):
            self.evict_host(short)
        return count <= self.free_count(KV_HOST)

    def _host_can_free(self, count: int) -> bool:
        """Whether evicting host leaves, and what becomes a leaf by that, would free `count` pages."""
        nodes = self.state.nodes
        total = 0
        left: dict[NodeId, int] = {}
        queue = list(self.state.host_leaves)
        while queue and total < count:
            node = nodes[queue.pop()]
            total += len(node.host or ()) if not self.is_arriving_on_host(node) else 0
            above = nodes[node.parent]
            left[above.id] = left.get(above.id, len(above.children)) - 1
            if not left[above.id] and above.id != ROOT and self._goes_without_children(above):
                queue.append(above.id)
        return total >= count

    def _goes_without_children(self, node: Node) -> bool:
        """Whether the node could be evicted from host, or would leave the tree at once, if it had no children."""
        if self.is_in_use(node):
            return False
        if self.profile.state and not self.has_state(node) and self.rules.dead_ends == "leave":
            return True
        goes = node.device is None and node.id not in self.just_backed
        return goes and self.is_settled_on_host(node) and not self.is_arriving_on_host(node)


class Tally:
    """Pages of one pool that holders have given up since it was made; what became free, and who holds the rest."""

    def __init__(self, rules: EvictRules, pool_name: PoolName) -> None:
        self.rules = rules
        self.pool_name = pool_name
        self.seen = len(rules.given_up)
        self.pages: list[int] = []
        self.free_before = rules.free_count(pool_name)

    def given(self) -> int:
        """So many pages were given up."""
        new = self.rules.given_up[self.seen :]
        self.seen += len(new)
        self.pages += [page for name, page in new if name == self.pool_name]
        return len(self.pages)

    def end(self) -> Evicted:
        """What the caller is told."""
        owner = self.rules.state.pools[self.pool_name].owner
        given, freed = self.given(), self.rules.free_count(self.pool_name) - self.free_before
        left = [page for page in self.pages if owner[page][0] == "op"]
        holders = self.rules.touching(self.pool_name, left)
        return Evicted(freed=freed, staged=given - freed, wait_for=tuple(sorted(holders)))
