"""Checking large pools: every step by what it touched and by sums that run along, the whole state now and then.

The full checker looks at every page after every step, which is right for pools of eight pages and not for eighty
thousand. Here a step costs what its key, its copies and the operations on the books have in pages. What it cannot
see, a page exchanged far away from the step, waits for the next look at the whole state.
"""

from collections import Counter
from collections.abc import Iterator

from hicache_ref.model.state import Node, Pass, Receipt, State, Ticket
from hicache_ref.requirements.change import StepLike
from hicache_ref.requirements.checker import Checker
from hicache_ref.requirements.hashing import is_chain
from hicache_ref.requirements.registry import FACT, Broken
from hicache_ref.vocabulary.hashing import namespace_seed
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, KV_POOLS, ROOT, TIER, NodeId, PoolName
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import Profile


class IncrementalChecker:
    """Follows one run of a large cache; `every` so many steps the whole state is judged too."""

    def __init__(self, profile: Profile, *, every: int = 10_000) -> None:
        self.profile = profile
        self.every = every
        self.full = Checker(profile)
        self._looked = Counter[str]()
        self.reached = self.full.reached
        self._steps = 0
        self._published: dict[PoolName, int] = {}
        """Pages of nodes by what was published: all on device, on host those of applied copies."""

        self._ledger: dict[str, Receipt | Ticket] = {}
        self._pins: dict[NodeId, int] = {}

    @property
    def tally(self) -> dict[str, int]:
        """How many subjects were judged, by requirement."""
        return {name: count + self._looked[name] for name, count in self.full.tally.items()}

    def start(self, state: State) -> None:
        """History is forgotten; `state` is judged as a whole and is where the next step begins. Raises `Broken`."""
        self.full.check_state(state)
        self._steps = 0
        self._count_published(state)
        self._ledger, self._pins = {}, {}
        self._follow_ledger(state)

    def check(self, op: Operation, step: StepLike, state: State) -> None:
        """What the step touched is in order, and the sums add up. Raises `Broken`."""
        self._steps += 1
        for fact in step.facts:
            if fact in FACT:
                self.reached[FACT[fact]] += 1
        self._follow_events(step, state)
        moved = self._follow_ledger(state)
        self._sums(state)
        key = getattr(op, "key", None)
        near = {node.id: node for node in _path(state, self.profile, key)} if isinstance(key, Key) else {}
        near.update({number: state.nodes[number] for number in moved if number in state.nodes})
        for node in near.values():
            self._node(state, node)
        self._busy(state)
        if self._steps % self.every == 0:
            self.full.check_state(state)

    def check_quiescent(self, state: State) -> None:
        """What must hold once nothing is pending is judged on the whole state. Raises `Broken`."""
        self.full.check_state(state)
        self.full.check_quiescent(state)

    # -- sums that run along ----------------------------------------------------------------------------------------

    def _count_published(self, state: State) -> None:
        """The sums are those of all nodes, looked at one by one."""
        self._published = dict.fromkeys(KV_POOLS, 0)
        written = {page for ticket in state.tickets.values() if ticket.to == "host" for page in _host_pages(ticket)}
        for node in state.nodes.values():
            self._published[KV_DEVICE] += len(node.at.get(KV_DEVICE, ()))
            self._published[KV_HOST] += len([page for page in node.at.get(KV_HOST, ()) if page not in written])

    def _follow_events(self, step: StepLike, state: State) -> None:
        """The sums follow what is published; where events are off they are counted anew in every step."""
        if not self.profile.events:
            self._count_published(state)
        for event in step.events:
            if event.kind == "all_blocks_cleared":
                self._published = dict.fromkeys(KV_POOLS, 0)
            else:
                pool: PoolName = KV_DEVICE if event.medium == "GPU" else KV_HOST
                self._published[pool] += 1 if event.kind == "block_stored" else -1

    def _sums(self, state: State) -> None:
        """Free pages, pages of nodes and requests, and pages left to operations make up each pool (HC-PAGE-09)."""
        if state.evictable + state.protected != self._published[KV_DEVICE]:
            kept = f"{state.evictable} evictable and {state.protected} protected pages are kept"
            raise Broken("HC-PAGE-09", f"{kept}, {self._published[KV_DEVICE]} were published")
        locked = sum(len(state.nodes[number].at.get(KV_DEVICE, ())) for number in self._pins)
        if state.protected != locked:
            raise Broken("HC-PAGE-09", f"{state.protected} protected pages are kept, {locked} are pinned")
        taken = {KV_DEVICE: sum(len(request.pages) for request in state.requests.values()), KV_HOST: 0}
        coming = {page for ticket in state.tickets.values() if ticket.to == "host" for page in _host_pages(ticket)}
        touched = {ref for each in _books(state) for ref in each.reads | each.writes}
        for name in KV_POOLS:
            pool = state.pools[name]
            given_up = sum(pool.owner[page][0] == "op" for where, page in touched if where == name)
            unpublished = sum(pool.owner[page][0] == "node" for page in coming) if name == KV_HOST else 0
            total = len(pool.free) + self._published[name] + taken[name] + given_up + unpublished
            if total != len(pool.owner):
                raise Broken("HC-PAGE-09", f"{name} has {len(pool.owner)} pages, its holders have {total}")
        self._looked["HC-PAGE-09"] += 1

    def _follow_ledger(self, state: State) -> set[NodeId]:
        """The nodes whose pins changed, or that a changed receipt or copy names; the pins are counted anew."""
        moved: set[NodeId] = set()
        now: dict[str, Receipt | Ticket] = {**{f"r:{name}": each for name, each in state.receipts.items()}}
        now.update({f"t:{name}": each for name, each in state.tickets.items()})
        for name in self._ledger.keys() | now.keys():
            old, new = self._ledger.get(name), now.get(name)
            if old is new:
                continue
            for held, by in ((old, -1), (new, 1)):
                for _, number in held.pins if held is not None else ():
                    self._pins[number] = self._pins.get(number, 0) + by
                    moved.add(number)
        self._ledger = now
        for number in moved:
            if not self._pins[number]:
                del self._pins[number]
        if not all(map(state.nodes.__contains__, self._pins)):
            strangers = sorted(number for number in self._pins if number not in state.nodes)
            raise Broken("HC-LOCK-05", f"nodes {strangers} are pinned and not in the tree")
        return moved

    # -- what the step touched --------------------------------------------------------------------------------------

    def _node(self, state: State, node: Node) -> None:
        """Links, hashes, pages, lock count and leaf sets of one node are in order."""
        above = state.nodes.get(node.parent)
        if above is None or above.children.get((node.extra, node.key[0])) != node.id:
            raise Broken("HC-TREE-01", f"node {node.id} is not filed under its parent {node.parent}")
        prior = above.hashes[-1] if above.id != ROOT else namespace_seed(node.extra)
        if not is_chain(node.hashes, node.key, prior, self.profile.bigram):
            raise Broken("HC-HASH-01", f"the hashes of node {node.id} are not those of its pages")
        if not node.at:
            raise Broken("HC-TREE-03", f"node {node.id} has no copy")
        if KV_DEVICE in node.at and KV_DEVICE not in above.at:
            raise Broken("HC-TREE-06", f"node {node.id} is resident below node {above.id}, which is not")
        if node.locks[KV] != self._pins.get(node.id, 0):
            count = self._pins.get(node.id, 0)
            raise Broken("HC-LOCK-01", f"node {node.id} has lock count {node.locks[KV]}, {count} name it")
        for name, pages in node.at.items():
            self._pages(state, node, name, pages)
        self._leaf(state, node)
        for requirement in ("HC-TREE-01", "HC-HASH-01", "HC-LOCK-01", "HC-PAGE-05", "HC-LEAF-01"):
            self._looked[requirement] += 1

    def _pages(self, state: State, node: Node, name: PoolName, pages: tuple[int, ...]) -> None:
        pool = state.pools[name]
        if len(pages) != len(node.key):
            raise Broken("HC-TREE-02", f"node {node.id} of {len(node.key)} pages has {len(pages)} on {TIER[name]}")
        for page, digest in zip(pages, node.hashes, strict=True):
            if pool.owner[page] != ("node", node.id):
                raise Broken("HC-PAGE-05", f"{TIER[name]} page {page} of node {node.id} belongs to {pool.owner[page]}")
            if pool.stamp[page] not in (digest, None):
                requirement = "HC-PAGE-06" if name == KV_DEVICE else "HC-PAGE-07"
                raise Broken(requirement, f"{TIER[name]} page {page} of node {node.id} holds something else")

    def _leaf(self, state: State, node: Node) -> None:
        nodes, children = state.nodes, node.children.values()
        resident, locked = KV_DEVICE in node.at, bool(node.locks[KV])
        # A shared prefix has thousands of children: the first that is resident settles it.
        is_leaf = resident and not locked and not any(KV_DEVICE in nodes[number].at for number in children)
        if is_leaf != (node.id in state.device_leaves):
            raise Broken(
                "HC-LEAF-01", f"node {node.id} is {'a' if is_leaf else 'no'} device leaf, the set says otherwise"
            )
        writes = [ticket.writes for ticket in state.tickets.values()]
        coming = any((KV_HOST, page) in each for each in writes for page in node.at.get(KV_HOST, ()))
        is_leaf = not resident and not locked and not children and not coming
        if is_leaf != (node.id in state.host_leaves):
            raise Broken(
                "HC-LEAF-02", f"node {node.id} is {'a' if is_leaf else 'no'} host leaf, the set says otherwise"
            )

    def _busy(self, state: State) -> None:
        """No page that an operation on the books touches is free (HC-XFER-01)."""
        for each in _books(state):
            for name, page in each.reads | each.writes:
                if state.pools[name].owner[page][0] == "free":
                    raise Broken("HC-XFER-01", f"{TIER[name]} page {page} is free under {each.id}")
            self._looked["HC-XFER-01"] += 1


def _books(state: State) -> Iterator[Ticket | Pass]:
    yield from state.tickets.values()
    yield from state.passes.values()


def _host_pages(ticket: Ticket) -> Iterator[int]:
    return (page for part in ticket.parts for page in part.host)


def _path(state: State, profile: Profile, key: Key) -> Iterator[Node]:
    """The nodes that the key reaches, nearest the root first."""
    pages = pages_of(key.tokens, profile.sizes.page_size, profile.bigram)
    node, at = state.nodes[ROOT], 0
    while at < len(pages):
        number = node.children.get((key.extra, pages[at]))
        if number is None or number not in state.nodes:
            return
        node = state.nodes[number]
        yield node
        if node.key != pages[at : at + len(node.key)]:
            return
        at += len(node.key)
