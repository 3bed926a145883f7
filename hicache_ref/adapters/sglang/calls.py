"""What calls of a cache amount to, in operations: tree, locks, device pages and copies.

Each call is two methods, before and after it. What a caller of the cache does by itself, as taking device pages, is
written when it shows: pages that go into the tree have been taken and filled just before, and those that are neither in
the tree nor free belong to the one request `OUTSIDE`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic_core import to_json

from hicache_ref.adapters.sglang import lines
from hicache_ref.adapters.sglang.looking import OUTSIDE, look
from hicache_ref.adapters.sglang.tickets import Copies
from hicache_ref.adapters.sglang.writing import TraceWriter
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.vocabulary.ids import Pages, TicketId

_NODES_KEPT = 1024
"""Nodes of which keys and pages are kept as they are written."""

_T = TypeVar("_T")
_KEY_HEAD = len(b'{"tokens":[')
_COUNTED = ("backups", "loads", "answers", "reads", "writes")


class CannotSay(Exception):
    """The trace has no words for what happened; the text says what it was."""


class Given(NamedTuple):
    """The arguments of a call, which a release takes one by one, by name, or as fields of one object."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, name: str, at: int = 0) -> Any:
        """The one of this name, which stands at `at` where they come one by one; None where it was not given."""
        if name in self.kwargs:
            return self.kwargs[name]
        first = self.args[0] if self.args else self.kwargs.get("params")
        if hasattr(first, name):
            return getattr(first, name)
        return self.args[at] if at < len(self.args) else None


def _listed(tokens: Any) -> list[int]:
    """Tokens that are a list, or an array, as a list."""
    return tokens if isinstance(tokens, list) else list(tokens)


def _keep(kept: OrderedDict[int, _T], number: int, entry: _T) -> None:
    """The entry is there, and the oldest goes where there are too many."""
    kept[number] = entry
    if len(kept) > _NODES_KEPT:
        kept.popitem(last=False)


