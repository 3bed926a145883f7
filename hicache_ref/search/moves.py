"""Moves: every operation that may happen next in a scope.

No scope has these, each for its reason:

- `reset` leads back to the first state or changes nothing; `audit` changes nothing; `set_write_policy` would need a
  form that looks further ahead. Walks make all three, and calls that break a precondition, which change nothing either.
- Polls of more than one copy: what a poll of two applies, two polls of one apply, and leave the same state.
- A quota: it refuses, or changes nothing. A load below the threshold likewise.
- A lock at the best end, where host-only nodes are not pinned anyway: it pins what one at the device end does.
- Chunks, where they count as hits; priorities other than 0, where the policy does not look at them.
- More pages for a request than the longest key has: no pass could fill them.

Where requests go through as a whole, one that took pages computes and inserts them before anything else happens, or
gives them back, and its pass reads nothing that is still to be written. What storage gave a request is told at once
there: telling it later would be the same, or, once the request has asked for more, not be done at all.
"""

from collections.abc import Iterator
from typing import Literal

from hicache_ref.model import Model
from hicache_ref.model.state import Request, Ticket
from hicache_ref.search.scopes import Scope
from hicache_ref.search.storage_moves import StorageMoves
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE, ROOT, STATE_DEVICE, STATE_HOST
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation


