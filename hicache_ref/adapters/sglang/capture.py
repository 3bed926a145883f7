"""What a call has to do with, taken from live objects as it is: numbers, bytes, references to what was sent before.

A server waits for this, so nothing is interpreted here: `sglang_teller` does that, in a process of its own.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from ctypes import string_at
from typing import Any

import torch

from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_teller.nodes import LATEST, ROOT, WHOLE, Place, SentKey
from hicache_ref.adapters.sglang_teller.ring import FULL_BYTES, Sent, Writer

_KEYS_KEPT = 64
_TOKENS_KEPT = 1 << 20
"""So many keys are kept, and so many tokens of theirs."""

_NODES_KNOWN = 1 << 15
_TOKENS_KNOWN = 1 << 22
"""After so many nodes, or tokens of theirs, all are sent anew: so nobody need know when one goes."""

_LOOKED_AT = 600_000
"""Tokens and pages that are looked at, at most: a line of a trace holds no more."""

_NUMBER_BYTES = 8
_SMALL = 512
_SMALL_BYTES = _SMALL * _NUMBER_BYTES
"""Up to so many are part of a record; more have a place of their own in the ring."""

_FULL_SLOTS = FULL_BYTES // _NUMBER_BYTES
_MARKED = 24
_NOTHING = b""
_NO_SPACE = None, None


def _space(key: Any) -> tuple[Any, Any]:
    """The namespace of the key."""
    return getattr(key, "extra_key", None), getattr(key, "cache_salt", None)


def _moved(slots: list[torch.Tensor]) -> list[torch.Tensor]:
    """The slots, all in the memory of the host: one copy moves those of them that are elsewhere."""
    there = [each for each in slots if not each.is_cpu]
    if not there:
        return slots
    moved = iter(torch.split(torch.cat(there).to("cpu"), [each.numel() for each in there]))
    return [each if each.is_cpu else next(moved) for each in slots]


class Capture:
    """Puts keys, nodes and slots of one cache into the ring."""

    def __init__(self, engine: Engine, ring: Writer) -> None:
        self.engine = engine
        self.cache = engine.cache
        self.ring = ring
        self.add = ring.records.extend
        self.size = engine.page_size
        # Kept beside the nodes: a mark on an object makes the server's own use of it slower.
        self.depths: dict[int, int] = {}
        """How deep the nodes end that are known, by their numbers."""

        self._on_device: dict[int, torch.Tensor] = {}
        self._on_host: dict[int, torch.Tensor] = {}
        self._tokens_known = 0
        self._kept: OrderedDict[int, tuple[int, Any]] = OrderedDict()
        self._kept_tokens = 0
        self._latest: tuple[int, Any] = (WHOLE, None)
        self._ends: dict[int, tuple[Any, Any, int, bytes, tuple[Any, Any]]] = {}
        self.place = 0
        """Where what was matched of the key recorded last is kept: its number, or one that is less than none."""

        self._slots: list[torch.Tensor] = []
        self._slots_end = 0
        self._on_cpu = torch.device(engine.allocator.device).type == "cpu"
        self._child_key_of = getattr(engine.cache, "get_child_key_fn", None)

    # -- slots and keys ---------------------------------------------------------------------------------------------

    def slots(self, tensor: torch.Tensor) -> Place:
        """Where they will be among those that are handed over next: nobody changes this tensor till then.

        Many are copied at once, for what a copy takes hardly depends on how many these are.
        """
        begin, count = self._slots_end, tensor.numel()
        if count:
            self._slots.append(tensor)
            self._slots_end = end = begin + count
            if end > _FULL_SLOTS:
                self.ring.is_full = True
        return begin, count

    def firsts(self, tensor: torch.Tensor) -> Place:
        """As `slots`, of the first slot of each page."""
        return self.slots(tensor if self.size == 1 else tensor[:: self.size])

    def firsts_now(self, tensor: torch.Tensor) -> Place | bytes:
        """As `firsts`, of a tensor that may change at once: they are copied."""
        if self.size > 1:
            tensor = tensor[:: self.size]
        elif tensor.numel() <= _SMALL and tensor.dtype is torch.int64 and self._on_cpu and tensor.is_contiguous():
            return string_at(tensor.data_ptr(), tensor.nbytes)
        return self.slots(tensor.clone())

    def hand_over(self) -> None:
        """All that was recorded is the other process's. Raises Behind."""
        self._forget_some()
        ring, count = self.ring, self._slots_end
        if count:
            span = ring.room(count * _NUMBER_BYTES), count * _NUMBER_BYTES
            there = torch.frombuffer(ring.place(span), dtype=torch.int64)
            torch.cat(self._slots if self._on_cpu else _moved(self._slots), out=there)
            self._slots.clear()
            self._slots_end = 0
            ring.records[:0] = b"slots", span
        ring.flush()

    def _bytes(self, data: bytes) -> Sent:
        """Themselves, or where they are if they are many."""
        return data if len(data) <= _SMALL_BYTES else self.ring.put(data)

    def key(self, key: Any) -> Any:
        """The tokens of its whole pages are recorded, and returned: they are the key of what is recorded next."""
        given = getattr(key, "token_ids", key)
        tokens, limit = len(given), getattr(key, "limit", None)
        if limit is not None and limit < tokens:
            tokens = limit
        tokens -= tokens % self.size
        if len(given) != tokens:
            given = given[:tokens]
        if isinstance(given, list):
            sent = self._listed(given, tokens)
        elif tokens > _SMALL:
            sent = self._in_array(given, tokens)
        else:
            data = given.tobytes()
            self._latest, sent = (LATEST, data), (LATEST, 0, 0, data)
            # Where it is kept to which node a match led: any number will do that is not that of a key.
            self.place = -1 - (given[_MARKED] % _KEYS_KEPT if tokens > _MARKED else _KEYS_KEPT)
        self.add((b"key", sent, getattr(key, "extra_key", None)))
        return given

    # A request makes several calls, and its key grows: only that is sent with which no earlier key of its begins. What
    # tells it apart is not where its key ends.

    def _in_array(self, given: Any, tokens: int) -> SentKey:
        """The tokens of an array, which are compared as bytes."""
        mark = given[1 << (tokens.bit_length() >> 1)] if tokens > _KEYS_KEPT else -1
        self.place, kept = self._latest = self._kept.get(mark) or self._new_number(mark, bytearray())
        number = self.place
        known = len(kept) // _NUMBER_BYTES
        if tokens <= known:
            if kept.startswith(given):
                return number, 0, tokens, _NOTHING
        elif known and kept.startswith(memoryview(given)[:known]):
            rest = given[known:].tobytes()
            kept += rest
            self._kept_tokens += tokens - known
            return number, 0, known, self._bytes(rest)
        self._ends.pop(number, None)
        data = bytearray(given)
        self._latest = self._kept[mark] = number, data
        self._kept_tokens += tokens - known
        return number, 0, 0, self.ring.put(data)

    def _listed(self, given: list[int], tokens: int) -> SentKey:
        """The tokens of a list. The keys of a request have them in common as objects, and so are cheap to compare."""
        mark = id(given[1 << (tokens.bit_length() >> 1)]) if tokens > _KEYS_KEPT else -2
        self.place, kept = self._latest = self._kept.get(mark) or self._new_number(mark, [])
        number = self.place
        known = len(kept)
        # Cutting a part out of a list touches each of its numbers, comparing does not: so few are cut out.
        if tokens <= known:
            beyond = kept[tokens:]
            del kept[tokens:]
            is_known = kept == given
            kept += beyond
            if is_known:
                return number, 0, tokens, _NOTHING
        elif known:
            rest = given[known:]
            kept += rest
            if kept == given:
                self._kept_tokens += tokens - known
                return number, 0, known, self._packed(rest)
        self._ends.pop(number, None)
        kept[:] = given
        self._kept_tokens += tokens - known
        return number, 0, 0, self._packed(given)

    def _packed(self, tokens: list[int]) -> Sent:
        try:
            data = array("Q", tokens).tobytes()
        except OverflowError:
            data = array("q", tokens).tobytes()
        return self._bytes(data)

    def _new_number(self, mark: int, nothing: Any) -> tuple[int, Any]:
        """The number of no key, and its tokens: none. The oldest is given up where there are too many."""
        number = len(self._kept)
        if number == _KEYS_KEPT or self._kept_tokens > _TOKENS_KEPT:
            _, (number, old) = self._kept.popitem(last=False)
            self._kept_tokens -= len(old) // (1 if isinstance(old, list) else _NUMBER_BYTES)
            self._ends.pop(number, None)
        made = self._kept[mark] = number, nothing
        return made

    # -- nodes ------------------------------------------------------------------------------------------------------

    def node(self, node: Any) -> int:
        """Its number; it is known."""
        number: int = node.id
        return number if number in self.depths else self._define(node)

    def _define(self, node: Any) -> int:
        """As `node`, of one that is not known, or the root."""
        unknown, depths = [], self.depths
        while node.parent is not None and node.id not in depths:
            unknown.append(node)
            node = node.parent
        above, depth = (ROOT, 0) if node.parent is None else (node.id, depths[node.id])
        for each in reversed(unknown):
            key = each.key
            own = getattr(key, "token_ids", key)
            self.add((b"node", each.id, above, self._own(own, depth), getattr(key, "extra_key", None)))
            above, depth = each.id, depth + len(own)
            depths[above] = depth
            self._tokens_known += len(own)
        return int(above)

    def _own(self, own: Any, depth: int) -> SentKey:
        """The tokens of a node that begins so deep: as a rule, those of the key that was sent last."""
        number, latest = self._latest
        if isinstance(own, list):
            is_part = isinstance(latest, list) and latest[depth : depth + len(own)] == own
        else:
            is_part = isinstance(latest, bytes | bytearray) and latest.startswith(own, depth * _NUMBER_BYTES)
        return (number, depth, len(own), _NOTHING) if is_part else self.part(own)

    def part(self, tokens: Any) -> SentKey:
        """Tokens that begin no key."""
        return WHOLE, 0, 0, self._packed(tokens) if isinstance(tokens, list) else self._bytes(tokens.tobytes())

    def _forget_some(self) -> None:
        """Where too many nodes are known, none is."""
        if max(len(self.depths), len(self._on_device)) > _NODES_KNOWN or self._tokens_known > _TOKENS_KNOWN:
            self.add((b"forget",))
            self.forget()

    def forget(self) -> None:
        """No node is known."""
        self.depths.clear()
        self._ends.clear()
        self._on_device.clear()
        self._on_host.clear()
        self._tokens_known = 0

    def matched(self, key: Any, node: Any, tokens: int) -> int:
        """The number of the node on device where the match of the key recorded last ends, so deep; it is known."""
        latest = self._latest[1]
        began = latest if isinstance(latest, bytes) else _NOTHING
        self._ends[self.place] = node, node.value, tokens, began, _space(key)
        return self.node(node)

    def path(self, key: Any, given: Any) -> list[int] | int:
        """As `_path`; or the place of the match, where its key went down as this one and its slots are still there."""
        end = self._ends.get(self.place)
        if end is not None:
            node, slots, at, began, space = end
            # What is locked is neither moved nor removed, nor is anything above it.
            is_there = node.value is slots and node.lock_ref > 0
            if is_there and at <= len(given) and self._begins(began, at) and space == _space(key):
                if at == len(given):
                    return self.place
                below = node.children.get(given[at] if self._is_plain(space) else self._child_key(key, at))
                if below is None or below.value is None:
                    return self.place
        return self._path(key, given)

    def _begins(self, earlier: bytes, tokens: int) -> bool:
        """Whether the key begins with so many tokens of an earlier one; those under one number always do."""
        return self.place >= 0 or self._latest[1].startswith(earlier[: tokens * _NUMBER_BYTES])

    def _is_plain(self, space: tuple[Any, Any]) -> bool:
        """Whether nodes file their children under single tokens of keys of this namespace."""
        return self.size == 1 and space == _NO_SPACE

    def _path(self, key: Any, given: Any) -> list[int]:
        """The nodes on device by which the key of these tokens goes down, by their first pages; their slots are known.

        Whatever changes the slots of a node gives it another tensor.
        """
        node, at, found, tokens = self.cache.root_node, 0, [], len(given)
        known, depths = self._on_device, self.depths
        is_plain = self._is_plain(_space(key))
        while at < tokens:
            node = node.children.get(given[at] if is_plain else self._child_key(key, at))
            if node is None:
                break
            slots = node.value
            if slots is None:
                break
            number = node.id
            if known.get(number) is not slots:
                self._send_slots(b"pages", number, slots, known)
            found.append(number)
            at = depths.get(number) or at + len(getattr(node.key, "token_ids", node.key))
        return found

    def _child_key(self, key: Any, at: int) -> Any:
        """What a node files the child under whose key goes on so."""
        if self._child_key_of is not None:
            return self._child_key_of(key[at : at + self.size])
        if hasattr(key, "child_key_at"):
            return key.child_key_at(at, self.size)
        return key[at : at + self.size].child_key(self.size)

    # -- all of it --------------------------------------------------------------------------------------------------

    def free(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Free pages on device and free slots on host, as the pools list them."""
        allocator, host = self.engine.allocator, self.engine.host
        names = ("free_pages", "free_slots", "release_pages", "release_slots")
        device = [getattr(allocator, name, None) for name in names]
        return (
            [each for each in device if each is not None and len(each)],
            [host.free_slots, *getattr(host, "release_slots", ())],
        )

    def tree(self) -> list[Any] | None:
        """Every node but the root, parents first; None where there is more to look at than a trace has room for."""
        found, numbers = [], sum(len(each) for pool in self.free() for each in pool)
        waiting = list(self.cache.root_node.children.values())
        while waiting:
            node = waiting.pop()
            found.append(node)
            numbers += 3 * len(node.key)
            if numbers > _LOOKED_AT:
                return None
            waiting += node.children.values()
        return found

    def look(self, nodes: list[Any]) -> tuple[Any, list[tuple[Any, ...]], list[int]]:
        """Pools, nodes and queue of pages to be freed, as they are now."""
        sent = list(self._nodes_as_sent(nodes))
        device, host = self.free()
        cache = self.cache
        pools = [self.slots(each.clone()) for each in device], [self.slots(each.clone()) for each in host]
        sizes = int(cache.evictable_size()), int(cache.protected_size())
        queue = getattr(self.engine.controller, "host_mem_release_queue", None)
        queued = [] if queue is None else [page for item in list(queue.queue) for page in self.host_pages(item)]
        return (*pools, *sizes), sent, queued

    def _nodes_as_sent(self, nodes: list[Any]) -> Iterator[tuple[Any, ...]]:
        for node in nodes:
            number, value, host = self.node(node), node.value, node.host_value
            if value is not None and self._on_device.get(number) is not value:
                self._send_slots(b"pages", number, value, self._on_device)
            if host is not None and self._on_host.get(number) is not host:
                self._send_slots(b"host_pages", number, host, self._on_host)
            above = ROOT if node.parent.parent is None else node.parent.id
            yield number, above, node.lock_ref > 0, value is not None, host is not None

    def _send_slots(self, kind: bytes, number: int, slots: torch.Tensor, known: dict[int, torch.Tensor]) -> None:
        """The node's slots are known. Whatever changes them gives it another tensor."""
        known[number] = slots
        place = self.slots(slots)
        self._tokens_known += place[1]
        self.add((kind, number, place))

    def host_pages(self, slots: torch.Tensor) -> tuple[int, ...]:
        """The host pages that these slots are, one by one: there are few."""
        return self.engine.host_slots.pages(slots)
