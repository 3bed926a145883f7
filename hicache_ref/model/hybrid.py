"""Recurrent state beside the KV: what a hybrid model asks for that KV alone does not (upstream: HiMambaRadixCache).

A node may own one state slot on each tier, which holds the state at its end. How far a match goes, what a split, a
copy, a failure and a demotion do with it stands where the same is said of KV; here are eviction of states, the
request's own slot, and what becomes of it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hicache_ref.model.insert import InsertRules
from hicache_ref.model.state import Node, Owner, Part, Request, running
from hicache_ref.vocabulary.ids import HOST, KV, KV_DEVICE, ROOT, STATE, STATE_DEVICE, STATE_HOST, PageHash, PoolName
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import EvictHostState, EvictState, Forward, Insert, TakePages
from hicache_ref.vocabulary.outcomes import Evicted, Invalid, Refused, Took


class HybridRules(InsertRules):
    """States of nodes and of requests."""

    # -- eviction ---------------------------------------------------------------------------------------------------

    def requires_evict_state(self, op: EvictState) -> Invalid | None:
        """The model is a hybrid one, and a positive number of slots is asked for."""
        return self._requires_state(op.n)

    def requires_evict_host_state(self, op: EvictHostState) -> Invalid | None:
        """As `requires_evict_state`."""
        return self._requires_state(op.n)

    def _requires_state(self, count: int) -> Invalid | None:
        if not self.profile.state:
            return Invalid(why="the model has no state")
        return Invalid(why="n must be positive") if count <= 0 else None

    def on_evict_state(self, op: EvictState) -> Evicted:
        """At least `n` state slots on device were given up, or none is left that may be (HC-STATE-09)."""
        # change, tell
        return self.evict_state(op.n)

    def on_evict_host_state(self, op: EvictHostState) -> Evicted:
        """At least `n` state slots on host were given up, or none is left that may be (HC-STATE-09)."""
        # change, tell
        return self.evict_host_state(op.n)

    def evict_state(self, count: int) -> Evicted:
        """As `on_evict_state`: of an inner node the state alone, which leaves a tombstone, of a leaf its KV too."""
        tally = self.tally(STATE_DEVICE)
        for node in self._state_victims(STATE_DEVICE):
            as_leaf = self._goes_with_kv(node)
            if as_leaf:
                self.evict_device_leaf(node)
            # Also a leaf that storage reads, and stayed.
            if node.id in self.state.nodes and STATE_DEVICE in node.at and not (as_leaf and self._kv_decides()):
                self.copy_before_state_goes(node)
                self.facts.append("tombstone")
                self.drop_state(node, STATE_DEVICE)
            if tally.given() >= count:
                break
        self.protect_no_more()
        return tally.end()

    def _goes_with_kv(self, node: Node) -> bool:
        """Whether nothing needs the KV of a victim among states: a leaf of the tree, or by the rule of the device."""
        return node.id in self.state.device_leaves if self._kv_decides() else not (node.children or node.locks[KV])

    def _kv_decides(self) -> bool:
        return self.rules.dead_ends == "stay"

    def evict_host_state(self, count: int) -> Evicted:
        """As `on_evict_host_state`: of a host leaf with its KV, of any other node the state alone."""
        tally = self.tally(STATE_HOST)
        for node in self._state_victims(STATE_HOST):
            if node.id in self.state.host_leaves:
                self.remove(node)
            else:
                self.drop_state(node, STATE_HOST)
            if tally.given() >= count:
                break
        return tally.end()

    def _state_victims(self, pool_name: PoolName) -> Iterator[Node]:
        """The nodes whose state there may go, the one used least recently first (HC-STATE-09)."""
        there = sorted((node.last[STATE], node.id) for node in self.state.nodes.values() if pool_name in node.at)
        for _, number in there:
            node = self.state.nodes.get(number)
            if node is not None and self.may_lose_state(node, pool_name):
                self.victims.append((pool_name, node.hashes[-1]))
                if pool_name == STATE_HOST and STATE_DEVICE in node.at:
                    self.facts.append("host_copy_of_resident_state_evicted")
                yield node

    def may_lose_state(self, node: Node, pool_name: PoolName) -> bool:
        """Whether the node has a state there that nothing pins and no operation touches."""
        if node.id == ROOT or pool_name not in node.at or node.locks[STATE]:
            return False
        if pool_name == STATE_HOST and self.rules.host_states == "arrived" and STATE_DEVICE in node.at:
            return False
        ref = (pool_name, node.at[pool_name][0])
        return pool_name == STATE_DEVICE or not any(ref in op.reads or ref in op.writes for op in running(self.state))

    # -- room: KV and state together, or neither (HC-STATE-12) --------------------------------------------------------

    def device_room(self, count: int, states: int = 0, *, for_copy: bool = False) -> Refused | None:
        """Also so many state slots."""
        if not self._can_free(STATE_DEVICE, states):
            if for_copy and self.rules.evict_device_for_hopeless:
                super().device_room(count, for_copy=for_copy)
                self.evict_state(self._short(STATE_DEVICE, states))
            return self._no_slot()
        refused = super().device_room(count, for_copy=for_copy)
        if refused is None and self._short(STATE_DEVICE, states):
            self.evict_state(self._short(STATE_DEVICE, states))
            if self._short(STATE_DEVICE, states):
                self.facts.append("state_room_has_to_be_waited_for")
                return self._no_slot(self._keepers_of_leaves())
        return refused

    def _no_slot(self, keepers: Iterable[str] = ()) -> Refused:
        """Slots that were given up have to be waited for, and the keepers of leaves that could not go."""
        holders = self.touching(STATE_DEVICE, self.left_to_operations(STATE_DEVICE))
        return Refused(why="no state slot", wait_for=tuple(sorted(holders.union(keepers))))

    def host_room(self, count: int, states: int = 0) -> bool:
        """Also so many state slots."""
        hopeless = not self._can_free(STATE_HOST, states) and not self.rules.evict_host_for_hopeless
        if hopeless or not super().host_room(count):
            return False
        short = self._short(STATE_HOST, states)
        if short:
            self.evict_host_state(short)
        return not self._short(STATE_HOST, states)

    def _short(self, pool_name: PoolName, states: int) -> int:
        return max(0, states - self.free_count(pool_name)) if states else 0

    def _can_free(self, pool_name: PoolName, states: int) -> bool:
        """Whether so many slots are free, or would be if all were evicted that may be."""
        short = self._short(pool_name, states)
        if not short:
            return True
        return sum(self.may_lose_state(node, pool_name) for node in self.state.nodes.values()) >= short

    # -- the request's own slot -------------------------------------------------------------------------------------

    def requires_take_pages(self, op: TakePages) -> Invalid | None:
        """Also: what the request goes on from is a device end; a slot that a load gave it is all it has so far."""
        request = self.state.requests.get(op.rid)
        if not self.profile.state:
            return super().requires_take_pages(op)
        if request is not None and not request.pages and op.prefix is None and op.n > 0:
            return None
        node = self.node_at(op.prefix) if op.prefix is not None else self.state.nodes[ROOT]
        if node is None or self.resident_end(node) is not node:
            return Invalid(why=f"no resident state is at {op.prefix}")
        return super().requires_take_pages(op.model_copy(update={"prefix": None}))

    def on_take_pages(self, op: TakePages) -> Took | Refused:
        """Also: it has a state slot, into which the state at `prefix` is copied; no room for one is room for none."""
        if not self.profile.state:
            return super().on_take_pages(op)
        # change
        had = self.state.requests.get(op.rid)
        source = self.node_at(op.prefix) if op.prefix is not None else None
        pins = self.pin(source.id, evicted_too=False) if source is not None else ()
        refused = self.device_room(op.n, int(had is None))
        if refused is None:
            owner: Owner = ("request", op.rid)
            slot = self.take(STATE_DEVICE, 1, owner) if had is None else had.state
            request = Request(id=op.rid, pages=self.take(KV_DEVICE, op.n, owner), state=slot)
            self.state.requests[op.rid] = request
            if source is not None:
                self._copy_state(source, request)
        self.unpin(pins)
        # tell
        return Took(pages=request.pages) if refused is None else refused

    def _copy_state(self, source: Node, request: Request) -> None:
        """The request goes on from a copy of the node's state, for it changes its own in place (HC-STATE-13)."""
        part = Part(component=STATE, device=request.state, host=source.at[STATE_DEVICE])
        ticket = self.submit("request", source, (part,), pinned=True)
        self.facts.append("state_copied_for_request")
        if self.rules.state_copy == "blocking" and not ticket.doomed:
            self.rely_on(ticket.reads)
            self.state.tickets[ticket.id] = replace(ticket, good=1)
            self.state.pools[STATE_DEVICE].stamp[request.state[0]] = source.hashes[-1]
            self.apply_end(self.state.tickets[ticket.id])

    def requires_forward(self, op: Forward) -> Invalid | None:
        """Also: the request's state is that at `start`, and no copy into its slot runs (HC-STATE-14)."""
        invalid = super().requires_forward(op)
        if invalid is not None or not self.profile.state:
            return invalid
        request = self.state.requests[op.rid]
        if not request.pages:
            return Invalid(why=f"request {op.rid} holds no pages")
        hashes = self.hashes(self.pages(op.key), op.key.extra)
        return self._requires_slot(request, hashes[op.start - 1] if op.start else None)

    def _requires_slot(self, request: Request, content: PageHash | None) -> Invalid | None:
        """The request's slot holds this and nothing is about to change it."""
        if request.id in self.state.passes or self.is_being_written(STATE_DEVICE, request.state):
            return Invalid(why=f"the state of request {request.id} is about to change")
        if self.state.pools[STATE_DEVICE].stamp[request.state[0]] != content:
            return Invalid(why=f"the state of request {request.id} is that of another position")
        return None

    def requires_insert(self, op: Insert) -> Invalid | None:
        """Also: the request's pass has ended, and its slot holds the state at the key's end."""
        invalid = super().requires_insert(op)
        if invalid is not None or not self.profile.state:
            return invalid
        request = self.state.requests.get(op.rid)
        if request is None:
            return Invalid(why=f"no request {op.rid} with a state")
        return self._requires_slot(request, self._end_of(op.key))

    def _end_of(self, key: Key) -> PageHash:
        return self.hashes(self.pages(key), key.extra)[-1]

    def attach_state(self, node: Node, request: Request) -> bool:
        """The node has the request's state, or the request's is given back, for it has one already (HC-STATE-15)."""
        if not self.profile.state:
            return False
        existed = STATE_DEVICE in node.at
        if existed:
            self.release(STATE_DEVICE, request.state)
            self.facts.append("state_existed")
        else:
            if node.host is not None and HOST[STATE] not in node.at:
                self.facts.append("state_attached_to_backed_up")
            if node.children:
                self.facts.append("state_attached_above")
            self.place(node, STATE_DEVICE, request.state)
        node.last[STATE] = self.tick()
        return existed

    def back_up_late_state(self, node: Node) -> None:
        """By the rule late_states = insert the state that the insert brought follows its KV, if that is on host."""
        wanted = self.rules.late_states == "insert" and self.state.policy != "write_back" and node.host is not None
        if wanted and self.lacking(node) and not self.is_arriving_on_host(node):
            self.backup(node)
