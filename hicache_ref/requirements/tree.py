"""TREE: links, keys, copies and closure of the radix tree, and what a split leaves alone."""

from hicache_ref.model.state import Receipt, Ticket
from hicache_ref.requirements.busy import kv_pins
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE, Row
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import ROOT, NodeId
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome


@always("HC-TREE-01", "nodes")
def links(view: View) -> int:
    """From the root every node is reached once, and parent and child name each other."""
    rows, seen, queue = view.row, 0, [view.root]
    for above in queue:
        for filed, number in above.children:
            row = rows.get(number)
            if row is None:
                raise Broken.because(f"node {above.id} has a child {number} that is not in the tree")
            if row.parent != above.id or not row.key or filed != (row.extra, row.key[0]):
                raise Broken.because(f"node {number} is filed under node {above.id}, but not as its child")
            seen += 1
            if seen > len(view.rows):
                raise Broken.because("the tree has a cycle")
            queue.append(row)
    if seen != len(view.rows) or view.root is NOWHERE:
        raise Broken.because(f"{seen} nodes can be reached from the root, the tree has {len(view.rows)}")
    return seen


@always("HC-TREE-02", "nodes")
def whole_pages(view: View) -> int:
    """A node's key is whole pages, at least one, with a hash for each; each copy has a page for each."""
    width = view.profile.sizes.page_size + view.profile.bigram
    for row in view.rows:
        count = len(row.key)
        if not count or len(row.hashes) != count or set(map(len, row.key)) != {width}:
            raise Broken.because(f"node {row.id} has {len(row.hashes)} hashes for the pages {row.key}")
        if (row.device is not None and len(row.device) != count) or (row.host is not None and len(row.host) != count):
            raise Broken.because(f"node {row.id} of {count} pages has copies {row.device} and {row.host}")
    return len(view.rows)


@always("HC-TREE-03", "nodes")
def no_dead_node(view: View) -> int:
    """Every node has a copy somewhere."""
    for row in view.rows:
        if row.device is None and row.host is None:
            raise Broken.because(f"node {row.id} has no copy")
    return len(view.rows)


@always("HC-TREE-05", "nodes")
def siblings_differ(view: View) -> int:
    """No two children of a node begin with the same page in one namespace; a path has one namespace."""
    heads = {(row.parent, row.extra, row.key[:1]) for row in view.rows}
    if len(heads) != len(view.rows):
        raise Broken.because("two children of one node begin with the same page")
    for row, above in view.pairs:
        if row.extra != above.extra and above.id != ROOT:
            raise Broken.because(f"node {row.id} has namespace {row.extra}, the node above {above.extra}")
    return len(view.rows)


@always("HC-TREE-06", "nodes")
def device_closure(view: View) -> int:
    """Above a resident node all nodes are resident."""
    judged = 0
    for row, above in view.pairs:
        if row.device is not None:
            judged += 1
            if above.device is None:
                raise Broken.because(f"node {row.id} is resident below node {above.id}, which is not")
    return judged


@step("HC-TREE-04", "match_prefix", "lock", "insert")
def split_keeps(change: Change[Operation, Outcome]) -> int:
    """Both halves of a split node have its pages on every tier, and whatever pinned it pins both."""
    before, after = change.before, change.after
    judged = 0
    for number in after.row.keys() - before.row.keys():
        upper = after.row[number]
        lower, at = before.where.get(upper.hashes[-1], (NOWHERE, 0))
        if lower is NOWHERE:
            continue
        judged += 1
        _same_pages(lower, upper, 0, at + 1)
        if lower.id in after.row:
            _same_pages(lower, after.row[lower.id], at + 1, len(lower.key))
            _same_pins(change, lower.id, number)
    return judged


def _same_pages(was: Row, half: Row, start: int, end: int) -> None:
    if half.hashes != was.hashes[start:end]:
        raise Broken.because(f"node {half.id} is not pages {start} to {end} of node {was.id}")
    for tier, had, has in (("device", was.device, half.device), ("host", was.host, half.host)):
        if had is not None and has != had[start:end]:
            raise Broken.because(f"node {half.id} split off node {was.id} has {tier} pages {has}, not part of {had}")


def _same_pins(change: Change[Operation, Outcome], lower: NodeId, upper: NodeId) -> None:
    ledger: list[Receipt | Ticket] = [*change.before.receipts.values(), *change.before.tickets.values()]
    for held in ledger:
        if lower in kv_pins(held):
            now = change.after.receipts.get(held.id) or change.after.tickets.get(held.id)
            if now is not None and {lower, upper}.difference(kv_pins(now)):
                raise Broken.because(f"{held.id} pinned node {lower}, but not both halves after its split")
