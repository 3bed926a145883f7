"""The canonical form of a state: two states with the same form behave alike from here on, up to names.

What the form leaves out or makes relative, and why nothing that follows can tell:

- Names of nodes, pages, requests, receipts and copies: each is known by its place. Steps ask whether two names are the
  same, no more, and the free page that an allocation takes is as good as any other.
- What a page holds: nothing, what is wanted there, or something else. No step looks closer.
- The clock: which of two nodes was used earlier, and only where neither is above the other. Leaves of one tier never
  lie above each other, so that eviction compares no others. Of states every order matters, where there is one.
- When a node was born: as the clock, and only under the policies that ask for it.
- Hits and uses: up to the count from which one more changes nothing. Priorities: only under the policy of that name.
- Lock counts, leaf sets, sums and free lists: they follow from the rest (HC-LOCK-01, HC-LEAF-01, HC-LEAF-02,
  HC-PAGE-01).
- Names of storage work, and what follows from its hashes: its key, its namespace, what comes before it.
- What storage is believed to have, and what was reported: no step asks. What an attach or a clear owes, it owes after
  forgetting the one and the other.
- Of a closed prefetch all but its stage, how many pages it still touches, what may be reported of it, and how many of
  its ends wait: nobody gets what it reads, and it stops at its next step.
- Which page waits in the release queue: nothing touches it.

It holds for steps under the write policy and the storage settings that the state has, and without a draft model.
"""

import sys
from collections.abc import Hashable
from functools import lru_cache

from hicache_ref.model.components import COMPONENT
from hicache_ref.model.records import (
    Backup,
    BackupEnded,
    Prefetch,
    PrefetchEnded,
    PrefetchQueued,
    PrefetchReading,
    Record,
)
from hicache_ref.model.state import Node, PageRef, Part, Pass, Pool, Receipt, Request, State, Ticket
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import (
    DEVICE,
    HOST,
    KV,
    KV_DEVICE,
    KV_HOST,
    ROOT,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    NodeId,
    PageHash,
    Pages,
    PoolName,
)
from hicache_ref.vocabulary.keys import pages_of
from hicache_ref.vocabulary.profile import Profile, Rules, WritePolicy

Form = tuple[Hashable, ...]
Hashes = tuple[PageHash, ...]

_NOTHING, _WANTED, _OTHER = range(3)
"""What a page holds."""

_POOLS_OF_STATE = {STATE_DEVICE, STATE_HOST}
STAMPS = {pool[each]: COMPONENT[each].stamps for each in (KV, STATE) for pool in (DEVICE, HOST)}
"""What a node's pages in a pool hold when written."""


def canonical(state: State, profile: Profile, *, alike: bool = False) -> Form:
    """The form of `state`: equal for two states only if they behave alike.

    With `alike` keys are known by how they branch, not by their tokens. That is right where renaming tokens turns the
    keys that may still be asked for into themselves.
    """
    tree = _Tree(state, profile.rules, alike)
    receipts = tuple(sorted(map(tree.pinned, state.receipts.values())))
    form: Form = (state.policy, tree.rows(), tree.order_of_use(), receipts)
    if profile.state:
        form += (tree.order_of_states(),)
    if state.storage.attached:
        form += tree.owed()
    if state.requests or state.passes or state.tickets or state.storage.records:
        form += _Work(tree, profile).form()
    return form


