"""Triggers: steps after which an implementation is known to go wrong, by name.

A known divergence may name one. Walks then leave such steps out, for most of them would end there and little else
would be met; a finding whose smallest trace has such a step in it is told apart from one that has not.
"""

from collections.abc import Callable, Mapping

from hicache_ref.model import Model
from hicache_ref.model.records import BackupWriting, Prefetch, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Node, Ticket, clone
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, ROOT, STATE, STATE_HOST
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Refused

Askers = Mapping[str, str]
"""Storage operation -> the request that asked for it, whether or not that still waits."""

Trigger = Callable[[Operation, Model, Askers], bool]


def _query_raises(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.QueryDone) and op.raised


def _read_raises(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.ReadDone) and op.raised


def _write_raises(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.WriteDone) and op.raised


def _request_comes_back(op: Operation, model: Model, askers: Askers) -> bool:
    """A request prefetches again while an operation of its earlier prefetch is on the books, or before it asked."""
    if not isinstance(op, ops.Prefetch):
        return False
    storage = model.state.storage
    return op.rid in storage.loaded or any(
        askers.get(name) == op.rid for name in storage.records if storage.open.get(op.rid) != name
    )


def _read_stops_short(op: Operation, model: Model, askers: Askers) -> bool:
    """The I/O of a prefetch ends before all of its pages are in place: a batch is short, or nobody waits any more."""
    record = model.state.storage.records.get(op.id) if isinstance(op, ops.ReadDone) else None
    if not isinstance(op, ops.ReadDone) or not isinstance(record, PrefetchReading):
        return False
    batch = min(model.profile.sizes.storage_batch, len(record.pages) - record.done)
    return op.pages < batch or record.cancelled


def _request_goes_early(op: Operation, model: Model, askers: Askers) -> bool:
    """An open prefetch is closed while storage is asked or pages are read for it."""
    storage = model.state.storage
    names = list(storage.open.values())
    if isinstance(op, ops.Abort | ops.Progress):
        names = [name for name in names if storage.open.get(op.rid) == name]
    elif not isinstance(op, ops.Detach | ops.Reset):
        return False
    at_work = [
        record for record in map(storage.records.get, names) if isinstance(record, PrefetchQueued | PrefetchReading)
    ]
    if isinstance(op, ops.Progress):
        return any(model.may_stop(record, op.now) for record in at_work)
    return bool(at_work)


def _detach_of_nothing(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.Detach) and not model.state.storage.attached


def _namespace_meets_storage(op: Operation, model: Model, askers: Askers) -> bool:
    """A key in a namespace is used where storage is attached, or storage is attached where there is such a key."""
    state = model.state
    if isinstance(op, ops.Attach):
        keys = [each.key for each in state.requests.values() if each.key is not None]
        return any(node.extra is not None for node in state.nodes.values()) or any(key.extra for key in keys)
    key = getattr(op, "key", None)
    return state.storage.attached and key is not None and key.extra is not None


def _split_under_copy(op: Operation, model: Model, askers: Askers) -> bool:
    """A node is split while it is copied to host, and storage is to have it."""
    if not isinstance(op, ops.MatchPrefix | ops.Lock | ops.Insert | ops.Prefetch) or not model.state.storage.attached:
        return False
    found = model.look(model.pages(op.key), op.key.extra)
    inside = found.length < model.depth(found.node)
    return inside and found.node.host is not None and model.is_being_written(KV_HOST, found.node.host)


def _prefetch_of_pairs(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.Prefetch) and model.profile.bigram


def _attach_to_filled_tree(op: Operation, model: Model, askers: Askers) -> bool:
    state = model.state
    return isinstance(op, ops.Attach) and not state.storage.attached and len(state.nodes) > 1


def _insert_below_backed(op: Operation, model: Model, askers: Askers) -> bool:
    """Under write_back a node without host copy is hung below one that has one."""
    if not isinstance(op, ops.Insert) or model.state.policy != "write_back":
        return False
    pages = model.pages(op.key)
    found = model.look(pages, op.key.extra)
    return found.length < len(pages) and found.node.id != ROOT and found.node.host is not None


def _match_over_unbacked(op: Operation, model: Model, askers: Askers) -> bool:
    """A hybrid match passes KV without host copy on its way from the device end to the best end."""
    if not isinstance(op, ops.MatchPrefix) or not model.profile.state:
        return False
    found = model.look(model.pages(op.key), op.key.extra)
    reach = model.state.nodes[found.node.parent] if found.inside else found.node
    best = model.best_end(reach)
    between = model.path(best.id)[: -len(model.path(model.resident_end(best).id)) or None]
    return any(KV_HOST not in model.state.nodes[number].at for number in between)


def _state_above_copied_state(op: Operation, model: Model, askers: Askers) -> bool:
    """An insert ends above a node, or inside it, whose state alone is copied to host."""
    if not isinstance(op, ops.Insert) or not model.profile.state:
        return False
    found = model.look(model.pages(op.key), op.key.extra)
    alone = [each.parts[0] for each in model.state.tickets.values() if each.to == "host" and _is_state_alone(each)]
    copied = [node for part in alone for node in model.owners(STATE_HOST, part.host)]
    return any(found.node.id in model.path(node.id) and (found.inside or found.node is not node) for node in copied)


def _is_state_alone(ticket: Ticket) -> bool:
    return all(part.component == STATE for part in ticket.parts)


def _load_evicts(op: Operation, model: Model, askers: Askers) -> bool:
    """Under write_back a load has to make room."""
    node = model.node_at(op.key) if isinstance(op, ops.LoadBack) else None
    if node is None or model.state.policy != "write_back":
        return False
    path = [model.state.nodes[number] for number in model.path(node.id)]
    return sum(len(each.key) for each in path if each.device is None) > model.free_count(KV_DEVICE)


