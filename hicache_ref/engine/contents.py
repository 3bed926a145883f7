"""What pages hold, computed from their hashes, and forward passes that compute with it instead of attention.

A pass writes a layer of its pages only if that layer of all pages that it reads is right. So a byte that went wrong
anywhere goes on to whatever depends on it, as it would through attention, and is seen there at the latest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from hicache_ref.engine.calls import Location
from hicache_ref.engine.device import Work
from hicache_ref.engine.layout import allocations
from hicache_ref.engine.pools import ALONE, Pool, PoolPair
from hicache_ref.engine.verify import pattern
from hicache_ref.vocabulary.effects import RunForward
from hicache_ref.vocabulary.ids import KV, STATE, Component, Page, PageHash

Pairs = Mapping[Component, list[PoolPair]]
"""By component, the pools of the target and, with the same indices, those of a draft model, which may come later."""


def held(pool: Pool, digest: PageHash) -> bytes:
    """The canonical bytes of the page with this hash, other ones in each pair of pools."""
    salt = pool.name.partition(".")[0]
    return pattern(digest + salt.encode().hex(), pool.spec.page_bytes)


class Reader:
    """Which page a pool's page was found to be."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._known: dict[str, dict[bytes, PageHash]] = {pool.name: {} for pool in pools}
        self._pools = pools

    def learn(self, digest: PageHash) -> None:
        """A page with this hash may be met from now on."""
        for pool in self._pools:
            self._known[pool.name][held(pool, digest)] = digest

    def read(self, pool: Pool, page: Page) -> PageHash | None:
        """The hash of what the page holds, or None where that is no whole page."""
        return self._known[pool.name].get(pool.read(page))


class _Pass(NamedTuple):
    """What a pass computes with."""

    hashes: Sequence[PageHash]
    """Of the pages that it reads, then of those that it writes."""

    doomed: bool


class PatternPasses:
    """Passes over the device pools of `pairs`; each is announced by `expect` before it runs."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._expected: dict[str, _Pass] = {}

    def expect(self, name: str, hashes: Sequence[PageHash], *, doomed: bool) -> None:
        """The pass of this id reads and writes pages with these hashes; a doomed one reads what nobody wrote."""
        self._expected[name] = _Pass(hashes, doomed)

    def layer(self, effect: RunForward, layer: int) -> tuple[list[Work], list[Location], list[Location]]:
        """The work of one layer, and what it reads and writes."""
        running = self._expected[effect.id]
        came, new = running.hashes[: len(effect.reads)], running.hashes[len(effect.reads) :]
        work: list[Work] = []
        reads: list[Location] = []
        writes: list[Location] = []
        for pool in (pair.device for pair in self._pairs[KV]):
            if not running.doomed:
                reads += pool.locations(effect.reads, (layer,))
            writes += pool.locations(effect.writes, (layer,))
            sources = () if pool.name.startswith("draft") else tuple(zip(effect.reads, came, strict=True))
            targets = tuple(zip(effect.writes, new, strict=True))
            work.append(_Layer(pool, layer, sources, targets, running.doomed))
        for pool in (pair.device for pair in self._pairs.get(STATE, ())):
            writes += pool.locations(effect.state, (layer,))
            ends = tuple((slot, running.hashes[-1]) for slot in effect.state)
            work.append(_Layer(pool, layer, (), ends, running.doomed))
        return work, reads, writes


@dataclass(frozen=True)
class _Layer:
    """One layer of a pass, in one pool."""

    pool: Pool
    layer: int
    sources: tuple[tuple[Page, PageHash], ...]
    targets: tuple[tuple[Page, PageHash], ...]
    doomed: bool

    def __call__(self) -> None:
        """The targets hold their layer, if the sources hold theirs."""
        if self.doomed or not all(self._is_right(page, digest) for page, digest in self.sources):
            return
        for page, digest in self.targets:
            self.pool.write(page, held(self.pool, digest), (self.layer,))

    def _is_right(self, page: Page, digest: PageHash) -> bool:
        return self.pool.read(page, (self.layer,)) == only(self.pool, held(self.pool, digest), self.layer)


def only(pool: Pool, data: bytes, layer: int) -> bytes:
    """A canonical page with all layers but this one zero."""
    alone = Pool(pool.name, pool.spec, ALONE, [memoryview(bytearray(size)) for size in allocations(pool.spec, ALONE)])
    alone.write(0, data, (layer,))
    return b"".join(alone.buffers)


def pools_of(pairs: Pairs) -> tuple[Pool, ...]:
    """The pools of both tiers."""
    return tuple(pool for pair in chain.from_iterable(pairs.values()) for pool in (pair.device, pair.host))
