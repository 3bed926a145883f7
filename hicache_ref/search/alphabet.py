"""The alphabet: for each kind of step, how to draw an instance of it that is enabled now.

A drawing function answers None where its kind has no enabled instance. Handles are drawn from the model's state.
Kinds include composites, for single steps starve the tree: a composite is a generator that yields one operation
after the other and looks at the state in between; the walk may cut it off anywhere.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hicache_ref.model import Model
from hicache_ref.model.records import BackupWriting, PrefetchReading, Record
from hicache_ref.model.state import Node, Ticket
from hicache_ref.search.keys import draw_key
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import WRITE_POLICIES
from hicache_ref.vocabulary.storage import PREFETCH_POLICIES, StorageSettings

REQUESTS = ("r0", "r1", "r2")
RECEIPTS = ("a", "b", "c")


@dataclass
class Drawing:
    """What a drawing function sees."""

    model: Model
    rng: random.Random
    operations: frozenset[str]
    namespaces: bool = True
    first_only: bool = False
    """Of storage operations of one kind only the one submitted first may end."""

    told: list[Key] = field(default_factory=list)
    """Keys that were inserted, for asking again."""

    clock: int = 0
    """The time of the outside world, in milliseconds."""

    @property
    def now(self) -> int:
        """A moment a little or a long time after the last one."""
        self.clock += self.rng.choice((0, 100, 600, 2000))
        return self.clock

    def key(self) -> Key:
        """A key: a word, or one that was inserted before."""
        if self.told and self.rng.random() < 0.3:
            return self.rng.choice(self.told)
        return draw_key(self.rng, self.model.profile, namespaces=self.namespaces)

    def count(self) -> int:
        """A small number of pages."""
        return self.rng.randint(1, 3)

    def free_request(self) -> str | None:
        """A request name that is not in use."""
        state = self.model.state
        return self.pick([r for r in REQUESTS if r not in state.requests and r not in state.passes])

    def pick(self, names: list[str]) -> str | None:
        """One of them, or None."""
        return self.rng.choice(names) if names else None

    def node(self, wanted: Callable[[Node], bool]) -> Key | None:
        """The key of a node below the root that is wanted."""
        nodes = [node for node in self.model.state.nodes.values() if node.id != ROOT and wanted(node)]
        return self.model.key_of(self.rng.choice(nodes)) if nodes else None

    def ending(self) -> list[Ticket]:
        """The running copies that could end now, well or not."""
        model = self.model
        running = [ticket for ticket in model.state.tickets.values() if ticket.good is None]
        return [ticket for ticket in running if ticket.doomed or not model.waits_for(ticket)]


Draw = Callable[[Drawing], Operation | None]
Composite = Callable[[Drawing], Iterator[Operation]]


def _match_prefix(d: Drawing) -> Operation:
    return ops.MatchPrefix(key=d.key())


def _take_pages(d: Drawing) -> Operation | None:
    rid = d.free_request()
    return ops.TakePages(rid=rid, n=d.count()) if rid else None


def _give_back(d: Drawing) -> Operation | None:
    rid = d.pick(list(d.model.state.requests))
    return ops.GiveBack(rid=rid) if rid else None


def _forward(d: Drawing) -> Operation | None:
    state = d.model.state
    rid = d.pick([r.id for r in state.requests.values() if r.key is None and r.id not in state.passes])
    return _forward_for(d, rid, d.key()) if rid else None


def _forward_for(d: Drawing, rid: str, key: Key) -> Operation | None:
    """A pass that fills the request's pages with the end of `key`, if what is before it is resident."""
    model = d.model
    start = len(model.pages(key)) - len(model.state.requests[rid].pages)
    op = ops.Forward(rid=rid, key=key, start=start)
    return None if model.requires(op) else op


def _forward_done(d: Drawing) -> Operation | None:
    model = d.model
    rid = d.pick([each.id for each in model.state.passes.values() if each.doomed or not model.waits_for(each)])
    return ops.ForwardDone(rid=rid) if rid else None