class _Tree:
    """The nodes of a state, and the place of each: parents first, children that were used last first."""

    def __init__(self, state: State, rules: Rules, alike: bool) -> None:
        self.state = state
        self.rules = rules
        self.alike = alike
        self.by_birth = rules.eviction in ("fifo", "filo")
        self.nodes: list[Node] = []
        self.place: dict[NodeId, int] = {ROOT: 0}
        left = self._children(state.nodes[ROOT])
        while left:
            node = left.pop()
            self.nodes.append(node)
            self.place[node.id] = len(self.nodes)
            left += self._children(node)

    def _children(self, node: Node) -> list[Node]:
        nodes = self.state.nodes
        children = [nodes[number] for number in node.children.values()]
        if len(children) > 1:
            children.sort(key=self._age)
        return children

    def _age(self, node: Node) -> tuple[int, int]:
        return (node.born if self.by_birth else 0, node.last[KV])

    def rows(self) -> Form:
        """For each node its parent, key, contents, hits, uses and priority as far as they matter, if it was put."""
        enough, enough_uses = _hits_that_matter(self.state.policy, self.rules), _uses_that_matter(self.rules)
        by_priority = self.rules.eviction == "priority"
        pools = [(name, pool, STAMPS[name]) for name, pool in self.state.pools.items()]
        return tuple(
            [
                (
                    self.place[node.parent],
                    len(node.hashes) if self.alike else node.hashes,
                    tuple([_contents(pool, node.at.get(name), stamps(node)) for name, pool, stamps in pools]),
                    min(node.hits, enough),
                    min(node.uses, enough_uses),
                    node.priority if by_priority else 0,
                    node.is_put,
                )
                for node in self.nodes
            ]
        )

    def order_of_use(self) -> Form:
        """For each two nodes of which neither is above the other, whether the first was used (or born) earlier."""
        ages: list[tuple[int, int]] = []
        above, order = [0], []
        for node in self.nodes:
            mine, up = self._age(node), self.place[node.parent]
            path = above[up] | 1 << up
            order += [(mine > its) - (mine < its) for at, its in enumerate(ages, 1) if not path >> at & 1]
            above.append(path)
            ages.append(mine)
        return tuple(order)

    def order_of_states(self) -> Form:
        """The places of the nodes with a state, the one whose state was used least recently first."""
        held = [(node.last[STATE], at) for at, node in enumerate(self.nodes) if _POOLS_OF_STATE & node.at.keys()]
        return tuple([at for _, at in sorted(held)])

    def owed(self) -> Form:
        """How often each owed page was offered, how many pages wait for release, and what is still to be told."""
        storage = self.state.storage
        tries = tuple([tuple([storage.owed.get(digest, -1) for digest in node.hashes]) for node in self.nodes])
        tries += tuple([(storage.owed_states.get(node.hashes[-1], -1),) for node in self.nodes])
        told = tuple(sorted([count for rid, count in storage.loaded.items() if rid not in storage.open]))
        return storage.backend, tries, len(storage.release), told

    def pinned(self, holder: Receipt | Ticket) -> Form:
        """The places of the nodes whose KV, or state, it pins."""
        return tuple(sorted([(component, self.place.get(number, -1)) for component, number in holder.pins]))


