"""Outcomes: what the caller is told. A no is typed: `Refused` is lawful, `Invalid` blames the caller."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Pages, ReceiptId, TicketId
from hicache_ref.vocabulary.keys import Key


class Done(Frozen):
    """It happened, and there is nothing to tell but what a lock or an unlock changed."""

    kind: Literal["done"] = "done"
    evictable: int | None = None
    """By how many pages a lock or an unlock changed what can be evicted (upstream: delta). None: not told."""

    aborted: int | None = None
    """Pages that the prefetch asked for which an abort closed; None: not told."""


class Matched(Frozen):
    """How far a key is cached (upstream: MatchResult). Lengths count pages; ends are named by their key.

    `device` ends where the last device node ends (HC-MATCH-01); `host_hit` pages more are on host only.
    `best` is the deepest usable node on any tier, `last_host_node` the deepest one with a host copy.
    """

    kind: Literal["matched"] = "matched"
    device: Pages
    host_hit: int
    last_device_node: Key
    last_host_node: Key
    best: Key
    branching: int = 0
    """How far KV alone reaches on device, in whole chunks, if that is beyond the best end; else 0 (HC-STATE-04)."""

    state_host_hit: int | None = None
    """State slots that a load down to `last_host_node` brings back: 1 if its state is on host only, else 0.

    None: not told (upstream: mamba_host_hit_length).
    """


class Took(Frozen):
    """The request now holds these device pages."""

    kind: Literal["took"] = "took"
    pages: Pages


class Inserted(Frozen):
    """`prefix` pages were in the tree already; `given_back` are the request's duplicates of them."""

    kind: Literal["inserted"] = "inserted"
    prefix: int
    given_back: Pages
    state_existed: bool = False
    """The node had a state on device already, and the request's was given back (upstream: mamba_exist)."""


class _Waiting(Frozen):
    """What may have to wait. `wait_for` that is not told is written as null: where it is absent, nothing is named."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return written | ({"wait_for": None} if getattr(self, "wait_for", ()) is None else {})


class Evicted(_Waiting):
    """`freed` pages are free, `staged` more were given up but are still touched by `wait_for`; None: not told."""

    kind: Literal["evicted"] = "evicted"
    freed: int
    staged: int = 0
    wait_for: tuple[str, ...] | None = ()


class Submitted(Frozen):
    """Copies of `pages` pages in all were submitted under these tickets, in this order."""

    kind: Literal["submitted"] = "submitted"
    tickets: tuple[TicketId, ...]
    pages: int


class Polled(Frozen):
    """These tickets were applied. Receipts in `lost` name a node that lost a copy they pinned, or left the tree."""

    kind: Literal["polled"] = "polled"
    backups: tuple[TicketId, ...] = ()
    loads: tuple[TicketId, ...] = ()
    lost: tuple[ReceiptId, ...] = ()
    answers: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    """Prefetches that were closed since storage had too little or the host no room."""

    reads: tuple[str, ...] = ()
    committed: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    given_up: tuple[str, ...] | None = None
    """Backups of which a page was offered for the last time, in vain; None: not told."""

    releases: int = 0
    prefetched: int | None = None
    """Pages that came from storage and are new in the tree (upstream: log_prefetched_tokens); None: not told."""

    backed_up: int | None = None
    """Pages that the writes in `writes` put (upstream: log_backuped_tokens); None: not told."""

    revoked_pages: int | None = None
    """Pages that the prefetches in `revoked` asked for; None: not told."""


class Prefetching(Frozen):
    """A prefetch of this name asks storage for `pages` pages."""

    kind: Literal["prefetching"] = "prefetching"
    id: str
    pages: int


class Progressed(Frozen):
    """Whether the request may go on, and how many pages storage gave it; told once (HC-PREF-12)."""

    kind: Literal["progressed"] = "progressed"
    done: bool
    loaded: int = 0
    prefetched: int | None = None
    """Pages that this step brought from storage and that are new in the tree; None: not told."""


class Audited(Frozen):
    """Nothing is pending and all is in order, or these operations are pending."""

    kind: Literal["audited"] = "audited"
    pending: tuple[str, ...] = ()


class Refused(_Waiting):
    """A lawful no. Nothing changed, except staging if `wait_for` names what has to end first; None: not told."""

    kind: Literal["refused"] = "refused"
    why: str
    wait_for: tuple[str, ...] | None = ()


class Invalid(Frozen):
    """The caller broke a precondition. Nothing changed."""

    kind: Literal["invalid"] = "invalid"
    why: str


Outcome = Annotated[
    Done
    | Matched
    | Took
    | Inserted
    | Evicted
    | Submitted
    | Polled
    | Prefetching
    | Progressed
    | Audited
    | Refused
    | Invalid,
    Field(discriminator="kind"),
]

OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
