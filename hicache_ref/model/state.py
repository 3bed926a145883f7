"""The records of the state: typed where they are made, plain attributes afterwards.

Links are ids, keys and page lists are immutable tuples, and tickets, passes, receipts and requests are replaced,
never changed, so that a state can be cloned, compared and written out without walking references.
"""

from collections.abc import Iterator
from typing import Literal, TypeVar

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from hicache_ref.model.records import Record
from hicache_ref.vocabulary.ids import (
    KV_DEVICE,
    KV_HOST,
    ROOT,
    Component,
    NodeId,
    PageHash,
    Pages,
    PoolName,
    ReceiptId,
    RequestId,
    TicketId,
)
from hicache_ref.vocabulary.keys import ChildKey, Key, PageKeys
from hicache_ref.vocabulary.profile import Profile, WritePolicy
from hicache_ref.vocabulary.storage import StorageSettings

Owner = tuple[Literal["free", "node", "request", "prefetch", "op", "queue"], NodeId | str]
"""Who holds a page: nobody, a node, a request, an open prefetch, an operation that still touches what its holder gave
up, or the release queue.
"""

FREE: Owner = ("free", "")
PageRef = tuple[PoolName, int]


Direction = Literal["device", "host", "request"]
"""Where a copy goes; to a request it goes from a slot on device to another."""


@dataclass(slots=True)
class Node:
    """One edge of the radix tree and the node at its end (upstream: TreeNode)."""

    id: NodeId
    parent: NodeId
    key: PageKeys
    extra: str | None
    hashes: tuple[PageHash, ...]
    at: dict[PoolName, Pages]
    """The node's copies: a pool that is absent holds none."""

    locks: dict[Component, int]
    last: dict[Component, int]
    """When it was last used, by the logical clock (upstream: last_access_time)."""

    born: int
    hits: int
    """Uses that count toward its backup: none under write_back."""

    uses: int
    """Uses that lfu and slru order by, under every write policy."""

    priority: int
    children: dict[ChildKey, NodeId]
    is_put: bool = False
    """Whether a write of it has ended whole, under the rule `storage_put` = `hit` (upstream: backuped_storage)."""

    @property
    def device(self) -> Pages | None:
        """Its KV pages on device, or None (upstream: value)."""
        return self.at.get(KV_DEVICE)

    @property
    def host(self) -> Pages | None:
        """Its KV pages on host, or None (upstream: host_value)."""
        return self.at.get(KV_HOST)


@dataclass(slots=True)
class Pool:
    """A partition of page ids by owner, and what each page holds: the hash of the prefix it was written for."""

    owner: list[Owner]
    stamp: list[PageHash | None]
    draft: list[PageHash | None]
    """What the same page holds in the draft model's pool; None where that is invalid, and without a draft model."""

    free: list[int]


@dataclass(slots=True, frozen=True)
class Receipt:
    """What one lock pinned, to be undone by its release."""

    id: ReceiptId
    pins: tuple[tuple[Component, NodeId], ...]


@dataclass(slots=True, frozen=True)
class Part:
    """The pages of one node in one copy, as submitted; a part is whole or failed.

    In a copy to a request `device` is the request's slot, and `host` stands for the node's, which is on device too.
    """

    component: Component
    device: Pages
    host: Pages


@dataclass(slots=True, frozen=True)
class Ticket:
    """A copy that was submitted and not yet applied. It names pages, so that a split changes nothing but pins."""

    id: TicketId
    to: Direction
    parts: tuple[Part, ...]
    reads: frozenset[PageRef]
    writes: frozenset[PageRef]
    pins: tuple[tuple[Component, NodeId], ...]
    doomed: bool = False
    """It reads a page that will never be written, so it can only fail."""

    good: int | None = None
    """None while it runs; then how many leading parts are in place."""

    sure: int = 0
    """So many leading parts cannot fail: a copy that ended inside a step has waited for them."""

    policy: WritePolicy = "write_through"
    """The write policy under which it was submitted."""