def _hit_under_copy(op: Operation, model: Model, askers: Askers) -> bool:
    """A node is hit while it is copied to host, where hits put it to storage."""
    return any(node.host is not None and not model.is_settled_on_host(node) for node in _hit(op, model))


def _hit_under_write(op: Operation, model: Model, askers: Askers) -> bool:
    """A node is hit while it is put to storage, where hits do that."""
    return any(model.is_under_way(node) for node in _hit(op, model))


def _hit(op: Operation, model: Model) -> list[Node]:
    """The nodes that an insert hits, where hits put them to storage."""
    if not isinstance(op, ops.Insert) or not model.state.storage.attached or model.rules.storage_put != "hit":
        return []
    found = model.look(model.pages(op.key), op.key.extra)
    return [model.state.nodes[number] for number in model.path(found.node.id)]


def _write_stops_short(op: Operation, model: Model, askers: Askers) -> bool:
    """A write ends with a batch that is cut short, and had whole ones before."""
    record = model.state.storage.records.get(op.id) if isinstance(op, ops.WriteDone) else None
    if not isinstance(op, ops.WriteDone) or not isinstance(record, BackupWriting):
        return False
    batch = min(model.profile.sizes.storage_batch, len(record.pages) - record.done)
    return record.done > 0 and op.pages < batch


def _query_hits_less(op: Operation, model: Model, askers: Askers) -> bool:
    """Storage has fewer pages than were taken for the prefetch."""
    record = model.state.storage.records.get(op.id) if isinstance(op, ops.QueryDone) else None
    return isinstance(op, ops.QueryDone) and isinstance(record, PrefetchQueued) and op.hits < len(record.pages)


def _prefetch_at_limit(op: Operation, model: Model, askers: Askers) -> bool:
    """With what a prefetch asks for the limit is reached."""
    if not isinstance(op, ops.Prefetch) or not model.state.storage.attached:
        return False
    asked = model.state.storage.occupied + _asked(op, model)
    return asked * model.profile.sizes.page_size >= model.prefetch_capacity()


def _prefetch_finds_no_room(op: Operation, model: Model, askers: Askers) -> bool:
    """A prefetch is refused because the host is full, also after an eviction."""
    if not isinstance(op, ops.Prefetch) or _asked(op, model) <= model.free_count(KV_HOST):
        return False
    twin = Model(model.profile)
    twin.state = clone(model.state)
    outcome = twin.step(op).outcome
    return isinstance(outcome, Refused) and outcome.why == "host full"


def _asked(op: ops.Prefetch, model: Model) -> int:
    pages = model.pages(op.key)
    return len(pages) - model.look(pages, op.key.extra).length


def _read_of_many(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.ReadDone) and op.pages > 1


def _reset_under_prefetch(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.Reset) and bool(model.state.storage.open)


def _pools_fail(op: Operation, model: Model, askers: Askers) -> bool:
    return isinstance(op, ops.Attach) and op.fails == "pools"


def _prefetches_ended_by(op: Operation, model: Model) -> list[Prefetch]:
    """The prefetches on the books when the step ended them by force."""
    if not isinstance(op, ops.Detach | ops.Reset) or not model.is_forced(op):
        return []
    return [record for record in model.state.storage.records.values() if isinstance(record, Prefetch)]


def _force_on_open(op: Operation, model: Model, askers: Askers) -> bool:
    """A prefetch is ended by force for which a request waits."""
    return any(record.rid is not None for record in _prefetches_ended_by(op, model))


def _force_on_closed(op: Operation, model: Model, askers: Askers) -> bool:
    """A prefetch is ended by force for which no request waits."""
    return any(record.rid is None for record in _prefetches_ended_by(op, model))


TRIGGERS: dict[str, Trigger] = {
    "query_raises": _query_raises,
    "read_raises": _read_raises,
    "write_raises": _write_raises,
    "request_comes_back": _request_comes_back,
    "read_stops_short": _read_stops_short,
    "request_goes_early": _request_goes_early,
    "namespace_meets_storage": _namespace_meets_storage,
    "split_under_copy": _split_under_copy,
    "prefetch_of_pairs": _prefetch_of_pairs,
    "attach_to_filled_tree": _attach_to_filled_tree,
    "insert_below_backed": _insert_below_backed,
    "match_over_unbacked": _match_over_unbacked,
    "state_above_copied_state": _state_above_copied_state,
    "load_evicts": _load_evicts,
    "detach_of_nothing": _detach_of_nothing,
    "hit_under_copy": _hit_under_copy,
    "hit_under_write": _hit_under_write,
    "write_stops_short": _write_stops_short,
    "query_hits_less": _query_hits_less,
    "prefetch_at_limit": _prefetch_at_limit,
    "prefetch_finds_no_room": _prefetch_finds_no_room,
    "read_of_many": _read_of_many,
    "reset_under_prefetch": _reset_under_prefetch,
    "pools_fail": _pools_fail,
    "force_on_open": _force_on_open,
    "force_on_closed": _force_on_closed,
}
"""Each is asked before the step: the operation, the model as it is then, and who asked for what."""

BARS: dict[str, str] = {
    "query_raises": "HC-PREF-51",
    "read_raises": "HC-PREF-54",
    "write_raises": "HC-STORE-52",
    "read_stops_short": "HC-PREF-53",
    "namespace_meets_storage": "HC-HASH-50",
}
"""Triggers that are just what a witness waits for: walks that leave them out cannot reach it."""
