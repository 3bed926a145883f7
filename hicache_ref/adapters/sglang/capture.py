"""What a call has to do with, taken from live objects as it is: numbers, bytes, references to what was sent before.

A server waits for this, so nothing is interpreted here: `sglang_teller` does that, in a process of its own.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from ctypes import string_at
from typing import Any

import torch

from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_teller.nodes import ROOT, WHOLE, SentKey
from hicache_ref.adapters.sglang_teller.ring import Sent, Writer

_KEYS_KEPT = 64
_TOKENS_KEPT = 1 << 20
"""Of keys that come as lists so many are kept, and so many tokens of theirs."""

_NODES_KNOWN = 1 << 15
_TOKENS_KNOWN = 1 << 22
"""After so many nodes, or tokens of theirs, all are sent anew: so nobody need know when one goes."""

_LOOKED_AT = 600_000
"""Tokens and pages that are looked at, at most: a line of a trace holds no more."""

_NUMBER_BYTES = 8
_SMALL_NUMBERS = 512
_SMALL = _SMALL_NUMBERS * _NUMBER_BYTES
"""Bytes up to so many are part of a record; more have a place of their own in the ring."""

_NOTHING = b""


class Capture:
    """Puts keys, nodes and slots of one cache into the ring."""

    def __init__(self, engine: Engine, ring: Writer) -> None:
        self.engine = engine
        self.cache = engine.cache
        self.ring = ring
        self.add = ring.records.extend
        self.size = engine.page_size
        self._on_cpu = torch.device(engine.allocator.device).type == "cpu"
        # Kept beside the nodes: a mark on an object makes the server's own use of it slower.
        self._depths: dict[int, int] = {}
        self._sent: dict[tuple[int, bytes], torch.Tensor] = {}
        self._tokens_known = 0
        self._kept: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()
        self._kept_tokens = 0
        self._latest: tuple[int, list[int]] = (WHOLE, [])
        self._child_key_of = getattr(engine.cache, "get_child_key_fn", None)

    # -- slots and keys ---------------------------------------------------------------------------------------------

    def slots(self, tensor: torch.Tensor) -> Sent:
        """A copy of them: what a caller gave may be changed as soon as it has it back."""
        if tensor.dtype is not torch.int64 or not tensor.is_contiguous() or not self._on_cpu:
            tensor = tensor.to("cpu", torch.int64).contiguous()
        count = tensor.nbytes
        if count > _SMALL:
            return self.ring.put_from(tensor.data_ptr(), count)
        return string_at(tensor.data_ptr(), count) if count else _NOTHING

    def _tokens(self, tokens: Any) -> Sent:
        """The bytes of an array or list."""
        count = len(tokens)
        if isinstance(tokens, list):
            data = struct.pack(f"{count}q", *tokens)
            return data if count <= _SMALL_NUMBERS else self.ring.put(data)
        return tokens.tobytes() if count <= _SMALL_NUMBERS else self.ring.put(tokens)

    def whole(self, key: Any) -> int:
        """The number of tokens in the key's whole pages."""
        tokens = len(key)
        return tokens if self.size == 1 else tokens // self.size * self.size

    def key(self, key: Any, tokens: int) -> None:
        """Its first so many tokens are recorded: they are the key of what is recorded next."""
        given = getattr(key, "token_ids", key)
        if len(given) != tokens:
            given = given[:tokens]
        sent = self._listed(given) if isinstance(given, list) else (WHOLE, 0, 0, self._tokens(given))
        self.add((b"key", sent, getattr(key, "extra_key", None)))

    def _listed(self, given: list[int]) -> SentKey:
        """A list, of which only that becomes bytes with which no earlier one of the same request begins.

        The keys of a request have their numbers in common as objects, and so are cheap to compare.
        """
        tokens = len(given)
        # A request grows: what tells it apart is not where its key ends.
        mark = id(given[1 << (tokens.bit_length() >> 1)]) if tokens > _KEYS_KEPT else 0
        number, kept = self._latest = self._kept.get(mark) or self._new_number(mark)
        # Cutting a part out of a list touches each of its numbers, comparing does not: so few are cut out.
        shared = min(len(kept), tokens)
        beyond, rest = kept[tokens:], given[shared:]
        del kept[tokens:]
        kept += rest
        if kept != given:
            shared, rest, beyond = 0, given, []
            kept[:] = given
        kept += beyond
        if not rest:
            return number, 0, shared, _NOTHING
        self._kept_tokens += len(rest)
        return number, 0, shared, self._tokens(rest)

    def _new_number(self, mark: int) -> tuple[int, list[int]]:
        """The number of no key, and its tokens: none. The oldest is given up where there are too many."""
        number = len(self._kept)
        if number == _KEYS_KEPT or self._kept_tokens > _TOKENS_KEPT:
            _, (number, old) = self._kept.popitem(last=False)
            self._kept_tokens -= len(old)
        self._kept[mark] = number, []
        return self._kept[mark]

    # -- nodes ------------------------------------------------------------------------------------------------------

    def node(self, node: Any) -> int:
        """Its number; it is known."""
        number: int = node.id
        return number if number in self._depths else self._define(node)

    def _define(self, node: Any) -> int:
        """As `node`, of one that is not known, or the root."""
        unknown, depths = [], self._depths
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
        number, tokens = self._latest
        if isinstance(own, list) and tokens[depth : depth + len(own)] == own:
            return number, depth, len(own), _NOTHING
        return self.part(own)

    def part(self, tokens: Any) -> SentKey:
        """Tokens that begin no key."""
        return WHOLE, 0, 0, self._tokens(tokens)

    def forget_some(self) -> None:
        """Where too many nodes are known, none is."""
        if len(self._depths) > _NODES_KNOWN or len(self._sent) > _NODES_KNOWN or self._tokens_known > _TOKENS_KNOWN:
            self.add((b"forget",))
            self.forget()

    def forget(self) -> None:
        """No node is known."""
        self._depths.clear()
        self._sent.clear()
        self._tokens_known = 0

    def path(self, key: Any, tokens: int) -> list[int]:
        """The nodes on device by which the key goes down, by their first pages; their slots are known."""
        node, at, found = self.cache.root_node, 0, []
        while at < tokens:
            node = node.children.get(self._child_key(key, at))
            if node is None or node.value is None:
                break
            self._send_slots(b"pages", node.id, node.value)
            found.append(node.id)
            at += len(node.key)
        return found

    def _child_key(self, key: Any, at: int) -> Any:
        """What a node files the child under whose key goes on so."""
        if self._child_key_of is not None:
            return self._child_key_of(key[at : at + self.size])
        if hasattr(key, "child_key_at"):
            return key.child_key_at(at, self.size)
        return key[at : at + self.size].child_key(self.size)

    def _send_slots(self, kind: bytes, number: int, slots: torch.Tensor) -> None:
        """The node's slots are known. Whatever changes them gives it another tensor."""
        if self._sent.get((number, kind)) is not slots:
            self._sent[number, kind] = slots
            self._tokens_known += len(slots)
            self.add((kind, number, self.slots(slots)))

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
        pools = [self.slots(each) for each in device], [self.slots(each) for each in host]
        sizes = int(cache.evictable_size()), int(cache.protected_size())
        queue = getattr(self.engine.controller, "host_mem_release_queue", None)
        queued = [] if queue is None else [page for item in list(queue.queue) for page in self.host_pages(item)]
        return (*pools, *sizes), sent, queued

    def _nodes_as_sent(self, nodes: list[Any]) -> Iterator[tuple[Any, ...]]:
        for node in nodes:
            number, value, host = self.node(node), node.value, node.host_value
            if value is not None:
                self._send_slots(b"pages", number, value)
            if host is not None:
                self._send_slots(b"host_pages", number, host)
            above = ROOT if node.parent.parent is None else node.parent.id
            yield number, above, node.lock_ref > 0, value is not None, host is not None

    def host_pages(self, slots: torch.Tensor) -> tuple[int, ...]:
        """The host pages that these slots are, one by one: there are few."""
        return self.engine.host_slots.pages(slots)
