"""The page map: one column a page, one row a side, and in each cell who holds the page.

Both sides are drawn under the page names of the implementation. A page of the model takes the column of the page
that it is paired with; pages that were never paired are laid where both sides agree, as far as there are such.
"""

from collections import defaultdict
from collections.abc import Iterator

from hicache_ref.model.state import State
from hicache_ref.oracle.compare import Pairs
from hicache_ref.report.words import key_words
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import (
    KV_DEVICE,
    KV_HOST,
    KV_POOLS,
    ROOT,
    STATE_DEVICE,
    STATE_HOST,
    PageHash,
    Pages,
    PoolName,
)
from hicache_ref.vocabulary.keys import Key, pages_of
from hicache_ref.vocabulary.observation import Observation, Segment
from hicache_ref.vocabulary.profile import Profile

FREE, HELD, NOBODY = ".", "c", "?"
COLUMNS_MAX = 32
_HELD_WORDS = "held by a copy, a pass or storage work"
_REQUEST_CHARACTERS = 4


class PageMap(Frozen):
    """Who holds each page of one pool; the three tuples have one entry a page shown."""

    pool: PoolName
    pages: tuple[int, ...]
    oracle: tuple[str, ...]
    adapter: tuple[str, ...] | None = None
    """None if the implementation shows no pages."""

    left_out: int = 0
    """Pages that are not shown, on which both sides agree."""

    def differing(self) -> tuple[int, ...]:
        """The indexes of the columns on which the sides do not agree."""
        if self.adapter is None:
            return ()
        return tuple(i for i, marks in enumerate(zip(self.oracle, self.adapter, strict=True)) if len(set(marks)) > 1)


class PageMaps(Frozen):
    """The maps of all pools, and what their marks stand for."""

    maps: tuple[PageMap, ...]
    legend: tuple[str, ...]


class _Marks:
    """Short names of holders, numbered in order of appearance."""

    def __init__(self) -> None:
        self.nodes: dict[PageHash, str] = {}
        """Hash of a page -> mark of the node that has it."""

        self.requests: dict[str, str] = {}
        self.named: dict[str, str] = {}
        """Mark -> what it stands for, where that is not plain."""

    def node(self, hashes: tuple[PageHash, ...], key: Key) -> None:
        """The node is marked, unless all of its pages belong to one that is."""
        if any(digest not in self.nodes for digest in hashes):
            mark = f"n{len(self.named) + 1}"
            self.named[mark] = key_words(key)
            for digest in hashes:
                self.nodes.setdefault(digest, mark)

    def request(self, rid: str) -> str:
        """The mark of a request: its name if that is short and cannot be taken for another mark."""
        if len(rid) <= _REQUEST_CHARACTERS and rid.startswith("r"):
            return rid
        if rid not in self.requests:
            self.requests[rid] = f"q{len(self.requests) + 1}"
            self.named[self.requests[rid]] = f"request {rid}"
        return self.requests[rid]


def page_maps(profile: Profile, state: State, observation: Observation | None,
              pairs: dict[PoolName, Pairs]) -> PageMaps:  # fmt: skip
    """The maps of the profile's pools as the model and the implementation have them, those of states last."""
    marks = _Marks()
    for node in state.nodes.values():
        if node.id != ROOT:
            tokens = _path_tokens(state, node.id, profile.bigram)
            marks.node(node.hashes, Key(tokens=tokens, extra=node.extra))
    pools = tuple(profile.pool_sizes)
    ours = {pool: _model_holders(state, pool, marks) for pool in pools}
    if observation is None or observation.level == "counts":
        maps = tuple(_shown(pool, list(ours[pool]), ours[pool], None) for pool in pools)
    else:
        theirs, places = _observed_holders(profile, observation, marks)
        maps = tuple(
            _paired(state, pool, ours[pool], theirs[pool], places[pool], dict(pairs.get(pool, {}))) for pool in pools
        )
    return PageMaps(maps=maps, legend=_legend(maps, marks))


def _path_tokens(state: State, number: int, bigram: bool) -> tuple[int, ...]:
    pages: list[tuple[int, ...]] = []
    while number != ROOT:
        node = state.nodes[number]
        pages[:0] = node.key
        number = node.parent
    tokens = [token for page in pages for token in (page[:-1] if bigram else page)]
    return (*tokens, pages[-1][-1]) if bigram else tuple(tokens)


def _model_holders(state: State, pool: PoolName, marks: _Marks) -> dict[int, str]:
    """Model page -> mark."""
    found = {}
    for page, (kind, name) in enumerate(state.pools[pool].owner):
        if kind == "node":
            node = state.nodes.get(int(name))
            found[page] = marks.nodes[node.hashes[0]] if node is not None else NOBODY
        elif kind == "request":
            found[page] = marks.request(str(name))
        else:
            found[page] = FREE if kind == "free" else HELD
    return found


