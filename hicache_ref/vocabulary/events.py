"""Events: what other parties learn about residency, one event a page (upstream: KV events)."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Medium
from hicache_ref.vocabulary.keys import PageKey


class BlockStored(Frozen):
    """The page is on `medium` from now on; `parent` is the page before it in its sequence, if any."""

    kind: Literal["block_stored"] = "block_stored"
    block_hash: int
    parent_block_hash: int | None = None
    token_ids: PageKey
    medium: Medium


class BlockRemoved(Frozen):
    """The page is no longer on `medium`."""

    kind: Literal["block_removed"] = "block_removed"
    block_hash: int
    medium: Medium


class AllBlocksCleared(Frozen):
    """No page is on any medium."""

    kind: Literal["all_blocks_cleared"] = "all_blocks_cleared"


Event = Annotated[BlockStored | BlockRemoved | AllBlocksCleared, Field(discriminator="kind")]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