def _insert(d: Drawing) -> Operation | None:
    rid = d.pick([request.id for request in d.model.state.requests.values() if request.key is not None])
    return _insert_of(d, rid) if rid else None


def _insert_of(d: Drawing, rid: str) -> Operation | None:
    request = d.model.state.requests[rid]
    assert request.key is not None
    op = ops.Insert(
        rid=rid,
        key=request.key,
        start=request.start,
        inserted=d.rng.choice((0, request.start)),
        chunked=d.rng.random() < 0.2,
        priority=d.rng.choice((0, 0, 1)),
    )
    if d.model.requires(op):
        return None
    d.told.append(request.key)
    return op


def _lock(d: Drawing) -> Operation | None:
    receipt = d.pick([name for name in RECEIPTS if name not in d.model.state.receipts])
    return ops.Lock(receipt=receipt, key=d.key(), at=d.rng.choice(("device", "best"))) if receipt else None


def _unlock(d: Drawing) -> Operation | None:
    receipt = d.pick(list(d.model.state.receipts))
    return ops.Unlock(receipt=receipt) if receipt else None


def _evict(d: Drawing) -> Operation | None:
    return ops.Evict(n=d.count()) if d.model.state.device_leaves else None


def _evict_host(d: Drawing) -> Operation | None:
    return ops.EvictHost(n=d.count()) if d.model.state.host_leaves else None


def _write_backup(d: Drawing) -> Operation | None:
    if d.model.state.policy == "write_back":
        return None
    key = d.node(lambda node: node.device is not None and node.host is None)
    return ops.WriteBackup(key=key) if key else None


def _load_back(d: Drawing) -> Operation | None:
    key = d.node(lambda node: node.device is None)
    quota = None if d.rng.random() < 0.8 else d.rng.randint(0, 4)
    return ops.LoadBack(key=key, quota=quota) if key else None


def _copy_done(d: Drawing) -> Operation | None:
    ticket = d.pick([ticket.id for ticket in d.ending() if not ticket.doomed])
    return ops.CopyDone(ticket=ticket) if ticket else None


def _copy_failed(d: Drawing) -> Operation | None:
    running = [ticket for ticket in d.model.state.tickets.values() if ticket.good is None]
    if not running:
        return None
    ticket = d.rng.choice(running)
    early = ticket.doomed or bool(d.model.waits_for(ticket))
    first = 0 if early else d.rng.randrange(len(ticket.parts))
    return ops.CopyFailed(ticket=ticket.id, first_failed=first)


def _poll(d: Drawing) -> Operation | None:
    storage = d.model.state.storage
    ended = any(ticket.good is not None for ticket in d.model.state.tickets.values())
    if not (ended or storage.answers or storage.reads or storage.writes or storage.release):
        return None
    number = d.rng.randint
    return ops.Poll(
        backups=number(0, 3), loads=number(0, 3), answers=number(0, 2), reads=number(0, 2), writes=number(0, 2),
        releases=number(0, 4),
    )  # fmt: skip


def _prefetch(d: Drawing) -> Operation | None:
    if not d.model.state.storage.attached and d.rng.random() < 0.9:
        return None
    return ops.Prefetch(rid=d.rng.choice(REQUESTS[:2]), key=d.key(), now=d.now)


def _record(d: Drawing, stage: str) -> Record | None:
    found = [record for record in d.model.state.storage.records.values() if record.stage == stage]
    if not found:
        return None
    return found[0] if d.first_only else d.rng.choice(found)


def _query_done(d: Drawing) -> Operation | None:
    record = _record(d, "queued")
    return _answer(d, record) if record is not None else None


