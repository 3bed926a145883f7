"""The caller of the core, operation by operation: allocation, forward passes, and the books are its part.

What the core decides (matches, victims, leaf sets, hits, which backups) is asked of it; see `moving` for the rest.
"""

from array import array
from typing import Any

import torch

from hicache_ref.adapters.sglang_rust.core import CoreMisbehaved
from hicache_ref.adapters.sglang_rust.moving import Moving
from hicache_ref.adapters.sglang_rust.pools import Pass
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key, handle
from hicache_ref.vocabulary.operations import (
    Audit,
    CopyDone,
    Evict,
    EvictHost,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    LoadBack,
    Lock,
    MatchPrefix,
    Operation,
    Poll,
    Reset,
    SetWritePolicy,
    TakePages,
    Unlock,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import (
    Audited,
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Outcome,
    Polled,
    Refused,
    Submitted,
    Took,
)

_NOT_HELD = -1
"""Stands in an insert for slots before `start`, which the tree must not look at."""


class Caller(Moving):
    """Each operation is one method of its name.

    The core guards few preconditions, and panics where it does. What the books show to be wrong is `Invalid` here.
    """

    def apply(self, operation: Operation) -> Outcome:
        """The operation has happened. Raises what the core raises."""
        outcome: Outcome = getattr(self, f"on_{operation.op}")(operation)
        return outcome

    # -- match and lock ---------------------------------------------------------------------------------------------

    def match(self, key: Key) -> Any:
        """The core has matched the key, and what it asked for is done."""
        result = self.tree.match_prefix(self.core.match_params(key.tokens, key.extra))
        self.obey(result.cache_actions)
        if result.last_visited_node_id is not None:
            self.nodes.see(result.last_visited_node_id)
        return result

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        """The core has matched the key, and split and stamped nodes on the way."""
        found = self.match(op.key)
        device = self._device_path(found)
        ends = {
            number: self.nodes.key_of(number)
            for number in {found.last_device_node_id, found.last_host_node_id, found.best_match_node_id}
        }
        return Matched(
            device=device,
            host_hit=found.host_hit_length // self.core.page_size,
            last_device_node=ends[found.last_device_node_id],
            last_host_node=ends[found.last_host_node_id],
            best=ends[found.best_match_node_id],
        )

    def _device_path(self, found: Any) -> Pages:
        """The device pages down to the match's device end. Raises CoreMisbehaved if they are not as long as it says."""
        slots = self.tree.collect_full_device_indices(found.last_device_node_id, self.core.root())
        if len(slots) != found.device_prefix_len:
            raise CoreMisbehaved(f"device_prefix_len is {found.device_prefix_len}, {len(slots)} slots lead to its node")
        return self.core.pages(slots)

    def on_lock(self, op: Lock) -> Done | Invalid:
        """The core has pinned the path of the match's device end, of its best end, or of the node."""
        if op.receipt in self.receipts:
            return Invalid(why=f"receipt {op.receipt} is in use")
        node = self._end_to_lock(op)
        if node is None:
            return Invalid(why=f"no node ends at {op.key}")
        self.receipts[op.receipt] = self.tree.inc_lock_ref(node)
        return Done()

    def _end_to_lock(self, op: Lock) -> int | None:
        if op.at == "node":
            return self.nodes.ending_at(op.key)
        found = self.match(op.key)
        node: int = found.last_device_node_id if op.at == "device" else found.best_match_node_id
        return node

    def on_unlock(self, op: Unlock) -> Done | Invalid:
        """The core has undone what it did for the receipt."""
        receipt = self.receipts.pop(op.receipt, None)
        if receipt is None:
            return Invalid(why=f"no receipt {op.receipt}")
        self.unlock(receipt)
        return Done()

    def unlock(self, receipt: Any) -> None:
        """The caller's lock is undone."""
        self.release_lock(receipt.node_id, receipt)

    # -- requests ---------------------------------------------------------------------------------------------------

    def on_take_pages(self, op: TakePages) -> Took | Refused | Invalid:
        """The request holds pages of the free list, after one eviction by the core if need be."""
        if op.n <= 0 or op.rid in self.requests or op.rid in self.device.passes:
            return Invalid(why=f"request {op.rid} is in use or n is not positive")
        refused = self.device_room(op.n)
        if refused is not None:
            return refused
        pages = self.requests[op.rid] = self.device.take(op.n)
        return Took(pages=pages)

    def on_give_back(self, op: GiveBack) -> Done | Invalid:
        """The request holds nothing."""
        pages = self.requests.pop(op.rid, None)
        if pages is None:
            return Invalid(why=f"no request {op.rid}")
        self.device.give_up(pages)
        return Done()

    def on_forward(self, op: Forward) -> Done | Invalid:
        """A pass runs, unseen by the core. Its pages hold their KV at once, for what reads them comes after it."""
        own = self.requests.get(op.rid)
        reads = self.core.resident_pages(op.key, op.start)
        if own is None or reads is None or op.rid in self.device.passes:
            return Invalid(why=f"no idle request {op.rid}, or its first {op.start} pages are not resident")
        digests = self.core.hashes(op.key)
        if op.start + len(own) != len(digests):
            return Invalid(why=f"request {op.rid} has {len(own)} pages, not as many as key and start name")
        self.device.memory.write(own, digests[op.start :])
        self.device.passes[op.rid] = Pass(frozenset(reads), frozenset(own), digests[-1])
        return Done()

    def on_forward_done(self, op: ForwardDone) -> Done | Invalid:
        """The pass has ended, and what it alone still held is free."""
        if op.rid not in self.device.passes:
            return Invalid(why=f"no pass of request {op.rid} runs")
        self.device.end_pass(op.rid)
        return Done()

    def on_insert(self, op: Insert) -> Inserted | Invalid:
        """The core has taken the request's pages, but for duplicates; the backups that it asked for are submitted."""
        own = self.requests.get(op.rid)
        if own is None or op.start + len(own) != self.core.page_count(op.key):
            return Invalid(why=f"no request {op.rid} with as many pages as key and start name")
        if self.core.resident_pages(op.key, op.start) is None:
            return Invalid(why=f"the first {op.start} pages are not resident")
        del self.requests[op.rid]
        self.duplicates.clear()
        result = self._pump(self._insert_params(op, own))
        self.nodes.see(result.last_device_node)
        return self.told_of_insert(op, result)

    def told_of_insert(self, op: Insert, result: Any) -> Inserted:
        """What the request's owner is told."""
        return Inserted(prefix=result.prefix_len // self.core.page_size, given_back=tuple(self.duplicates))

    def _insert_params(self, op: Insert, own: Pages) -> Any:
        size = self.core.page_size
        before = torch.full((op.start * size,), _NOT_HELD, dtype=torch.int64)
        slots = self.core.slots(own)
        return self.core.bindings.InsertParamsBinding(
            array("q", self.core.whole_pages(op.key)),
            torch.cat([before, slots]) if op.start else slots,
            extra_key=op.key.extra,
            prev_prefix_len=op.start * size,
            inserted_len=op.inserted * size,
            priority=op.priority,
            **self.insert_more(op),
        )

    def insert_more(self, op: Insert) -> dict[str, Any]:
        """What else the core is told with an insert: nothing here."""
        return {}

    def _pump(self, params: Any) -> Any:
        """The insert has run to its end, what it asked for done at each of its barriers (upstream: insert)."""
        step = self.tree.begin_insert(params)
        while True:
            for chain in self.obey(step.actions):
                self.back_up(chain)
            if step.result is not None:
                break
            step = self.tree.resume_insert()
        self.obey(self.tree.end_insert())
        return step.result

    # -- room and copies --------------------------------------------------------------------------------------------

    def on_evict(self, op: Evict) -> Evicted:
        """The core has chosen victims worth `n` device pages, or had no more."""
        freed, staged, wait_for = self.evict_device(op.n)
        return Evicted(freed=freed, staged=staged, wait_for=wait_for)

    def on_evict_host(self, op: EvictHost) -> Evicted:
        """The core has chosen victims worth `n` host pages, or had no more."""
        return Evicted(freed=self.evict_host(op.n))

    def on_write_backup(self, op: WriteBackup) -> Submitted | Refused | Invalid:
        """Copies are submitted for the node and for what the core says is unbacked above it."""
        node = self.nodes.ending_at(op.key)
        if node is None or self.tree.is_write_back() or self.tree.is_full_device_evicted(node):
            return Invalid(why=f"no resident node ends at {op.key}, or the policy is write_back")
        tickets, pages = self.back_up(self.tree.build_backup_kv_action(node)[1])
        return Submitted(tickets=tickets, pages=pages) if tickets else Refused(why="host full")

    def on_load_back(self, op: LoadBack) -> Submitted | Refused | Invalid:
        """The core has device pages for the host-only chain that ends at the key, and a copy to fill them runs."""
        node = self.nodes.ending_at(op.key)
        if node is None or not self.tree.is_full_device_evicted(node):
            return Invalid(why=f"no host-only node ends at {op.key}")
        pages = len(self.tree.build_load_back_spec(node, None)[0][1]) // self.core.page_size
        if pages * self.core.page_size < max(1, self.core.profile.sizes.load_back_threshold):
            return Refused(why="below threshold")
        if op.quota is not None and pages > op.quota:
            return Refused(why="over quota")
        ticket = handle("d", self.nodes.key_of(node), self.copies)
        refused = self.load(node, ticket, pages)
        return Submitted(tickets=(ticket,), pages=pages) if refused is None else refused

    def on_copy_done(self, op: CopyDone) -> Done | Invalid:
        """The copy has ended in the world, and its bytes are in place; the core hears of it from the poll."""
        copy = self.running.pop(op.ticket, None)
        if copy is None:
            return Invalid(why=f"no running copy {op.ticket}")
        self.move(copy)
        return Done()

    def on_poll(self, op: Poll) -> Polled:
        """The core has heard of the leading ended copies, as many as were agreed on."""
        backups, loads = self._leading("host", op.backups), self._leading("device", op.loads)
        for name in backups:
            self.apply_backup(self.copies.pop(name))
        for name in loads:
            self.apply_load(self.copies.pop(name))
        return Polled(backups=tuple(backups), loads=tuple(loads))

    def _leading(self, to: str, agreed: int) -> list[str]:
        found: list[str] = []
        for name, copy in self.copies.items():
            if copy.to != to:
                continue
            if name in self.running or len(found) == agreed:
                break
            found.append(name)
        return found

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def on_set_write_policy(self, op: SetWritePolicy) -> Done | Refused:
        """The core follows the policy, unless it says that what it holds does not fit (upstream: attach)."""
        leaves_write_back = self.tree.is_write_back() and op.policy != "write_back"
        if leaves_write_back and not self.tree.is_write_through_compatible():
            return Refused(why="host data without its prefix")
        self.core.follow(op.policy)
        return Done()

    def on_audit(self, op: Audit) -> Audited:
        """What is pending; with nothing pending the core has passed its own check. Raises what that complains of."""
        pending = self.pending()
        if not pending:
            self.tree.sanity_check([], [])
        return Audited(pending=pending)

    def on_reset(self, op: Reset) -> Done | Refused:
        """Core and books are as new, unless something runs."""
        pending = self.pending()
        if pending:
            return Refused(why="work in flight", wait_for=pending)
        self.tree.reset()
        self.tree.record_all_cleared_event()
        self.core.follow(self.core.profile.rules.write_policy)
        self.start_afresh()
        return Done()
