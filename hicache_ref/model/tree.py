"""The radix tree: looking a key up, splitting, attaching, and leaving the tree. No policy."""

from typing import NamedTuple

from hicache_ref.model.components import COMPONENT
from hicache_ref.model.locks import LockRules, Pins
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import (
    DEVICE,
    HOST,
    KV,
    KV_DEVICE,
    KV_HOST,
    ROOT,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    NodeId,
    Pages,
    PoolName,
)
from hicache_ref.vocabulary.keys import Key, PageKeys, pages_of, tokens_of


class Found(NamedTuple):
    """How far a key reaches: the deepest node it touches, pages matched, and whether they end inside that node."""

    node: Node
    length: int
    inside: bool


class TreeRules(LockRules):
    """Nodes and their keys."""

    def pages(self, key: Key) -> PageKeys:
        """The whole pages of a key (HC-TREE-02)."""
        return pages_of(key.tokens, self.profile.sizes.page_size, self.profile.bigram)

    def key_of(self, node: Node) -> Key:
        """The whole key from the root to the node's end."""
        if node.id == ROOT:
            return Key(tokens=())
        pages = tuple(page for number in reversed(self.path(node.id)) for page in self.state.nodes[number].key)
        return Key(tokens=tokens_of(pages, self.profile.bigram), extra=node.extra)

    def look(self, pages: PageKeys, extra: str | None) -> Found:
        """How far the key reaches; changes nothing."""
        nodes = self.state.nodes
        node, at, inside = nodes[ROOT], 0, False
        while at < len(pages) and not inside:
            number = node.children.get((extra, pages[at]))
            if number is None:
                break
            node = nodes[number]
            common = self.common(node.key, pages, at)
            at += common
            inside = common < len(node.key)
        return Found(node, at, inside)

    def node_at(self, key: Key) -> Node | None:
        """The node that ends exactly at `key`, the root excluded."""
        pages = self.pages(key)
        found = self.look(pages, key.extra)
        exact = pages and found.length == len(pages) and not found.inside
        return found.node if exact else None

    def resident_pages(self, pages: PageKeys, extra: str | None) -> Pages:
        """The device pages of the key's resident prefix; changes nothing."""
        found = self.look(pages, extra)
        held = [page for number in reversed(self.path(found.node.id)) for page in self._device_of(number)]
        return tuple(held[: found.length])

    def _device_of(self, number: NodeId) -> Pages:
        return self.state.nodes[number].at.get(KV_DEVICE, ())

    def walk(self, pages: PageKeys, extra: str | None) -> Found:
        """As `look`, but the last node is split so that the match ends at a node (HC-TREE-04)."""
        found = self.look(pages, extra)
        if not found.inside:
            return found
        node = found.node
        above = found.length - self.depth(self.state.nodes[node.parent])
        return Found(self.split(node, above), found.length, False)

    def depth(self, node: Node) -> int:
        """Pages from the root to the node's end."""
        return sum(len(self.state.nodes[number].key) for number in self.path(node.id))

    def touch(self, number: NodeId) -> None:
        """Every node of the path is used now, the deepest last, and of states that of the last (HC-MATCH-03)."""
        for each in reversed(self.path(number)):
            self.pass_by(self.state.nodes[each])
        end = self.state.nodes[number]
        if self.profile.state and (self.rules.host_states == "used" or STATE_DEVICE in end.at):
            end.last[STATE] = end.last[KV]

    def pass_by(self, node: Node) -> None:
        """The node, which is on a path that is used now, is used; by the rule its state is too."""
        self.stamp(node)
        if self.profile.state and self.rules.match_stamps_states == "path":
            node.last[STATE] = node.last[KV]

    def use(self, node: Node, covered: int) -> Node:
        """So many pages of the node are used, as a node of their own; the rest of it by the rule split_stamps alone."""
        if covered == len(node.key) or self.rules.split_stamps == "both":
            self.pass_by(node)
        if covered == len(node.key):
            return node
        upper = self.split(node, covered)
        if self.rules.split_stamps == "none":
            self.pass_by(upper)
        return upper

    def stamp(self, node: Node) -> None:
        """The node is used now; whether its state is too, the caller says."""
        node.last[KV] = self.tick()

    def split(self, lower: Node, at: int) -> Node:
        """A new node above `lower` holds its first `at` pages on every tier, and its locks (HC-TREE-04)."""
        state = self.state
        self._note_split(lower)
        upper = Node(
            id=state.next_node, parent=lower.parent, key=lower.key[:at], extra=lower.extra, hashes=lower.hashes[:at],
            at={}, locks=dict.fromkeys(lower.locks, 0) | {KV: lower.locks[KV]}, last=lower.last.copy(),
            born=self.tick() if self.rules.split_is_born else lower.born,
            hits=lower.hits if self.rules.split_copies_hit_count else 0, uses=lower.uses, priority=lower.priority,
            children={(lower.extra, lower.key[at]): lower.id},
        )  # fmt: skip
        state.next_node += 1
        state.nodes[upper.id] = upper
        state.nodes[upper.parent].children[(upper.extra, upper.key[0])] = upper.id
        lower.parent, lower.key, lower.hashes = upper.id, lower.key[at:], lower.hashes[at:]
        for component in self.profile.components:
            for pool_name in (DEVICE[component], HOST[component]):
                if pool_name in lower.at:
                    above, lower.at[pool_name] = COMPONENT[component].cut(lower.at[pool_name], at)
                    if above:
                        upper.at[pool_name] = above
                        self.own(pool_name, above, upper.id)
        self.lock_follows_split(lower.id, upper.id)
        if self.rules.split_stamps == "both":
            self.stamp(upper)
            self.stamp(lower)
            if self.profile.state and self.rules.split_stamps_state:
                lower.last[STATE] = lower.last[KV]
        self.update_leaf(upper.id)
        self.update_leaf(lower.id)
        return upper

    def _note_split(self, node: Node) -> None:
        """States the facts that make this split worth having been reached."""
        if KV_HOST in node.at and self.is_being_written(KV_HOST, node.at[KV_HOST]):
            self.facts.append("split_under_backup")
        if KV_DEVICE in node.at and self.is_being_written(KV_DEVICE, node.at[KV_DEVICE]):
            self.facts.append("split_under_load_or_forward")
        if node.locks[KV]:
            self.facts.append("split_under_lock")
        if KV_DEVICE not in node.at:
            self.facts.append("split_of_host_only")

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """A new leaf below `above` holds `key`; it has no copy yet."""
        prior = above.hashes[-1] if above.id != ROOT else namespace_seed(extra)
        now = self.tick()
        node = Node(
            id=self.state.next_node, parent=above.id, key=key, extra=extra,
            hashes=chain(key, prior, self.profile.bigram), at={},
            locks=dict.fromkeys(self.profile.components, 0), last=dict.fromkeys(self.profile.components, now),
            born=now, hits=0, uses=0, priority=priority, children={},
        )  # fmt: skip
        self.state.next_node += 1
        self.state.nodes[node.id] = node
        above.children[(extra, key[0])] = node.id
        return node

    def subtree(self, node: Node) -> list[Node]:
        """The node and all below it, parents first."""
        nodes, found = self.state.nodes, [node]
        for each in found:
            found.extend(nodes[child] for child in each.children.values())
        return found

    def remove(self, node: Node) -> None:
        """The childless node has left the tree, and its pages are released on every tier."""
        if node.children:
            raise ModelFault(f"node {node.id} leaves the tree above its children")
        held = list(node.at.items())
        for pool_name, _ in held:
            self.place(node, pool_name, None)
        del self.state.nodes[node.id]
        del self.state.nodes[node.parent].children[(node.extra, node.key[0])]
        self.forget_node(node.id)
        self.update_leaf(node.id)
        self.update_leaf(node.parent)
        for pool_name, pages in held:
            self.release(pool_name, pages)
        self.prune(node.parent)

    def drop_subtree(self, node: Node) -> None:
        """The node and all below it have left the tree."""
        for each in reversed(self.subtree(node)):
            if each.id in self.state.nodes:
                self.remove(each)

    # -- of a hybrid model: nodes that no match can end at ---------------------------------------------------------

    def prune(self, number: NodeId) -> None:
        """A leaf without state has left the tree unless something pins it, and so upward (HC-STATE-07).

        Upstream: _iteratively_delete_tombstone_leaf.
        """
        node = self.state.nodes.get(number)
        if self.profile.state and self.rules.dead_ends == "leave" and node is not None and self._is_dead_end(node):
            self.facts.append("cascade")
            self.remove(node)

    def _is_dead_end(self, node: Node) -> bool:
        if node.id == ROOT or node.children or self.has_state(node):
            return False
        return not self.is_in_use(node)

    def has_state(self, node: Node) -> bool:
        """Whether a match of a hybrid model can end at the node: it has a state on some tier; the root needs none."""
        return STATE_DEVICE in node.at or STATE_HOST in node.at

    def drop_state(self, node: Node, pool_name: PoolName) -> None:
        """The node has no state in this pool; if it has none at all, it leaves the tree as `prune` says."""
        slots = node.at.get(pool_name)
        if slots is not None:
            self.place(node, pool_name, None)
            self.release(pool_name, slots)
            self.note_arrival(node)
            self.prune(node.id)

    def unpin(self, pins: Pins) -> None:
        """Each pin is undone once; whoever takes the last pin of a leaf without state removes it (HC-STATE-07)."""
        super().unpin(pins)
        for _, number in pins:
            self.prune(number)

    def common(self, key: PageKeys, pages: PageKeys, at: int) -> int:
        """How many pages of `key` equal those of `pages` from `at` on; the first is known to."""
        count, limit = 1, min(len(key), len(pages) - at)
        while count < limit and key[count] == pages[at + count]:
            count += 1
        return count
