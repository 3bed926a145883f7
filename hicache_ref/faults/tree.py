"""Faults of the radix tree: links, splits, keys, and which node a key belongs to."""

from hicache_ref.faults.catalogue import OWN, plant
from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.model.tree import Found
from hicache_ref.vocabulary.ids import KV, KV_HOST, ROOT, NodeId
from hicache_ref.vocabulary.keys import Key, PageKeys
from hicache_ref.vocabulary.operations import MatchPrefix
from hicache_ref.vocabulary.outcomes import Matched


@plant("split-loses-lock", "K6", "SG-38480", expected=("HC-TREE-04", "HC-LOCK-04"))
class SplitLosesLock(Model):
    """The upper half of a split node starts with no lock, although whatever pinned the node needs both halves.

    SGLang's unified tree: the new prefix node does not inherit the lock of a running storage write.
    """

    def lock_follows_split(self, lower: NodeId, upper: NodeId) -> None:
        """The count starts at zero."""
        node = self.state.nodes[upper]
        if node.locks[KV]:
            self._change_lock(node, KV, -node.locks[KV])


@plant("split-forgets-receipts", "K3", OWN, expected="HC-LOCK-01")
class SplitForgetsReceipts(Model):
    """The upper half of a split node is locked, and no receipt knows that it has to unlock it."""

    def lock_follows_split(self, lower: NodeId, upper: NodeId) -> None:
        """Receipts stay as they are."""


@plant("split-loses-host-copy", "K4", OWN, expected=("HC-TREE-04", "HC-BACKUP-01"))
class SplitLosesHostCopy(Model):
    """The upper half of a split node has no host copy, so that the lower half is backed up behind a gap."""

    def split(self, lower: Node, at: int) -> Node:
        """The host pages of the upper half are given up."""
        upper = super().split(lower, at)
        pages = upper.host
        if pages is not None and upper.device is not None:
            self.place(upper, KV_HOST, None)
            self.release(KV_HOST, pages)
        return upper


@plant("removed-node-stays-linked", "K5", "SG-25770", expected=("HC-TREE-01", "HC-CONF-01"))
class RemovedNodeStaysLinked(Model):
    """A node that left the tree is still among the children of its parent.

    SGLang's LRU list repaired the neighbours of a removed entry and left links between removed entries behind.
    """

    def remove(self, node: Node) -> None:
        """The parent's link stays."""
        super().remove(node)
        self.state.nodes[node.parent].children[(node.extra, node.key[0])] = node.id


@plant("empty-node-stays", "K1", "DY-11678", expected="HC-TREE-03")
class EmptyNodeStays(Model):
    """A node that lost its last copy stays in the tree.

    Dynamo's router clears the holders of a node and never detaches it from its parent.
    """

    def _drop(self, node: Node) -> bool:
        """Only the pages go."""
        self.leave_device(node)
        return True


@plant(
    "namespaces-imitate-each-other",
    "K9",
    "SG-24638",
    "VL-44701",
    expected=("HC-MATCH-01", "HC-INSERT-01", "HC-LOCK-02", "HC-LOAD-03", "HC-PREF-15"),
)
class NamespacesImitateEachOther(Model):
    """A key in a namespace finds what was stored without one.

    SGLang joins adapter and user key to one string, vLLM puts adapter and salt into one untagged tuple, so that
    different namespaces come out equal.
    """

    def look(self, pages: PageKeys, extra: str | None) -> Found:
        """The namespace counts only where nothing else is found."""
        found = super().look(pages, None)
        return found if found.length else super().look(pages, extra)


@plant(
    "hash-for-tokens", "K9", "OV-3722",
    expected=("HC-MATCH-02", "HC-INSERT-01", "HC-LOAD-03", "HC-PREF-15", "HC-LOCK-02"),
)  # fmt: skip
class HashForTokens(Model):
    """A node is taken for matched whole when its first page is, as if equal hashes meant equal tokens.

    OpenVINO's prefix cache keeps only the hash, and a collision silently returns a wrong block.
    """

    def look(self, pages: PageKeys, extra: str | None) -> Found:
        """As far as the node goes, if the key is as long."""
        found = super().look(pages, extra)
        depth = self.depth(found.node)
        return Found(found.node, depth, False) if found.inside and depth <= len(pages) else found


@plant("rest-reaches-the-tree", "K15", "SG-24371", expected=("HC-TREE-02", "HC-PREF-15"))
class RestReachesTheTree(Model):
    """The tokens after the last whole page are looked up as a page of their own.

    SGLang looked up any rest that was not empty; with pair keys the index ran out.
    """

    def pages(self, key: Key) -> PageKeys:
        """Whole pages and the rest."""
        whole = super().pages(key)
        rest = key.tokens[len(whole) * self.profile.sizes.page_size :]
        return (*whole, rest) if rest and not self.profile.bigram else whole


@plant("unaligned-match-splits-at-zero", "K15", "SG-28692", expected="HC-CONF-01")
class UnalignedMatchSplitsAtZero(Model):
    """A match that ends inside a page splits the node below at zero pages.

    SGLang's recurrent radix cache rounds the match length down to zero and makes a node with an empty key, which
    fails much later.
    """

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        """The rest of the key splits a child that begins with it."""
        matched, key = super().on_match_prefix(op), op.key
        rest = key.tokens[len(self.pages(key)) * self.profile.sizes.page_size :]
        found = self.look(self.pages(key), key.extra).node
        for (extra, page), number in list(found.children.items()):
            if rest and extra == key.extra and page[: len(rest)] == rest:
                self.split(self.state.nodes[number], 0)
        return matched


@plant("deep-path-overflows", "K15", "SG-38204", expected="HC-CONF-01")
class DeepPathOverflows(Model):
    """A look-up fails where the tree is deep.

    SGLang collected prefix hashes by recursion over the parents, and chains of 1,000 nodes exceeded the limit; here
    the stack has three frames.
    """

    def touch(self, number: NodeId) -> None:
        """At most three nodes."""
        if len(self.path(number)) > 3:
            raise RecursionError("maximum recursion depth exceeded")
        super().touch(number)


@plant("split-uses-both-halves", "K5", OWN, expected="HC-MATCH-05", rules={"split_stamps": "none"})
class SplitUsesBothHalves(Model):
    """A node that is split for a shorter key looks recently used as a whole, so that what nobody asked for stays."""

    def split(self, lower: Node, at: int) -> Node:
        """Both halves are used."""
        upper = super().split(lower, at)
        self.stamp(upper)
        self.stamp(lower)
        return upper


@plant("end-alone-is-used", "K5", "SG-12007", expected="HC-MATCH-03")
class EndAloneIsUsed(Model):
    """A match makes its deepest node recently used, and not what is above it, so that parents look older than they are.

    SGLang's check of its recurrent cache found the list in another order than the access times; no cause is known.
    """

    def touch(self, number: NodeId) -> None:
        """The node."""
        if number != ROOT:
            self.stamp(self.state.nodes[number])


@plant("child-forgets-namespace", "K9", OWN, expected="HC-TREE-05")
class ChildForgetsNamespace(Model):
    """A node below another one belongs to no namespace."""

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """Only nodes at the top keep it."""
        return super().attach(above, key, extra if above.id == ROOT else None, priority)