def _answer(d: Drawing, record: Record) -> Operation:
    """Mostly what storage is believed to have; it may have lost pages, and others may have put more."""
    believed = d.model.state.storage.believed
    run = 0
    while run < len(record.hashes) and record.hashes[run] in believed:
        run += 1
    lot = d.rng.random()
    if lot < 0.1:
        return ops.QueryDone(id=record.id, raised=True)
    hits = run if lot < 0.35 else len(record.hashes) if lot < 0.8 else d.rng.randint(0, len(record.hashes))
    return ops.QueryDone(id=record.id, hits=hits)


def _read_done(d: Drawing) -> Operation | None:
    record = _record(d, "reading")
    return _batch(d, ops.ReadDone, record) if isinstance(record, PrefetchReading) else None


def _write_done(d: Drawing) -> Operation | None:
    record = _record(d, "writing")
    return _batch(d, ops.WriteDone, record) if isinstance(record, BackupWriting) else None


def _batch(
    d: Drawing,
    kind: type[ops.ReadDone] | type[ops.WriteDone],
    record: PrefetchReading | BackupWriting,
    good: float = 0.7,
) -> Operation:
    """The end of one batch: whole mostly, else short or raised."""
    model = d.model
    size = min(model.profile.sizes.storage_batch, len(record.pages) - record.done)
    pages = size if d.rng.random() < good else d.rng.randint(0, size)
    draft = pages if model.profile.draft and model.state.storage.settings.draft else 0
    if draft and d.rng.random() < 0.3:
        draft = d.rng.randint(0, pages)
    return kind(id=record.id, pages=pages, raised=pages < size and d.rng.random() < 0.4, draft=draft)


def _progress(d: Drawing) -> Operation | None:
    rid = d.pick(list(d.model.state.storage.open)) if d.rng.random() < 0.9 else d.rng.choice(REQUESTS)
    return ops.Progress(rid=rid, now=d.now) if rid else None


def _abort(d: Drawing) -> Operation | None:
    rid = d.pick(list(d.model.state.storage.open)) if d.rng.random() < 0.9 else d.rng.choice(REQUESTS)
    return ops.Abort(rid=rid) if rid else None


def _attach(d: Drawing) -> Operation | None:
    attached = d.model.state.storage.attached
    return attach(d) if d.rng.random() < (0.1 if attached else 0.8) else None


def attach(d: Drawing) -> Operation:
    """A backend is attached with settings of its own; now and then it is another one."""
    settings = StorageSettings(
        prefetch_policy=d.rng.choice(PREFETCH_POLICIES),
        prefetch_threshold=d.rng.choice((1, 1, 2)),
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_ki_token=512.0,
        prefetch_timeout_max=d.rng.choice((None, 2.0)),
        pass_prefix_keys=d.rng.random() < 0.5,
        draft=d.rng.random() < 0.8,
    )
    return ops.Attach(settings=settings, backend=d.rng.choice(("files", "files", "files", "other")))


def _detach(d: Drawing) -> Operation | None:
    return ops.Detach() if d.rng.random() < 0.1 else None


def _clear_storage(d: Drawing) -> Operation | None:
    return ops.ClearStorage() if d.model.state.storage.attached and d.rng.random() < 0.1 else None


def _set_write_policy(d: Drawing) -> Operation | None:
    """Now and then; always where some host data lacks its prefix, for then the change has to be refused."""
    nodes = d.model.state.nodes
    if any(node.host is not None and node.id != ROOT and nodes[node.parent].host is None for node in nodes.values()):
        return ops.SetWritePolicy(policy="write_through")
    return ops.SetWritePolicy(policy=d.rng.choice(WRITE_POLICIES)) if d.rng.random() < 0.2 else None


def _audit(d: Drawing) -> Operation | None:
    return ops.Audit() if d.rng.random() < 0.2 else None


def _reset(d: Drawing) -> Operation | None:
    return ops.Reset() if d.rng.random() < 0.05 else None


