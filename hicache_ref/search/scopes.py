"""Scopes: how small a world must be so that every state of it can be looked at, and what each leaves out."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from hicache_ref.model import Model, State
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import Tier
from hicache_ref.vocabulary.keys import Key, PageKeys, pages_of
from hicache_ref.vocabulary.operations import Attach, Operation
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes
from hicache_ref.vocabulary.storage import StorageSettings


class Scope(Frozen):
    """A world: who is in it, what they may ask for, and what may go wrong."""

    name: str
    text: str
    """What it covers that another scope does not."""

    profile: Profile
    keys: tuple[Key, ...]
    """The keys that are matched, locked, computed and inserted."""

    requests: Annotated[int, Field(ge=0)] = 1
    """Requests that there are at a time; the passes of all may run at once."""

    receipts: Annotated[int, Field(ge=0)] = 0
    """Locks that callers hold at a time."""

    failing: frozenset[Tier] = frozenset()
    """Copies to these tiers may fail, at any part and any number of times."""

    takes: tuple[int, ...] = (1, 2)
    """Numbers of pages that a request may take."""

    evicts: tuple[int, ...] = (1, 2)
    """Numbers of device pages that may be asked for."""

    host_evicts: tuple[int, ...] = (1, 2)
    """Numbers of host pages that may be asked for."""

    storage: StorageSettings | None = None
    """With what storage is attached from the start, if it is."""

    prefetches: Annotated[int, Field(ge=0)] = 0
    """Prefetches on the books at a time."""

    terminates: bool = False
    """Prefetches may be told to stop while their requests wait."""

    whole_requests: bool = False
    """A request that takes pages computes and inserts them before anything else happens."""

    @property
    def opening(self) -> tuple[Operation, ...]:
        """What has happened before anything may."""
        return () if self.storage is None else (Attach(settings=self.storage),)

    def start(self) -> State:
        """The state from which the scope is searched."""
        model = Model(self.profile)
        for op in self.opening:
            model.step(op)
        return model.state

    @property
    def is_alike(self) -> bool:
        """Whether renaming pages turns the keys into themselves wherever prefixes part: branches are of one shape."""
        sizes, bigram = self.profile.sizes, self.profile.bigram
        pages = [pages_of(key.tokens, sizes.page_size, bigram) for key in self.keys]
        return len({key.extra for key in self.keys}) == 1 and _shape(pages, 0) is not None


def _shape(keys: Sequence[PageKeys], depth: int) -> tuple[object, ...] | None:
    """How these keys, which share `depth` pages, go on; None if two branches at one place differ."""
    longer = [key for key in keys if len(key) > depth]
    branches = {page: [key for key in longer if key[depth] == page] for page in {key[depth] for key in longer}}
    shapes = {_shape(branch, depth + 1) for branch in branches.values()}
    return None if None in shapes or len(shapes) > 1 else (len(longer) < len(keys), len(branches), *shapes)


_KEYS = (Key(tokens=(0,)), Key(tokens=(0, 0)), Key(tokens=(0, 1)))
"""A prefix and two keys that share it: the least with which nodes split, branch and share."""


def _profile(rules: Rules, **sizes: int) -> Profile:
    """Three device pages and two host pages: too few for all keys, so that room has to be made on both tiers."""
    return Profile(rules=rules, sizes=Sizes(device_pages=3, host_pages=2, **sizes), name="reference/3+2")


_RULES = Rules()
_RETRY = Rules(storage_retries=2)
_EARLY = Rules(
    storage_retries=2,
    prefetch_allocation="before",
    prefetch_progress="live",
    prefetch_commit="progress",
    cancelled_query="goes_on",
    give_back="queued",
    commit_adopts=False,
)
"""The values of storage rules that the reference does not have."""


_AT_IO_END = _EARLY.model_copy(update={"read_tail": "io_end"})


def _lower(name: str, text: str, keys: tuple[Key, ...], *, prefetches: int = 1, rules: Rules = _RETRY,
           terminates: bool = False) -> Scope:  # fmt: skip
    """One request and storage, page by page, to which a page is offered once more if the first write of it failed.

    The request goes through as a whole and is told at once what it got: what may happen meanwhile is the matter of
    other scopes. To evict two pages is to evict one twice.
    """
    return Scope(
        name=name,
        text=text,
        profile=_profile(rules, storage_batch=1),
        keys=keys,
        evicts=(1,),
        host_evicts=(1,),
        storage=StorageSettings(prefetch_threshold=1),
        prefetches=prefetches,
        terminates=terminates,
        whole_requests=True,
    )


def _hybrid(name: str, text: str, *, device_states: int = 1, requests: int = 1, rules: Rules = _RULES,
            failing: frozenset[Tier] = frozenset()) -> Scope:  # fmt: skip
    """A hybrid model with one state slot on host and few on device, and a lock."""
    profile = _profile(rules, device_states=device_states, host_states=1)
    return Scope(
        name=name,
        text=text,
        profile=profile.model_copy(update={"state": True}),
        keys=_KEYS,
        requests=requests,
        receipts=1,
        failing=failing,
    )


_WRITE_THROUGH, _WRITE_BACK = _profile(Rules()), _profile(Rules(write_policy="write_back"))
_BLOCKING = _profile(Rules(write_policy="write_back", write_back_copy="blocking"))
_BOTH: frozenset[Tier] = frozenset({"device", "host"})

_ALL = (
    Scope(
        name="upper-small",
        text="One request, nothing fails: the smallest world in which backups, loads and evictions meet.",
        profile=_WRITE_THROUGH,
        keys=_KEYS,
    ),
    Scope(
        name="upper-write-back-small",
        text="Copies are staged at eviction and may fail.",
        profile=_WRITE_BACK,
        keys=_KEYS,
        failing=_BOTH,
    ),
    Scope(
        name="upper",
        text="Two requests insert what the other one has, or is about to have, under a lock.",
        profile=_WRITE_THROUGH,
        keys=_KEYS,
        requests=2,
        receipts=1,
    ),
    Scope(
        name="upper-failures",
        text="Every copy may fail, also below a lock and under what was computed from it.",
        profile=_WRITE_THROUGH,
        keys=_KEYS,
        receipts=1,
        failing=_BOTH,
    ),
    Scope(
        name="upper-write-back",
        text="Copies are staged at eviction and may fail; a lock may hold what hangs below.",
        profile=_WRITE_BACK,
        keys=_KEYS,
        receipts=1,
        failing=_BOTH,
    ),
    Scope(
        name="upper-blocking",
        text="Eviction waits for its copies, which may fail inside the step.",
        profile=_BLOCKING,
        keys=_KEYS,
        receipts=1,
        failing=_BOTH,
    ),
    Scope(
        name="upper-all",
        text="What `upper` and `upper-failures` have, at once.",
        profile=_WRITE_THROUGH,
        keys=_KEYS,
        requests=2,
        receipts=1,
        failing=_BOTH,
    ),
    _hybrid(
        name="hybrid-small",
        text="Nodes and a request compete for one state slot on each tier.",
    ),
    _hybrid(
        name="hybrid",
        text="One state slot on each tier, two requests, failing copies: states come late and are lost in every way.",
        requests=2,
        failing=_BOTH,
    ),
    _hybrid(
        name="hybrid-copy",
        text="A request goes on from a copy of a node's state, or from one that is loaded for it; copies may fail.",
        device_states=2,
        failing=_BOTH,
    ),
    _hybrid(
        name="hybrid-write-back",
        text="States are staged with their KV at eviction, and copies may fail.",
        failing=_BOTH,
        rules=Rules(write_policy="write_back"),
    ),
    _lower(
        name="lower-small",
        text="One key of two pages comes from storage and goes there: whole, in part, or not at all.",
        keys=_KEYS[1:2],
    ),
    _lower(
        name="lower",
        text="What is fetched meets what was computed and evicted meanwhile; requests compute and insert as a whole.",
        keys=_KEYS[:2],
    ),
    _lower(
        name="lower-reuse",
        text="A request that went comes back under its name while storage still works for the old one.",
        keys=_KEYS[1:2],
        prefetches=2,
    ),
    _lower(
        name="lower-early",
        text="Storage rules of released engines: pages taken before the query, ends known at once, a release queue.",
        keys=_KEYS[:2],
        rules=_EARLY,
    ),
    _lower(
        name="lower-terminate",
        text="A prefetch of two pages is told to stop at any moment while its request waits.",
        keys=_KEYS[1:2],
        terminates=True,
    ),
    _lower(
        name="lower-terminate-early",
        text="The same where what comes after it does not count, and the worker gives it up.",
        keys=_KEYS[1:2],
        rules=_AT_IO_END,
        terminates=True,
    ),
)

SCOPES: dict[str, Scope] = {scope.name: scope for scope in _ALL}
