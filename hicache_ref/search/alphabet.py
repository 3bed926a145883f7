"""The alphabet: for each kind of single step, how to draw an instance of it that is enabled now.

A drawing function answers None where its kind has no enabled instance. Handles are drawn from the model's state.
"""

from hicache_ref.model.state import Node, State
from hicache_ref.search.drawing import RECEIPTS, Draw, Drawing
from hicache_ref.search.storing import (
    abort,
    attach_sometimes,
    clear_storage,
    detach,
    is_forced,
    prefetch,
    progress,
    query_done,
    read_done,
    reports_of_too_much,
    terminate,
    time_waited,
    write_done,
    wrong_reports,
)
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV, ROOT, STATE_DEVICE, STATE_HOST
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import WRITE_POLICIES


def _match_prefix(d: Drawing) -> Operation:
    return ops.MatchPrefix(key=d.key())


def _take_pages(d: Drawing) -> Operation | None:
    state = d.model.state
    loaded = [each.id for each in state.requests.values() if not each.pages]
    if loaded and d.rng.random() < 0.5:
        return ops.TakePages(rid=d.rng.choice(loaded), n=d.count())
    rid = d.free_request()
    prefix = d.device_end(d.key()) if d.model.profile.state else None
    return ops.TakePages(rid=rid, n=d.count(), prefix=prefix) if rid else None


def _give_back(d: Drawing) -> Operation | None:
    rid = d.pick(list(d.model.state.requests))
    return ops.GiveBack(rid=rid) if rid else None


def _forward(d: Drawing) -> Operation | None:
    state = d.model.state
    rid = d.pick([r.id for r in state.requests.values() if r.key is None and r.id not in state.passes])
    key = d.longer(rid) if rid and d.model.profile.state else d.key()
    return forward_for(d, rid, key) if rid and key is not None else None


def forward_for(d: Drawing, rid: str, key: Key) -> Operation | None:
    """A pass that fills the request's pages with the end of `key`, if what is before it is resident."""
    model = d.model
    start = len(model.pages(key)) - len(model.state.requests[rid].pages)
    op = ops.Forward(rid=rid, key=key, start=start)
    return None if model.requires(op) else op


def forward_done(d: Drawing) -> Operation | None:
    """The end of a pass whose sources are there, or never will be."""
    model = d.model
    rid = d.pick([each.id for each in model.state.passes.values() if each.doomed or not model.waits_for(each)])
    return ops.ForwardDone(rid=rid) if rid else None


def _insert(d: Drawing) -> Operation | None:
    rid = d.pick([request.id for request in d.model.state.requests.values() if request.key is not None])
    return insert_of(d, rid) if rid else None


def insert_of(d: Drawing, rid: str) -> Operation | None:
    """The insert of what this request computed, if it may happen now."""
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
    known = _known_node(d) if receipt and d.model.profile.state and d.rng.random() < 0.5 else None
    if receipt and known is not None:
        return ops.Lock(receipt=receipt, key=known, at="node")
    return ops.Lock(receipt=receipt, key=d.key(), at=d.rng.choice(("device", "best"))) if receipt else None


def _known_node(d: Drawing) -> Key | None:
    """A node: one that is locked, for a second lock may pin more than the first, or a tombstone, or any."""
    locked = d.node(lambda node: bool(node.locks[KV]))
    return d.rng.choice((locked, d.tombstone(), d.node(lambda node: True)))


def _unlock(d: Drawing) -> Operation | None:
    receipt = d.pick(list(d.model.state.receipts))
    return ops.Unlock(receipt=receipt) if receipt else None


def _evict(d: Drawing) -> Operation | None:
    return ops.Evict(n=d.count()) if d.model.state.device_leaves else None


def _evict_host(d: Drawing) -> Operation | None:
    return ops.EvictHost(n=d.count()) if d.model.state.host_leaves else None


def _evict_state(d: Drawing) -> Operation | None:
    return ops.EvictState(n=d.rng.randint(1, 2)) if d.node(lambda node: STATE_DEVICE in node.at) else None


def _evict_host_state(d: Drawing) -> Operation | None:
    return ops.EvictHostState(n=d.rng.randint(1, 2)) if d.node(lambda node: STATE_HOST in node.at) else None


def _write_backup(d: Drawing) -> Operation | None:
    if d.model.state.policy == "write_back":
        return None
    key = d.node(lambda node: bool(d.model.lacking(node)))
    return ops.WriteBackup(key=key) if key else None


def load_back(d: Drawing) -> Operation | None:
    """A load of something that is on host only, now and then under a quota or into a request's slot too."""
    key = d.node(lambda node: can_be_loaded(d.model.state, node))
    quota = None if d.rng.random() < 0.8 else d.rng.randint(0, 4)
    rid = d.free_request() if d.model.profile.state and d.rng.random() < 0.5 else None
    return ops.LoadBack(key=key, quota=quota, rid=rid) if key else None


def can_be_loaded(state: State, node: Node) -> bool:
    """Whether the node is on host only; of a hybrid model whether its state is, wherever its KV may be."""
    if STATE_DEVICE in state.pools:
        return STATE_HOST in node.at and STATE_DEVICE not in node.at
    return node.device is None


def _copy_done(d: Drawing) -> Operation | None:
    ticket = d.pick([ticket.id for ticket in d.ending() if not ticket.doomed])
    return ops.CopyDone(ticket=ticket) if ticket else None