class _Work:
    """Requests, passes, copies and storage work of a state.

    A page that they touch is known by its holder and its place there.
    """

    def __init__(self, tree: _Tree, profile: Profile) -> None:
        self.tree = tree
        self.state = tree.state
        self.profile = profile
        self.hash: dict[PageHash, int] = {}
        began = (*self.state.tickets, *self.state.storage.records)
        self.number: dict[object, int] = {name: at for at, name in enumerate(began)}
        """Of copies and storage work as submitted; of requests and their passes once it is known which comes first."""

    def form(self) -> Form:
        """Requests with their passes, in an order that no name decides; all else in the order in which it began."""
        state = self.state
        if self.tree.alike:
            hashes = [digest for node in self.tree.nodes for digest in node.hashes]
            self.hash = dict(zip(hashes, range(len(hashes)), strict=True))
        names = [*state.passes, *(name for name in state.requests if name not in state.passes)]
        if len(names) > 1:
            names.sort(key=lambda name: (self._request(name), self._pass(name)))
        for name in names:
            self.number[name] = self.number[f"f:{name}"] = len(self.number)
        requests = tuple([(self._request(name), self._key(name), self._pass(name)) for name in names])
        passes = tuple([self.number[name] for name in state.passes])
        copies = tuple([self._copy(ticket) for ticket in state.tickets.values()])
        return (requests, passes, copies, *(self._storage() if state.storage.records else ()))

    def _hashes(self, request: Request) -> Hashes:
        key, sizes = request.key, self.profile.sizes
        return () if key is None else _chain(key.tokens, key.extra, sizes.page_size, self.profile.bigram)

    def _request(self, name: str) -> tuple[int, int, tuple[int | str, ...], tuple[int, ...], tuple[str | int, ...]]:
        """Pages, start, key as far as the tree has it, contents, and where its state is that of."""
        request = self.state.requests.get(name)
        if request is None:
            return 0, 0, (), (), ()
        hashes = self._hashes(request)
        stamps = self.state.pools[KV_DEVICE].stamp
        wanted = hashes[request.start :] or (None,) * len(request.pages)
        held = tuple([_content(stamps[page], digest) for page, digest in zip(request.pages, wanted, strict=True)])
        known = tuple([self.hash.get(digest, -1) for digest in hashes]) if self.tree.alike else hashes
        states = self.state.pools[STATE_DEVICE].stamp if request.state else ()
        at = [states[slot] or "" for slot in request.state]
        ends = tuple([self.hash.get(digest, -1) if self.tree.alike else digest for digest in at])
        return len(request.pages), request.start, known, held, ends

    def _key(self, name: str) -> tuple[int | str, ...]:
        """The request's key by the places of its hashes; those that the tree does not have get one here."""
        if not self.tree.alike or name not in self.state.requests:
            return ()
        return self._known(self._hashes(self.state.requests[name]))

    def _storage(self) -> Form:
        """Prefetches and writes, and those of them of which something waits for a poll."""
        storage, number = self.state.storage, self.number
        records = storage.records
        reads = [(number[name], done if _is_open(records[name]) else 0) for name, done in storage.reads]
        answers, writes = ([number[name] for name in queue] for queue in (storage.answers, storage.writes))
        return tuple(map(self._record, records.values())), tuple(answers), tuple(reads), tuple(writes)

    def _record(self, record: Record) -> Form:
        if isinstance(record, Prefetch) and record.rid is None:
            return record.stage, len(record.pages), self._reportable(record)
        path = self._known((*record.prefix, *record.hashes))
        places = self._places(KV_HOST, record.pages), self._places(STATE_HOST, record.states)
        form: Form = (record.stage, record.cleared, path, len(record.hashes), *places)
        if isinstance(record, Backup):
            put = record.states_done if isinstance(record, BackupEnded) else 0
            return *form, self._known(record.ends), record.done, put
        done, known = (record.done, record.known) if isinstance(record, PrefetchReading | PrefetchEnded) else (0, 0)
        told = self.state.storage.loaded.get(str(record.rid), 0)
        form += (isinstance(record, PrefetchEnded) and record.has_state, record.cancelled)
        return *form, done, known, self.tree.place.get(record.anchor, -1), record.asked, record.since, told

    def _reportable(self, record: Prefetch) -> int:
        """How many pages the next report about it may tell of."""
        if isinstance(record, PrefetchReading):
            return min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        return len(record.hashes) if isinstance(record, PrefetchQueued) else 0

    def _known(self, path: Hashes) -> tuple[int | str, ...]:
        """These hashes by their place; those that have none yet get one here."""
        return tuple([self.hash.setdefault(each, len(self.hash)) for each in path]) if self.tree.alike else path

    def _copy(self, ticket: Ticket) -> Form:
        parts = [tuple([self._places(*side) for side in _sides(ticket, part)]) for part in ticket.parts]
        return ticket.to, ticket.doomed, ticket.good, ticket.sure, tuple(parts), self.tree.pinned(ticket)

    def _pass(self, name: str) -> Form:
        running = self.state.passes.get(name)
        if running is None:
            return ()
        pages = [(KV_DEVICE, page) for page in running.pages]
        will_hold = [_content(digest, self._wanted(ref)) for ref, digest in zip(pages, running.hashes, strict=True)]
        writes = self._places(KV_DEVICE, running.pages), self._places(STATE_DEVICE, running.state)
        return running.doomed, writes, tuple(will_hold), self._set(running.reads)

    def _set(self, refs: frozenset[PageRef]) -> Form:
        return tuple(sorted([self._place(ref) for ref in refs]))

    def _places(self, pool_name: PoolName, pages: Pages) -> Form:
        return tuple([self._place((pool_name, page)) for page in pages])

    def _place(self, ref: PageRef) -> tuple[int, int, int, tuple[tuple[int, int], ...]]:
        """What kind of holder, which one, and which of its pages.

        A page of an operation is known by what it holds, and by who else touches it and where.
        """
        pool_name, page = ref
        pool = self.state.pools[pool_name]
        kind, holder = pool.owner[page]
        if isinstance(holder, int):
            return 0, self.tree.place[holder], self.state.nodes[holder].at[pool_name].index(page), ()
        number = self.number.get(holder, -1)
        if kind == "request":
            request = self.state.requests[holder]
            return 1, number, (request.state if pool_name == STATE_DEVICE else request.pages).index(page), ()
        return 2, number, _content(pool.stamp[page], self._wanted(ref)), self._touched(ref)

    def _touched(self, ref: PageRef) -> tuple[tuple[int, int], ...]:
        """The operations on the books that touch the page, and where in their pages it is."""
        tickets = [(self.number[each.id], _pages(each)) for each in self.state.tickets.values()]
        passes = [
            (self.number.get(each.id, -1), [*_changed(each), *{ref} & each.reads])
            for each in self.state.passes.values()
        ]
        records = [(self.number[each.id], _written(each)) for each in self.state.storage.records.values()]
        touching = tickets + passes + records
        return tuple(sorted([(number, pages.index(ref)) for number, pages in touching if ref in pages]))

    def _wanted(self, ref: PageRef) -> PageHash | None:
        """What its holder wants there; for a page of an operation, what that puts there or takes from there."""
        pool_name, page = ref
        kind, holder = self.state.pools[pool_name].owner[page]
        if isinstance(holder, int):
            node = self.state.nodes[holder]
            return STAMPS[pool_name](node)[node.at[pool_name].index(page)]
        if kind == "request":
            request = self.state.requests[holder]
            if pool_name == STATE_DEVICE:
                return (*self._hashes(request), None)[-2 if request.key is not None else -1]
            return self._hashes(request)[request.start + request.pages.index(page)]
        for record in self.state.storage.records.values():
            if ref in record.refs and pool_name == KV_HOST:
                return record.hashes[record.pages.index(page)]
            if ref in record.refs:
                ends = record.ends if isinstance(record, Backup) else record.hashes[-1:]
                return ends[record.states.index(page)]
        takers = (each for each in self.state.tickets.values() if each.good is None and ref in each.reads)
        return next((self._wanted(_target(each, ref)) for each in takers), None)


