"""Calls of a cache as raw records: what it was given and what it said. Each call is two methods, before and after it.

What an operation is made of is in `sglang_teller.calls`, under the names that the records begin with.
"""

from collections.abc import Container, Mapping
from typing import Any

from hicache_ref.adapters.sglang.capture import Capture

Args = tuple[Any, ...]
Named = Mapping[str, Any]


class CannotSay(Exception):
    """The trace has no words for what happened; the text says what it was."""


def given(args: Args, named: Named, name: str, at: int = 0) -> Any:
    """The argument of this name: of one object, by name, or at `at` one by one. None where there is none."""
    first = args[0] if args else named.get("params")
    if hasattr(first, name):
        return getattr(first, name)
    return args[at] if at < len(args) else named.get(name)


class Calls:
    """Records the calls of one cache that have nothing to do with storage."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.engine = capture.engine
        self.cache = capture.cache
        self.add = capture.add
        self.submitted: list[int] = []
        """The nodes of which a copy to host was submitted in this call."""

        self.to_host: set[int] = set()
        """The nodes of which copies to host are on their way."""

        self.to_device: set[int] = set()

    # -- match and lock ---------------------------------------------------------------------------------------------

    def after_match(self, noted: None, found: Any, args: Args, named: Named) -> None:
        """A key, and what was found of it."""
        capture = self.capture
        device, host = found.last_device_node, found.last_host_node
        key = given(args, named, "key")
        capture.key(key)
        # Made for whoever asked, who only reads it.
        slots = found.device_indices
        number = capture.matched(key, device, slots.numel())
        ends = number, number if host is device else capture.node(host)
        sent = capture.firsts(slots)
        self.add((b"match", sent, capture.place, found.host_hit_length, *ends))

    def match(self, args: Args, named: Named) -> Args:
        """The key that was asked for is recorded."""
        self.capture.key(given(args, named, "key"))
        return ()

    # -- insert -----------------------------------------------------------------------------------------------------

    def before_insert(self, args: Args, named: Named) -> Args | None:
        """The key's slots, and the nodes by which it goes down; it is recorded itself."""
        key, value, capture = given(args, named, "key"), given(args, named, "value", 1), self.capture
        chunked, priority = given(args, named, "chunked", 2), given(args, named, "priority", 3)
        if value is None:
            raise CannotSay("an insert without device pages")
        tokens = capture.key(key)
        if not tokens:
            return None
        count = len(tokens)
        slots = value if value.numel() == count else value[:count]
        # Whose these are may change them as soon as they are the tree's.
        sent = capture.firsts_now(slots)
        return sent, capture.path(key, tokens), bool(chunked), int(priority or 0)

    def after_insert(self, noted: Args | None, result: Any, args: Args, named: Named) -> None:
        """How many tokens were there."""
        if noted is not None:
            self.add((b"insert", *noted, int(getattr(result, "prefix_len", result))))

    # -- room -------------------------------------------------------------------------------------------------------

    def before_evict(self, args: Args, named: Named) -> Args | None:
        """How many pages are asked for, and how much was free."""
        return self._asked(self.engine.allocator, args, named)

    def after_evict(self, noted: Args | None, result: Any, args: Args, named: Named) -> None:
        """How much more is free."""
        if noted is not None:
            self.add((b"evict", noted[0], int(self.engine.allocator.available_size()) - noted[1]))

    def before_evict_host(self, args: Args, named: Named) -> Args | None:
        """As `before_evict`."""
        return self._asked(self.engine.host, args, named)

    def after_evict_host(self, noted: Args | None, result: Any, args: Args, named: Named) -> None:
        """As `after_evict`."""
        if noted is not None:
            self.add((b"evict_host", noted[0], int(self.engine.host.available_size()) - noted[1]))

    def _asked(self, pool: Any, args: Args, named: Named) -> Args | None:
        pages = -(-int(given(args, named, "num_tokens")) // self.capture.size)
        return (pages, int(pool.available_size())) if pages > 0 else None

    # -- copies -----------------------------------------------------------------------------------------------------

    def on_write(self, written: Any, node: Any, *rest: Any, **more: Any) -> None:
        """A copy of the node to host was submitted, within whatever call."""
        if written:
            number = self.capture.node(node)
            self.add((b"write", number))
            self.to_host.add(number)
            self.submitted.append(number)

    def before_load(self, args: Args, named: Named) -> Args:
        """The node, how much may be loaded, less than upstream says by what it pins itself, and what is outside."""
        node = args[0] if args else named["node"]
        quota = named.get("mem_quota", args[1] if len(args) > 1 else None)
        if node.value is not None:
            raise CannotSay("a load of a node that is on device")
        if quota is not None:
            quota = max(0, int(max(0, quota - self._evictable_above(node))) // self.capture.size)
        return self.capture.node(node), quota, self._outside()

    def _outside(self) -> int:
        """The number of pages that are neither free nor in the tree."""
        allocator = self.engine.allocator
        in_tree = self.cache.evictable_size() + self.cache.protected_size()
        return int(allocator.size - allocator.available_size() - in_tree) // self.capture.size

    @staticmethod
    def _evictable_above(node: Any) -> int:
        tokens = 0
        while node.parent is not None:
            tokens += len(node.key) if node.value is not None and node.lock_ref == 0 else 0
            node = node.parent
        return tokens

    def after_load(self, noted: Args, slots: Any, args: Args, named: Named) -> None:
        """How much is being loaded, or nothing."""
        self.add((b"load", *noted, None if slots is None else len(slots)))
        if slots is not None:
            self.to_device.add(noted[0])

    # -- the end of a call ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What the scheduler has learned in the last call is recorded."""
        cache = self.cache
        waits_host, waits_device = cache.ongoing_write_through, cache.ongoing_load_back
        if len(self.to_host) != len(waits_host) or len(self.to_device) != len(waits_device):
            self._tell_gone(waits_host, waits_device)
        if self.submitted:
            self.submitted.clear()

    def _tell_gone(self, waits_host: Container[int], waits_device: Container[int]) -> None:
        host = [number for number in self.to_host if number not in waits_host]
        device = [number for number in self.to_device if number not in waits_device]
        if host or device:
            self.to_host.difference_update(host)
            self.to_device.difference_update(device)
            self.add((b"gone", host, device, [number for number in self.submitted if number in host]))
            self.tell_news()

    def tell_news(self) -> None:
        """What a poll says is recorded: here, of copies alone."""
        self.add((b"news", ()))
