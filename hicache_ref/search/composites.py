"""Composites: kinds of steps that are several operations, for single steps starve the tree.

A composite yields one operation after the other and looks at the state in between; a walk may cut it off anywhere.
"""

from collections.abc import Iterator

from hicache_ref.model.records import BackupWriting, PrefetchReading
from hicache_ref.search.alphabet import copy_failed, forward_done, forward_for, insert_of, load_back
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.storing import answer, ask, attach, batch
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation


def request(d: Drawing) -> Iterator[Operation]:
    """A prompt from start to end: pages, a pass over what is not resident, insert; now and then its next chunk.

    Of a hybrid model it sometimes ends at a tombstone, which so gets a state.
    """
    dead = d.tombstone() if d.model.profile.state and d.rng.random() < 0.2 else None
    yield from request_for(d, dead or d.key())


def request_for(d: Drawing, key: Key) -> Iterator[Operation]:
    """As `request`, for this key."""
    rid, pages = d.free_request(), d.model.pages(key)
    if rid is None or not pages:
        return
    if d.model.profile.state:
        yield from _take_with_state(d, rid, key)
    else:
        resident = len(d.model.resident_pages(pages, key.extra))
        yield ops.TakePages(rid=rid, n=len(pages) - min(resident, len(pages) - 1))
    if rid in d.model.state.requests and d.model.state.requests[rid].key is None:
        forward = forward_for(d, rid, key)
        if forward is not None:
            yield forward
    if rid in d.model.state.passes and d.rng.random() < 0.8:
        yield ops.ForwardDone(rid=rid)
    if rid in d.model.state.requests and d.model.state.requests[rid].key is not None:
        insert = insert_of(d, rid)
        if insert is not None:
            yield insert


def _take_with_state(d: Drawing, rid: str, key: Key) -> Iterator[Operation]:
    """The request has a slot with the state where it goes on, and pages for the rest of the key."""
    prefix = d.device_end(key)
    start = len(d.model.pages(prefix)) if prefix is not None else 0
    yield ops.TakePages(rid=rid, n=len(d.model.pages(key)) - start, prefix=prefix)
    for ticket in d.ending():
        if ticket.to == "request":
            fails = "copy_failed" in d.operations and d.rng.random() < 0.15
            yield ops.CopyFailed(ticket=ticket.id) if fails else ops.CopyDone(ticket=ticket.id)


def settle(d: Drawing) -> Iterator[Operation]:
    """Every pass, copy and storage operation ends, well where it can, and is applied."""
    while True:
        op = _next_end(d)
        if op is None:
            return
        yield op


def _next_end(d: Drawing) -> Operation | None:
    """What is next on the way to a state in which nothing is pending."""
    state = d.model.state
    for ticket in d.ending():
        return ops.CopyFailed(ticket=ticket.id) if ticket.doomed else ops.CopyDone(ticket=ticket.id)
    done = forward_done(d)
    if done is not None:
        return done
    for record in state.storage.records.values():
        if record.stage == "queued":
            return answer(d, record)
        if isinstance(record, PrefetchReading):
            return batch(d, ops.ReadDone, record, good=1.0)
        if isinstance(record, BackupWriting):
            return batch(d, ops.WriteDone, record, good=1.0)
    storage = state.storage
    ended = len(state.tickets) + len(storage.answers) + len(storage.reads) + len(storage.writes) + len(storage.release)
    if ended:
        return _apply_all(ended)
    for rid in storage.open:
        return ask(d, rid)
    return None


def _apply_all(count: int) -> Operation:
    return ops.Poll(backups=count, loads=count, answers=count, reads=count, writes=count, releases=count)


def flush(d: Drawing) -> Iterator[Operation]:
    """All is settled, then everything that can leaves the device."""
    yield from settle(d)
    if d.model.state.device_leaves:
        yield ops.Evict(n=d.model.profile.sizes.device_pages)


def reload(d: Drawing) -> Iterator[Operation]:
    """What left the device is asked for again and loaded, sometimes without success."""
    yield from flush(d)
    load = load_back(d)
    if load is not None:
        yield ops.LoadBack(key=load.key) if isinstance(load, ops.LoadBack) else load
    if d.rng.random() < 0.7:
        yield from request(d)
    if d.rng.random() < 0.3 and "copy_failed" in d.operations:
        failed = copy_failed(d)
        if failed is not None:
            yield failed
    yield from settle(d)


def build(d: Drawing) -> Iterator[Operation]:
    """A prompt goes on where a load has not ended and is backed up; then the load fails, and all that came of it."""
    rid = d.free_request()
    yield from flush(d)
    load = load_back(d)
    if rid is None or not isinstance(load, ops.LoadBack):
        return
    yield ops.LoadBack(key=load.key)
    loading = [ticket.id for ticket in d.model.state.tickets.values() if ticket.to == "device"]
    key = beyond(d, load.key)
    yield ops.TakePages(rid=rid, n=1)
    start = len(d.model.pages(key)) - 1
    yield ops.Forward(rid=rid, key=key, start=start)
    yield ops.Insert(rid=rid, key=key, start=start)
    node = d.model.node_at(key)
    if node is not None and node.host is None:
        yield ops.WriteBackup(key=key)
    for ticket in loading:
        yield ops.CopyFailed(ticket=ticket)
    yield from settle(d)


def attached(d: Drawing) -> Iterator[Operation]:
    """Storage is attached, where the implementation has it."""
    if not d.model.state.storage.attached and "attach" in d.operations:
        yield attach(d)


def cut(d: Drawing, key: Key, pages: int) -> Key:
    """The first pages of the key."""
    tokens = pages * d.model.profile.sizes.page_size + d.model.profile.bigram
    return key.model_copy(update={"tokens": key.tokens[:tokens]})


def beyond(d: Drawing, key: Key) -> Key:
    """The key and a page more."""
    return key.model_copy(update={"tokens": key.tokens + (0,) * d.model.profile.sizes.page_size})
