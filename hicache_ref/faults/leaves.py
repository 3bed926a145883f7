"""Faults of the leaf sets and of the sums that are kept beside them."""

from hicache_ref.faults.catalogue import OWN, STAGED, plant
from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, ROOT, Component, NodeId


@plant("leaf-means-childless", "K5", "SG-25068", expected="HC-LEAF-01")
class LeafMeansChildless(Model):
    """A resident node with children on host only is not taken for a device leaf.

    SGLang's unified tree had a wrong leaf test inside its cascade; the report gives no more than that.
    """

    def is_device_leaf(self, node: Node) -> bool:
        """As it should be, and without any child."""
        return super().is_device_leaf(node) and not node.children


@plant("stale-leaf", "K5", "SG-22592", expected="HC-LEAF-03")
class StaleLeaf(Model):
    """A node that left the tree stays in the leaf sets, and the next eviction meets it.

    SGLang's hybrid cache: a cascade unlinks a node that its sweep still has on the list.
    """

    def remove(self, node: Node) -> None:
        """The sets are not asked to forget it."""
        device_leaf, host_leaf = node.id in self.state.device_leaves, node.id in self.state.host_leaves
        super().remove(node)
        if device_leaf:
            self.state.device_leaves.add(node.id)
        if host_leaf:
            self.state.host_leaves.add(node.id)


@plant("inner-node-stays-leaf", "K5", "TR-3735", expected="HC-LEAF-01")
class InnerNodeStaysLeaf(Model):
    """A device leaf that gets a resident child stays a device leaf, and is offered as a victim above it.

    TensorRT-LLM does not refresh the state of the parent in time when a block is claimed.
    """

    def update_leaf(self, number: NodeId) -> None:
        """A leaf stays one while it is resident."""
        node = self.state.nodes.get(number)
        if number not in self.state.device_leaves or node is None or node.device is None or node.locks[KV]:
            super().update_leaf(number)


@plant("host-leaf-under-copy", "K6", "SG-28468", expected=("HC-LEAF-02", "HC-EVICT-01"), rules=STAGED)
class HostLeafUnderCopy(Model):
    """A host page that a copy is about to fill may be evicted: a later victim of the same sweep takes it.

    SGLang's unified tree, write_back with the copies of one sweep left in flight. After a step the kept set is wrong
    (HC-LEAF-02), unless the sweep of that very step has taken the page (HC-EVICT-01).
    """

    def is_host_leaf(self, node: Node) -> bool:
        """Copies do not count."""
        if node.id == ROOT or node.children or node.locks[KV]:
            return False
        return KV_DEVICE not in node.at and KV_HOST in node.at


@plant("locked-leaf", "K5", OWN, expected=("HC-LEAF-01", "HC-EVICT-04"))
class LockedLeaf(Model):
    """A locked node counts as a device leaf and may be evicted under its holder."""

    def is_device_leaf(self, node: Node) -> bool:
        """Locks do not count."""
        nodes = self.state.nodes
        resident = node.id != ROOT and KV_DEVICE in node.at
        return resident and not any(KV_DEVICE in nodes[child].at for child in node.children.values())


@plant("unlock-forgets-leaf", "K5", OWN, expected="HC-LEAF-01")
class UnlockForgetsLeaf(Model):
    """A node whose last lock is released does not become a leaf again, so that it is never evicted."""

    def _change_lock(self, node: Node, component: Component, by: int) -> None:
        """The node is taken out of the set, and not put in again."""
        super()._change_lock(node, component, by)
        if by < 0:
            self.state.device_leaves.discard(node.id)


@plant("dropped-pages-stay-evictable", "K10", "SG-35270", expected="HC-PAGE-09")
class DroppedPagesStayEvictable(Model):
    """Pages that left the device still count as evictable, so that the sums exceed the pool.

    SGLang's radix cache at idle: available and evictable pages were more than the pool has; no cause is known.
    """

    def _count(self, node: Node, pages: int) -> None:
        """The sum only grows."""
        super()._count(node, max(pages, 0))