def _observed_holders(
    profile: Profile, seen: Observation, marks: _Marks
) -> tuple[dict[PoolName, dict[int, str]], dict[PoolName, dict[PageHash, int]]]:
    """For each pool: page -> marks of all its holders; hash -> page."""
    holders: dict[PoolName, dict[int, list[str]]] = {pool: defaultdict(list) for pool in profile.pool_sizes}
    places: dict[PoolName, dict[PageHash, int]] = {pool: {} for pool in profile.pool_sizes}
    paths: list[tuple[tuple[int, ...], PageHash | None]] = []
    size = profile.sizes.page_size
    for segment in seen.segments:
        above, prior = paths[segment.parent] if 0 <= segment.parent < len(paths) else ((), None)
        keys = pages_of(segment.tokens, size, profile.bigram)
        hashes = chain(keys, prior or namespace_seed(segment.extra), profile.bigram)
        tokens = above + segment.tokens[1 if profile.bigram and above else 0 :]
        paths.append((tokens, hashes[-1] if hashes else prior))
        marks.node(hashes, Key(tokens=tokens, extra=segment.extra))
        for pool, ends, pages in _held_by(segment, hashes):
            for page, digest in zip(pages, ends, strict=False):
                if pool in holders:
                    holders[pool][page].append(marks.nodes[digest])
                    places[pool][digest] = page
    for pool, mark, pages in _held_otherwise(seen, marks):
        for page in pages:
            if pool in holders:
                holders[pool][page].append(mark)
    joined = {
        pool: {page: "/".join(dict.fromkeys(found)) for page, found in of_pool.items()}
        for pool, of_pool in holders.items()
    }
    return joined, places


def _held_by(segment: Segment, hashes: tuple[PageHash, ...]) -> Iterator[tuple[PoolName, tuple[PageHash, ...], Pages]]:
    """What the segment has in each pool, and which page hashes it is of."""
    yield KV_DEVICE, hashes, segment.device or ()
    yield KV_HOST, hashes, segment.host or ()
    yield STATE_DEVICE, hashes[-1:], segment.device_state or ()
    yield STATE_HOST, hashes[-1:], segment.host_state or ()


def _held_otherwise(seen: Observation, marks: _Marks) -> Iterator[tuple[PoolName, str, Pages]]:
    """Who has the pages that no segment has."""
    for pool, of_requests in ((KV_DEVICE, seen.requests), (STATE_DEVICE, seen.request_states)):
        yield from ((pool, marks.request(rid), pages) for rid, pages in of_requests.items())
    for pool, of_prefetches in ((KV_HOST, seen.prefetch_host), (STATE_HOST, seen.prefetch_states)):
        yield from ((pool, HELD, pages) for pages in of_prefetches.values())
    yield KV_HOST, HELD, seen.queued_host
    yield from ((KV_DEVICE, FREE, seen.free_device), (KV_HOST, FREE, seen.free_host))
    yield from ((STATE_DEVICE, FREE, seen.free_device_state), (STATE_HOST, FREE, seen.free_host_state))
    yield from ((KV_DEVICE, HELD, seen.held_device), (KV_HOST, HELD, seen.held_host))
    yield from ((STATE_DEVICE, HELD, seen.held_device_state), (STATE_HOST, HELD, seen.held_host_state))


def _paired(state: State, pool: PoolName, ours: dict[int, str], theirs: dict[int, str],
            places: dict[PageHash, int], pairs: Pairs) -> PageMap:  # fmt: skip
    """The map of a pool: each model page in the column of its partner, the others where marks agree."""
    columns = sorted({*range(len(ours)), *theirs})
    for node in state.nodes.values():
        hashes = node.hashes if pool in KV_POOLS else node.hashes[-1:]
        for page, digest in zip(node.at.get(pool, ()), hashes, strict=False):
            if digest in places:
                pairs.setdefault(page, places[digest])
    free = {page for page, mark in ours.items() if mark == FREE}
    column = {page: partner for page, partner in pairs.items() if page in ours and page not in free}
    left = [page for page in columns if page not in column.values()]
    for page in sorted(ours.keys() - column.keys(), key=lambda page: ours[page] == FREE):
        column[page] = next((each for each in left if theirs.get(each, NOBODY) == ours[page]), left[0])
        left.remove(column[page])
    by_column = {place: ours[page] for page, place in column.items()}
    return _shown(pool, columns, by_column, {page: theirs.get(page, NOBODY) for page in columns})


def _shown(pool: PoolName, columns: list[int], ours: dict[int, str], theirs: dict[int, str] | None) -> PageMap:
    """At most `COLUMNS_MAX` columns: first those that differ, then those that somebody holds."""
    kept = columns
    if len(columns) > COLUMNS_MAX:
        weight = {
            page: (theirs is None or ours.get(page, NOBODY) == theirs[page], ours.get(page, FREE) == FREE, page)
            for page in columns
        }
        kept = sorted(sorted(columns, key=weight.__getitem__)[:COLUMNS_MAX])
    return PageMap(
        pool=pool,
        pages=tuple(kept),
        oracle=tuple(ours.get(page, NOBODY) for page in kept),
        adapter=None if theirs is None else tuple(theirs[page] for page in kept),
        left_out=len(columns) - len(kept),
    )


def mark_words(mark: str) -> str:
    """Who holds a page of this mark, in words."""
    if "/" in mark:
        return " and ".join(map(mark_words, mark.split("/")))
    return {FREE: "free", HELD: _HELD_WORDS, NOBODY: "nobody's"}.get(mark, f"{mark}'s")


def _legend(maps: tuple[PageMap, ...], marks: _Marks) -> tuple[str, ...]:
    shown = {
        part for each in maps for row in (each.oracle, each.adapter or ()) for mark in row for part in mark.split("/")
    }
    common = {FREE: "free", HELD: _HELD_WORDS, NOBODY: "held by nobody"}
    return tuple(f"{mark} {text}" for mark, text in (marks.named | common).items() if mark in shown)