@dataclass(slots=True, frozen=True)
class Pass:
    """A forward pass that runs: it writes `hashes` into the request's own pages, the last of them into its `state`."""

    id: RequestId
    reads: frozenset[PageRef]
    writes: frozenset[PageRef]
    pages: Pages
    hashes: tuple[PageHash, ...]
    doomed: bool = False
    state: Pages = ()


@dataclass(slots=True, frozen=True)
class Request:
    """Device pages held by a request, and what its forward pass was told to write into them."""

    id: RequestId
    pages: Pages
    key: Key | None = None
    start: int = 0
    state: Pages = ()
    """Its state slot; of a model without state none."""


@dataclass(slots=True)
class Storage:
    """The third tier as the scheduler knows it, and all work on it that is on the books."""

    attached: bool
    backend: str
    settings: StorageSettings
    records: dict[str, Record]
    """In order of submission."""

    open: dict[RequestId, str]
    """Which prefetch a request waits for."""

    answers: list[str]
    """Answered queries that no poll has applied, in order; likewise batches read and writes that ended."""

    reads: list[tuple[str, int]]
    """Prefetch and how many of its pages were in place when the batch ended."""

    writes: list[str]
    release: list[int]
    """Host pages given up that wait for a poll, each owned by the queue."""

    owed: dict[PageHash, int]
    """Pages on host that storage has not acknowledged, and how often they were offered."""

    believed: set[PageHash]
    """Pages that storage acknowledged or delivered: a hint, for it may lose them."""

    believed_draft: set[PageHash]
    """Likewise their draft pages."""

    owed_states: dict[PageHash, int]
    """Likewise states of a hybrid model, by the hash of the last page; likewise those believed and reported."""

    believed_states: set[PageHash]
    reported_states: set[PageHash]
    reported: set[PageHash]
    """Pages on host that were offered for the last time in vain."""

    loaded: dict[RequestId, int]
    """Pages that storage gave a request, until it is told (upstream: prefetch_loaded_tokens_by_reqid)."""

    occupied: int = 0
    """Pages asked for by open prefetches (upstream: prefetch_tokens_occupied)."""


@dataclass(slots=True)
class State:
    """Everything the cache is between two steps."""

    pools: dict[PoolName, Pool]
    nodes: dict[NodeId, Node]
    receipts: dict[ReceiptId, Receipt]
    tickets: dict[TicketId, Ticket]
    """In order of submission."""

    requests: dict[RequestId, Request]
    passes: dict[RequestId, Pass]
    device_leaves: set[NodeId]
    host_leaves: set[NodeId]
    policy: WritePolicy
    draft: bool
    """Whether a draft model is registered."""

    storage: Storage
    clock: int = 0
    next_node: int = 1
    evictable: int = 0
    """Device pages of unlocked nodes; `protected` those of locked ones."""

    protected: int = 0


def fresh(profile: Profile) -> State:
    """The state of a cache that was just made: empty pools, and a root that is never evicted."""
    counts, components = profile.pool_sizes, profile.components
    root = Node(
        id=ROOT, parent=-1, key=(), extra=None, hashes=(), at=dict.fromkeys(counts, ()),
        locks=dict.fromkeys(components, 0), last=dict.fromkeys(components, 0), born=0, hits=0, uses=0, priority=0,
        children={},
    )  # fmt: skip
    return State(
        pools={
            name: Pool(owner=[FREE] * count, stamp=[None] * count, draft=[None] * count, free=list(range(count))[::-1])
            for name, count in counts.items()
        },
        nodes={ROOT: root}, receipts={}, tickets={}, requests={}, passes={},
        device_leaves=set(), host_leaves=set(), policy=profile.rules.write_policy, draft=profile.draft,
        storage=no_storage(),
    )  # fmt: skip


