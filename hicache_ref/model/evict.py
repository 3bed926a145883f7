"""Eviction: victims in the order of the configured policy, on both tiers (upstream: evict, evict_host)."""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hicache_ref.model.copies import CopyRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, ROOT, NodeId, Pages, PoolName
from hicache_ref.vocabulary.operations import Evict, EvictHost
from hicache_ref.vocabulary.outcomes import Evicted, Invalid, Refused
from hicache_ref.vocabulary.profile import EvictionPolicy

Rank = tuple[int, ...]

RANK: dict[EvictionPolicy, Callable[[Node, int], Rank]] = {
    "lru": lambda node, protected: (node.last[KV],),
    "lfu": lambda node, protected: (node.hits, node.last[KV]),
    "fifo": lambda node, protected: (node.born, node.last[KV]),
    "mru": lambda node, protected: (-node.last[KV],),
    "filo": lambda node, protected: (-node.born, node.last[KV]),
    "priority": lambda node, protected: (node.priority, node.last[KV]),
    "slru": lambda node, protected: (int(node.hits >= protected), node.last[KV]),
}
"""Smaller is evicted first (HC-EVICT-02; upstream: evict_policy)."""


class Tally(NamedTuple):
    """Pages given up by evicted nodes; those that became free; operations that hold the rest."""

    given: int
    freed: int
    wait_for: tuple[str, ...]


