"""Composites of hybrid models: what a state has to meet that is there for a short while."""

from collections.abc import Iterator

from hicache_ref.search.alphabet import forward_for, insert_of, load_back
from hicache_ref.search.composites import attached, beyond, cut, flush, request_for, settle
from hicache_ref.search.drawing import Drawing
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation


def go_on(d: Drawing) -> Iterator[Operation]:
    """A request whose state was loaded from host goes on from there, when the load has ended."""
    yield from flush(d)
    load = load_back(d)
    rid = d.free_request()
    if not isinstance(load, ops.LoadBack) or rid is None:
        return
    yield ops.LoadBack(key=load.key, rid=rid)
    yield from settle(d)
    yield ops.TakePages(rid=rid, n=d.count())
    if rid in d.model.state.requests:
        key = d.longer(rid)
        forward = forward_for(d, rid, key) if key is not None else None
        if forward is not None:
            yield forward
            yield ops.ForwardDone(rid=rid)
            insert = insert_of(d, rid)
            if insert is not None:
                yield insert


def topple(d: Drawing) -> Iterator[Operation]:
    """A prompt is split and its end leaves the device; then room for what is above is made from that end."""
    key = d.key()
    pages = len(d.model.pages(key))
    yield from flush(d)
    yield ops.EvictHost(n=d.model.profile.sizes.host_pages)
    yield from request_for(d, key)
    if pages > 1:
        yield ops.MatchPrefix(key=cut(d, key, d.rng.randint(1, pages - 1)))
    yield from settle(d)
    yield ops.Evict(n=1)
    yield from settle(d)
    yield ops.Evict(n=1)


def revive(d: Drawing) -> Iterator[Operation]:
    """A state leaves the device, its KV stays, and it is loaded again; a prompt goes on from there at once."""
    key = d.key()
    pages = len(d.model.pages(key))
    if pages < 2:
        return
    above = cut(d, key, d.rng.randint(1, pages - 1))
    yield from request_for(d, above)
    yield from request_for(d, key)
    yield from settle(d)
    yield ops.EvictState(n=1)
    yield ops.LoadBack(key=above)
    yield from request_for(d, beyond(d, above))


def belated(d: Drawing) -> Iterator[Operation]:
    """A prompt is stored and split, and what is above the place gets a state later."""
    yield from attached(d)
    key = d.key()
    pages = len(d.model.pages(key))
    yield from request_for(d, key)
    yield from settle(d)
    if pages > 1:
        above = cut(d, key, d.rng.randint(1, pages - 1))
        yield ops.MatchPrefix(key=above)
        yield from request_for(d, above)
        yield from settle(d)


def fade(d: Drawing) -> Iterator[Operation]:
    """A prompt goes on from another, whose state is kept on device alone; then both leave the device."""
    key = d.key()
    pages = len(d.model.pages(key))
    if pages > 1:
        yield from request_for(d, cut(d, key, d.rng.randint(1, pages - 1)))
    yield from request_for(d, key)
    yield from settle(d)
    yield ops.EvictHostState(n=1)
    yield ops.Evict(n=d.model.profile.sizes.device_pages)