class Moves:
    """The operations of a scope; those that depend on no state are made once."""

    def __init__(self, scope: Scope) -> None:
        rules = scope.profile.rules
        ends: tuple[Literal["device", "best"], ...] = ("device",)
        if rules.lock_evicted == "count":
            ends = ("device", "best")
        self.scope = scope
        self.requests = [f"r{at}" for at in range(scope.requests)]
        self.receipts = [f"a{at}" for at in range(scope.receipts)]
        self.chunked = (False,) if rules.chunked_counts_hit else (False, True)
        self.priorities = (0, 1) if rules.eviction == "priority" else (0,)
        self.matches = [ops.MatchPrefix(key=key) for key in scope.keys]
        self.takes = {name: [ops.TakePages(rid=name, n=n) for n in scope.takes] for name in self.requests}
        self.locks = {
            name: [ops.Lock(receipt=name, key=key, at=at) for key in scope.keys for at in ends]
            for name in self.receipts
        }
        self.evicts = [ops.Evict(n=n) for n in scope.evicts]
        self.host_evicts = [ops.EvictHost(n=n) for n in scope.host_evicts]
        self.storage = StorageMoves(scope)
        self.polls = {"host": ops.Poll(backups=1), "device": ops.Poll(loads=1)}

    def of(self, model: Model) -> Iterator[Operation]:
        """What may happen in the model's state. Of names that are not in use only the first: all are alike."""
        first = self._first(model) if self.scope.whole_requests else []
        yield from first or self._any(model)

    def _any(self, model: Model) -> Iterator[Operation]:
        state = model.state
        yield from self.storage.of(model)
        yield from self.matches
        yield from next((ops for name, ops in self.takes.items() if self._is_free(model, name)), [])
        yield from next((ops for name, ops in self.locks.items() if name not in state.receipts), [])
        yield from (ops.Unlock(receipt=name) for name in state.receipts)
        yield from self.evicts if state.device_leaves else []
        yield from self.host_evicts if state.host_leaves else []
        if self.scope.profile.state:
            yield from self._of_states(model)
        yield from self._of_nodes(model)
        yield from self._polls(model)
        perhaps = (*self._of_requests(model), *self._ends_of_copies(model))
        yield from (op for op in perhaps if model.requires(op) is None)

    def _first(self, model: Model) -> list[Operation]:
        """What has to happen before anything else does: a request is told what it got, or it goes on."""
        told = self.storage.told(model)
        if told or not model.state.requests:
            return told
        if model.state.passes:
            return [ops.ForwardDone(rid=name) for name in model.state.passes]
        on = (op for op in self._of_requests(model) if isinstance(op, ops.Insert) or self._can_end(model, op))
        valid = [op for op in on if model.requires(op) is None]
        return valid or [ops.GiveBack(rid=name) for name in model.state.requests]

    def _can_end(self, model: Model, op: Operation) -> bool:
        """Whether it is the beginning of a pass that reads nothing which is still to be written."""
        if not isinstance(op, ops.Forward):
            return False
        stamps = model.state.pools[KV_DEVICE].stamp
        read = model.resident_pages(model.pages(op.key)[: op.start], op.key.extra)
        return all(stamps[page] is not None for page in read)

    def _is_free(self, model: Model, name: str) -> bool:
        return name not in model.state.requests and name not in model.state.passes

    def _of_nodes(self, model: Model) -> Iterator[Operation]:
        for node in model.state.nodes.values():
            if node.device is None and not self.scope.profile.state:
                yield ops.LoadBack(key=model.key_of(node))
            elif model.lacking(node) and model.state.policy != "write_back":
                yield ops.WriteBackup(key=model.key_of(node))

    def _of_states(self, model: Model) -> Iterator[Operation]:
        """What may happen to states: evictions, loads into nodes and requests, and requests that go on from one."""
        state = model.state
        held = {name for node in state.nodes.values() if node.id != ROOT for name in node.at}
        yield from [ops.EvictState(n=1)] if STATE_DEVICE in held else []
        yield from [ops.EvictHostState(n=1)] if STATE_HOST in held else []
        rid = next((name for name in self.requests if self._is_free(model, name)), None)
        for node in state.nodes.values():
            if node.id != ROOT and STATE_HOST in node.at and STATE_DEVICE not in node.at:
                key = model.key_of(node)
                yield from (ops.LoadBack(key=key, rid=name) for name in {None, rid})
            if rid is not None and node.id != ROOT and STATE_DEVICE in node.at:
                yield from (ops.TakePages(rid=rid, n=n, prefix=model.key_of(node)) for n in self.scope.takes)
        loaded = [each.id for each in state.requests.values() if not each.pages]
        yield from (ops.TakePages(rid=name, n=n) for name in loaded for n in self.scope.takes)

    def _polls(self, model: Model) -> Iterator[Operation]:
        """A poll in each direction whose first copy has ended."""
        first: dict[str, Ticket] = {}
        for ticket in model.state.tickets.values():
            first.setdefault(ticket.to, ticket)
        yield from (self.polls[to] for to, ticket in first.items() if ticket.good is not None and to in self.polls)

    def _of_requests(self, model: Model) -> Iterator[Operation]:
        state = model.state
        for request in state.requests.values():
            yield ops.GiveBack(rid=request.id)
            if request.key is not None:
                yield from self._inserts(request, request.key)
            else:
                keys = self.scope.keys if request.pages else ()
                starts = [(key, len(model.pages(key)) - len(request.pages)) for key in keys]
                yield from (ops.Forward(rid=request.id, key=key, start=start) for key, start in starts)
        yield from (ops.ForwardDone(rid=name) for name in state.passes)

    def _inserts(self, request: Request, key: Key) -> Iterator[Operation]:
        """Whether the request has been here before, in chunks or not: where that can make a difference."""
        for inserted in sorted({0, request.start}):
            for chunked in self.chunked:
                for priority in self.priorities:
                    yield ops.Insert(
                        rid=request.id,
                        key=key,
                        start=request.start,
                        inserted=inserted,
                        chunked=chunked,
                        priority=priority,
                    )

    def _ends_of_copies(self, model: Model) -> Iterator[Operation]:
        for ticket in model.state.tickets.values():
            yield ops.CopyDone(ticket=ticket.id)
            tier = "device" if ticket.to == "request" else ticket.to
            if ticket.doomed or tier in self.scope.failing:
                yield from (ops.CopyFailed(ticket=ticket.id, first_failed=at) for at in range(len(ticket.parts)))
