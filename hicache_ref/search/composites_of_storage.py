"""Composites of storage: prompts that are fetched, given up, overtaken, and stored turn by turn."""

from collections.abc import Iterator

from hicache_ref.model.records import BackupWriting, PrefetchReading
from hicache_ref.search.alphabet import poll
from hicache_ref.search.composites import attached, cut, request_for, settle
from hicache_ref.search.drawing import REQUESTS, Drawing
from hicache_ref.search.storing import ask, batch, query_done, read_done, record_at, time_waited
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation


def abandon(d: Drawing) -> Iterator[Operation]:
    """A request goes when some of what it waits for has been read, and what was read is given up."""
    yield from attached(d)
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


def break_off(d: Drawing) -> Iterator[Operation]:
    """Storage is detached or all is reset while pages are read, for a request or for nobody; by force, where it can."""
    yield from attached(d)
    rid = d.rng.choice(REQUESTS[:2])
    yield ops.Prefetch(rid=rid, key=d.key(), now=d.now)
    yield from _fetching(d, rid, d.rng.randint(1, 4))
    if d.rng.random() < 0.5:
        yield ops.Abort(rid=rid)
    yield ops.Detach(force=d.forces) if d.rng.random() < 0.6 else ops.Reset(force=d.forces, waited=time_waited(d))


def fetch(d: Drawing) -> Iterator[Operation]:
    """What was written to storage has left both tiers, and is asked for again; the request may not wait for it."""
    yield from attached(d)
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
    yield from attached(d)
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
    yield from attached(d)
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
    yield from attached(d)
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
    yield from attached(d)
    key, rid = d.key(), d.rng.choice(REQUESTS[:2])
    anchor = cut(d, key, d.rng.randint(1, 2))
    yield from request_for(d, anchor)
    node = d.model.node_at(anchor)
    if node is None:
        return
    if node.host is None:
        yield ops.WriteBackup(key=anchor)
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    yield from _fetching(d, rid, d.rng.randint(2, 5))
    if d.rng.random() < 0.3:
        yield ops.MatchPrefix(key=cut(d, key, 1))
    ticket = d.pick([each.id for each in d.ending() if each.to == "host"])
    if ticket is not None:
        yield ops.CopyFailed(ticket=ticket) if d.rng.random() < 0.7 else ops.CopyDone(ticket=ticket)
    yield ops.Poll(backups=2)
    yield ops.Poll(reads=3)
    yield ask(d, rid)


def grow(d: Drawing) -> Iterator[Operation]:
    """A prompt grows turn by turn; each turn is backed up and put into storage, often cut short or in vain."""
    yield from attached(d)
    key, spurned = d.key(), d.rng.random() < 0.4
    for turn in range(1, len(d.model.pages(key)) + 1):
        prompt = cut(d, key, turn)
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
