"""The caller of a cache, operation by operation, as upstream's scheduler calls it: tree, device and copies.

The scheduler's part is played here: it allocates, evicts when room is short, frees duplicates and fills pages. What
the cache decides is asked of the cache. `storing` has the operations of storage.
"""

from collections.abc import Callable
from typing import Any

from hicache_ref.adapters.sglang_hiradix.books import Books, Pass, Request, Watch
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_hiradix.workers import Workers
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.hashing import key_hashes
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.outcomes import (
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Outcome,
    Refused,
    Submitted,
    Took,
)


class Caller:
    """Each operation is one method of its name. What the books show to be wrong is `Invalid`."""

    watch_kind: Callable[[Any, Books], Watch] = Watch
    workers_kind: Callable[[Any, Books], Workers] = Workers

    def __init__(self, engine: Engine, stamps: Stamps) -> None:
        self.engine = engine
        self.stamps = stamps
        self.start_afresh()

    def start_afresh(self) -> None:
        """Nothing is known of what was before."""
        self.books = Books()
        self.watch = self.watch_kind(self.engine, self.books)
        self.workers = self.workers_kind(self.engine, self.books)
        self.workers.go_on()

    def apply(self, operation: ops.Operation) -> Outcome:
        """The operation has happened. Raises what the cache raises."""
        if getattr(operation, "key", None) is not None and self._is_foreign(operation):
            return Invalid(why="keys have no namespace in this release")
        outcome: Outcome = getattr(self, f"on_{operation.op}")(operation)
        return outcome

    def _is_foreign(self, operation: Any) -> bool:
        return operation.key.extra is not None and self.engine.traits.radix_key is None

    # -- looking without touching -----------------------------------------------------------------------------------

    def look(self, key: Key) -> tuple[int, Any, Pages]:
        """How many pages of the key are in the tree, the node in which they end, and the resident ones' pages.

        The end may be inside the node. Nothing is split or stamped.
        """
        engine, size = self.engine, self.engine.page_size
        pages = pages_of(key.tokens, size, engine.profile.bigram)
        node, at = engine.cache.root_node, 0
        resident: list[int] = []
        while at < len(pages):
            below = self._child(node, pages[at], key.extra)
            if below is None:
                break
            own = pages_of(engine.tokens_of_node(below), size, engine.profile.bigram)
            same = next((i for i, (a, b) in enumerate(zip(own, pages[at:], strict=False)) if a != b), None)
            same = min(len(own), len(pages) - at) if same is None else same
            if below.value is not None:
                resident += engine.device_slots.pages(below.value)[:same]
            node, at = below, at + same
            if same < len(own):
                break
        return at, node, tuple(resident)

    def _child(self, node: Any, page: tuple[int, ...], extra: str | None) -> Any:
        engine = self.engine
        for child in node.children.values():
            if engine.extra_of_node(child) == extra and engine.tokens_of_node(child)[: len(page)] == page:
                return child
        return None

    def node_at(self, key: Key) -> Any:
        """The node whose whole key is `key`, in whole pages; None where none ends there."""
        count, node, _ = self.look(key)
        whole = self.engine.whole_tokens(key)
        if node.parent is None or count < self.engine.page_count(key):
            return None
        return node if self.engine.key_of_node(node).tokens == whole else None

    def free_device_count(self) -> int:
        """Free device pages, as the allocator counts them."""
        return int(self.engine.allocator.available_size()) // self.engine.page_size

    # -- match and lock ---------------------------------------------------------------------------------------------

    def on_match_prefix(self, op: ops.MatchPrefix) -> Matched:
        """The cache has matched the key, and split and stamped nodes on the way."""
        found = self.engine.match(op.key)
        best = self._best(found)
        key_of = self.engine.key_of_node
        return Matched(
            device=self.engine.device_slots.pages(found.device_indices),
            host_hit=int(found.host_hit_length) // self.engine.page_size,
            last_device_node=key_of(found.last_device_node),
            last_host_node=key_of(found.last_host_node),
            best=key_of(best),
        )

    @staticmethod
    def _best(found: Any) -> Any:
        """The deepest node of the match: on host where that reaches beyond the device."""
        return found.last_host_node if found.host_hit_length else found.last_device_node

    def on_lock(self, op: ops.Lock) -> Done | Invalid:
        """The cache has pinned the path of the match's device end.

        Upstream's schedulers never lock a node that is on host only, and its counts would not bear it: a best end on
        host is pinned by the resident node above it.
        """
        if op.receipt in self.books.receipts:
            return Invalid(why=f"receipt {op.receipt} is in use")
        node = self.node_at(op.key) if op.at == "node" else self.engine.match(op.key).last_device_node
        if node is None:
            return Invalid(why=f"no node ends at {op.key}")
        locked = self.engine.cache.inc_lock_ref(node)
        self.books.receipts[op.receipt] = node
        return Done(evictable=self.engine.pages_grown(locked))

    def on_unlock(self, op: ops.Unlock) -> Done | Invalid:
        """The cache has undone one lock of the receipt's node."""
        if op.receipt not in self.books.receipts:
            return Invalid(why=f"no receipt {op.receipt}")
        unlocked = self.engine.cache.dec_lock_ref(self.books.receipts.pop(op.receipt))
        return Done(evictable=self.engine.pages_grown(unlocked))

    # -- requests ---------------------------------------------------------------------------------------------------

    def on_take_pages(self, op: ops.TakePages) -> Took | Refused | Invalid:
        """The request holds pages of the allocator, after one eviction if need be."""
        if op.n <= 0 or op.rid in self.books.requests or op.rid in self.books.passes:
            return Invalid(why=f"request {op.rid} is in use or n is not positive")
        refused = self._device_room(op.n)
        if refused is not None:
            return refused
        slots = self.engine.allocator.alloc(op.n * self.engine.page_size)
        pages = self.engine.device_slots.pages(slots)
        self.books.requests[op.rid] = Request(pages)
        return Took(pages=pages)

    def _device_room(self, count: int) -> Refused | None:
        """Upstream's scheduler admits a request only where evictable and free together suffice."""
        short = count - self.free_device_count()
        if short <= 0:
            return None
        evictable = self.engine.evictable() // self.engine.page_size
        if short > evictable:
            enough = short <= evictable + len(self.books.held)
            return Refused(why="device full", wait_for=self._holders(self.books.held) if enough else ())
        self.engine.evict(short * self.engine.page_size)
        self.watch.settle()
        if count <= self.free_device_count():
            return None
        waiting = {*self._holders(self.books.held), *self._keepers_of_leaves()}
        return Refused(why="device full", wait_for=tuple(sorted(waiting)))

    def _keepers_of_leaves(self, beside: Any = None) -> set[str]:
        """The work of storage without which more device leaves could have been dropped: none is known here."""
        return set()

    def _holders(self, pages: Any) -> tuple[str, ...]:
        """The passes that touch one of these pages, which were given up (HC-EVICT-11)."""
        held = self.books.held.keys() & set(pages)
        return tuple(sorted(f"f:{rid}" for rid, each in self.books.passes.items() if held.intersection(each.touches)))

    def on_give_back(self, op: ops.GiveBack) -> Done | Invalid:
        """The request holds nothing."""
        request = self.books.requests.pop(op.rid, None)
        if request is None:
            return Invalid(why=f"no request {op.rid}")
        self.engine.allocator.free(self.engine.device_slots.slots(request.pages))
        return Done()

    def on_forward(self, op: ops.Forward) -> Done | Invalid:
        """A pass runs. Its pages hold their bytes at once, for whatever reads them comes after it in the stream."""
        request = self.books.requests.get(op.rid)
        if request is None or op.rid in self.books.passes or request.key is not None:
            return Invalid(why=f"no idle request {op.rid} with unwritten pages")
        prefix = self._resident_prefix(op.key, op.start)
        if prefix is None or op.start + len(request.pages) != self.engine.page_count(op.key):
            return Invalid(why=f"the first {op.start} pages are not resident, or the rest does not fit")
        self.books.passes[op.rid] = Pass(frozenset(prefix) | frozenset(request.pages))
        request.key = op.key
        digests = key_hashes(op.key, self.engine.page_size, self.engine.profile.bigram)
        slots = self.engine.device_slots.slots(request.pages)
        self.stamps.fill(self.engine.device_buffers(), slots, digests[op.start :])
        return Done()

    def _resident_prefix(self, key: Key, count: int) -> Pages | None:
        _, _, resident = self.look(key)
        return resident[:count] if 0 <= count <= len(resident) else None

    def on_forward_done(self, op: ops.ForwardDone) -> Done | Invalid:
        """The pass has ended, and what it alone still held is free."""
        if self.books.passes.pop(op.rid, None) is None:
            return Invalid(why=f"no pass of request {op.rid} runs")
        mine = [page for page, holder in self.books.held.items() if holder == op.rid]
        for page in mine:
            del self.books.held[page]
        if mine:
            self.engine.allocator.free(self.engine.device_slots.slots(mine))
        return Done()

    def on_insert(self, op: ops.Insert) -> Inserted | Invalid:
        """The cache has taken the pages, but for duplicates, which are free (upstream: cache_finished_req)."""
        request = self.books.requests.get(op.rid)
        if request is None and op.start and op.start == self.engine.page_count(op.key):
            request = Request((), op.key)
        if request is None or request.key is None:
            return Invalid(why=f"no request {op.rid} whose pages are written")
        prefix = self._resident_prefix(op.key, op.start)
        if prefix is None or op.start + len(request.pages) != self.engine.page_count(op.key):
            return Invalid(why=f"the first {op.start} pages are not resident, or the rest does not fit")
        self.books.requests.pop(op.rid, None)
        slots = self.engine.device_slots.slots((*prefix, *request.pages))
        known = self.engine.insert(op.key, slots, chunked=op.chunked, priority=op.priority) // self.engine.page_size
        duplicates = request.pages[: max(known - op.start, 0)]
        if duplicates:
            self.engine.allocator.free(self.engine.device_slots.slots(duplicates))
        return Inserted(prefix=known, given_back=duplicates)

    # -- room and copies --------------------------------------------------------------------------------------------

    def on_evict(self, op: ops.Evict) -> Evicted:
        """The cache has given up `n` device pages, or had no more to give."""
        free, held = self.free_device_count(), set(self.books.held)
        self.engine.evict(op.n * self.engine.page_size)
        self.watch.settle()
        staged = self.books.held.keys() - held
        return Evicted(
            freed=self.free_device_count() - free, staged=len(staged), wait_for=self._holders(staged)
        )  # fmt: skip

    def on_evict_host(self, op: ops.EvictHost) -> Evicted:
        """The cache has given up `n` host pages, or had no more to give."""
        host, size = self.engine.host, self.engine.page_size
        before = int(host.available_size())
        self.engine.cache.evict_host(op.n * size)
        return Evicted(freed=(int(host.available_size()) - before) // size)

    def on_write_backup(self, op: ops.WriteBackup) -> Submitted | Refused | Invalid:
        """A copy of the node to host was submitted, if the cache saw fit."""
        node = self.node_at(op.key)
        if node is None or node.value is None or node.host_value is not None:
            return Invalid(why=f"no resident node without host copy ends at {op.key}")
        if self.engine.controller.write_policy == "write_back":
            return Invalid(why="write_back backs up at eviction")
        before = set(self.books.copies)
        pages = int(self.engine.cache.write_backup(node)) // self.engine.page_size
        tickets = tuple(name for name in self.books.copies if name not in before)
        return Submitted(tickets=tickets, pages=pages) if tickets else Refused(why="host full, or a gap above")

    def on_load_back(self, op: ops.LoadBack) -> Submitted | Refused | Invalid:
        """A copy to device was submitted for the host-only chain that ends at the key, if the cache saw fit."""
        node = self.node_at(op.key)
        if node is None or node.value is not None:
            return Invalid(why=f"no host-only node ends at {op.key}")
        return self.load(op, node, None)

    def load(self, op: ops.LoadBack, node: Any, request: Any) -> Submitted | Refused:
        """As `on_load_back`; `request` is upstream's, if it is loaded for one."""
        size = self.engine.page_size
        before, hopeless = set(self.books.copies), self._lacks(node) > self._could_be_free(node)
        self.watch.loading = node
        try:
            quota = None if op.quota is None else op.quota * size + self._evictable_above(node)
            slots = self.engine.load(node, quota, request)
            if slots is not None:
                self.engine.cache.ready_to_load_host_cache()
        finally:
            self.watch.loading = None
        self.watch.settle()
        tickets = tuple(name for name in self.books.copies if name not in before and name.startswith("d:"))
        if slots is None:
            waits_for = self._load_waits_for(op, node, hopeless=hopeless)
            return Refused(why="below threshold, over quota or device full", wait_for=waits_for)
        return Submitted(tickets=tickets, pages=len(slots) // size)

    def _load_waits_for(self, op: ops.LoadBack, node: Any, *, hopeless: bool) -> tuple[str, ...]:
        """The work that holds pages or leaves without which there is no room, if that is why nothing was loaded."""
        need = self._lacks(node)
        threshold = self.engine.cache.load_back_threshold
        if need * self.engine.page_size < threshold or (op.quota is not None and need > op.quota):
            return ()
        if not hopeless:
            return tuple(sorted({*self._holders(self.books.held), *self._keepers_of_leaves(beside=node)}))
        enough = need <= self._could_be_free(node) + len(self.books.held)
        return self._holders(self.books.held) if enough else ()

    def _lacks(self, node: Any) -> int:
        """Pages down to the node that are on host only."""
        need = 0
        while node.value is None:
            need, node = need + len(node.key), node.parent
        return need // self.engine.page_size

    def _could_be_free(self, node: Any) -> int:
        """Device pages that are free, or evictable beside what a load of this node pins."""
        evictable = self.engine.evictable() - self._evictable_above(node)
        return self.free_device_count() + evictable // self.engine.page_size

    def _evictable_above(self, node: Any) -> int:
        """Tokens that a load of this node pins, and that upstream's quota counts as if they could be had."""
        while node.value is None:
            node = node.parent
        tokens = 0
        while node.parent is not None:
            tokens += 0 if self.engine.locks(node) else len(node.key)
            node = node.parent
        return tokens

    def on_copy_done(self, op: ops.CopyDone) -> Done | Invalid:
        """The copy has ended in the world; the cache hears of it from a poll."""
        copy = self.books.copies.get(op.ticket)
        if copy is None or copy.ended:
            return Invalid(why=f"no running copy {op.ticket}")
        copy.ended = True
        if copy.event is not None:
            copy.event.do_work()
        return Done()
