"""What a component is: a kind of data that the tree keeps a copy of per node: KV, and of a hybrid model state.

A component says what its pages hold and where they go when a node is split; everything else is common.
"""

from typing import Protocol

from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, STATE, Component, PageHash, Pages


class ComponentRules(Protocol):
    """What differs between components."""

    def stamps(self, node: Node) -> tuple[PageHash, ...]:
        """What the node's pages of the component hold when written."""

    def cut(self, pages: Pages, at: int) -> tuple[Pages, Pages]:
        """The pages of the upper and of the lower half of a split; none stands for no copy."""


class KvComponent:
    """Attention keys and values: one page for each page of the node's key."""

    def stamps(self, node: Node) -> tuple[PageHash, ...]:
        """The hash of each page of its key."""
        return node.hashes

    def cut(self, pages: Pages, at: int) -> tuple[Pages, Pages]:
        """Each half keeps its own."""
        return pages[:at], pages[at:]


class StateComponent:
    """Recurrent state: one slot, for the position at the node's end and no other (upstream: MambaComponent)."""

    def stamps(self, node: Node) -> tuple[PageHash, ...]:
        """The hash of the last page of its key."""
        return node.hashes[-1:]

    def cut(self, pages: Pages, at: int) -> tuple[Pages, Pages]:
        """It stays with the lower half, whose end is where it was (HC-STATE-02)."""
        return (), pages


COMPONENT: dict[Component, ComponentRules] = {KV: KvComponent(), STATE: StateComponent()}
