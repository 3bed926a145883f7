"""What the tests of the adapter for HiMambaRadixCache share: a child for each release, short ways to say operations."""

import os
from collections import Counter
from functools import lru_cache
from typing import Any

import pytest

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_himamba import make
from hicache_ref.adapters.sglang_himamba.wheels import RELEASES
from hicache_ref.search.simpler import EVERYTHING
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.observation import Observation, Segment
from hicache_ref.vocabulary.operations import (
    Attach,
    CopyDone,
    Evict,
    EvictHost,
    Forward,
    ForwardDone,
    Insert,
    Operation,
    Prefetch,
    QueryDone,
    ReadDone,
    TakePages,
    WriteDone,
)
from hicache_ref.vocabulary.outcomes import Outcome, Prefetching
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

ALL_RELEASES = tuple(RELEASES)


@lru_cache(maxsize=16)
def child(**options: str) -> tuple[ProcessAdapter, Description]:
    """An adapter with these options and what it says of itself, started once for all tests."""
    try:
        adapter = make(options, fetch=False, step_timeout=30.0)
    except AdapterError as error:
        if "expected it there" not in str(error):
            raise
        text = f"{error}; `make test-peers` does. Without it nothing here checks a released engine."
        if os.environ.get("CI") == "true":
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    return adapter, adapter.describe()


class Driven:
    """A cache of one release, new, and the shortest way to say operations. A key is given by its tokens."""

    def __init__(self, sizes: Sizes | None = None, *, write_policy: str = "write_through", **options: str) -> None:
        self.adapter, self.description = child(**options)
        self.sizes = sizes or Sizes(device_pages=8, host_pages=8, device_states=4, host_states=4)
        rules = RULES[self.description.profile].model_copy(update={"write_policy": write_policy})
        self.profile = Profile(rules=rules, sizes=self.sizes, state=True, name="here")
        self.adapter.reset(self.profile)

    def __call__(self, operation: Operation) -> Outcome:
        return self.adapter.apply(operation)

    def see(self) -> Observation:
        """What is seen at level bytes."""
        return self.adapter.observe("bytes")

    def insert(self, *tokens: int, start: int = 0, rid: str = "r") -> Outcome:
        """The outcome of an insert; its request goes on from the state at `start`, and its pass has run."""
        *before, insert = inserting(rid, key(*tokens), start)
        for operation in before:
            assert self(operation).kind in ("took", "done")
        return self(insert)

    def back_up(self, *tokens: int) -> None:
        """The copy to host of the node that ends there has ended and was applied."""
        assert self(CopyDone(ticket=f"h:{key(*tokens)}")).kind == "done"
        self(EVERYTHING)

    def attach(self, policy: Any = "wait_complete") -> None:
        """Storage is attached, and prefetches from one token on."""
        assert self(Attach(settings=StorageSettings(prefetch_threshold=1, prefetch_policy=policy))).kind == "done"

    def only_stored(self, *tokens: int) -> None:
        """The pages of this key, and the state at its end, are in storage and nowhere else."""
        self.insert(*tokens)
        self.back_up(*tokens)
        left = len(tokens)
        while left > 0:
            pages = min(self.sizes.storage_batch, left)
            left -= pages
            put = WriteDone(id=f"b:{key(*tokens)}", pages=pages, states=int(not left))
            assert self(put).kind == "done"
        self(EVERYTHING)
        self(Evict(n=99))
        self(EvictHost(n=99))
        assert not self.see().segments

    def reading(self, rid: str, *tokens: int) -> str:
        """The name of a prefetch of this key whose pages were all found, and that reads."""
        told = self(Prefetch(rid=rid, key=key(*tokens)))
        assert isinstance(told, Prefetching)
        assert self(QueryDone(id=told.id, hits=len(tokens))).kind == "done"
        self(EVERYTHING)
        return told.id

    def read(self, name: str, *batches: int) -> None:
        """So many pages of each batch were read, and the state behind the last."""
        for number, pages in enumerate(batches, start=1):
            assert self(ReadDone(id=name, pages=pages, state=number == len(batches))).kind == "done"

    def node(self, *tokens: int) -> Segment:
        """The node that ends at this key, all of whose tokens are its own."""
        return next(each for each in self.see().segments if each.tokens == tokens)

    def states(self, *tokens: int) -> tuple[str | None, str | None]:
        """What the state slots of that node were found to hold, on device and on host."""
        node, contents = self.node(*tokens), self.see().contents
        assert contents is not None
        device = None if node.device_state is None else contents.get(f"device_state:{node.device_state[0]}")
        host = None if node.host_state is None else contents.get(f"host_state:{node.host_state[0]}")
        return device, host

    def state_of_request(self, rid: str) -> str | None:
        """What the request's state slot was found to hold."""
        seen = self.see()
        assert seen.contents is not None
        return seen.contents.get(f"device_state:{seen.request_states[rid][0]}")

    def twice(self) -> dict[str, int]:
        """State slots that have more than one holder, and how many."""
        seen = self.see()
        owned = Counter(f"device:{slot}" for slot in (*seen.free_device_state, *seen.held_device_state))
        owned.update(f"device:{slot}" for slots in seen.request_states.values() for slot in slots)
        owned.update(f"host:{slot}" for slot in seen.free_host_state)
        owned.update(f"host:{slot}" for slots in seen.prefetch_states.values() for slot in slots)
        for each in seen.segments:
            owned.update(f"device:{slot}" for slot in each.device_state or ())
            owned.update(f"host:{slot}" for slot in each.host_state or ())
        return {slot: count for slot, count in owned.items() if count > 1}


def key(*tokens: int) -> Key:
    """A key."""
    return Key(tokens=tokens)


def end(*tokens: int) -> str:
    """The hash of the last page of that key, by which its state is known."""
    return chain(pages_of(tokens, 1, bigram=False), None)[-1]


def inserting(rid: str, whole: Key, start: int = 0) -> tuple[Operation, ...]:
    """What a request does that goes on from the state at `start`: its pass runs and ends, and its key is inserted."""
    prefix = key(*whole.tokens[:start]) if start else None
    return (
        TakePages(rid=rid, n=len(whole.tokens) - start, prefix=prefix),
        Forward(rid=rid, key=whole, start=start),
        ForwardDone(rid=rid),
        Insert(rid=rid, key=whole, start=start),
    )


def with_state(seen: Observation) -> set[tuple[int, ...]]:
    """The tokens of nodes that have a state on device."""
    return {each.tokens for each in seen.segments if each.device_state}
