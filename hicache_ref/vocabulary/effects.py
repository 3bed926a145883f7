"""Effects: what a step asks the world to do. Each has an id, names its pages, and says what it comes after."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Component, PageHash, Pages, TicketId


class CopyPart(Frozen):
    """Page i of `device` and page i of `host` hold the same page, one of them after the copy."""

    component: Component = "kv"
    device: Pages
    host: Pages


class CopyToHost(Frozen):
    """Copies device pages to host pages, part by part."""

    kind: Literal["copy_to_host"] = "copy_to_host"
    id: TicketId
    parts: tuple[CopyPart, ...]
    after: tuple[str, ...] = ()


class CopyToDevice(Frozen):
    """Copies host pages to device pages, part by part, layer by layer."""

    kind: Literal["copy_to_device"] = "copy_to_device"
    id: TicketId
    parts: tuple[CopyPart, ...]
    after: tuple[str, ...] = ()


class CopyOnDevice(Frozen):
    """Copies a node's state slot to a request's, which goes on from there (upstream: copy on write)."""

    kind: Literal["copy_on_device"] = "copy_on_device"
    id: TicketId
    component: Component = "state"
    source: Pages
    target: Pages
    after: tuple[str, ...] = ()


class RunForward(Frozen):
    """Runs a forward pass that reads and writes these device pages, and changes the state in this slot."""

    kind: Literal["run_forward"] = "run_forward"
    id: str
    reads: Pages
    writes: Pages
    state: Pages = ()
    after: tuple[str, ...] = ()


class StorageQuery(Frozen):
    """Asks how many of these pages, from the first on, storage has; with `trailing_state` up to one with its state."""

    kind: Literal["storage_query"] = "storage_query"
    id: str
    hashes: tuple[PageHash, ...]
    prefix: tuple[PageHash, ...] = ()
    trailing_state: bool = False
    after: tuple[str, ...] = ()


class StorageRead(Frozen):
    """Reads one batch: page i of `hashes` into host page i of `pages`, the draft page first, a state at the end."""

    kind: Literal["storage_read"] = "storage_read"
    id: str
    hashes: tuple[PageHash, ...]
    pages: Pages
    state: Pages = ()
    prefix: tuple[PageHash, ...] = ()
    after: tuple[str, ...] = ()


class StorageWrite(Frozen):
    """Puts one batch: host page i of `pages` under page i of `hashes`, the draft page after it.

    Behind the last page state slot i of `states` is put under hash i of `ends`.
    """

    kind: Literal["storage_write"] = "storage_write"
    id: str
    hashes: tuple[PageHash, ...]
    pages: Pages
    states: Pages = ()
    ends: tuple[PageHash, ...] = ()
    prefix: tuple[PageHash, ...] = ()
    after: tuple[str, ...] = ()


class StorageCancel(Frozen):
    """The operation is to stop at its next step; its end is reported all the same."""

    kind: Literal["storage_cancel"] = "storage_cancel"
    id: str
    after: tuple[str, ...] = ()


Effect = Annotated[
    CopyToHost | CopyToDevice | CopyOnDevice | RunForward | StorageQuery | StorageRead | StorageWrite | StorageCancel,
    Field(discriminator="kind"),
]

EFFECT: TypeAdapter[Effect] = TypeAdapter(Effect)
