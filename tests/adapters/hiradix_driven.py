"""What the tests of the adapter for HiRadixCache share: a child for each release, and short ways to say operations."""

import os
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Any

import pytest

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_hiradix import make
from hicache_ref.adapters.sglang_hiradix.wheels import RELEASES
from hicache_ref.oracle.known import Known, read_known
from hicache_ref.search.simpler import EVERYTHING
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.observation import Observation
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
from hicache_ref.vocabulary.outcomes import Outcome, Prefetching, Progressed
from hicache_ref.vocabulary.profile import RULES, Profile, Rules, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

ALL_RELEASES = tuple(RELEASES)
BATCH = 2


@lru_cache(maxsize=10)
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


@lru_cache(maxsize=16)
def known_of(version: str) -> tuple[Known, ...]:
    """The known divergences that come with the adapter for this release."""
    with as_file(files("hicache_ref.adapters") / "known" / f"sglang-hiradix-{version}.jsonl") as file:
        return read_known(file)


def progressed(version: str, *, done: bool = True, loaded: int = 0) -> Progressed:
    """What a request is told while storage is attached: 0.5.20 has counted what it loaded in the poll before."""
    return Progressed(done=done, loaded=loaded, prefetched=0 if version == "0.5.20" else loaded)


class Driven:
    """A cache of one release, new, and the shortest way to say operations. A key is given by one number a page."""

    def __init__(self, sizes: Sizes, rules: dict[str, Any] | None = None, **options: str) -> None:
        self.adapter, self.description = child(**options)
        self.sizes = sizes
        fixed = RULES.get(self.description.profile, Rules())
        changed = fixed.model_copy(update={"write_policy": "write_through"} | (rules or {}))
        self.adapter.reset(Profile(rules=changed, sizes=sizes, name="here"))

    @classmethod
    def of(cls, version: str, *, page_size: int = 1, device: int = 8, host: int = 24, **rules: Any) -> "Driven":
        """A cache of this release under write_through, with batches of two pages, unless `rules` say otherwise."""
        sizes = Sizes(device_pages=device, host_pages=host, page_size=page_size, storage_batch=BATCH)
        return cls(sizes, rules, version=version)

    def __call__(self, operation: Operation) -> Outcome:
        return self.adapter.apply(operation)

    def see(self) -> Observation:
        """What is seen at level bytes."""
        return self.adapter.observe("bytes")

    def key(self, *numbers: int) -> Key:
        """The key of which each page begins with ten times its number."""
        return Key(tokens=tuple(10 * number + j for number in numbers for j in range(self.sizes.page_size)))

    def hashes(self, *numbers: int) -> tuple[str, ...]:
        """The hashes of the pages of that key."""
        return chain(pages_of(self.key(*numbers).tokens, self.sizes.page_size, False), None)

    def insert(self, *numbers: int, start: int = 0, rid: str = "r") -> Outcome:
        """The outcome of an insert, its pages taken and its pass run before."""
        key = self.key(*numbers)
        for operation in (
            TakePages(rid=rid, n=len(numbers) - start),
            Forward(rid=rid, key=key, start=start),
            ForwardDone(rid=rid),
        ):
            assert self(operation).kind in ("took", "done")
        return self(Insert(rid=rid, key=key, start=start))

    def attach(self, policy: Any = "wait_complete") -> None:
        """Storage is attached, and prefetches from one token on."""
        assert self(Attach(settings=StorageSettings(prefetch_threshold=1, prefetch_policy=policy))).kind == "done"

    def back_up(self, *tickets: Sequence[int]) -> None:
        """The copies to host of the nodes that end at these keys have ended and were applied."""
        for numbers in tickets:
            assert self(CopyDone(ticket=f"h:{self.key(*numbers)}")).kind == "done"
        self(EVERYTHING)

    def store(self, *numbers: int) -> None:
        """The pages of this key, which must be those of one node, are in storage."""
        name, left = f"b:{self.key(*numbers)}", len(numbers)
        while left > 0:
            assert self(WriteDone(id=name, pages=min(BATCH, left))).kind == "done"
            left -= BATCH
        self(EVERYTHING)

    def flush(self) -> None:
        """Nothing is on device or host."""
        self(Evict(n=99))
        for _ in range(3):
            self(EvictHost(n=99))
        assert not self.see().segments

    def only_stored(self, *keys: Sequence[int]) -> None:
        """The pages of these keys are in storage and nowhere else."""
        for numbers in keys:
            self.insert(*numbers)
            self.back_up(numbers)
            self.store(*numbers)
        self.flush()

    def prefetch(self, rid: str, *numbers: int) -> str:
        """The name of a prefetch of this key."""
        outcome = self(Prefetch(rid=rid, key=self.key(*numbers)))
        assert isinstance(outcome, Prefetching)
        return outcome.id

    def reading(self, rid: str, *numbers: int) -> str:
        """The name of a prefetch of this key whose pages were all found, and that reads."""
        name = self.prefetch(rid, *numbers)
        assert self(QueryDone(id=name, hits=len(numbers))).kind == "done"
        self(EVERYTHING)
        return name

    def read(self, name: str, *batches: int) -> None:
        """So many pages of each batch were read."""
        for pages in batches:
            assert self(ReadDone(id=name, pages=pages)).kind == "done"

    def twice(self) -> dict[int, int]:
        """Host pages that free list, nodes and release queue have more than once between them, and how often."""
        seen = self.see()
        owned = [*seen.free_host, *seen.queued_host, *(page for each in seen.segments for page in each.host or ())]
        return {page: count for page, count in Counter(owned).items() if count > 1}

    def nobodys(self) -> set[int]:
        """Host pages that nobody has."""
        seen = self.see()
        owned = [*seen.free_host, *seen.queued_host, *(page for each in seen.segments for page in each.host or ())]
        owned += [page for pages in seen.prefetch_host.values() for page in pages]
        return set(range(self.sizes.host_pages)) - set(owned)

    def held(self, tier: str, *numbers: int) -> tuple[str | None, ...]:
        """What the pages of the node that ends at this key were found to hold, on that tier."""
        seen = self.see()
        segment = next(each for each in seen.segments if each.tokens == self.key(*numbers).tokens)
        pages = segment.device if tier == "device" else segment.host
        assert pages is not None
        assert seen.contents is not None
        return tuple(seen.contents.get(f"{tier}:{page}") for page in pages)
