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
from hicache_ref.vocabulary.storage import AttachFailure, StorageSettings


class MatchPrefix(Frozen):
    """How much of `key` is cached; a partial match splits the node."""

    op: Literal["match_prefix"] = "match_prefix"
    key: Key


class TakePages(Frozen):
    """The request gets `n` device pages, after one eviction if need be.

    Of a hybrid model it also gets a state slot, unless a load has given it one; the state of the node that ends at
    `prefix` is copied into it (upstream: cow_mamba).
    """

    op: Literal["take_pages"] = "take_pages"
    rid: RequestId
    n: int
    prefix: Key | None = None


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
    """Matches `key` and pins the path of its device end, or of its best end, under a receipt.

    With `at` node nothing is matched, split or stamped: the caller knows the node that ends at the key from before.
    """

    op: Literal["lock"] = "lock"
    receipt: ReceiptId
    key: Key
    at: Literal["device", "best", "node"] = "device"


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


class EvictState(Frozen):
    """Frees at least `n` state slots on device or leaves none that may be freed (upstream: evict_mamba)."""

    op: Literal["evict_state"] = "evict_state"
    n: int


class EvictHostState(Frozen):
    """Frees at least `n` state slots on host or leaves none that may be freed (upstream: evict_mamba_host)."""

    op: Literal["evict_host_state"] = "evict_host_state"
    n: int


class WriteBackup(Frozen):
    """Copies to host are submitted for the node at `key`, and for what above it has none, root first."""

    op: Literal["write_backup"] = "write_backup"
    key: Key


class LoadBack(Frozen):
    """A copy to device is submitted for the host-only chain that ends at `key`; `quota` limits it, in pages.

    Of a hybrid model the state at `key` is loaded too, and once more into a slot of request `rid`, if one is named.
    """

    op: Literal["load_back"] = "load_back"
    key: Key
    quota: int | None = None
    rid: RequestId | None = None


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
    """Applies up to that many leading ends of each kind, in this order; the outcome says how many (HC-CONF-15).

    Copies to host, copies to device; then storage: answers to queries, ends of batches read, ends of writes, and
    pages waiting in the release queue. The model applies that many.
    """

    op: Literal["poll"] = "poll"
    backups: int = 0
    loads: int = 0
    answers: int = 0
    reads: int = 0
    writes: int = 0
    releases: int = 0


class Prefetch(Frozen):
    """Pages of `key` beyond its last host node are looked for in storage, for a request; `now` in milliseconds."""

    op: Literal["prefetch"] = "prefetch"
    rid: RequestId
    key: Key
    now: int = 0


class QueryDone(Frozen):
    """The world's fact: storage has the first `hits` pages, or the query raised."""

    op: Literal["query_done"] = "query_done"
    id: str
    hits: int = 0
    raised: bool = False


class ReadDone(Frozen):
    """The world's fact: `pages` leading pages of the batch are in place; it raised, or it was short, or it is whole.

    `draft` of them have their draft page too. With the last batch of a hybrid model the `state` may come.
    """

    op: Literal["read_done"] = "read_done"
    id: str
    pages: int = 0
    raised: bool = False
    draft: int = 0
    state: bool = False


class WriteDone(Frozen):
    """The world's fact: `pages` leading pages of the batch are stored; it raised, or it was cut short, or it is whole.

    `draft` of them have their draft page stored too. Behind the last page so many leading `states` are stored.
    """

    op: Literal["write_done"] = "write_done"
    id: str
    pages: int = 0
    raised: bool = False
    draft: int = 0
    states: int = 0


class Progress(Frozen):
    """The scheduler asks whether the request may go on; `now` in milliseconds (upstream: check_prefetch_progress).

    Of what this rank knows to be read the ranks have agreed on the first `agreed` pages; None: on all.
    """

    op: Literal["progress"] = "progress"
    rid: RequestId
    now: int = 0
    agreed: int | None = None


