"""Observations: what an implementation shows of itself, at one of four levels.

Levels, each worth something alone: `counts` (sizes), `pages` (who owns every page), `tree` (node ends and
locks too), `bytes` (contents too).
"""

from typing import Literal

from pydantic import TypeAdapter

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import Pages, RequestId
from hicache_ref.vocabulary.keys import Token
from hicache_ref.vocabulary.profile import WritePolicy

Level = Literal["counts", "pages", "tree", "bytes"]
LEVELS: tuple[Level, ...] = ("counts", "pages", "tree", "bytes")


class Counts(Frozen):
    """Sizes in pages; None where the implementation does not say."""

    free_device: int | None = None
    free_host: int | None = None
    evictable: int | None = None
    protected: int | None = None


class Segment(Frozen):
    """A stretch of cached pages with one holder: at level `tree` a node, at level `pages` any cut of one.

    `parent` is the index of the segment above in the same list, -1 at the top; parents come first. `tokens` are
    the segment's own; in bigram mode they begin with the token shared with the segment above.
    """

    parent: int
    tokens: tuple[Token, ...]
    extra: str | None = None
    device: Pages | None = None
    host: Pages | None = None
    locked: bool | None = None
    """Whether the node counts as protected."""

    device_state: Pages | None = None
    """The slot of the state at the segment's end, on device; likewise on host."""

    host_state: Pages | None = None
    state_locked: bool | None = None


class IssuedCopy(Frozen):
    """A copy that the implementation itself asked for since the last observation, in order.

    `ticket` is None for a copy that ended inside the step. Page i of `source` goes to page i of `target`.
    """

    ticket: str | None = None
    to: Literal["device", "host", "request"]
    source: Pages
    target: Pages
    source_states: Pages = ()
    """State slots, likewise; to a request: from a node's slot to that of the request."""

    target_states: Pages = ()


class Observation(Frozen):
    """What is seen after a step. Lists are complete: a page in none of them belongs to nobody."""

    level: Level
    counts: Counts = Counts()
    free_device: Pages = ()
    free_host: Pages = ()
    segments: tuple[Segment, ...] = ()
    requests: dict[RequestId, Pages] = {}
    free_device_state: Pages = ()
    free_host_state: Pages = ()
    request_states: dict[RequestId, Pages] = {}
    """State slots of requests; of a model without state none."""

    held_device_state: Pages = ()
    held_host_state: Pages = ()
    prefetch_states: dict[str, Pages] = {}
    """State slots on host that prefetches have."""

    copies: tuple[IssuedCopy, ...] = ()
    held_device: Pages = ()
    """Pages given up by their holder but still touched by a running copy or pass."""

    held_host: Pages = ()
    queued_host: Pages = ()
    """Host pages that were given up and wait for a poll to be free."""

    prefetch_host: dict[str, Pages] = {}
    """Host pages that prefetches have for what they read, by name of the prefetch."""

    told_to_stop: tuple[str, ...] | None = None
    """Prefetches whose query or read still runs and was told to stop; None where this does not show."""

    write_policy: WritePolicy | None = None
    """The write policy in force; None where this does not show."""

    events: tuple[Event, ...] | None = None
    """Events since the last observation; None where the implementation publishes none."""

    contents: dict[str, str] | None = None
    """Level `bytes`: `device:7` -> hash of the prefix whose bytes the page holds; states as `device_state:2`."""

    self_check: str | None = None
    """What the implementation's own checker complains of, if it has one and it does."""


OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
