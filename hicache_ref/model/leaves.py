"""Residency: placing a node's copy, the sizes and the two leaf sets, kept step by step.

An implementation must keep them so; the requirements recompute them by definition.
"""

from pydantic import TypeAdapter

from hicache_ref.model.pages import PageRules
from hicache_ref.model.state import Node, running
from hicache_ref.vocabulary.events import BlockRemoved, BlockStored
from hicache_ref.vocabulary.hashing import block_hash, block_hashes, chain
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    KV_POOLS,
    ROOT,
    STATE_HOST,
    Medium,
    NodeId,
    PageHash,
    Pages,
    PoolName,
)

_STORED = TypeAdapter(list[BlockStored])


class LeafRules(PageRules):
    """Where nodes have copies, and which of them may be evicted next."""

    def is_device_leaf(self, node: Node) -> bool:
        """Resident, unlocked, and no child is resident (HC-LEAF-01)."""
        if node.id == ROOT or KV_DEVICE not in node.at or node.locks[KV]:
            return False
        nodes = self.state.nodes
        return not any(KV_DEVICE in nodes[child].at for child in node.children.values())

    def is_host_leaf(self, node: Node) -> bool:
        """On host only, unlocked, childless, and no copy into it is on the books (HC-LEAF-02)."""
        if node.id == ROOT or node.children or KV_DEVICE in node.at or KV_HOST not in node.at or node.locks[KV]:
            return False
        return not self.is_arriving_on_host(node)

    def is_arriving_on_host(self, node: Node) -> bool:
        """Whether an operation on the books writes a host copy of the node, KV or state."""
        copies = (KV_HOST, STATE_HOST) if self.profile.state else (KV_HOST,)
        return any(self.is_being_written(name, node.at[name]) for name in copies if name in node.at)

    def is_being_written(self, pool_name: PoolName, pages: Pages) -> bool:
        """Whether an operation on the books writes `pages`, ended or not."""
        if not self.state.tickets and not self.state.passes:
            return False
        ref = (pool_name, pages[0])
        return any(ref in op.writes for op in running(self.state))

    def update_leaf(self, number: NodeId) -> None:
        """Both leaf sets tell the truth about this node again, also if it has left the tree."""
        state = self.state
        node = state.nodes.get(number)
        for leaves, is_leaf in ((state.device_leaves, self.is_device_leaf), (state.host_leaves, self.is_host_leaf)):
            if node is not None and is_leaf(node):
                leaves.add(number)
            else:
                leaves.discard(number)

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """The node's copy in this pool is `pages`, or none: owners, sizes, leaf sets and events follow.

        Pages that it had there are not released.
        """
        had = node.at.pop(pool_name, None)
        if had is not None and pool_name in KV_POOLS:
            self._publish_removed(node, pool_name, had)
        if pages is not None:
            node.at[pool_name] = pages
            self.own(pool_name, pages, node.id)
        if pool_name == KV_DEVICE:
            self._count(node, (len(pages) if pages else 0) - (len(had) if had else 0))
            if pages is not None:
                self.publish_stored(node, "GPU", node.hashes)
        self.update_leaf(node.id)
        self.update_leaf(node.parent)

    def _count(self, node: Node, pages: int) -> None:
        if node.locks[KV]:
            self.state.protected += pages
        else:
            self.state.evictable += pages

    def _publish_removed(self, node: Node, pool_name: PoolName, had: Pages) -> None:
        """Removed from GPU at once; from host only if the copy there had been published, so had been applied."""
        if pool_name == KV_HOST and self.is_being_written(KV_HOST, had):
            return
        medium: Medium = "GPU" if pool_name == KV_DEVICE else "CPU_PINNED"
        for digest in self._event_hashes(node):
            self.events.append(BlockRemoved(block_hash=block_hash(digest), medium=medium))

    def publish_stored(self, node: Node, medium: Medium, only: tuple[PageHash, ...]) -> None:
        """One event for each page of the node that is in `only`, with the page before it as parent (HC-EVENT-02)."""
        numbers = block_hashes(self._event_hashes(node))
        above = self.state.nodes[node.parent]
        first = block_hash(self._event_hashes(above)[-1]) if above.id != ROOT else None
        wanted = frozenset(only)
        told = [
            {"block_hash": number, "parent_block_hash": parent, "token_ids": page, "medium": medium}
            for page, number, parent, digest in zip(node.key, numbers, (first, *numbers[:-1]), node.hashes, strict=True)
            if digest in wanted
        ]
        # A prompt has thousands of pages: made in one call, their events take half as long.
        self.events += _STORED.validate_python(told)

    def _event_hashes(self, node: Node) -> tuple[PageHash, ...]:
        """The hashes that events carry: the node's own, or those of the same tokens in no namespace."""
        if node.extra is None or self.rules.event_namespace:
            return node.hashes
        above = [node]
        while above[-1].parent != ROOT:
            above.append(self.state.nodes[above[-1].parent])
        pages = tuple(page for each in reversed(above) for page in each.key)
        return chain(pages, None, self.profile.bigram)[-len(node.key) :]