def _pages(copy: Ticket) -> list[PageRef]:
    """The device pages of the copy in the order of its parts, then the host pages."""
    sides = [_sides(copy, part) for part in copy.parts]
    return [(name, page) for at in (0, 1) for side in sides for name, pages in (side[at],) for page in pages]


def _sides(copy: Ticket, part: Part) -> tuple[tuple[PoolName, Pages], tuple[PoolName, Pages]]:
    """The part's pages on device, and those on host; for a request both are on device."""
    below = DEVICE if copy.to == "request" else HOST
    return (DEVICE[part.component], part.device), (below[part.component], part.host)


def _changed(running: Pass) -> list[PageRef]:
    """What the pass writes, in order: its pages, then the request's state."""
    return [(KV_DEVICE, page) for page in running.pages] + [(STATE_DEVICE, slot) for slot in running.state]


def _written(record: Record) -> list[PageRef]:
    """The host pages of the storage work, in their order."""
    return [(KV_HOST, page) for page in record.pages] + [(STATE_HOST, slot) for slot in record.states]


def _is_open(record: Record) -> bool:
    """Whether it is a prefetch for which a request waits."""
    return isinstance(record, Prefetch) and record.rid is not None


def _target(copy: Ticket, source: PageRef) -> PageRef:
    """Where the copy takes what this page holds."""
    pages = _pages(copy)
    half = len(pages) // 2
    return pages[(pages.index(source) + half) % len(pages)]


def _content(stamp: PageHash | None, wanted: PageHash | None) -> int:
    """What a page with this stamp holds; where nothing in particular is wanted, anything will do."""
    if stamp is None:
        return _NOTHING
    return _WANTED if wanted is None or stamp == wanted else _OTHER


def _contents(pool: Pool, pages: Pages | None, wanted: Hashes) -> int | Form | None:
    """What the pages of a node's copy hold: one word where that is what they should."""
    if pages is None:
        return None
    stamps = tuple([pool.stamp[page] for page in pages])
    return _WANTED if stamps == wanted else tuple(map(_content, stamps, wanted))


def _hits_that_matter(policy: WritePolicy, rules: Rules) -> int:
    """The number of hits from which one more changes nothing."""
    counted = 0 if policy == "write_back" else rules.hits_before_backup(policy) - 1
    if rules.storage_put == "hit" and policy != "write_back":
        counted = max(counted, rules.hits_before_put(policy) - 1)
    return max(counted, _counts_that_order(rules) if rules.eviction_counts == "hits" else 0)


def _uses_that_matter(rules: Rules) -> int:
    """Likewise of uses."""
    return _counts_that_order(rules) if rules.eviction_counts == "uses" else 0


def _counts_that_order(rules: Rules) -> int:
    """The count from which one more changes no order of eviction; under lfu there is none."""
    if rules.eviction == "lfu":
        return sys.maxsize
    return rules.slru_protected_threshold if rules.eviction == "slru" else 0


@lru_cache(maxsize=1 << 12)
def _chain(tokens: tuple[int, ...], extra: str | None, page_size: int, bigram: bool) -> Hashes:
    return chain(pages_of(tokens, page_size, bigram), namespace_seed(extra), bigram)
