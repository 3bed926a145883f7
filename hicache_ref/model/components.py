"""What a component is: a kind of state that the tree keeps a copy of per node. KV is the only one so far.

A component says what its pages hold and where they go when a node is split; everything else is common.
"""

from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, Component, PageHash, Pages


class KvComponent:
    """Attention keys and values: one page for each page of the node's key."""

    def stamps(self, node: Node) -> tuple[PageHash, ...]:
        """What the node's pages hold when written: the hash of each page of its key."""
        return node.hashes

    def cut(self, pages: Pages, at: int) -> tuple[Pages, Pages]:
        """The pages of the upper and of the lower half of a split."""
        return pages[:at], pages[at:]


COMPONENT: dict[Component, KvComponent] = {KV: KvComponent()}