class EvictRules(CopyRules):
    """Making room."""

    def requires_evict(self, op: Evict) -> Invalid | None:
        """A positive number of pages is asked for."""
        return Invalid(why="n must be positive") if op.n <= 0 else None

    def on_evict(self, op: Evict) -> Evicted:
        """At least `n` device pages were given up, or no evictable leaf remains (HC-EVICT-03)."""
        # change
        tally = self.evict_device(op.n)
        # tell
        return Evicted(freed=tally.freed, staged=tally.given - tally.freed, wait_for=tally.wait_for)

    def requires_evict_host(self, op: EvictHost) -> Invalid | None:
        """A positive number of pages is asked for."""
        return Invalid(why="n must be positive") if op.n <= 0 else None

    def on_evict_host(self, op: EvictHost) -> Evicted:
        """At least `n` host pages were given up, or no evictable host leaf remains (HC-EVICT-03)."""
        # change
        tally = self.evict_host(op.n)
        # tell
        return Evicted(freed=tally.freed, staged=tally.given - tally.freed, wait_for=tally.wait_for)

    def evict_device(self, count: int) -> Tally:
        """As `on_evict`."""
        given: list[int] = []
        free_before = self.free_count(KV_DEVICE)
        for node in self._victims(KV_DEVICE, self.state.device_leaves):
            given.extend(self._evict_device_leaf(node))
            if len(given) >= count:
                break
        self._protect_no_more()
        return self._tally(KV_DEVICE, given, free_before)

    def _evict_device_leaf(self, node: Node) -> Pages:
        """The leaf has no device copy; returns the pages it gave up, none if it must stay."""
        pages = node.at[KV_DEVICE]
        if node.host is not None:
            self.facts.append("demoted")
            self._give_up_device(node)
        elif self.state.policy == "write_back" and self._write_back(node):
            if self.rules.write_back_protects:
                self.just_backed.append(node.id)
                self.update_leaf(node.id)
        else:
            self._protect_no_more()
            if not self._drop(node):
                return ()
        return pages

    def is_host_leaf(self, node: Node) -> bool:
        """Also not backed up by the eviction under way, where that protects (upstream: flush_staged)."""
        return super().is_host_leaf(node) and node.id not in self.just_backed

    def _protect_no_more(self) -> None:
        """What the eviction under way has backed up may be evicted from host."""
        backed, self.just_backed = self.just_backed, []
        for number in backed:
            self.update_leaf(number)

    def _give_up_device(self, node: Node) -> None:
        pages = node.at[KV_DEVICE]
        self.place(node, KV_DEVICE, None)
        self.release(KV_DEVICE, pages)

    def _write_back(self, node: Node) -> bool:
        """The node is on host only, its copy submitted or, under the blocking rule, ended; False if that cannot be."""
        if not self.host_room(len(node.key)):
            return False
        self.place(node, KV_HOST, self.take(KV_HOST, len(node.key), ("node", node.id)))
        ticket = self.submit("host", [node], pinned=False)
        if self.rules.write_back_copy == "staged":
            self.facts.append("staged")
            self._give_up_device(node)
            return True
        done = not ticket.doomed and self.choose.copy_result(ticket.id)
        if done:
            self.rely_on(ticket.reads)
        self.land(ticket, len(ticket.parts) if done else 0)
        self.evicting = True
        self.apply_end(self.state.tickets[ticket.id])
        self.evicting = False
        if done:
            self._give_up_device(node)
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

    def evict_host(self, count: int) -> Tally:
        """As `on_evict_host`."""
        given: list[int] = []
        free_before = self.free_count(KV_HOST)
        for node in self._victims(KV_HOST, self.state.host_leaves):
            given.extend(node.at[KV_HOST])
            self.remove(node)
            if len(given) >= count:
                break
        return self._tally(KV_HOST, given, free_before)

    def _victims(self, pool_name: PoolName, leaves: set[NodeId]) -> Iterator[Node]:
        """Victims in the order of the policy, from the *kept* leaf set: a stale one has to show (HC-EVICT-01).

        Evicting a node can make a leaf of its parent and of no other node. A node that stays is not tried again.
        """
        nodes, heap = self.state.nodes, [(self._rank(number), number) for number in leaves]
        heapq.heapify(heap)
        while heap:
            least = heap[0][0]
            tied = [heapq.heappop(heap)[1]]
            while heap and heap[0][0] == least:
                tied.append(heapq.heappop(heap)[1])
            pick = self.choose.victim(pool_name, [self.key_of(nodes[n]) for n in tied]) if len(tied) > 1 else 0
            node = nodes[tied.pop(pick)]
            for number in tied:
                heapq.heappush(heap, (least, number))
            self.victims.append((pool_name, node.hashes[-1]))
            above = node.parent
            yield node
            if above in leaves:
                heapq.heappush(heap, (self._rank(above), above))

    def _rank(self, number: NodeId) -> Rank:
        node = self.state.nodes.get(number)
        if node is None:
            raise ModelFault(f"leaf {number} is not in the tree")
        return RANK[self.rules.eviction](node, self.rules.slru_protected_threshold)

    def _tally(self, pool_name: PoolName, given: list[int], free_before: int) -> Tally:
        owner = self.state.pools[pool_name].owner
        holders = sorted({str(owner[page][1]) for page in given if owner[page][0] == "op"})
        return Tally(len(given), self.free_count(pool_name) - free_before, tuple(holders))

    def asked(self, short: int, need: int) -> int:
        """How many pages are to be evicted for a copy that needs `need` and lacks `short`."""
        return need if self.rules.eviction_asks == "need" else short

    def device_room(self, count: int, *, for_copy: bool = False) -> Refused | None:
        """`count` device pages are free: at once, or after evicting once (HC-EVICT-06).

        By the reference rule nothing is evicted for what cannot succeed. What was given up and is still touched has
        to be waited for.
        """
        short = count - self.free_count(KV_DEVICE)
        if short <= 0:
            return None
        if short > self.state.evictable:
            enough = short <= self.state.evictable + len(self._holders_of_given_up(KV_DEVICE))
            if for_copy and self.rules.evict_device_for_hopeless:
                self.evict_device(self.asked(short, count))
            holders = self._holders_of_given_up(KV_DEVICE)
            return Refused(why="device full", wait_for=tuple(sorted(set(holders.values()))) if enough else ())
        self.evict_device(self.asked(short, count) if for_copy else short)
        if count <= self.free_count(KV_DEVICE):
            return None
        self.facts.append("room_has_to_be_waited_for")
        waiting = {*self._holders_of_given_up(KV_DEVICE).values(), *self._keepers_of_leaves()}
        return Refused(why="device full", wait_for=tuple(sorted(waiting)))

    def _keepers_of_leaves(self) -> set[str]:
        """The operations without which more device leaves could have been dropped."""
        leaves = [self.state.nodes[number] for number in self.state.device_leaves]
        return {name for leaf in leaves for node in self.subtree(leaf) for name in self.pinned_by(node)}

    def _holders_of_given_up(self, pool_name: PoolName) -> dict[int, str]:
        """Pages that only an operation still holds, and which."""
        if not self.state.tickets and not self.state.passes:
            return {}
        owner = self.state.pools[pool_name].owner
        return {page: str(held[1]) for page, held in enumerate(owner) if held[0] == "op"}

    def host_room(self, count: int) -> bool:
        """Whether `count` host pages are free, after evicting once if need be (HC-EVICT-06).

        By the reference rule nothing is evicted for what cannot succeed.
        """
        short = count - self.free_count(KV_HOST)
        if short > 0 and (self.rules.evict_host_for_hopeless or self._host_can_free(short)):
            self.evict_host(self.asked(short, count))
        return count <= self.free_count(KV_HOST)

    def _host_can_free(self, count: int) -> bool:
        """Whether evicting host leaves, and what becomes a leaf by that, would free `count` pages."""
        nodes = self.state.nodes
        total = 0
        left: dict[NodeId, int] = {}
        queue = list(self.state.host_leaves)
        while queue and total < count:
            node = nodes[queue.pop()]
            total += len(node.key)
            above = nodes[node.parent]
            left[above.id] = left.get(above.id, len(above.children)) - 1
            if not left[above.id] and self._is_free_host_only(above):
                queue.append(above.id)
        return total >= count

    def _is_free_host_only(self, node: Node) -> bool:
        if node.id == ROOT or node.device is not None or node.locks[KV]:
            return False
        return self.is_settled_on_host(node)