SINGLE: dict[str, Draw] = {
    "match_prefix": _match_prefix,
    "take_pages": _take_pages,
    "give_back": _give_back,
    "forward": _forward,
    "forward_done": _forward_done,
    "insert": _insert,
    "lock": _lock,
    "unlock": _unlock,
    "evict": _evict,
    "evict_host": _evict_host,
    "write_backup": _write_backup,
    "load_back": _load_back,
    "copy_done": _copy_done,
    "copy_failed": _copy_failed,
    "poll": _poll,
    "prefetch": _prefetch,
    "query_done": _query_done,
    "read_done": _read_done,
    "write_done": _write_done,
    "progress": _progress,
    "abort": _abort,
    "attach": _attach,
    "detach": _detach,
    "clear_storage": _clear_storage,
    "set_write_policy": _set_write_policy,
    "audit": _audit,
    "reset": _reset,
}


def request(d: Drawing) -> Iterator[Operation]:
    """A prompt from start to end: pages, a pass over what is not resident, insert; now and then its next chunk."""
    yield from request_for(d, d.key())


def request_for(d: Drawing, key: Key) -> Iterator[Operation]:
    """As `request`, for this key."""
    rid, pages = d.free_request(), d.model.pages(key)
    if rid is None or not pages:
        return
    resident = len(d.model.resident_pages(pages, key.extra))
    yield ops.TakePages(rid=rid, n=len(pages) - min(resident, len(pages) - 1))
    if rid in d.model.state.requests and d.model.state.requests[rid].key is None:
        forward = _forward_for(d, rid, key)
        if forward is not None:
            yield forward
    if rid in d.model.state.passes and d.rng.random() < 0.8:
        yield ops.ForwardDone(rid=rid)
    if rid in d.model.state.requests and d.model.state.requests[rid].key is not None:
        insert = _insert_of(d, rid)
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
    done = _forward_done(d)
    if done is not None:
        return done
    for record in state.storage.records.values():
        if record.stage == "queued":
            return _answer(d, record)
        if isinstance(record, PrefetchReading):
            return _batch(d, ops.ReadDone, record, good=1.0)
        if isinstance(record, BackupWriting):
            return _batch(d, ops.WriteDone, record, good=1.0)
    storage = state.storage
    ended = len(state.tickets) + len(storage.answers) + len(storage.reads) + len(storage.writes) + len(storage.release)
    if ended:
        return _apply_all(ended)
    for rid in storage.open:
        return ops.Progress(rid=rid, now=d.now)
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
    load = _load_back(d)
    if load is not None:
        yield ops.LoadBack(key=load.key) if isinstance(load, ops.LoadBack) else load
    if d.rng.random() < 0.7:
        yield from request(d)
    if d.rng.random() < 0.3 and "copy_failed" in d.operations:
        failed = _copy_failed(d)
        if failed is not None:
            yield failed
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
        op = _query_done(d) or _poll(d) if d.rng.random() < 0.5 else _read_done(d) or _poll(d)
        if op is not None:
            yield op
        if d.rng.random() < 0.2:
            yield ops.Progress(rid=rid, now=d.now)
    yield ops.Progress(rid=rid, now=d.now)


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
        if record.stage == "queued":
            yield ops.QueryDone(id=record.id, hits=len(record.hashes))
        elif isinstance(record, PrefetchReading) and d.rng.random() < 0.7:
            yield _batch(d, ops.ReadDone, record, good=0.8)
        else:
            yield ops.Poll(answers=1, reads=d.rng.randint(0, 2))


def overtake(d: Drawing) -> Iterator[Operation]:
    """A prompt is computed while it is fetched, so that the commit meets what is there by then."""
    yield from _attached(d)
    rid, key = d.rng.choice(REQUESTS[:2]), d.key()
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    yield from _fetching(d, rid, d.rng.randint(1, 4))
    yield from request_for(d, key)
    yield from _fetching(d, rid, d.rng.randint(1, 4))
    yield ops.Progress(rid=rid, now=d.now)


