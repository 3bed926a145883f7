"""What the caller of the core keeps: pages and what they hold, requests, receipts, and the copies it has submitted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_rust.core import KV, Core, CoreMisbehaved
from hicache_ref.adapters.sglang_rust.nodes import Nodes
from hicache_ref.adapters.sglang_rust.pools import DevicePool, PagePool, pass_name
from hicache_ref.vocabulary.ids import Pages, ReceiptId, RequestId, TicketId
from hicache_ref.vocabulary.observation import IssuedCopy


@dataclass(slots=True)
class Copy:
    """A submitted copy until its end is applied (upstream: _OngoingWriteThrough, _OngoingLoadBack).

    `lock` and `host_lock` are what was returned for pinning `node`. A backup acknowledges every node in `published`:
    the one it was submitted for, or the halves that one was split into. `write_back` is whether that policy ruled
    when it was submitted.
    """

    to: Literal["host", "device", "request"]
    node: int
    write_back: bool
    lock: Any
    host_lock: Any = None
    published: list[int] = field(default_factory=list)


_TIERS: dict[str, tuple[str, str]] = {
    "host": ("device", "host"), "device": ("host", "device"), "request": ("device", "device"),
}  # fmt: skip
"""Where a copy goes -> the tiers that it reads and writes."""


class Books:
    """The state of one caller, and how the core's answers change it."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.tree = core.tree
        self.start_afresh()

    def start_afresh(self) -> None:
        """Every page is free and nothing is known of any node, request, receipt or copy."""
        sizes = self.core.profile.sizes
        self.nodes = Nodes(self.core)
        stamps = Stamps(sizes.page_size)
        self.device = DevicePool(sizes.device_pages, stamps)
        self.host = PagePool(sizes.host_pages, stamps)
        self.requests: dict[RequestId, Pages] = {}
        self.receipts: dict[ReceiptId, Any] = {}
        self.copies: dict[TicketId, Copy] = {}
        self.issued: list[IssuedCopy] = []
        self.running: dict[TicketId, IssuedCopy] = {}
        self.duplicates: list[int] = []

    def pools(self) -> Mapping[str, PagePool]:
        """Every pool, by its name in what is seen of contents."""
        return {"device": self.device, "host": self.host}

    def pending(self) -> tuple[str, ...]:
        """The names of the copies whose end is not applied and of the running passes."""
        return tuple(sorted([*self.copies, *map(pass_name, self.device.passes)]))

    def submit(self, copy: IssuedCopy) -> None:
        """The copy runs, to be told of; one without ticket has ended at once."""
        self.issued.append(copy)
        if copy.ticket is None:
            self.move(copy)
        else:
            self.running[copy.ticket] = copy

    def move(self, copy: IssuedCopy) -> None:
        """The pages and states that the copy fills hold what those hold that it reads."""
        pools = self.pools()
        source, target = _TIERS[copy.to]
        if copy.source:
            pools[target].memory.copy(pools[source].memory, copy.source, copy.target)
        if copy.source_states:
            states = pools[f"{source}_state"].memory
            pools[f"{target}_state"].memory.copy(states, copy.source_states, copy.target_states)

    def accept(self, result: Any) -> list[int]:
        """The pages that an eviction step returned are given up; returns the device's (upstream: _free_values)."""
        device: list[int] = []
        for slots in result.new_device_frees.get(KV, ()):
            device += self.core.pages(slots)
        self.device.give_up(device)
        for slots in result.new_host_frees.get(KV, ()):
            self.free_host(self.core.pages(slots))
        self.accept_states(result)
        if self.obey(result.cache_actions):
            raise CoreMisbehaved("an eviction asks for a backup outside of evict_device_leaf")
        return device

    def accept_states(self, result: Any) -> None:
        """State slots that an eviction step returned are given up; a core of full attention alone returns none."""

    def free_host(self, pages: Pages) -> None:
        """The host pages are free."""
        self.host.give_up(pages)

    def obey(self, actions: list[tuple[Any, ...]]) -> list[list[int]]:
        """What the core asks of its caller is done, but for backups: returns the chains of nodes to back up.

        Raises CoreMisbehaved for an action that a tree of full attention alone has no reason to ask for.
        """
        backups: list[list[int]] = []
        for action in actions:
            match action:
                case ("free_device_kv", runs):
                    duplicates = [page for slots in runs for page in self.core.pages(slots)]
                    self.duplicates += duplicates
                    self.device.give_up(duplicates)
                case ("backup_kv", nodes):
                    backups.append(list(nodes))
                case ("update_pending_backup_on_node_split", ack, old, new, child):
                    self.replace_published(ack, old, [new, child])
                case _:
                    raise CoreMisbehaved(f"the core asks for {action[0]!r}")
        return backups

    def replace_published(self, ack: int | None, old: int, halves: list[int]) -> None:
        """The backup acknowledges both halves of the split node (upstream: _replace_pending_write_through_node)."""
        for copy in self.copies.values():
            if copy.to == "host" and copy.node == ack:
                copy.published = [n for each in copy.published for n in (halves if each == old else [each])]
