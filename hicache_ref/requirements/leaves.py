"""LEAF: the kept sets of what may be evicted next are what the definition says."""

from hicache_ref.requirements.registry import Broken, always
from hicache_ref.requirements.rows import Row
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import ROOT, NodeId


def device_leaves(view: View) -> set[NodeId]:
    """Resident unlocked nodes without resident child."""
    leaves = {row.id for row in view.rows if row.device is not None and not row.lock}
    leaves.difference_update([row.parent for row in view.rows if row.device is not None])
    return leaves


def host_leaves(view: View) -> set[NodeId]:
    """Unlocked childless nodes on host only into which no copy is on the books, and which no storage work pins."""
    inner = {row.parent for row in view.rows}
    inner |= view.storage_pins
    written = view.host.written
    if view.states and view.states[1].written:
        inner |= {row.id for row in view.rows if view.states[1].written.intersection(row.host_state or ())}
    return {
        row.id
        for row in view.rows
        if row.device is None and row.host is not None and not row.lock and row.id not in inner
        and not (written and written.intersection(row.host))
    }  # fmt: skip


def arrives_on_host(view: View, row: Row) -> bool:
    """Whether an operation on the books writes a host copy of the row, KV or state."""
    if row.host is not None and view.host.written.intersection(row.host):
        return True
    return row.host_state is not None and not view.states[1].written.isdisjoint(row.host_state)


def is_droppable(view: View, row: Row, below: dict[NodeId, list[Row]]) -> bool:
    """Nothing at or below the row is locked, or pinned by storage work."""
    free = not row.lock and row.id not in view.storage_pins
    return free and all(is_droppable(view, child, below) for child in below.get(row.id, ()))


@always("HC-LEAF-01", "nodes", "leaves")
def device_leaf_set(view: View) -> int:
    """The kept device leaves are the device leaves."""
    leaves = device_leaves(view)
    if leaves != view.device_leaves:
        raise Broken.because(f"device leaves {sorted(view.device_leaves)} are kept, they are {sorted(leaves)}")
    return len(leaves)


@always("HC-LEAF-02", "nodes", "leaves", "books", "storage")
def host_leaf_set(view: View) -> int:
    """The kept host leaves are the host leaves."""
    leaves = host_leaves(view)
    if leaves != view.host_leaves:
        raise Broken.because(f"host leaves {sorted(view.host_leaves)} are kept, they are {sorted(leaves)}")
    return len(leaves)


@always("HC-LEAF-03", "nodes", "leaves")
def leaf_sets_are_apart(view: View) -> int:
    """No node is in both sets, the root and what left the tree in none."""
    both = view.device_leaves & view.host_leaves
    if both:
        raise Broken.because(f"nodes {sorted(both)} are device and host leaves at once")
    kept = view.device_leaves | view.host_leaves
    if ROOT in kept or kept - view.row.keys():
        raise Broken.because(f"leaves {sorted(kept - view.row.keys()) or [ROOT]} are no nodes that can be evicted")
    return len(kept)
