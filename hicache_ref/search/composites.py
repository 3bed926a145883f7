"""Composites: kinds of steps that are several operations, for single steps starve the tree.

A composite yields one operation after the other and looks at the state in between; a walk may cut it off anywhere.
"""

from collections.abc import Iterator

from hicache_ref.model.records import BackupWriting, PrefetchReading
from hicache_ref.search.alphabet import copy_failed, forward_done, forward_for, insert_of, load_back, poll
from hicache_ref.search.drawing import REQUESTS, Composite, Drawing
from hicache_ref.search.storing import answer, ask, attach, batch, query_done, read_done, record_at
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


def topple(d: Drawing) -> Iterator[Operation]:
    """A prompt is split and its end leaves the device; then room for what is above is made from that end."""
    key = d.key()
    pages = len(d.model.pages(key))
    yield from flush(d)
    yield ops.EvictHost(n=d.model.profile.sizes.host_pages)
    yield from request_for(d, key)
    if pages > 1:
        yield ops.MatchPrefix(key=_cut(d, key, d.rng.randint(1, pages - 1)))
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
    above = _cut(d, key, d.rng.randint(1, pages - 1))
    yield from request_for(d, above)
    yield from request_for(d, key)
    yield from settle(d)
    yield ops.EvictState(n=1)
    yield ops.LoadBack(key=above)
    yield from request_for(d, _beyond(d, above))


def belated(d: Drawing) -> Iterator[Operation]:
    """A prompt is stored and split, and what is above the place gets a state later."""
    yield from _attached(d)
    key = d.key()
    pages = len(d.model.pages(key))
    yield from request_for(d, key)
    yield from settle(d)
    if pages > 1:
        above = _cut(d, key, d.rng.randint(1, pages - 1))
        yield ops.MatchPrefix(key=above)
        yield from request_for(d, above)
        yield from settle(d)


def fade(d: Drawing) -> Iterator[Operation]:
    """A prompt goes on from another, whose state is kept on device alone; then both leave the device."""
    key = d.key()
    pages = len(d.model.pages(key))
    if pages > 1:
        yield from request_for(d, _cut(d, key, d.rng.randint(1, pages - 1)))
    yield from request_for(d, key)
    yield from settle(d)
    yield ops.EvictHostState(n=1)
    yield ops.Evict(n=d.model.profile.sizes.device_pages)


def abandon(d: Drawing) -> Iterator[Operation]:
    """A request goes when some of what it waits for has been read, and what was read is given up."""
    yield from _attached(d)
    rid = REQUESTS[0]
    yield ops.Prefetch(rid=rid, key=d.key(), now=d.now)
    record = d.model.state.storage.records.get(d.model.state.storage.open.get(rid, ""))
    if record is None:
        return
    yield ops.QueryDone(id=record.id, hits=len(record.hashes))
    yield ops.Poll(answers=4)
    reading = d.model.state.storage.records.get(record.id)
    if isinstance(reading, PrefetchReading):
        yield batch(d, ops.ReadDone, reading, good=1.0)
    yield ops.Poll(reads=4)
    yield ops.Abort(rid=rid)
    yield ops.Poll(releases=4)


def build(d: Drawing) -> Iterator[Operation]:
    """A prompt goes on where a load has not ended and is backed up; then the load fails, and all that came of it."""
    rid = d.free_request()
    yield from flush(d)
    load = load_back(d)
    if rid is None or not isinstance(load, ops.LoadBack):
        return
    yield ops.LoadBack(key=load.key)
    loading = [ticket.id for ticket in d.model.state.tickets.values() if ticket.to == "device"]
    key = _beyond(d, load.key)
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


def fetch(d: Drawing) -> Iterator[Operation]:
    """What was written to storage has left both tiers, and is asked for again; the request may not wait for it."""
    yield from _attached(d)
    if not d.model.state.storage.attached or not d.told:
        return
    yield from settle(d)
    if d.model.state.device_leaves:
        yield ops.Evict(n=d.model.profile.sizes.device_pages)
    if d.model.state.host_leaves and d.rng.random() < 0.8:
        yield ops.EvictHost(n=d.rng.randint(1, d.model.profile.sizes.host_pages))
    rid = d.rng.choice(REQUESTS[:2])
    yield ops.Prefetch(rid=rid, key=d.rng.choice(d.told), now=d.now)
    for _ in range(8):
        op = query_done(d) or poll(d) if d.rng.random() < 0.5 else read_done(d) or poll(d)
        if op is not None:
            yield op
        if d.rng.random() < 0.2:
            yield ask(d, rid)
    yield ask(d, rid)


def _attached(d: Drawing) -> Iterator[Operation]:
    """Storage is attached, where the implementation has it."""
    if not d.model.state.storage.attached and "attach" in d.operations:
        yield attach(d)


def _fetching(d: Drawing, rid: str, steps: int) -> Iterator[Operation]:
    """The open prefetch of the request goes on for some steps, well mostly; what has ended is polled now and then."""
    for _ in range(steps):
        storage = d.model.state.storage
        record = storage.records.get(storage.open.get(rid, ""))
        if record is None:
            return
        if d.first_only:
            record = record_at(d, record.stage) or record
        if record.stage == "queued":
            yield ops.QueryDone(id=record.id, hits=len(record.hashes))
        elif isinstance(record, PrefetchReading) and d.rng.random() < 0.7:
            yield batch(d, ops.ReadDone, record, good=0.8)
        else:
            yield ops.Poll(answers=1, reads=d.rng.randint(0, 2))