class Terminate(Frozen):
    """The request's prefetch is to stop, and stays open until the request asks (upstream: terminate_prefetch)."""

    op: Literal["terminate"] = "terminate"
    rid: RequestId


class Abort(Frozen):
    """The request has gone (upstream: release_aborted_request)."""

    op: Literal["abort"] = "abort"
    rid: RequestId


class Attach(Frozen):
    """A storage backend is attached, or, if it is, its settings change; the write policy too if one is given.

    It `fails` where the world says so: its settings cannot be read, its store not opened, or the pools not registered
    with it.
    """

    op: Literal["attach"] = "attach"
    backend: str = "files"
    settings: StorageSettings = StorageSettings()
    fails: AttachFailure | None = None
    write_policy: WritePolicy | None = None
    """The write policy that comes with it (upstream: hicache_write_policy); None: it stays as it is."""


class Detach(Frozen):
    """No storage is attached and nothing of it is on the books.

    With `force` reads and writes that run end by it and bring no more, as at the end of a process (upstream: shutdown);
    else they have to be waited for.
    """

    op: Literal["detach"] = "detach"
    force: bool = False


class ClearStorage(Frozen):
    """The store is empty."""

    op: Literal["clear_storage"] = "clear_storage"


class RegisterDraft(Frozen):
    """From now on a draft model's pool mirrors the KV pool, page for page (upstream: set_draft_kv_pool)."""

    op: Literal["register_draft"] = "register_draft"


class SetWritePolicy(Frozen):
    """Later backups follow `policy`; copies that run end under the one they began with."""

    op: Literal["set_write_policy"] = "set_write_policy"
    policy: WritePolicy


class Audit(Frozen):
    """With nothing pending the whole cache is checked; else the answer says what is pending."""

    op: Literal["audit"] = "audit"


class Reset(Frozen):
    """The cache is as when it was made. `force` is as for a detach; copies and passes have to be waited for anyway.

    For `waited` milliseconds its caller has waited and asked again; by the rule reset_waits that may be long enough.
    """

    op: Literal["reset"] = "reset"
    force: bool = False
    waited: Annotated[int, Field(ge=0)] = 0


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
    | EvictState
    | EvictHostState
    | WriteBackup
    | LoadBack
    | CopyDone
    | CopyFailed
    | Poll
    | Prefetch
    | QueryDone
    | ReadDone
    | WriteDone
    | Progress
    | Terminate
    | Abort
    | Attach
    | Detach
    | ClearStorage
    | RegisterDraft
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
        EvictState, EvictHostState, WriteBackup, LoadBack, CopyDone, CopyFailed, Poll, Prefetch, QueryDone, ReadDone,
        WriteDone, Progress, Terminate, Abort,
        Attach, Detach, ClearStorage, RegisterDraft, SetWritePolicy, Audit, Reset,
    )
}  # fmt: skip

POLLS_IN_VAIN_MAX = 4
"""Of so many polls in a row that may apply all ends of a kind that wait, one applies some (HC-CONF-15)."""

STORAGE_OPERATIONS = frozenset(
    {
        "prefetch",
        "query_done",
        "read_done",
        "write_done",
        "progress",
        "terminate",
        "abort",
        "attach",
        "detach",
        "clear_storage",
    }
)
"""Operations that need the third tier."""

STATE_OPERATIONS = frozenset({"evict_state", "evict_host_state"})
"""Operations that need a hybrid model."""

SPECIAL_FIELDS: dict[str, tuple[str, ...]] = {
    "take_pages": ("prefix",), "load_back": ("rid",), "read_done": ("state",), "write_done": ("states",),
    "progress": ("agreed",), "attach": ("fails", "write_policy"), "detach": ("force",), "reset": ("force", "waited"),
}  # fmt: skip
"""The fields of operations that only some implementations need to know: states, other ranks, failures, policies."""
