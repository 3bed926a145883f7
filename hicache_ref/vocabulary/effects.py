"""Effects: what a step asks the world to do. Each has an id, names its pages, and says what it comes after."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Component, Pages, TicketId


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


class RunForward(Frozen):
    """Runs a forward pass that reads and writes these device pages."""

    kind: Literal["run_forward"] = "run_forward"
    id: str
    reads: Pages
    writes: Pages
    after: tuple[str, ...] = ()


Effect = Annotated[CopyToHost | CopyToDevice | RunForward, Field(discriminator="kind")]

EFFECT: TypeAdapter[Effect] = TypeAdapter(Effect)