def copy_failed(d: Drawing) -> Operation | None:
    """The failure of a running copy, at any part that could have been reached."""
    model = d.model
    running = [each for each in model.state.tickets.values() if each.good is None and each.sure < len(each.parts)]
    if not running:
        return None
    ticket = d.rng.choice(running)
    early = ticket.doomed or bool(model.waits_for(ticket))
    if early and ticket.sure:
        return None
    first = 0 if early else d.rng.randrange(ticket.sure, len(ticket.parts))
    return ops.CopyFailed(ticket=ticket.id, first_failed=first)


def poll(d: Drawing) -> Operation | None:
    """A poll for some of what has ended."""
    storage = d.model.state.storage
    ended = any(ticket.good is not None for ticket in d.model.state.tickets.values())
    if not (ended or storage.answers or storage.reads or storage.writes or storage.release):
        return None
    number = d.rng.randint
    return ops.Poll(
        backups=number(0, 3), loads=number(0, 3), answers=number(0, 2), reads=number(0, 2), writes=number(0, 2),
        releases=number(0, 4),
    )  # fmt: skip


def _set_write_policy(d: Drawing) -> Operation | None:
    """Now and then; always where some host data lacks its prefix, for then the change has to be refused."""
    nodes = d.model.state.nodes
    if any(node.host is not None and node.id != ROOT and nodes[node.parent].host is None for node in nodes.values()):
        return ops.SetWritePolicy(policy="write_through")
    return ops.SetWritePolicy(policy=d.rng.choice(WRITE_POLICIES)) if d.rng.random() < 0.2 else None


def _register_draft(d: Drawing) -> Operation | None:
    """Now and then, where there is no draft model yet."""
    return ops.RegisterDraft() if not d.model.state.draft and d.rng.random() < 0.1 else None


def _audit(d: Drawing) -> Operation | None:
    return ops.Audit() if d.rng.random() < 0.2 else None


def _reset(d: Drawing) -> Operation | None:
    wanted = d.rng.random() < (0.15 if d.model.state.storage.records else 0.05)
    return ops.Reset(force=is_forced(d), waited=time_waited(d)) if wanted else None


SINGLE: dict[str, Draw] = {
    "match_prefix": _match_prefix,
    "take_pages": _take_pages,
    "give_back": _give_back,
    "forward": _forward,
    "forward_done": forward_done,
    "insert": _insert,
    "lock": _lock,
    "unlock": _unlock,
    "evict": _evict,
    "evict_host": _evict_host,
    "evict_state": _evict_state,
    "evict_host_state": _evict_host_state,
    "write_backup": _write_backup,
    "load_back": load_back,
    "copy_done": _copy_done,
    "copy_failed": copy_failed,
    "poll": poll,
    "prefetch": prefetch,
    "query_done": query_done,
    "read_done": read_done,
    "write_done": write_done,
    "progress": progress,
    "terminate": terminate,
    "abort": abort,
    "attach": attach_sometimes,
    "detach": detach,
    "clear_storage": clear_storage,
    "register_draft": _register_draft,
    "set_write_policy": _set_write_policy,
    "audit": _audit,
    "reset": _reset,
}


_EMPTY = Key(tokens=())
_NEVER_VALID: tuple[Operation, ...] = (
    ops.Unlock(receipt="nobody"),
    ops.GiveBack(rid="nobody"),
    ops.ForwardDone(rid="nobody"),
    ops.CopyDone(ticket="h:nothing"),
    ops.CopyFailed(ticket="d:nothing"),
    ops.TakePages(rid="r0", n=0),
    ops.TakePages(rid="r0", n=-1),
    ops.Evict(n=0),
    ops.EvictHost(n=-1),
    ops.EvictState(n=0),
    ops.EvictHostState(n=-1),
    ops.LoadBack(key=_EMPTY, rid="r0"),
    ops.WriteBackup(key=_EMPTY),
    ops.LoadBack(key=_EMPTY),
    ops.Poll(backups=-1),
)


CLAIMS_SHARE = 0.3
"""How often an invalid call is a report of too much, where something runs that it can be about."""


def too_much(d: Drawing) -> list[Operation]:
    """Reports about what runs of more than it has: of copies a part that there is not, of storage work a page."""
    running = [ticket for ticket in d.model.state.tickets.values() if ticket.good is None]
    return [
        *(ops.CopyFailed(ticket=each.id, first_failed=len(each.parts)) for each in running),
        *reports_of_too_much(d),
    ]


def invalid(d: Drawing) -> Operation:
    """A call that breaks a precondition: foreign names, double ends, empty keys, n below 1, reports of too much."""
    candidates: list[Operation] = [
        *_NEVER_VALID,
        ops.Insert(rid="nobody", key=d.key(), start=0),
        ops.Forward(rid="nobody", key=d.key(), start=0),
        *(ops.Insert(rid=rid, key=_EMPTY, start=0) for rid in d.model.state.requests),
        *(ops.Insert(rid=rid, key=d.key(), start=1) for rid in d.model.state.requests),
        *(ops.Lock(receipt=receipt, key=d.key()) for receipt in d.model.state.receipts),
        *(ops.CopyDone(ticket=t.id) for t in d.model.state.tickets.values() if t.good is not None),
        *(ops.TakePages(rid=rid, n=1) for rid in d.model.state.requests),
        *wrong_reports(d),
    ]
    claims = _broken(d, too_much(d))
    if claims and d.rng.random() < CLAIMS_SHARE:
        return d.rng.choice(claims)
    return d.rng.choice(_broken(d, candidates))


def _broken(d: Drawing, candidates: list[Operation]) -> list[Operation]:
    """Those that the implementation has and that may not happen now."""
    return [op for op in candidates if op.op in d.operations and d.model.requires(op)]
