"""What calls of a cache amount to, in operations: tree, locks, device pages and copies.

Each method stands for one kind of raw record. What a caller of the cache does by itself, as taking device pages, is
written when it shows: pages that go into the tree have been taken and filled just before, and those that are neither in
the tree nor free belong to the one request `OUTSIDE`.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from hicache_ref.adapters.sglang_teller import lines
from hicache_ref.adapters.sglang_teller.looking import OUTSIDE, Pools, SentNode, seen
from hicache_ref.adapters.sglang_teller.nodes import CannotSay, Nodes, Place, SentKey, Shape
from hicache_ref.adapters.sglang_teller.ring import Span
from hicache_ref.adapters.sglang_teller.tickets import Copies
from hicache_ref.adapters.sglang_teller.writing import TraceWriter
from hicache_ref.vocabulary.ids import Pages, TicketId

_COUNTED = ("backups", "loads", "answers", "reads", "writes")

NOBODY = b"nobody"
"""The receipt of an unlock that undoes no lock."""

Fetched = tuple[int, Pages | None, int]
"""Of a prefetch: its operation's number, its host pages, and how many of them are read."""


class Calls:
    """Writes the operations of one cache."""

    def __init__(self, shape: Shape, nodes: Nodes, writer: TraceWriter) -> None:
        self.shape = shape
        self.nodes = nodes
        self.writer = writer
        self.copies = Copies()
        self._receipts: dict[int, list[str]] = {}
        self._outside = 0
        self._names = 0
        self._gone: tuple[list[TicketId], list[TicketId]] = ([], [])

    def step(self, op: bytes, rest: bytes = lines.DONE) -> None:
        """A step is written; without `rest` it is one that was simply done."""
        self.writer.step(op, rest)

    def name(self, kind: str) -> str:
        """A name that nothing had before."""
        self._names += 1
        return f"{kind}{self._names}"

    # -- what is known ----------------------------------------------------------------------------------------------

    def on_node(self, number: int, above: int, own: SentKey, extra: str | None) -> None:
        """There is a node."""
        self.nodes.learn(number, above, own, extra)

    def on_key(self, sent: SentKey, extra: str | None) -> None:
        """The next call has this key."""
        self.nodes.take_key(sent)
        self._extra = extra

    _extra: str | None = None

    def _key(self) -> bytes:
        """The key of the call that is told, as it is written."""
        return lines.key(self.nodes.key, self._extra)

    def on_slots(self, span: Span) -> None:
        """Slots that the records after this one are about."""
        self.nodes.take_slots(span)

    def on_pages(self, number: int, slots: Place) -> None:
        """The node has these slots on device."""
        self.nodes.device[number] = self.nodes.slots(slots)

    def on_host_pages(self, number: int, slots: Place) -> None:
        """The node has these slots on host."""
        self.nodes.host[number] = self.nodes.slots(slots)

    def on_forget(self) -> None:
        """Nodes that are named again are sent again."""
        self.nodes.forget()

    def device_pages(self, firsts: Sequence[int]) -> list[int]:
        """The device pages that begin in these slots."""
        size, offset = self.shape.page_size, self.shape.device_offset
        return [slot // size - offset for slot in firsts]

    # -- device pages outside the tree ------------------------------------------------------------------------------

    def sync_outside(self, now: int) -> None:
        """The trace has as many pages outside the tree as there are, so that room is short where it is."""
        if now == self._outside:
            return
        self._forget_outside()
        if now > 0:
            # It does not matter which they are: numbers beyond the pool.
            first = self.shape.device_pages
            self._take_outside(range(first, first + now))

    def _take_outside(self, pages: Sequence[int]) -> None:
        self._outside = len(pages)
        took = lines.told(b"took", pages=list(pages))
        self.step(lines.op(b"take_pages", rid=OUTSIDE, n=len(pages)), took)

    def _forget_outside(self) -> None:
        if self._outside:
            self.step(lines.op(b"give_back", rid=OUTSIDE))
        self._outside = 0

    # -- match and lock ---------------------------------------------------------------------------------------------

    def on_match(self, sent: Place, place: int, hit: int, device: int, host: int) -> None:
        """What was found of a key."""
        text, size = self.nodes.text, self.shape.page_size
        firsts = self.nodes.matched[place] = self.nodes.slots(sent)
        pages = to_json(self.device_pages(firsts))
        best = host if hit else device
        self.step(self._match(), lines.MATCHED % (pages, hit // size, text(device), text(host), text(best)))

    def _match(self) -> bytes:
        return lines.op(b"match_prefix", key=self._key())

    def on_lock(self, number: int) -> None:
        """A receipt for the node."""
        receipt = self.name("l")
        self._receipts.setdefault(number, []).append(receipt)
        self.step(lines.LOCK % (receipt.encode(), self.nodes.text(number)))

    def on_unlock(self, number: int) -> None:
        """One of the node's receipts is used up; they are alike.

        The tree was empty as the recording began, so that a node without a receipt was locked by nobody: the step that
        says so is the last one, and what is judged to be wrong (HC-CONF-02).
        """
        held = self._receipts.get(number)
        if held is None:
            self.step(lines.UNLOCK % NOBODY)
            raise CannotSay("a node is unlocked that nobody has locked since the recording began")
        self.step(lines.UNLOCK % held.pop().encode())
        if not held:
            del self._receipts[number]

    # -- insert -----------------------------------------------------------------------------------------------------

    def on_insert(
        self, sent: Place | bytes, path: Sequence[int] | int, chunked: bool, priority: int, known: int
    ) -> None:
        """Pages were taken and filled, and are the tree's, but for duplicates."""
        text = self._key()
        start, pages = self._brought(sent, path)
        prefix = known // self.shape.page_size
        name = self.name("i").encode()
        if pages:
            self._forget_outside()
            self.step(b'{"op":"take_pages","rid":"%b","n":%d}' % (name, len(pages)), lines.TOOK % to_json(pages))
            self.step(b'{"op":"forward","rid":"%b","key":%b,"start":%d}' % (name, text, start))
            # The pass has read what was loaded for it, so that is there, whether the scheduler has looked or not.
            self._end(self.copies.to_end())
            self.step(b'{"op":"forward_done","rid":"%b"}' % name)
        given_back = pages[: max(prefix - start, 0)]
        op = self._insert(name, text, start, chunked, priority)
        self.step(op, lines.told(b"inserted", prefix=prefix, given_back=given_back))

    def _brought(self, sent: Place | bytes, path: Sequence[int] | int) -> tuple[int, Pages]:
        """How many of the pages are those that the tree had for the key, and the others."""
        given, start, size = self.nodes.slots(sent), 0, self.shape.page_size
        if isinstance(path, int):
            parts = [self.nodes.matched[path]]
        else:
            parts = [self.nodes.device[number][::size] for number in path]
        for theirs in parts:
            mine = given[start : start + len(theirs)]
            if mine != theirs[: len(mine)]:
                start += next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
                break
            start += len(mine)
        return start, tuple(self.device_pages(given[start:]))

    @staticmethod
    def _insert(name: bytes, text: bytes, start: int, chunked: bool, priority: int) -> bytes:
        rid = b'"%b"' % name
        return lines.op(b"insert", rid=rid, key=text, start=start, chunked=chunked, priority=priority)

    # -- room -------------------------------------------------------------------------------------------------------

    def on_evict(self, pages: int, freed: int) -> None:
        """So many device tokens more are free."""
        self.step(lines.op(b"evict", n=pages), lines.told(b"evicted", freed=freed // self.shape.page_size))

    def on_evict_host(self, pages: int, freed: int) -> None:
        """As `on_evict`."""
        self.step(lines.op(b"evict_host", n=pages), lines.told(b"evicted", freed=freed // self.shape.page_size))

    # -- copies -----------------------------------------------------------------------------------------------------

    def on_write(self, number: int) -> None:
        """A copy of the node to host was submitted, within whatever call."""
        self.copies.submitted("host", number, *self.nodes.name_of(number))

    def on_load(self, number: int, quota: int | None, outside: int, loaded: int | None) -> None:
        """A copy to device under its name, or none."""
        self.sync_outside(outside)
        op = self._load(number, quota)
        if loaded is None:
            self.step(op, lines.told(b"refused", why="not loaded"))
            return
        ticket = self.copies.submitted("device", number, *self.nodes.name_of(number))
        self.step(op, lines.told(b"submitted", tickets=[ticket], pages=loaded // self.shape.page_size))

    def _load(self, number: int, quota: int | None) -> bytes:
        return lines.op(b"load_back", key=self.nodes.text(number), quota=quota)

    def on_gone(self, host: Sequence[int], device: Sequence[int], at_once: Sequence[int]) -> None:
        """A call is over: the cache does not wait for the copies of these nodes any more."""
        self._gone = self.copies.applied(host, device, at_once)
        ended = [*self._gone[0], *self._gone[1]]
        self._end(self.copies.to_end(ended))
        self.copies.forget(ended)

    def on_news(self, drained: Sequence[Any]) -> None:
        """What the scheduler has learned in the last call is written: work ends in the trace when it knows of it."""
        (backups, loads), self._gone = self._gone, ([], [])
        found = {"backups": backups, "loads": loads} | self.polled_storage(drained)
        told = {name: value for name, value in found.items() if value}
        if told:
            agreed = {name: len(told[name]) for name in _COUNTED if name in told}
            agreed |= {"releases": told["releases"]} if "releases" in told else {}
            self.step(lines.op(b"poll", **agreed), lines.told(b"polled", **told))

    def polled_storage(self, drained: Sequence[Any]) -> dict[str, Any]:
        """What the scheduler has learned of storage in this call: nothing here."""
        return {}

    def _end(self, tickets: list[TicketId]) -> None:
        for ticket in tickets:
            self.step(lines.op(b"copy_done", ticket=ticket))

    # -- all of it --------------------------------------------------------------------------------------------------

    def prefetch_pages(self, fetched: Sequence[Fetched]) -> dict[str, Pages]:
        """The host pages that prefetches have, by name: none here."""
        return {}

    def on_look(self, pools: Pools, nodes: Sequence[SentNode], queued: Pages, fetched: Sequence[Fetched]) -> None:
        """The tree as it is now is written, after a step that does nothing."""
        self._forget_outside()
        observation = seen(self.shape, self.nodes, pools, nodes, queued, self.prefetch_pages(fetched))
        outside = observation.requests.get(OUTSIDE, ())
        if outside:
            self._take_outside(outside)
        self.step(lines.op(b"poll"), lines.seen(observation))

    def on_reset(self, fetched: Sequence[Fetched]) -> None:
        """The cache is as new."""
        if len(self.copies) or self.prefetch_pages(fetched):
            raise CannotSay("a reset while copies or storage are at work")
        self._outside = 0
        self._receipts.clear()
        self.nodes.forget()
        self.step(lines.op(b"reset"))

    def on_raised(self, error: str, kind: bytes, given: Sequence[Any]) -> None:
        """The call raised: it is the last step."""
        self.step(self._begun(kind, given), lines.raised(error))

    def _begun(self, kind: bytes, given: Sequence[Any]) -> bytes:
        """The operation of a call that did not end."""
        if kind == b"match":
            return self._match()
        if kind == b"insert":
            sent, path, chunked, priority = given
            start, _ = self._brought(sent, path)
            return self._insert(self.name("i").encode(), self._key(), start, chunked, priority)
        if kind == b"load":
            number, quota, outside = given
            self.sync_outside(outside)
            return self._load(number, quota)
        return lines.op(kind, n=given[0])