def no_storage() -> Storage:
    """The storage part of a cache without storage."""
    return Storage(
        attached=False, backend="", settings=StorageSettings(), records={}, open={}, answers=[], reads=[], writes=[],
        release=[], owed={}, believed=set(), believed_draft=set(), reported=set(),
        owed_states={}, believed_states=set(), reported_states=set(), loaded={},
    )  # fmt: skip


def operation_id(op: Ticket | Pass | Record) -> str:
    """The name under which a running operation owns pages: its own, for a pass `f:` and its request."""
    return f"f:{op.id}" if isinstance(op, Pass) else op.id


def running(state: State) -> Iterator[Ticket | Pass | Record]:
    """Every operation on the books, those that ended and were not applied included."""
    yield from state.tickets.values()
    yield from state.passes.values()
    yield from state.storage.records.values()


def clone(state: State) -> State:
    """A copy that shares only what never changes. Skips validation, which a copy cannot need."""
    twin = _bare(State)
    twin.pools = {name: _clone_pool(pool) for name, pool in state.pools.items()}
    twin.nodes = {number: _clone_node(node) for number, node in state.nodes.items()}
    twin.receipts = state.receipts.copy()
    twin.tickets = state.tickets.copy()
    twin.requests = state.requests.copy()
    twin.passes = state.passes.copy()
    twin.device_leaves = state.device_leaves.copy()
    twin.host_leaves = state.host_leaves.copy()
    twin.policy = state.policy
    twin.draft = state.draft
    twin.storage = _clone_storage(state.storage)
    twin.clock = state.clock
    twin.next_node = state.next_node
    twin.evictable = state.evictable
    twin.protected = state.protected
    return twin


def _clone_storage(storage: Storage) -> Storage:
    twin = _bare(Storage)
    twin.attached = storage.attached
    twin.backend = storage.backend
    twin.settings = storage.settings
    twin.records = storage.records.copy()
    twin.open = storage.open.copy()
    twin.answers = storage.answers[:]
    twin.reads = storage.reads[:]
    twin.writes = storage.writes[:]
    twin.release = storage.release[:]
    twin.owed = storage.owed.copy()
    twin.believed = storage.believed.copy()
    twin.believed_draft = storage.believed_draft.copy()
    twin.reported = storage.reported.copy()
    twin.owed_states = storage.owed_states.copy()
    twin.believed_states = storage.believed_states.copy()
    twin.reported_states = storage.reported_states.copy()
    twin.loaded = storage.loaded.copy()
    twin.occupied = storage.occupied
    return twin


def _clone_pool(pool: Pool) -> Pool:
    twin = _bare(Pool)
    twin.owner = pool.owner[:]
    twin.stamp = pool.stamp[:]
    twin.draft = pool.draft[:]
    twin.free = pool.free[:]
    return twin


def _clone_node(node: Node) -> Node:
    twin = _bare(Node)
    twin.is_put = node.is_put
    twin.id = node.id
    twin.parent = node.parent
    twin.key = node.key
    twin.extra = node.extra
    twin.hashes = node.hashes
    twin.at = node.at.copy()
    twin.locks = node.locks.copy()
    twin.last = node.last.copy()
    twin.born = node.born
    twin.hits = node.hits
    twin.uses = node.uses
    twin.priority = node.priority
    twin.children = node.children.copy()
    return twin


_T = TypeVar("_T")


def _bare(kind: type[_T]) -> _T:
    return object.__new__(kind)


_STATE: TypeAdapter[State] = TypeAdapter(State)


def dump(state: State) -> dict[str, object]:
    """The whole state as plain data, which `load` turns back into an equal one."""
    result: dict[str, object] = _STATE.dump_python(state, mode="python")
    return result


def load(data: dict[str, object]) -> State:
    """The state that `dump` wrote, validated. Raises pydantic.ValidationError."""
    return _STATE.validate_python(data)