def stake(d: Drawing) -> Iterator[Operation]:
    """A prefetch hangs on a node whose own backup ends, badly at times, while pages are read below it."""
    yield from _attached(d)
    key, rid = d.key(), d.rng.choice(REQUESTS[:2])
    anchor = _cut(d, key, 1)
    yield from request_for(d, anchor)
    node = d.model.node_at(anchor)
    if node is None:
        return
    if node.host is None:
        yield ops.WriteBackup(key=anchor)
    yield ops.Prefetch(rid=rid, key=key, now=d.now)
    yield from _fetching(d, rid, d.rng.randint(2, 5))
    ticket = d.pick([each.id for each in d.ending() if each.to == "host"])
    if ticket is not None:
        yield ops.CopyFailed(ticket=ticket) if d.rng.random() < 0.7 else ops.CopyDone(ticket=ticket)
    yield ops.Poll(backups=2)
    yield ops.Poll(reads=3)
    yield ops.Progress(rid=rid, now=d.now)


def grow(d: Drawing) -> Iterator[Operation]:
    """A prompt grows turn by turn; each turn is backed up and put into storage, often cut short or in vain."""
    yield from _attached(d)
    key = d.key()
    for turn in range(1, len(d.model.pages(key)) + 1):
        prompt = _cut(d, key, turn)
        yield from request_for(d, prompt)
        node = d.model.node_at(prompt)
        if node is not None and node.host is None:
            yield ops.WriteBackup(key=prompt)
        for ticket in d.ending():
            yield ops.CopyDone(ticket=ticket.id)
        yield ops.Poll(backups=4)
        for record in list(d.model.state.storage.records.values()):
            if isinstance(record, BackupWriting):
                yield _batch(d, ops.WriteDone, record, good=0.4)
        yield ops.Poll(writes=4)


def _cut(d: Drawing, key: Key, pages: int) -> Key:
    """The first pages of the key."""
    tokens = pages * d.model.profile.sizes.page_size + d.model.profile.bigram
    return key.model_copy(update={"tokens": key.tokens[:tokens]})


COMPOSITE: dict[str, Composite] = {
    "fetch": fetch,
    "overtake": overtake,
    "stake": stake,
    "grow": grow,
    "request": request,
    "settle": settle,
    "flush": flush,
    "reload": reload,
}

NEEDED: dict[str, str] = {"fetch": "prefetch", "overtake": "prefetch", "stake": "prefetch", "grow": "write_done"}
"""Composites that are of use only where the implementation has this operation."""


def invalid(d: Drawing) -> Operation:
    """A call that breaks a precondition: foreign names, double completions, empty keys, n of 0 or less."""
    empty = Key(tokens=())
    candidates: list[Operation] = [
        ops.Unlock(receipt="nobody"),
        ops.GiveBack(rid="nobody"),
        ops.ForwardDone(rid="nobody"),
        ops.CopyDone(ticket="h:nothing"),
        ops.CopyFailed(ticket="d:nothing"),
        ops.TakePages(rid="r0", n=d.rng.choice((0, -1))),
        ops.Evict(n=0),
        ops.EvictHost(n=-1),
        ops.WriteBackup(key=empty),
        ops.LoadBack(key=empty),
        ops.Poll(backups=-1),
        ops.Insert(rid="nobody", key=d.key(), start=0),
        ops.Forward(rid="nobody", key=d.key(), start=0),
        *(ops.Insert(rid=rid, key=empty, start=0) for rid in d.model.state.requests),
        *(ops.Insert(rid=rid, key=d.key(), start=1) for rid in d.model.state.requests),
        *(ops.Lock(receipt=receipt, key=d.key()) for receipt in d.model.state.receipts),
        *(ops.CopyDone(ticket=t.id) for t in d.model.state.tickets.values() if t.good is not None),
        *(ops.TakePages(rid=rid, n=1) for rid in d.model.state.requests),
    ]
    broken = [op for op in candidates if op.op in d.operations and d.model.requires(op)]
    return d.rng.choice(broken)