class Calls:
    """Writes the operations of one cache."""

    def __init__(self, engine: Engine, writer: TraceWriter) -> None:
        self.engine = engine
        self.cache = engine.cache
        self.writer = writer
        self.copies = Copies(engine.cache)
        self.number = 0
        """Of the call that is written now."""

        self._receipts: dict[int, tuple[Any, list[str]]] = {}
        self._outside = 0
        self._names = 0
        self._keys: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
        self._pages: OrderedDict[int, tuple[torch.Tensor, list[int]]] = OrderedDict()

    def step(self, op: bytes, rest: bytes = lines.DONE) -> None:
        """A step is written; without `rest` it is one that was simply done."""
        self.writer.step(op, rest)

    def before_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Nothing need be known beforehand."""

    def look(self) -> None:
        """The tree as it is now is written, after a step that does nothing."""
        self._forget_outside()
        seen = look(self.engine, self.prefetch_pages())
        outside = seen.requests.get(OUTSIDE, ())
        if outside:
            self._outside = len(outside)
            self.step(lines.op(b"take_pages", rid=OUTSIDE, n=len(outside)), lines.told(b"took", pages=outside))
        self.step(lines.op(b"poll"), lines.seen(seen))

    def begin(self) -> None:
        """A call begins."""
        self.polled = False

    def prefetch_pages(self) -> dict[str, Pages]:
        """The host pages that prefetches have, by name: none here."""
        return {}

    def has_news(self) -> bool:
        """Whether the scheduler may have learned something of storage in this call: nothing here."""
        return False

    def polled_storage(self) -> dict[str, Any]:
        """What the scheduler has learned of storage in this call: nothing here."""
        return {}

    # -- keys and pages ---------------------------------------------------------------------------------------------

    def pages(self, tokens: int) -> int:
        """How many pages that many tokens fill."""
        return int(tokens) // self.engine.page_size

    def device_pages(self, slots: torch.Tensor) -> list[int]:
        """The device pages that begin in `slots`, which are whole pages."""
        size, offset = self.engine.page_size, self.engine.device_slots.offset
        return [slot // size - offset for slot in slots[::size].tolist()]

    def tokens_of(self, node: Any) -> list[int]:
        """The tokens from the root to the end of the node."""
        path = []
        while node.parent is not None:
            path.append(node.key)
            node = node.parent
        tokens: list[int] = []
        for part in reversed(path):
            tokens += getattr(part, "token_ids", part)
        return tokens

    def key_of(self, node: Any) -> bytes:
        """The key of the node. It stays what it is, for a split leaves the lower half its node."""
        kept = self._keys.get(id(node))
        if kept is not None and kept[0] is node:
            self._keys.move_to_end(id(node))
            return kept[1]
        made = lines.key(self.tokens_of(node), None if node.parent is None else self.engine.extra_of_node(node))
        _keep(self._keys, id(node), (node, made))
        return made

    def text_of(self, node: Any) -> tuple[str, int]:
        """The key of the node as operations are named after it, and its number of tokens."""
        made = self.key_of(node)
        end = made.index(b"]")
        tokens = made[_KEY_HEAD:end].replace(b",", b".").decode()
        extra = self.engine.extra_of_node(node)
        return tokens if extra is None else f"{extra}/{tokens}", tokens.count(".") + 1

    def name(self, kind: str) -> str:
        """A name that nothing had before."""
        self._names += 1
        return f"{kind}{self._names}"

    @staticmethod
    def _given_key(key: Any, count: int) -> bytes:
        """The first `count` tokens of a key that a caller gave."""
        return lines.key(_listed(getattr(key, "token_ids", key)[:count]), getattr(key, "extra_key", None))

    # -- device pages outside the tree ------------------------------------------------------------------------------

    def sync_outside(self) -> None:
        """The trace has as many pages outside the tree as there are, so that room is short where it is."""
        allocator = self.engine.allocator
        in_tree = self.cache.evictable_size() + self.cache.protected_size()
        now = self.pages(allocator.size - allocator.available_size() - in_tree)
        if now == self._outside:
            return
        self._forget_outside()
        if now > 0:
            self._outside = now
            self.step(lines.op(b"take_pages", rid=OUTSIDE, n=now), lines.told(b"took", pages=self._made_up(now)))

    def _forget_outside(self) -> None:
        if self._outside:
            self.step(lines.op(b"give_back", rid=OUTSIDE))
        self._outside = 0

    def _made_up(self, count: int) -> list[int]:
        """Numbers for pages of which it does not matter which they are: beyond the pool."""
        first = self.engine.profile.sizes.device_pages
        return list(range(first, first + count))

    # -- match and lock ---------------------------------------------------------------------------------------------

    def before_match(self, *args: Any, **kwargs: Any) -> tuple[bytes]:
        """The key that is asked for."""
        key = Given(args, kwargs)("key")
        size = self.engine.page_size
        return (b'{"op":"match_prefix","key":%b}' % self._given_key(key, len(key) // size * size),)

    def after_match(self, noted: tuple[bytes], found: Any) -> None:
        """What was found of it."""
        device, host = found.last_device_node, found.last_host_node
        ends = self.key_of(device), self.key_of(host), self.key_of(host if found.host_hit_length else device)
        pages = to_json(self.device_pages(found.device_indices))
        self.step(noted[0], lines.MATCHED % (pages, self.pages(found.host_hit_length), *ends))

    def before_lock(self, node: Any, *rest: Any, **more: Any) -> Any:
        """The node."""
        return node

    def after_lock(self, node: Any, result: Any) -> None:
        """A receipt for the node; locks of the root are none."""
        if node.parent is None:
            return
        receipt = self.name("l")
        self._receipts.setdefault(id(node), (node, []))[1].append(receipt)
        self.step(b'{"op":"lock","receipt":"%b","key":%b,"at":"node"}' % (receipt.encode(), self.key_of(node)))

    def after_unlock(self, node: Any, result: Any) -> None:
        """One of the node's receipts is used up; they are alike."""
        if node.parent is None:
            return
        held = self._receipts.get(id(node))
        if held is None:
            raise CannotSay("a node is unlocked that nobody has locked since the recording began")
        self.step(b'{"op":"unlock","receipt":"%b"}' % held[1].pop().encode())
        if not held[1]:
            del self._receipts[id(node)]

    # -- insert -----------------------------------------------------------------------------------------------------

    def before_insert(self, *args: Any, **kwargs: Any) -> tuple[bytes, Any]:
        """The key, and which of its pages are the caller's own."""
        given = Given(args, kwargs)
        key, value = given("key"), given("value", 1)
        if value is None:
            raise CannotSay("an insert without device pages")
        count = len(key) // self.engine.page_size
        if not count:
            return b"", None
        size = self.engine.page_size
        pages = self.device_pages(value[: count * size])
        start = self._own_from(key, pages)
        pages = pages[start:]
        rid = self.name("i")
        text = self._given_key(key, count * size)
        op = lines.op(
            b"insert", rid=rid, key=text, start=start,
            chunked=bool(given("chunked", 2)), priority=int(given("priority", 3) or 0),
        )  # fmt: skip
        return op, (rid, text, start, pages)

    def _own_from(self, key: Any, pages: list[int]) -> int:
        """How many leading `pages` are those that the tree has for the key."""
        size, node, at = self.engine.page_size, self.cache.root_node, 0
        while at < len(pages):
            node = node.children.get(self._child_key(key[at * size : (at + 1) * size]))
            if node is None or node.value is None:
                break
            theirs = self._pages_of(node)
            mine = pages[at : at + len(theirs)]
            if mine != theirs[: len(mine)]:
                return at + next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
            at += len(mine)
        return at

    def _pages_of(self, node: Any) -> list[int]:
        """The device pages of the node. A split gives it another tensor."""
        kept = self._pages.get(id(node))
        if kept is not None and kept[0] is node.value:
            return kept[1]
        pages = self.device_pages(node.value)
        _keep(self._pages, id(node), (node.value, pages))
        return pages

    def _child_key(self, key: Any) -> Any:
        """What a node files the child under whose key begins so."""
        made = getattr(self.cache, "get_child_key_fn", None)
        return key.child_key(self.engine.page_size) if made is None else made(key)

    def after_insert(self, noted: tuple[bytes, Any], result: Any) -> None:
        """Pages were taken and filled, and are the tree's, but for duplicates."""
        op, details = noted
        if details is None:
            return
        rid, text, start, pages = details
        prefix = self.pages(getattr(result, "prefix_len", result))
        if pages:
            self._forget_outside()
            name = rid.encode()
            self.step(b'{"op":"take_pages","rid":"%b","n":%d}' % (name, len(pages)), lines.TOOK % to_json(pages))
            self.step(b'{"op":"forward","rid":"%b","key":%b,"start":%d}' % (name, text, start))
            # The pass has read what was loaded for it, so that is there, whether the scheduler has looked or not.
            self._end(self.copies.to_end())
            self.step(b'{"op":"forward_done","rid":"%b"}' % name)
        self.step(op, lines.told(b"inserted", prefix=prefix, given_back=pages[: max(prefix - start, 0)]))

    # -- room -------------------------------------------------------------------------------------------------------

    def before_evict(self, *args: Any, **kwargs: Any) -> tuple[bytes, int] | None:
        """How much is asked for, and how much was free."""
        return self._asked(b"evict", self.engine.allocator, Given(args, kwargs))

    def after_evict(self, noted: tuple[bytes, int] | None, result: Any) -> None:
        """How much more is free."""
        self._freed(noted, self.engine.allocator)

    def before_evict_host(self, *args: Any, **kwargs: Any) -> tuple[bytes, int] | None:
        """As `before_evict`."""
        return self._asked(b"evict_host", self.engine.host, Given(args, kwargs))

    def after_evict_host(self, noted: tuple[bytes, int] | None, result: Any) -> None:
        """As `after_evict`."""
        self._freed(noted, self.engine.host)

    def _asked(self, name: bytes, pool: Any, given: Given) -> tuple[bytes, int] | None:
        """The operation and what is free in the pool, or None where nothing is asked for."""
        count = -(-int(given("num_tokens")) // self.engine.page_size)
        return (lines.op(name, n=count), pool.available_size()) if count > 0 else None

    def _freed(self, noted: tuple[bytes, int] | None, pool: Any) -> None:
        """The operation noted before is a step that has freed what is free now and was not then."""
        if noted is not None:
            op, free = noted
            self.step(op, lines.told(b"evicted", freed=self.pages(pool.available_size() - free)))

    # -- copies -----------------------------------------------------------------------------------------------------

    def on_write(self, written: Any, node: Any, *rest: Any, **more: Any) -> None:
        """A copy of the node to host was submitted, within whatever call."""
        if written:
            self.copies.submitted("host", node, *self.text_of(node), self.number)

    def before_load(self, node: Any, mem_quota: int | None = None, *rest: Any, **more: Any) -> tuple[bytes, Any]:
        """The node, and how much may be loaded: less than upstream says by what it pins itself."""
        if node.value is not None:
            raise CannotSay("a load of a node that is on device")
        quota = None
        if mem_quota is not None:
            quota = max(0, self.pages(max(0, mem_quota - self._evictable_above(node))))
        self.sync_outside()
        return lines.op(b"load_back", key=self.key_of(node), quota=quota), node

    @staticmethod
    def _evictable_above(node: Any) -> int:
        tokens = 0
        while node.parent is not None:
            tokens += len(node.key) if node.value is not None and node.lock_ref == 0 else 0
            node = node.parent
        return tokens

    def after_load(self, noted: tuple[bytes, Any], slots: Any) -> None:
        """A copy under its name, or none."""
        op, node = noted
        if slots is None:
            self.step(op, lines.told(b"refused", why="not loaded"))
            return
        ticket = self.copies.submitted("device", node, *self.text_of(node), 0)
        self.step(op, lines.told(b"submitted", tickets=[ticket], pages=self.pages(len(slots))))

    def after_poll(self, noted: None, result: Any) -> None:
        """What had ended is known now: `settle` finds it."""
        self.polled = True

    polled = False
    """Whether the scheduler has looked in this call."""

    def settle(self) -> None:
        """What the scheduler has learned in the last call is written: work ends in the trace when it knows of it."""
        backups, loads = self.copies.applied(self.number)
        self._end(self.copies.to_end([*backups, *loads]))
        self.copies.forget([*backups, *loads])
        if not (backups or loads or self.has_news()):
            return
        found = {"backups": backups, "loads": loads} | self.polled_storage()
        told = {name: value for name, value in found.items() if value}
        if told:
            agreed = {name: len(told[name]) for name in _COUNTED if name in told}
            agreed |= {"releases": told["releases"]} if "releases" in told else {}
            self.step(lines.op(b"poll", **agreed), lines.told(b"polled", **told))

    def _end(self, tickets: list[TicketId]) -> None:
        for ticket in tickets:
            self.step(lines.op(b"copy_done", ticket=ticket))

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def after_reset(self, noted: None, result: Any) -> None:
        """The cache is as new."""
        if len(self.copies) or self.prefetch_pages():
            raise CannotSay("a reset while copies or storage are at work")
        self._outside = 0
        self._receipts.clear()
        self.step(lines.op(b"reset"))