def overtake(d: Drawing) -> Iterator[Operation]:
    """A prompt is computed while it is fetched, so that the commit meets what is there by then."""
    yield from _attached(d)
    rid, key = d.rng.choice(REQUESTS[:2]), d.key()
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    yield from _fetching(d, rid, d.rng.randint(1, 4))
    for _ in range(d.rng.choice((0, 0, 4))):
        yield ask(d, rid)
    yield from request_for(d, key)
    yield from _fetching(d, rid, d.rng.randint(1, 4))
    yield ask(d, rid)


def collide(d: Drawing) -> Iterator[Operation]:
    """A prompt is computed and backed up when all of it has been read, and before that is committed."""
    yield from _attached(d)
    rid, key = REQUESTS[0], d.key()
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    name = d.model.state.storage.open.get(rid, "")
    record = d.model.state.storage.records.get(name)
    if record is None or record.stage != "queued":
        return
    yield ops.QueryDone(id=name, hits=len(record.hashes))
    yield ops.Poll(answers=4)
    while isinstance(d.model.state.storage.records.get(name), PrefetchReading):
        reading = d.model.state.storage.records[name]
        assert isinstance(reading, PrefetchReading)
        yield batch(d, ops.ReadDone, reading, good=1.0)
    yield from request_for(d, key)
    yield ops.Poll(reads=8)
    yield ask(d, rid)


def come_back(d: Drawing) -> Iterator[Operation]:
    """A request goes while pages are read for it and comes back under its name; then the old end arrives."""
    yield from _attached(d)
    rid = d.rng.choice(REQUESTS[:2])
    yield ops.Prefetch(rid=rid, key=d.key(), now=d.now)
    yield from _fetching(d, rid, d.rng.randint(1, 3))
    yield ops.Abort(rid=rid) if d.rng.random() < 0.7 else ask(d, rid)
    yield ops.Prefetch(rid=rid, key=d.key(), now=d.now)
    yield from _fetching(d, rid, d.rng.randint(0, 2))
    old = record_at(d, "reading")
    if isinstance(old, PrefetchReading):
        yield batch(d, ops.ReadDone, old)
    yield ops.Poll(answers=1, reads=2)
    yield ask(d, rid)


def stake(d: Drawing) -> Iterator[Operation]:
    """A prefetch hangs on a node whose own backup ends, badly at times, while pages are read below it."""
    yield from _attached(d)
    key, rid = d.key(), d.rng.choice(REQUESTS[:2])
    anchor = _cut(d, key, d.rng.randint(1, 2))
    yield from request_for(d, anchor)
    node = d.model.node_at(anchor)
    if node is None:
        return
    if node.host is None:
        yield ops.WriteBackup(key=anchor)
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    yield from _fetching(d, rid, d.rng.randint(2, 5))
    if d.rng.random() < 0.3:
        yield ops.MatchPrefix(key=_cut(d, key, 1))
    ticket = d.pick([each.id for each in d.ending() if each.to == "host"])
    if ticket is not None:
        yield ops.CopyFailed(ticket=ticket) if d.rng.random() < 0.7 else ops.CopyDone(ticket=ticket)
    yield ops.Poll(backups=2)
    yield ops.Poll(reads=3)
    yield ask(d, rid)


def grow(d: Drawing) -> Iterator[Operation]:
    """A prompt grows turn by turn; each turn is backed up and put into storage, often cut short or in vain."""
    yield from _attached(d)
    key, spurned = d.key(), d.rng.random() < 0.4
    for turn in range(1, len(d.model.pages(key)) + 1):
        prompt = _cut(d, key, turn)
        yield from request_for(d, prompt)
        node = d.model.node_at(prompt)
        if node is not None and node.host is None:
            yield ops.WriteBackup(key=prompt)
        for ticket in d.ending():
            yield ops.CopyDone(ticket=ticket.id)
        yield ops.Poll(backups=4)
        for _ in range(2):
            record = record_at(d, "writing")
            if isinstance(record, BackupWriting):
                yield ops.WriteDone(id=record.id) if spurned else batch(d, ops.WriteDone, record, good=0.6)
        yield ops.Poll(writes=4)


def _cut(d: Drawing, key: Key, pages: int) -> Key:
    """The first pages of the key."""
    tokens = pages * d.model.profile.sizes.page_size + d.model.profile.bigram
    return key.model_copy(update={"tokens": key.tokens[:tokens]})


def _beyond(d: Drawing, key: Key) -> Key:
    """The key and a page more."""
    return key.model_copy(update={"tokens": key.tokens + (0,) * d.model.profile.sizes.page_size})


COMPOSITE: dict[str, Composite] = {
    "fetch": fetch,
    "overtake": overtake,
    "collide": collide,
    "come_back": come_back,
    "stake": stake,
    "grow": grow,
    "request": request,
    "settle": settle,
    "flush": flush,
    "reload": reload,
    "go_on": go_on,
    "topple": topple,
    "fade": fade,
    "revive": revive,
    "belated": belated,
    "build": build,
    "abandon": abandon,
}

NEEDED: dict[str, str] = {
    "fetch": "prefetch",
    "overtake": "prefetch",
    "come_back": "prefetch",
    "stake": "prefetch",
    "grow": "write_done",
    "build": "copy_failed",
    "go_on": "evict_state",
    "topple": "evict_state",
    "fade": "evict_state",
    "revive": "evict_state",
    "belated": "evict_state",
    "collide": "prefetch",
    "abandon": "abort",
}
"""Composites that are of use only where the implementation has this operation."""
