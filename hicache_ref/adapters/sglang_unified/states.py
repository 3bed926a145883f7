"""The caller of a core that has states beside KV: state slots are allocated, evicted and copied as pages are.

What upstream's MambaComponent and HybridCacheController do outside of the core is done here, in their order of calls
where the order can be seen. A request's slot is filled by a copy that pins its source until it has ended; upstream's
scheduler pins it for longer.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_rust.books import Copy
from hicache_ref.adapters.sglang_rust.core import STATE
from hicache_ref.adapters.sglang_rust.moving import state_transfer
from hicache_ref.adapters.sglang_rust.observe import ObservedCaller
from hicache_ref.adapters.sglang_rust.pools import PagePool, StatePool, pass_name
from hicache_ref.vocabulary.ids import Pages, ReceiptId, RequestId, TicketId
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.observation import LEVELS, IssuedCopy, Level, Observation
from hicache_ref.vocabulary.operations import (
    CopyDone,
    EvictHostState,
    EvictState,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    LoadBack,
    Lock,
    MatchPrefix,
    TakePages,
    Unlock,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import Done, Evicted, Inserted, Invalid, Matched, Refused, Submitted, Took


class StateCaller(ObservedCaller):
    """Each operation is one method of its name; what is not here is as with full attention alone."""

    def start_afresh(self) -> None:
        """As below, and every state slot is free."""
        super().start_afresh()
        sizes, stamps = self.core.profile.sizes, Stamps(1)
        self.states = StatePool(sizes.device_states, stamps)
        self.host_states = PagePool(sizes.host_states, stamps)
        self.request_states: dict[RequestId, Pages] = {}
        self.host_receipts: dict[ReceiptId, Any] = {}

    def pools(self) -> Mapping[str, PagePool]:
        """Also those of states."""
        return {**super().pools(), "device_state": self.states, "host_state": self.host_states}

    def accept_states(self, result: Any) -> None:
        """State slots that an eviction step returned are given up."""
        for slots in result.new_device_frees.get(STATE, ()):
            self.states.give_up(slots.tolist())
        for slots in result.new_host_frees.get(STATE, ()):
            self.host_states.give_up(slots.tolist())

    # -- match, requests --------------------------------------------------------------------------------------------

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        """As with full attention alone; with a branching length, and whether the state has to come from host."""
        matched = super().on_match_prefix(op)
        return matched.model_copy(update={"branching": self.branching, "state_host_hit": self.state_host_hit})

    def on_lock(self, op: Lock) -> Done | Invalid:
        """As below; an end whose state is on host alone is pinned there too, as upstream's prefetch pins it."""
        done = super().on_lock(op)
        if isinstance(done, Done) and op.at != "device":
            node = self.receipts[op.receipt].node_id
            if self.tree.component_has_host_value_only(node, STATE):
                self.host_receipts[op.receipt] = self.tree.inc_host_lock_ref(node)
        return done

    def on_unlock(self, op: Unlock) -> Done | Invalid:
        """As below."""
        host_lock = self.host_receipts.pop(op.receipt, None)
        if host_lock is not None:
            self.release_host_lock(host_lock.node_id, host_lock)
        return super().on_unlock(op)

    def match(self, key: Any) -> Any:
        """As below."""
        found = super().match(key)
        self.branching = found.mamba_branching_seqlen or 0
        self.state_host_hit = int(found.mamba_host_hit_length)
        return found

    def on_take_pages(self, op: TakePages) -> Took | Refused | Invalid:
        """The request holds pages and a slot, into which the state at `prefix` is copied; or nothing was taken."""
        begun = op.prefix is None and self.requests.get(op.rid) == ()
        if op.n <= 0 or op.rid in self.device.passes or (op.rid in self.requests and not begun):
            return Invalid(why=f"request {op.rid} is in use or n is not positive")
        source = None if op.prefix is None else self.nodes.ending_at(op.prefix)
        if op.prefix is not None and (source is None or self._device_state(source) is None):
            return Invalid(why=f"no resident state is at {op.prefix}")
        lock = None if source is None else self.tree.inc_lock_ref(source)
        refused = self._room(op.n, int(not begun))
        if refused is None:
            if not begun:
                self.request_states[op.rid] = self.states.take(1)
            self.requests[op.rid] = self.device.take(op.n)
            if source is not None:
                self._copy_state(source, self.request_states[op.rid])
        if lock is not None:
            self.release_lock(lock.node_id, lock)
        return refused if refused is not None else Took(pages=self.requests[op.rid])

    def _device_state(self, node: int) -> Any:
        return self.tree.get_component_device_value(node, STATE)

    def _copy_state(self, source: int, target: Pages) -> None:
        """A copy of the node's state to the request's slot runs, and the node is pinned."""
        ticket = handle("c", self.nodes.key_of(source), self.copies)
        slots = tuple(self._device_state(source).tolist())
        lock = self.tree.inc_lock_ref(source)
        self.copies[ticket] = Copy(to="request", node=source, write_back=self.tree.is_write_back(), lock=lock)
        self.states.touched[ticket] = target
        self.submit(
            IssuedCopy(ticket=ticket, to="request", source=(), target=(), source_states=slots, target_states=target)
        )

    def on_copy_done(self, op: CopyDone) -> Done | Invalid:
        """As below; a copy to a request is over, for only the request waits for it."""
        done = super().on_copy_done(op)
        if isinstance(done, Done) and self.copies[op.ticket].to == "request":
            copy = self.copies.pop(op.ticket)
            self.release_lock(copy.node, copy.lock)
            self.states.end(op.ticket)
            self._read.clear()
        return done

    def on_give_back(self, op: GiveBack) -> Done | Invalid:
        """The request holds nothing."""
        done = super().on_give_back(op)
        if isinstance(done, Done):
            self.states.give_up(self.request_states.pop(op.rid))
        return done

    def on_forward(self, op: Forward) -> Done | Invalid:
        """A pass runs, which changes the request's state in place."""
        if not self.requests.get(op.rid):
            return Invalid(why=f"no request {op.rid} with pages")
        done = super().on_forward(op)
        if isinstance(done, Done):
            self.states.touched[pass_name(op.rid)] = self.request_states[op.rid]
        return done

    def on_forward_done(self, op: ForwardDone) -> Done | Invalid:
        """The pass has ended: the slot holds the state where the key ends, and what the pass alone held is free."""
        ended = self.device.passes.get(op.rid)
        if ended is not None:
            self.states.memory.write(self.states.touched[pass_name(op.rid)], (ended.end,))
        done = super().on_forward_done(op)
        self.states.end(pass_name(op.rid))
        return done

    def on_insert(self, op: Insert) -> Inserted | Invalid:
        """The core has taken pages and state, but for duplicates."""
        if op.rid not in self.request_states or op.rid in self.device.passes:
            return Invalid(why=f"no request {op.rid} with a state, or its pass runs")
        return super().on_insert(op)

    def insert_more(self, op: Insert) -> dict[str, Any]:
        """The request's state."""
        return {"mamba_value": torch.tensor(self.request_states[op.rid], dtype=torch.int64)}

    def told_of_insert(self, op: Insert, result: Any) -> Inserted:
        """As below; a state for which the core had no use is given up (upstream: cleanup_after_caching_req)."""
        slots = self.request_states.pop(op.rid)
        if result.mamba_exist:
            self.states.give_up(slots)
        return super().told_of_insert(op, result).model_copy(update={"state_existed": bool(result.mamba_exist)})

    # -- room -------------------------------------------------------------------------------------------------------

    def on_evict_state(self, op: EvictState) -> Evicted:
        """The core has chosen victims worth `n` state slots on device, or had no more."""
        free_before, held_before = len(self.states.free), set(self.states.held)
        self.walk(STATE, op.n)
        held = self.states.held.keys() - held_before
        freed = len(self.states.free) - free_before
        return Evicted(freed=freed, staged=len(held), wait_for=self.states.holders(held))

    def on_evict_host_state(self, op: EvictHostState) -> Evicted:
        """The core has chosen victims worth `n` state slots on host, or had no more."""
        return Evicted(freed=self._evict_host_states(op.n))

    def _evict_host_states(self, count: int) -> int:
        free_before = len(self.host_states.free)
        self.accept(self.tree.drive_host_eviction(STATE, count, True))
        return len(self.host_states.free) - free_before

    def _room(self, count: int, states: int) -> Refused | None:
        """So many device pages and state slots are free: at once, or after evicting; else why not."""
        if self._short(states) > int(self.tree.component_evictable_size(STATE)):
            return self._no_slot()
        refused = self.device_room(count)
        if refused is None and self._short(states):
            self.walk(STATE, self._short(states))
            refused = self._no_slot() if self._short(states) else None
        return refused

    def _short(self, states: int) -> int:
        return max(0, states - len(self.states.free))

    def _no_slot(self) -> Refused:
        return Refused(why="no state slot", wait_for=self.states.holders(self.states.held))

    def host_room(self, count: int, states: int) -> bool:
        """As below, and so many state slots are free after evicting (upstream: resolve_host_transfers)."""
        if not super().host_room(count, states):
            return False
        short = states - len(self.host_states.free)
        if short > 0:
            self._evict_host_states(short)
        return states <= len(self.host_states.free)

    def take_host_states(self, count: int) -> Pages:
        """So many state slots on host that are free no more."""
        return self.host_states.take(count)

    # -- copies -----------------------------------------------------------------------------------------------------

    def on_write_backup(self, op: WriteBackup) -> Submitted | Refused | Invalid:
        """As below, also where the state alone lacks a copy."""
        node = self.nodes.ending_at(op.key)
        if node is not None and not self.tree.is_full_device_evicted(node) and not any(self.lacks_on_host(node)):
            return Invalid(why=f"nothing at {op.key} lacks a copy")
        return super().on_write_backup(op)

    def on_load_back(self, op: LoadBack) -> Submitted | Refused | Invalid:
        """A copy runs that fills the chain and the state at the key, and the request's slot, if one is named."""
        node = self.nodes.ending_at(op.key)
        if node is None or not self.tree.component_has_host_value_only(node, STATE):
            return Invalid(why=f"no state is on host alone at {op.key}")
        if op.rid is not None and (op.rid in self.requests or op.rid in self.device.passes):
            return Invalid(why=f"request {op.rid} is in use")
        # As its scheduler does: what is loaded is what a match has just found, and has made used.
        self.match(op.key)
        spec, others = self.tree.build_load_back_spec(node, None)
        if not others:
            return Refused(why="another load has the node")
        pages = len(spec[1])
        if self._gained(node) < self.core.profile.sizes.load_back_threshold:
            return Refused(why="below threshold")
        if op.quota is not None and pages > op.quota:
            return Refused(why="over quota")
        ticket = handle("d", self.nodes.key_of(node), self.copies)
        refused = self.load(node, ticket, pages, op.rid)
        return Submitted(tickets=(ticket,), pages=pages) if refused is None else refused

    def _gained(self, node: int) -> int:
        """How many tokens further a request could go on."""
        path = self.tree.collect_path_info([node])[0]
        ends = (row[3] for row in path if row[4] is not None and self._device_state(row[0]) is not None)
        return int(path[-1][3]) - max(ends, default=0)

    def load_room(self, count: int, rid: RequestId | None) -> Refused | None:
        """As below, and a slot is free for the node's state, and one for the request's."""
        return self._room(count, 1 + (rid is not None))

    def take_request_state(self, ticket: TicketId, rid: RequestId | None) -> torch.Tensor | None:
        """The request has a slot and no pages (upstream: prepare_load_back)."""
        if rid is None:
            return None
        self.request_states[rid], self.requests[rid] = self.states.take(1), ()
        return torch.tensor(self.request_states[rid][0], dtype=torch.int64)

    def fill_states(self, ticket: TicketId, others: dict[int, list[Any]]) -> tuple[Pages, Pages]:
        """The node has a slot (upstream: _resolve_device_transfers); what is in others is what the core is told."""
        sources: Pages = ()
        targets: Pages = ()
        for at, (_, host, device, nodes, *_rest) in enumerate(others[STATE]):
            source = tuple(host.tolist())
            target = self.states.take(len(source)) if device is None else tuple(device.tolist())
            others[STATE][at] = state_transfer(source, target, nodes)
            sources, targets = sources + source, targets + target
        self.states.touched[ticket] = targets
        return sources, targets

    def apply_load(self, copy: Copy) -> None:
        """As below, and the slots are touched no more."""
        super().apply_load(copy)
        for name in [name for name in self.states.touched if name not in self.pending()]:
            self.states.end(name)

    # -- what is seen -----------------------------------------------------------------------------------------------

    def observe(self, level: Level) -> Observation:
        """As below, and from level `pages` on who has each state slot."""
        seen = super().observe(level)
        if not LEVELS.index(level):
            return seen
        return seen.model_copy(
            update={
                "free_device_state": tuple(self.states.free), "free_host_state": tuple(self.host_states.free),
                "request_states": self.request_states, "held_device_state": tuple(sorted(self.states.held)),
            }
        )  # fmt: skip
