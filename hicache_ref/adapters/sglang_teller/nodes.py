"""Keys and nodes by the numbers under which a server sends them, and how they are written."""

from array import array
from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from hicache_ref.adapters.sglang_teller import lines
from hicache_ref.adapters.sglang_teller.ring import Reader, Sent, Span

ROOT = -1
"""The number of the root."""

WHOLE = -1
"""In place of the number of an earlier key: all tokens are sent."""

_TEXT_BYTES = 1 << 25
"""Of keys that are kept as they are written."""

_KEY_HEAD = len(b'{"tokens":[')
_NUMBER = "q"
Numbers: TypeAlias = "array[int]"

SentKey = tuple[int, int, int, Sent]
"""The number of a key sent before, where in it and how many tokens this one begins with, and its others."""


LATEST = -2
"""The number that the latest key has, if it has no other."""

Place = tuple[int, int]
"""Where among the slots handed over with a record some are, and how many."""


class CannotSay(Exception):
    """The trace has no words for what happened; the text says what it was."""


class Node(NamedTuple):
    """A node: its key is that of `above` and `tokens`. A split leaves the lower half its node, and so its key."""

    above: "Node | None"
    tokens: Numbers
    extra: str | None
    length: int


_TOP = Node(None, array(_NUMBER), None, 0)


def _path(node: Node) -> Numbers:
    parts, each = [], node
    while each.above is not None:
        parts.append(each.tokens)
        each = each.above
    tokens = array(_NUMBER)
    for part in reversed(parts):
        tokens += part
    return tokens


class Nodes:
    """What was sent of nodes and keys."""

    def __init__(self, ring: Reader) -> None:
        self._ring = ring
        self._keys: dict[int, Numbers] = {}
        self.key = array(_NUMBER)
        """That of the call that is told next."""

        self._slots = array(_NUMBER)
        self.matched: dict[int, Numbers] = {}
        """What the latest match found on device of a key, by the place that the server has for it."""

        self._texts: OrderedDict[int, bytes] = OrderedDict()
        self._text_bytes = 0
        self.forget()

    def forget(self) -> None:
        """No node is known: those that are named again are sent again."""
        self._nodes: dict[int, Node] = {ROOT: _TOP}
        self.device: dict[int, Numbers] = {}
        """Slots on device of nodes, as last sent."""

        self.host: dict[int, Numbers] = {}
        self._texts.clear()
        self._text_bytes = 0

    def take_slots(self, span: Span) -> None:
        """The slots that the records until the next hand over are about."""
        self._slots = self._numbers(span)

    def slots(self, place: Place | bytes) -> Numbers:
        """The slots there, or these."""
        if isinstance(place, bytes):
            return self._numbers(place)
        begin, count = place
        return self._slots[begin : begin + count]

    def _numbers(self, sent: Sent) -> Numbers:
        made = array(_NUMBER)
        made.frombytes(sent if isinstance(sent, bytes) else self._ring.bytes(sent))
        return made

    def part(self, sent: SentKey) -> Numbers:
        """The tokens of a key."""
        number, begin, shared, others = sent
        rest = self._numbers(others)
        return self._keys[number][begin : begin + shared] + rest if shared else rest

    def whole_pages(self, slots: Numbers, size: int, offset: int) -> tuple[int, ...]:
        """The pages that these slots are. Raises CannotSay unless they are whole pages with their slots in order."""
        firsts = slots[::size]
        if size > 1 and (
            any(first % size for first in firsts)
            or slots != array(_NUMBER, [slot for first in firsts for slot in range(first, first + size)])
        ):
            raise CannotSay(f"a node with slots that are no whole pages of {size}: {slots.tolist()}")
        return tuple(first // size - offset for first in firsts)

    def take_key(self, sent: SentKey) -> None:
        """A call has this key; its number is this one's from now on, unless it is only a beginning of what that was."""
        self.key = self.part(sent)
        if sent[0] != WHOLE and sent[3]:
            self._keys[sent[0]] = self.key

    def learn(self, number: int, above: int, own: SentKey, extra: str | None) -> None:
        """A node is known from now on."""
        upper, tokens = self._nodes[above], self.part(own)
        self._nodes[number] = Node(upper, tokens, extra, upper.length + len(tokens))

    def tokens(self, number: int) -> Numbers:
        """The tokens from the root to the end of the node."""
        return _path(self._nodes[number])

    def own_tokens(self, number: int, above: int) -> Numbers:
        """Those below the end of another node."""
        return self.tokens(number)[self._nodes[above].length :]

    def extra(self, number: int) -> str | None:
        """The namespace of the node."""
        return self._nodes[number].extra

    def text(self, number: int) -> bytes:
        """The key of the node as it is written."""
        kept = self._texts.get(number)
        if kept is not None:
            self._texts.move_to_end(number)
            return kept
        made = lines.key(self.tokens(number), self.extra(number))
        self._texts[number] = made
        self._text_bytes += len(made)
        while self._text_bytes > _TEXT_BYTES and len(self._texts) > 1:
            _, old = self._texts.popitem(last=False)
            self._text_bytes -= len(old)
        return made

    def name_of(self, number: int) -> tuple[str, int]:
        """The key of the node as operations are named after it, and its number of tokens."""
        made = self.text(number)
        tokens = made[_KEY_HEAD : made.index(b"]")].replace(b",", b".").decode()
        extra = self.extra(number)
        return tokens if extra is None else f"{extra}/{tokens}", self._nodes[number].length


class Shape(NamedTuple):
    """What the cache is, as far as its calls are told after it."""

    page_size: int
    device_pages: int
    device_offset: int
    storage_batch: int
    allocates_before: bool
    acknowledges_batches: bool
