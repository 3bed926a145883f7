"""The caller of a hybrid cache, as upstream's scheduler calls it: what it does otherwise than that of any cache.

A request has a state slot beside its pages. What upstream's match does for a request at once (copy on write) is done
where the request takes its pages, by the same calls.
"""

from typing import Any

from hicache_ref.adapters.sglang_himamba.books import HybridWatch
from hicache_ref.adapters.sglang_himamba.engine import HybridEngine
from hicache_ref.adapters.sglang_himamba.observe import HybridObserver
from hicache_ref.adapters.sglang_himamba.workers import HybridWorkers
from hicache_ref.adapters.sglang_hiradix.books import Copy, Pass, Request
from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_hiradix.substitutes import Bag
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.hashing import key_hashes
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import (
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Polled,
    Refused,
    Submitted,
    Took,
)


class HybridCaller(HybridObserver):
    """Each operation is one method of its name."""

    watch_kind = HybridWatch
    workers_kind = HybridWorkers
    engine: HybridEngine
    watch: HybridWatch

    def __init__(self, engine: HybridEngine, stamps: Stamps) -> None:
        super().__init__(engine, stamps)

    # -- match and lock ---------------------------------------------------------------------------------------------

    def on_match_prefix(self, op: ops.MatchPrefix) -> Matched:
        """The cache has matched the key; its prefix is told as far as nothing has to be loaded for it.

        Upstream's prefix has all KV on device up to the best end, also where the state there is on host only.
        """
        found = self.engine.match(op.key)
        key_of = self.engine.key_of_node
        end = self._device_end(found.last_device_node)
        reach = len(found.device_indices) + self._kv_hit(found)
        device = self.engine.device_slots.pages(found.device_indices)[: self._depth(end)]
        # Rounded down to a whole chunk it may end where the prefix does, and is of no use then.
        branching = found.mamba_branching_seqlen or 0
        return Matched(
            device=device,
            host_hit=reach - len(device),
            last_device_node=key_of(end),
            last_host_node=key_of(found.last_host_node),
            best=self._best_of(found, op.key, reach),
            branching=branching if branching > reach else 0,
            state_host_hit=getattr(found, "mamba_host_hit_length", None),
        )

    def _kv_hit(self, found: Any) -> int:
        """Tokens on host between the deepest resident node and best end; before 0.5.15 a state may stand for one."""
        if self.engine.traits.names_best_node:
            return int(found.host_hit_length)
        node, count = found.last_host_node, 0
        while node is not found.last_device_node and node.parent is not None and node.value is None:
            count, node = count + len(node.key), node.parent
        return count

    def _best_of(self, found: Any, key: Key, reach: int) -> Key:
        """The node from which upstream would load, if it would; else where its prefix ends."""
        if self.engine.traits.names_best_node and (found.host_hit_length or found.mamba_host_hit_length):
            return self.engine.key_of_node(found.best_match_node)
        return Key(tokens=self.engine.whole_tokens(key)[:reach], extra=key.extra if reach else None)

    @staticmethod
    def _device_end(node: Any) -> Any:
        """The deepest node at or above with a state on device, as init_load_back climbs where nothing can be loaded."""
        while node.parent is not None and (node.value is None or node.mamba_value is None):
            node = node.parent
        return node

    @staticmethod
    def _depth(node: Any) -> int:
        depth = 0
        while node.parent is not None:
            depth, node = depth + len(node.key), node.parent
        return depth

    def on_lock(self, op: ops.Lock) -> Done | Invalid:
        """The cache has pinned the path of the device end, or of the deepest resident node up to the best end or node.

        That is a tombstone where its state is on host only. No caller of upstream's locks a node that is not resident.
        """
        if op.receipt in self.books.receipts:
            return Invalid(why=f"receipt {op.receipt} is in use")
        node = self.node_at(op.key) if op.at == "node" else self.engine.match(op.key).last_device_node
        if node is None:
            return Invalid(why=f"no node ends at {op.key}")
        while node.parent is not None and node.value is None:
            node = node.parent
        node = self._device_end(node) if op.at == "device" else node
        locked = self.engine.cache.inc_lock_ref(node)
        self.books.receipts[op.receipt] = node
        return Done(evictable=self.engine.pages_grown(locked))

    # -- requests ---------------------------------------------------------------------------------------------------

    def on_take_pages(self, op: ops.TakePages) -> Took | Refused | Invalid:
        """The request holds pages and a state slot, with a copy of the state at `prefix`; or nothing was taken."""
        request = self.books.requests.get(op.rid)
        begun = request is not None and not request.pages and op.prefix is None
        if op.n <= 0 or op.rid in self.books.passes or (request is not None and not begun):
            return Invalid(why=f"request {op.rid} is in use or n is not positive")
        source = None if op.prefix is None else self.node_at(op.prefix)
        if op.prefix is not None and (source is None or source.value is None or source.mamba_value is None):
            return Invalid(why=f"no resident state is at {op.prefix}")
        if source is not None:
            self.engine.cache.inc_lock_ref(source)
        state = request.state if request is not None else ()
        try:
            refused = self._state_is_hopeless(not state) or self._device_room(op.n)
            if refused is None:
                state = state or self.engine.take_state()
                self.watch.settle()
                refused = None if state else self._no_state()
        finally:
            if source is not None:
                self.engine.cache.dec_lock_ref(source)
        if refused is not None:
            return refused
        pages = self.engine.device_slots.pages(self.engine.allocator.alloc(op.n))
        self.books.requests[op.rid] = Request(pages, state=state)
        if source is not None:
            self._copy_state(source, state)
        return Took(pages=pages)

    def _state_is_hopeless(self, wanted: bool) -> Refused | None:
        """Upstream's scheduler admits a request only where a slot is free or can be."""
        enough = self.engine.state_allocator.available_size() + int(self.engine.cache.mamba_evictable_size())
        return self._no_state() if wanted and not enough else None

    def _no_state(self) -> Refused:
        return Refused(why="no state slot", wait_for=self._holders_of_states())

    def _holders_of_states(self) -> tuple[str, ...]:
        """The passes that change a slot which was given up, and the loads into one (HC-EVICT-11)."""
        held = set(self.books.held_states)
        passes = {f"f:{rid}" for rid, each in self.books.passes.items() if held.intersection(each.state)}
        loads = {name for name, copy in self.books.copies.items() if self._brings(copy, tuple(held))}
        return tuple(sorted(passes | loads))

    def _copy_state(self, source: Any, target: Pages) -> None:
        """The copy is made in the order of streams: after the load that brings the state, before any pass."""
        slots = self.engine.state_slots.pages(source.mamba_value)
        for copy in self.books.copies.values():
            if copy.event is not None and self._brings(copy, slots):
                copy.event.do_work()
        self.engine.copy_state(slots, target)

    def on_give_back(self, op: ops.GiveBack) -> Done | Invalid:
        """The request holds nothing; a slot into which a load still runs is free when that was applied."""
        request = self.books.requests.get(op.rid)
        done = super().on_give_back(op)
        if request is not None:
            loads = [name for name, copy in self.books.copies.items() if self._brings(copy, request.state)]
            if loads:
                self.books.held_states[request.state[0]] = loads[0]
            else:
                self.engine.state_allocator.free(self.engine.state_slots.slots(request.state))
        return done

    @staticmethod
    def _brings(copy: Copy, state: Pages) -> bool:
        return copy.to == "device" and bool(set(state) & set(copy.moved.target_states))

    def on_poll(self, op: ops.Poll) -> Polled:
        """As of any cache; also what gone requests left to loads that were applied is free."""
        polled = super().on_poll(op)
        for name in polled.loads:
            self._free_held(name)
        return polled

    def _free_held(self, holder: str) -> None:
        mine = [slot for slot, each in self.books.held_states.items() if each == holder]
        for slot in mine:
            del self.books.held_states[slot]
        if mine:
            self.engine.state_allocator.free(self.engine.state_slots.slots(mine))

    def on_forward(self, op: ops.Forward) -> Done | Invalid:
        """A pass runs; its state is that at the end of the key once it has ended, for nobody looks there before."""
        request = self.books.requests.get(op.rid)
        if request is None or not request.pages:
            return Invalid(why=f"no request {op.rid} with pages")
        done = super().on_forward(op)
        if isinstance(done, Done):
            end = key_hashes(op.key, 1, bigram=False)[-1]
            self.books.passes[op.rid] = Pass(self.books.passes[op.rid].touches, request.state, end)
        return done

    def on_forward_done(self, op: ops.ForwardDone) -> Done | Invalid:
        """The pass has ended, and what it alone still held is free, slots too."""
        ended = self.books.passes.get(op.rid)
        if ended is not None and ended.end is not None:
            slots = self.engine.state_slots.slots(ended.state)
            self.stamps.fill(self.engine.state_buffers(), slots, (ended.end,))
        done = super().on_forward_done(op)
        self._free_held(f"f:{op.rid}")
        return done

    def on_insert(self, op: ops.Insert) -> Inserted | Invalid:
        """The cache has taken pages and state, but for duplicates, which are free (upstream: cache_finished_req)."""
        request = self.books.requests.get(op.rid)
        if request is None or op.rid in self.books.passes or (request.pages and request.key is None):
            return Invalid(why=f"no request {op.rid} whose pages are written")
        prefix = self._resident_prefix(op.key, op.start)
        if prefix is None or op.start + len(request.pages) != self.engine.page_count(op.key):
            return Invalid(why=f"the first {op.start} pages are not resident, or the rest does not fit")
        self.books.requests.pop(op.rid)
        slots = self.engine.device_slots.slots((*prefix, *request.pages))
        self.watch.freed.clear()
        told = self.engine.insert_with_state(op.key, slots, request.state, op.start, chunked=op.chunked)
        freed = set(self.watch.freed)
        if told.mamba_exist:
            self.engine.state_allocator.free(self.engine.state_slots.slots(request.state))
        return Inserted(
            prefix=int(told.prefix_len),
            given_back=tuple(page for page in request.pages if page in freed),
            state_existed=bool(told.mamba_exist),
        )

    # -- room and copies --------------------------------------------------------------------------------------------

    def on_evict_state(self, op: ops.EvictState) -> Evicted:
        """The cache has given up `n` state slots on device, or had no more to give."""
        before = int(self.engine.state_allocator.available_size())
        self.engine.evict_states(op.n)
        self.watch.settle()
        return Evicted(freed=int(self.engine.state_allocator.available_size()) - before)

    def on_evict_host_state(self, op: ops.EvictHostState) -> Evicted:
        """The cache has given up `n` state slots on host, or had no more to give."""
        before = int(self.engine.host_states.available_size())
        self.engine.cache.evict_mamba_host(op.n)
        return Evicted(freed=int(self.engine.host_states.available_size()) - before)

    def on_write_backup(self, op: ops.WriteBackup) -> Submitted | Refused | Invalid:
        """A copy of the node to host was submitted, if the cache saw fit; it has no call for a late state alone."""
        node = self.node_at(op.key)
        if node is not None and node.value is not None and node.host_value is not None:
            if node.mamba_value is None or node.mamba_host_value is not None:
                return Invalid(why=f"nothing at {op.key} lacks a copy")
            return Refused(why="no call backs up a state alone")
        return super().on_write_backup(op)

    def on_load_back(self, op: ops.LoadBack) -> Submitted | Refused | Invalid:
        """A copy was submitted for the chain and the state at the key, and for the request's slot, if there is one."""
        node = self.node_at(op.key)
        if node is None or node.mamba_host_value is None or node.mamba_value is not None:
            return Invalid(why=f"no state is on host alone at {op.key}")
        if op.rid is not None and (op.rid in self.books.requests or op.rid in self.books.passes):
            return Invalid(why=f"request {op.rid} is in use")
        request = None if op.rid is None else Bag(rid=op.rid)
        # As its scheduler does: what is loaded is what a match has just found, and has made used.
        self.engine.match(op.key)
        try:
            return self.load(op, node, request)
        finally:
            # Upstream's request keeps the slot that it was given, whatever became of the load.
            if request is not None and op.rid is not None and request.mamba_pool_idx is not None:
                slot = int(request.mamba_pool_idx) - 1
                self.books.requests[op.rid] = Request((), state=(slot,))

    def anchor_of(self, key: Key, matched: int) -> Any:
        """The best end, which was matched before: to do so again here would split what is below it."""
        return self.node_at(self._cut(key, matched)) or self.engine.cache.root_node

    def from_where(self, key: Key) -> tuple[int, bool]:
        """A prefetch asks for what is behind the best end: a node whose state is on some tier, or the root."""
        count, node, _ = self.look(key)
        node = node.parent if self._depth(node) > count else node
        while node.parent is not None and node.mamba_value is None and node.mamba_host_value is None:
            node = node.parent
        return self._depth(node), node.parent is None or node.host_value is not None

    def is_forced(self, op: ops.Reset) -> bool:
        """It says so, or was waited for: for backups as long as the cache itself waits for them within its reset.

        For prefetches it does not wait, so for these its caller does, as long as the profile says.
        """
        limit = self.engine.profile.rules.reset_waits
        if op.force or not self.writing():
            return op.force or (limit is not None and op.waited >= limit)
        # What has ended is known before, for else the cache would learn of it within its reset.
        self.poll_storage_to_the_end()
        return self.engine.gives_up_waiting(op.waited)

    def _load_waits_for(self, op: ops.LoadBack, node: Any, *, hopeless: bool) -> tuple[str, ...]:
        """Also the passes that hold slots, where even all evictable ones are too few."""
        above = node
        while above.value is None:
            above = above.parent
        need = self._lacks(node)
        if self._depth(node) - self._depth(self._device_end(node)) < self.engine.cache.load_back_threshold:
            return ()
        if op.quota is not None and need > op.quota:
            return ()
        states = self.engine.state_allocator.available_size() + int(self.engine.cache.mamba_evictable_size())
        # The load keeps what it hangs below.
        states -= above is not node and above.mamba_value is not None and not above.mamba_lock_ref
        if states < 1 + (op.rid is not None):
            return self._holders_of_states()
        return super()._load_waits_for(op, node, hopeless=hopeless)
