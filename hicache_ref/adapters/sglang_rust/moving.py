"""Making room and moving pages: device eviction, host eviction, backups and loads, in upstream's order of calls.

Sources: UnifiedRadixCache._evict_components, _execute_and_commit_kv_backup, load_back, writing_check, loading_check.
"""

from typing import Any, NamedTuple

import torch

from hicache_ref.adapters.sglang_rust.books import Books, Copy
from hicache_ref.adapters.sglang_rust.core import KV, STATE
from hicache_ref.vocabulary.ids import Pages, RequestId, TicketId
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.observation import IssuedCopy
from hicache_ref.vocabulary.outcomes import Refused


class Tally(NamedTuple):
    """Device pages that became free, pages given up but held by passes, and the names of those."""

    freed: int
    staged: int
    wait_for: tuple[str, ...]


def state_transfer(host: Pages | None = None, device: Pages | None = None, nodes: list[int] | None = None) -> Any:
    """A transfer of states as the core takes it (upstream: PoolTransfer)."""
    slots = [None if each is None else torch.tensor(each, dtype=torch.int64) for each in (host, device)]
    return ("mamba", *slots, nodes, None, "all_pages")


class Moving(Books):
    """What the caller does beside passing requests on."""

    # -- room -------------------------------------------------------------------------------------------------------

    def evict_device(self, count: int) -> Tally:
        """At least `count` device pages were given up, or no evictable leaf remains."""
        free_before = len(self.device.free)
        given = self.walk(KV, count * self.core.page_size)
        freed = len(self.device.free) - free_before
        return Tally(freed, len(given) - freed, self.device.holders(given))

    def walk(self, component: int, count: int) -> list[int]:
        """The core has chosen victims until `count` slots of the component were given up, or had no more.

        Returns the device pages that were given up.
        """
        given: list[int] = []
        evicted_slots = dict.fromkeys(self.core.components, 0)
        self.tree.evict_device_start(component, count)
        while True:
            found = self.tree.evict_device_next_node(component, evicted_slots)
            if found.mamba_backup_node_id is not None:
                self._copy_inside_step(found.mamba_backup_node_id)
                found = self.tree.finish_mamba_state_eviction(found.mamba_backup_node_id)
            given += self._count(found, evicted_slots)
            if found.node_id is None:
                if not found.made_progress:
                    break
                continue
            leaf = self.tree.evict_device_leaf(found.node_id)
            given += self._count(leaf, evicted_slots)
            if leaf.backup_kv is not None:
                given += self._count(self._write_back_or_drop(found.node_id), evicted_slots)
        self.tree.evict_device_end(component)
        return given

    def _count(self, result: Any, evicted_slots: dict[int, int]) -> list[int]:
        for component, count in result.tracker.items():
            evicted_slots[component] += count
        return self.accept(result)

    def _write_back_or_drop(self, node: int) -> Any:
        """The victim is on host only, its copy ended; or out of the tree with all below, where there was no copy."""
        if self._copy_inside_step(node):
            return self.tree.demote(node)
        return self.tree.drop_subtree_no_host(node)

    def _copy_inside_step(self, node: int) -> bool:
        """The node has a settled host copy; False where there is no room for it.

        Upstream blocks until the copy has ended, and by that for a pass that has yet to write these pages.
        """
        source, states = self.lacks_on_host(node)
        if not self.host_room(len(source), len(states)):
            return False
        self.put_on_host(node, source, states, None)
        self.tree.finish_write_through([node], node)
        return True

    def device_room(self, count: int) -> Refused | None:
        """`count` device pages are free: at once, or after evicting once; else why not."""
        short = count - len(self.device.free)
        if short <= 0:
            return None
        held = self.device.holders(self.device.held)
        evictable = self.tree.evictable_size() // self.core.page_size
        if short > evictable:
            is_enough = short <= evictable + len(self.device.held)
            return Refused(why="device full", wait_for=held if is_enough else ())
        self.evict_device(short)
        if count <= len(self.device.free):
            return None
        return Refused(why="device full", wait_for=self.device.holders(self.device.held))

    def host_room(self, count: int, states: int) -> bool:
        """Whether `count` host pages and so many state slots are free, after evicting for what is short of them."""
        short = count - len(self.host.free)
        if short > 0:
            self.evict_host(short)
        return count <= len(self.host.free)

    def evict_host(self, count: int) -> int:
        """The number of host pages that became free; at least `count`, or no evictable host leaf remains.

        Under write_back upstream would first take host copies of resident nodes; that is switched off by the last
        argument, as its SGLANG_HICACHE_SKIP_HOST_DUPLICATE_RECLAIM does.
        """
        free_before = len(self.host.free)
        self.accept(self.tree.drive_host_eviction(KV, count * self.core.page_size, True))
        return len(self.host.free) - free_before

    # -- backups ----------------------------------------------------------------------------------------------------

    def back_up(self, nodes: list[int]) -> tuple[tuple[TicketId, ...], int]:
        """Copies to host are submitted for these nodes, ancestors first, up to the first that finds no room.

        Returns the tickets and the number of pages.
        """
        tickets: list[TicketId] = []
        count = 0
        for node in nodes:
            source, states = self.lacks_on_host(node)
            if not source and not states:
                continue
            if not self.host_room(len(source), len(states)):
                break
            ticket = handle("h", self.nodes.key_of(node), self.copies)
            self.put_on_host(node, source, states, ticket)
            lock = self.tree.inc_lock_ref(node)
            self.copies[ticket] = Copy(
                to="host", node=node, write_back=self.tree.is_write_back(), lock=lock, published=[node]
            )
            tickets.append(ticket)
            count += len(source)
        return tuple(tickets), count

    def lacks_on_host(self, node: int) -> tuple[Pages, Pages]:
        """Device pages and state slots of the node that are not on host."""
        slots, others = self.tree.build_backup_spec(node)
        return self.core.pages(slots), tuple(slot for each in others.get(STATE, ()) for slot in each[2].tolist())

    def put_on_host(self, node: int, source: Pages, states: Pages, ticket: TicketId | None) -> None:
        """The node has host pages, and their copy is pending in the core; the caller has made sure of room."""
        target = self.host.take(len(source))
        target_states = self.take_host_states(len(states))
        self.commit_backup(node, self.backup_target(target), target_states)
        self.tree.mark_write_through_pending([node], node)
        self.submit(
            IssuedCopy(ticket=ticket, to="host", source=source, target=target, source_states=states,
                       target_states=target_states)
        )  # fmt: skip

    def take_host_states(self, count: int) -> Pages:
        """So many state slots on host; a core of full attention alone asks for none."""
        return ()

    def commit_backup(self, node: int, pages: Pages, states: Pages) -> None:
        """The core has these host pages and state slots for the node."""
        others = {STATE: [state_transfer(host=states)]} if states else {}
        self.tree.commit_backup(node, self.core.slots(pages), others)

    def backup_target(self, pages: Pages) -> Pages:
        """The host pages that the core is told of, in the order of the node's key."""
        return pages

    def apply_backup(self, copy: Copy) -> None:
        """The backup has been acknowledged and its pin undone."""
        self.acknowledge(copy)
        self.release_lock(copy.node, copy.lock)

    def acknowledge(self, copy: Copy) -> None:
        """The core has the node, or the halves it was split into, as backed up."""
        self.tree.finish_write_through(copy.published, copy.node)

    # -- loads ------------------------------------------------------------------------------------------------------

    def load(self, node: int, ticket: TicketId, count: int, rid: RequestId | None = None) -> Refused | None:
        """The host-only chain of `count` pages that ends at the node is resident and its copy submitted; else why not.

        The path and the host anchor are pinned before room is made. The anchor stays pinned until the end is applied.
        """
        host_lock = self.tree.inc_host_lock_ref(node)
        path_lock = self.tree.inc_lock_ref(node)
        refused = self.load_room(count, rid)
        self.release_lock(node, path_lock)
        if refused is not None:
            self.release_host_lock(node, host_lock)
            return refused
        state = self.take_request_state(ticket, rid)
        spec, others = self.tree.build_load_back_spec(node, state)
        source, target = self.core.pages(spec[1]), self.device.take(count)
        source_states, target_states = self.fill_states(ticket, others)
        self.obey(self.tree.commit_load_back(node, self.core.slots(self.load_target(target)), spec, others))
        lock = self.tree.inc_lock_ref(node)
        self.copies[ticket] = Copy(
            to="device", node=node, write_back=self.tree.is_write_back(), lock=lock, host_lock=host_lock
        )
        self.submit(
            IssuedCopy(ticket=ticket, to="device", source=source, target=target, source_states=source_states,
                       target_states=target_states)
        )  # fmt: skip
        return None

    def load_room(self, count: int, rid: RequestId | None) -> Refused | None:
        """`count` device pages are free for a load; else why not."""
        return self.device_room(count)

    def take_request_state(self, ticket: TicketId, rid: RequestId | None) -> torch.Tensor | None:
        """The state slot that the request has now; with full attention alone none."""
        return None

    def fill_states(self, ticket: TicketId, others: dict[int, list[Any]]) -> tuple[Pages, Pages]:
        """State slots that a load reads, and those that it fills, which are told to the core in `others`: none here."""
        return (), ()

    def load_target(self, pages: Pages) -> Pages:
        """The device pages that the core is told of, in the order of the chain's keys."""
        return pages

    def apply_load(self, copy: Copy) -> None:
        """The load's pins are undone and the core has it as ended, under the policy that it began with.

        Upstream changes its policy only while nothing runs (Scheduler.is_fully_idle). Here it may change under a
        load, and finish_load_back would leave marks behind that it sets and clears under write_back alone.
        """
        self.release_lock(copy.node, copy.lock)
        self.release_host_lock(copy.node, copy.host_lock)
        now = self.tree.is_write_back()
        self.tree.set_is_write_back(copy.write_back)
        self.tree.finish_load_back(copy.node)
        self.tree.set_is_write_back(now)

    def release_lock(self, node: int, receipt: Any) -> None:
        """What the receipt's inc_lock_ref pinned is pinned once less."""
        self.tree.dec_lock_ref(node, self.core.release_params(receipt))

    def release_host_lock(self, node: int, receipt: Any) -> None:
        """What the receipt's inc_host_lock_ref pinned is pinned once less."""
        self.tree.dec_host_lock_ref(node, self.core.release_params(receipt))
