"""Choices: the answers by which a run differs from another one that had the same operations."""

from typing import Annotated, Literal

from pydantic import Field

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Pages, PoolName, TicketId
from hicache_ref.vocabulary.keys import Key


class TookThese(Frozen):
    """An allocation took these free pages, in this order."""

    ask: Literal["pages"] = "pages"
    pool: PoolName
    answer: Pages


class Victim(Frozen):
    """Of several nodes that the policy ranks equal, the one with this key was evicted."""

    ask: Literal["victim"] = "victim"
    pool: PoolName
    answer: Key


class CopyResult(Frozen):
    """A copy that ended inside the step succeeded or not."""

    ask: Literal["copy_result"] = "copy_result"
    ticket: TicketId
    answer: bool


class Latitude(Frozen):
    """Where the rules leave `name` open, this option was taken."""

    ask: Literal["latitude"] = "latitude"
    name: str
    answer: str


Choice = Annotated[TookThese | Victim | CopyResult | Latitude, Field(discriminator="ask")]
