"""Operations: everything that may happen to the cache, one frozen type each, told apart by `op`.

Handles (requests, receipts, tickets) are names, and nodes are named by key, so that deleting a step from a
trace leaves the meaning of the others.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import ReceiptId, RequestId, TicketId
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.profile import WritePolicy


class MatchPrefix(Frozen):
    """How much of `key` is cached; a partial match splits the node."""

    op: Literal["match_prefix"] = "match_prefix"
    key: Key


class TakePages(Frozen):
    """The request gets `n` device pages, after one eviction if need be."""

    op: Literal["take_pages"] = "take_pages"
    rid: RequestId
    n: int


class GiveBack(Frozen):
    """The request ends and gives back the device pages it holds."""

    op: Literal["give_back"] = "give_back"
    rid: RequestId


class Forward(Frozen):
    """A forward pass begins: it reads the resident pages of `key[:start]` and writes the request's own pages.

    `start` counts pages; the request's own pages are to hold `key[start:]`.
    """

    op: Literal["forward"] = "forward"
    rid: RequestId
    key: Key
    start: int


class ForwardDone(Frozen):
    """The request's forward pass has ended and its pages are written."""

    op: Literal["forward_done"] = "forward_done"
    rid: RequestId


class Insert(Frozen):
    """The request's own pages, which hold `key[start:]`, become the tree's.

    `start` pages are the tree's already (upstream: `prev_prefix_len`). `inserted` pages were inserted by this
    request before (`inserted_len`). A `chunked` insert counts no hit.
    """

    op: Literal["insert"] = "insert"
    rid: RequestId
    key: Key
    start: int
    inserted: int = 0
    chunked: bool = False
    priority: int = 0


class Lock(Frozen):
    """Matches `key` and pins the path of its device end, or of its best end, under a receipt."""

    op: Literal["lock"] = "lock"
    receipt: ReceiptId
    key: Key
    at: Literal["device", "best"] = "device"


class Unlock(Frozen):
    """Undoes exactly what the receipt's lock did."""

    op: Literal["unlock"] = "unlock"
    receipt: ReceiptId


class Evict(Frozen):
    """Frees at least `n` device pages or leaves no evictable leaf."""

    op: Literal["evict"] = "evict"
    n: int


class EvictHost(Frozen):
    """Frees at least `n` host pages or leaves no evictable host leaf."""

    op: Literal["evict_host"] = "evict_host"
    n: int


class WriteBackup(Frozen):
    """Copies to host are submitted for the node at `key`, and for what above it has none, root first."""

    op: Literal["write_backup"] = "write_backup"
    key: Key


class LoadBack(Frozen):
    """A copy to device is submitted for the host-only chain that ends at `key`; `quota` limits it, in pages."""

    op: Literal["load_back"] = "load_back"
    key: Key
    quota: int | None = None


class CopyDone(Frozen):
    """The world's fact: every byte of the copy is in place."""

    op: Literal["copy_done"] = "copy_done"
    ticket: TicketId


class CopyFailed(Frozen):
    """The world's fact: parts before `first_failed` are in place, the rest was never written."""

    op: Literal["copy_failed"] = "copy_failed"
    ticket: TicketId
    first_failed: int = 0


class Poll(Frozen):
    """Applies that many leading ended copies: backups first, then loads (agreed numbers)."""

    op: Literal["poll"] = "poll"
    backups: int = 0
    loads: int = 0


class SetWritePolicy(Frozen):
    """Later backups follow `policy`; copies that run end under the one they began with."""

    op: Literal["set_write_policy"] = "set_write_policy"
    policy: WritePolicy


class Audit(Frozen):
    """With nothing pending the whole cache is checked; else the answer says what is pending."""

    op: Literal["audit"] = "audit"


class Reset(Frozen):
    """The cache is as when it was made."""

    op: Literal["reset"] = "reset"


Operation = Annotated[
    MatchPrefix
    | TakePages
    | GiveBack
    | Forward
    | ForwardDone
    | Insert
    | Lock
    | Unlock
    | Evict
    | EvictHost
    | WriteBackup
    | LoadBack
    | CopyDone
    | CopyFailed
    | Poll
    | SetWritePolicy
    | Audit
    | Reset,
    Field(discriminator="op"),
]

OPERATION: TypeAdapter[Operation] = TypeAdapter(Operation)

OPERATION_TYPES: dict[str, type[Frozen]] = {
    kind.model_fields["op"].default: kind
    for kind in (
        MatchPrefix, TakePages, GiveBack, Forward, ForwardDone, Insert, Lock, Unlock, Evict, EvictHost,
        WriteBackup, LoadBack, CopyDone, CopyFailed, Poll, SetWritePolicy, Audit, Reset,
    )
}  # fmt: skip
