"""The alphabet: for each kind of step, how to draw an instance of it that is enabled now.

A drawing function answers None where its kind has no enabled instance. Handles are drawn from the model's state.
Kinds include composites, for single steps starve the tree: a composite is a generator that yields one operation
after the other and looks at the state in between; the walk may cut it off anywhere.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hicache_ref.model import Model
from hicache_ref.model.state import Node, Ticket
from hicache_ref.search.keys import draw_key
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import WRITE_POLICIES

REQUESTS = ("r0", "r1", "r2")
RECEIPTS = ("a", "b", "c")


@dataclass
class Drawing:
    """What a drawing function sees."""

    model: Model
    rng: random.Random
    operations: frozenset[str]
    told: list[Key] = field(default_factory=list)
    """Keys that were inserted, for asking again."""

    def key(self) -> Key:
        """A key: a word, or one that was inserted before."""
        if self.told and self.rng.random() < 0.3:
            return self.rng.choice(self.told)
        return draw_key(self.rng, self.model.profile)

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
    if all(ticket.good is None for ticket in d.model.state.tickets.values()):
        return None
    return ops.Poll(backups=d.rng.randint(0, 3), loads=d.rng.randint(0, 3))


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
    "set_write_policy": _set_write_policy,
    "audit": _audit,
    "reset": _reset,
}


def request(d: Drawing) -> Iterator[Operation]:
    """A prompt from start to end: pages, a pass over what is not resident, insert; now and then its next chunk."""
    rid = d.free_request()
    if rid is None:
        return
    key = d.key()
    pages = d.model.pages(key)
    if not pages:
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
    """Every pass and copy ends, well where it can, and is applied."""
    while d.model.state.passes or d.model.state.tickets:
        op = _next_end(d)
        if op is None:
            return
        yield op


def _next_end(d: Drawing) -> Operation | None:
    for ticket in d.ending():
        if not ticket.doomed:
            return ops.CopyDone(ticket=ticket.id)
        return ops.CopyFailed(ticket=ticket.id)
    done = _forward_done(d)
    if done is not None:
        return done
    count = len(d.model.state.tickets)
    return ops.Poll(backups=count, loads=count) if count else None


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


COMPOSITE: dict[str, Composite] = {"request": request, "settle": settle, "flush": flush, "reload": reload}


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
