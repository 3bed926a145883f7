"""Nodes by value, as judges see them."""

from typing import NamedTuple

from hicache_ref.model.state import State
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    KV_POOLS,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    NodeId,
    PageHash,
    Pages,
    PoolName,
)
from hicache_ref.vocabulary.keys import ChildKey, PageKeys


class Row(NamedTuple):
    """A node by value. What a look-up may change comes last: when it and its state were used."""

    id: NodeId
    parent: NodeId
    key: PageKeys
    extra: str | None
    hashes: tuple[PageHash, ...]
    device: Pages | None
    host: Pages | None
    lock: int
    hits: int
    uses: int
    priority: int
    born: int
    children: tuple[tuple[ChildKey, NodeId], ...]
    device_state: Pages | None
    host_state: Pages | None
    state_lock: int
    last: int
    state_last: int

    @property
    def has_state(self) -> bool:
        """Of a hybrid model: it has a state on some tier."""
        return self.device_state is not None or self.host_state is not None


NOWHERE = Row(-2, -2, (), None, (), None, None, 0, 0, 0, 0, 0, (), None, None, 0, 0, 0)
"""Stands for a parent that is not in the tree."""


def copy_in(row: Row, pool: PoolName) -> Pages | None:
    """The node's copy in this pool."""
    if pool in KV_POOLS:
        return row.device if pool == KV_DEVICE else row.host
    return row.device_state if pool == STATE_DEVICE else row.host_state


def rows_of(state: State) -> dict[NodeId, Row]:
    """Every node by value."""
    make, rows = tuple.__new__, {}
    for number, node in state.nodes.items():
        at, children = node.at, node.children
        rows[number] = make(
            Row,
            (
                number, node.parent, node.key, node.extra, node.hashes, at.get(KV_DEVICE), at.get(KV_HOST),
                node.locks[KV], node.hits, node.uses, node.priority, node.born,
                tuple(children.items()) if children else (),
                at.get(STATE_DEVICE), at.get(STATE_HOST), node.locks.get(STATE, 0), node.last[KV],
                node.last.get(STATE, 0),
            ),
        )  # fmt: skip
    return rows
