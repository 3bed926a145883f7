"""Small worlds in which one requirement is broken by hand: what the cases of `broken_*` are written with."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hicache_ref.model import Model, State, Step
from hicache_ref.model.state import FREE, Node
from hicache_ref.requirements import Checker
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, PoolName
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import (
    CopyDone,
    Forward,
    ForwardDone,
    Insert,
    Operation,
    Poll,
    TakePages,
)
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes


def key(text: str, extra: str | None = None) -> Key:
    """One token a digit."""
    return Key(tokens=tuple(map(int, text)), extra=extra)


class World:
    """A model whose steps are checked until a case takes over."""

    def __init__(self, **rules: Any) -> None:
        sizes = Sizes(device_pages=rules.pop("device", 6), host_pages=rules.pop("host", 6))
        has = {name: rules.pop(name, False) for name in ("draft", "state")}
        self.profile = Profile(rules=Rules(**{"write_through_threshold": 9} | rules), sizes=sizes, **has)
        self.model = Model(self.profile)
        self.checker = Checker(self.profile)
        self.checker.start(self.state)

    @property
    def state(self) -> State:
        """The state of the model, to be broken."""
        return self.model.state

    def do(self, *ops: Operation) -> Step:
        """The operations have happened and were found in order; returns the last step."""
        for op in ops:
            step = self.unseen(op)
            self.checker.check(op, step, self.state)
        return step

    def unseen(self, op: Operation) -> Step:
        """The operation has happened, and the checker was not told."""
        step = self.model.step(op)
        assert step.outcome.kind != "invalid", step.outcome
        return step

    def seen(self, op: Operation) -> tuple[Operation, Step]:
        """The operation has happened and is what the checker will be told, unless it is changed."""
        return op, self.unseen(op)

    def write(self, text: str, *, extra: str | None = None, start: int = 0, rid: str = "r") -> None:
        """A request has pages for `key[start:]`, written by its pass."""
        whole = key(text, extra)
        prefix = key(text[:start], extra) if start and self.profile.state else None
        self.do(TakePages(rid=rid, n=len(text) - start, prefix=prefix))
        copies = [CopyDone(ticket=each.id) for each in self.state.tickets.values() if each.to == "request"]
        self.do(*copies, Forward(rid=rid, key=whole, start=start), ForwardDone(rid=rid))

    def insert(self, text: str, *, extra: str | None = None, start: int = 0) -> Node:
        """The key is cached; returns its node."""
        self.write(text, extra=extra, start=start)
        self.do(Insert(rid="r", key=key(text, extra), start=start))
        return self.node(text, extra)

    def settle(self) -> None:
        """All copies have ended and were applied."""
        self.do(*[CopyDone(ticket=name) for name in self.state.tickets], Poll(backups=9, loads=9))

    def node(self, text: str, extra: str | None = None) -> Node:
        """The node that ends at the key."""
        node = self.model.node_at(key(text, extra))
        assert node is not None
        return node

    # -- changes by hand, each leaving the kept sums in order ---------------------------------------------------------

    def strip(self, node: Node, pool_name: PoolName) -> None:
        """The node has no copy in the pool, and its pages there are free."""
        pages = node.at.pop(pool_name)
        self.release(pool_name, pages)
        if pool_name == KV_DEVICE:
            self._count(node, -len(pages))
            self.state.device_leaves.discard(node.id)

    def release(self, pool_name: PoolName, pages: tuple[int, ...]) -> None:
        """The pages are free and hold nothing."""
        pool = self.state.pools[pool_name]
        pool.free.extend(pages)
        for page in pages:
            pool.owner[page], pool.stamp[page] = FREE, None

    def hold(self, node: Node, pool_name: PoolName, pages: tuple[int, ...]) -> None:
        """The node has these free pages as its copy in the pool, written."""
        pool = self.state.pools[pool_name]
        node.at[pool_name] = pages
        for page, digest in zip(pages, node.hashes[-len(pages) :], strict=True):
            pool.owner[page], pool.stamp[page] = ("node", node.id), digest
            pool.free.remove(page)
        if pool_name == KV_DEVICE:
            self._count(node, len(pages))

    def lock(self, node: Node, count: int) -> None:
        """The node has this lock count."""
        resident = len(node.at.get(KV_DEVICE, ()))
        self._count(node, -resident)
        node.locks[KV] = count
        self._count(node, resident)
        self.model.update_leaf(node.id)

    def _count(self, node: Node, pages: int) -> None:
        if node.locks[KV]:
            self.state.protected += pages
        else:
            self.state.evictable += pages


StateCase = Callable[[], World]
StepCase = Callable[[], tuple[World, Operation, Step]]


class Case(NamedTuple):
    """How a requirement is broken, and what falls with it."""

    requirement: str
    falls: frozenset[str]
    make: Callable[[], Any]


def told(step: Step, **changed: Any) -> Step:
    """The step with another outcome of the same kind."""
    return step._replace(outcome=step.outcome.model_copy(update=changed))


HOST, DEVICE = KV_HOST, KV_DEVICE
