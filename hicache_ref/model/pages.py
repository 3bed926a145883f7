"""Pages: taken for an owner, given up in one place. No other code frees a page."""

from collections.abc import Iterable

from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.state import FREE, Owner, State, fresh, operation_id, running
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import NodeId, PageHash, Pages, PoolName
from hicache_ref.vocabulary.profile import Profile


class ModelFault(AssertionError):
    """The model broke one of its own rules: a fault of ours, never of an implementation."""


class PageRules:
    """The lowest rules: what a page's owner may become."""

    def __init__(self, profile: Profile, state: State | None = None) -> None:
        self.profile = profile
        self.rules = profile.rules
        self.state = fresh(profile) if state is None else state
        self.choose: Chooser = POLICY
        self.effects: list[Effect] = []
        self.events: list[Event] = []
        self.facts: list[str] = []
        self.victims: list[tuple[PoolName, PageHash]] = []
        self.given_up: list[tuple[PoolName, int]] = []
        """Pages that holders gave up in this step, in order."""

        self.counted: dict[str, int] = {}
        """By how many pages this step raises each counter of storage (HC-STORE-14)."""

        self.evicting = False
        """Whether the copy whose end is applied was made by the eviction under way."""

        self.just_backed: list[NodeId] = []
        """Nodes that the eviction under way has backed up and protects; none between steps."""

    def count(self, counter: str, pages: int) -> None:
        """The counter is so much higher."""
        self.counted[counter] = self.counted.get(counter, 0) + pages

    def take(self, pool_name: PoolName, count: int, owner: Owner) -> Pages:
        """`count` free pages belong to `owner` and hold nothing yet; the caller has made room (HC-PAGE-02)."""
        pool = self.state.pools[pool_name]
        pages = self.choose.pages(pool_name, pool.free, count)
        if pages == tuple(pool.free[-count:]):
            del pool.free[-count:]
        else:
            for page in pages:
                pool.free.remove(page)
        for page in pages:
            pool.owner[page] = owner
            pool.stamp[page] = None
            pool.draft[page] = None
        return pages

    def own(self, pool_name: PoolName, pages: Iterable[int], node: NodeId) -> None:
        """`pages` belong to `node`."""
        owner = self.state.pools[pool_name].owner
        held: Owner = ("node", node)
        for page in pages:
            owner[page] = held

    def release(self, pool_name: PoolName, pages: Pages) -> None:
        """Each page is free, or left to an operation that still touches it (HC-PAGE-04)."""
        if not pages:
            return
        pool = self.state.pools[pool_name]
        busy = self._touched(pool_name, pages)
        for page in pages:
            self.given_up.append((pool_name, page))
            if page in busy:
                pool.owner[page] = ("op", busy[page])
                self.facts.append("page_given_up_under_operation")
            else:
                pool.owner[page] = FREE
                pool.stamp[page] = None
                pool.draft[page] = None
                pool.free.append(page)

    def _touched(self, pool_name: PoolName, pages: Pages) -> dict[int, str]:
        """Which of `pages` an operation on the books reads or writes, each with one that does."""
        refs = {(pool_name, page) for page in pages}
        busy = {}
        for op in running(self.state):
            for touched in (op.reads & refs) | (op.writes & refs):
                busy[touched[1]] = operation_id(op)
        return busy

    def touching(self, pool_name: PoolName, pages: Iterable[int]) -> set[str]:
        """The operations on the books that touch one of `pages`: all are free once all of these are over."""
        refs = {(pool_name, page) for page in pages}
        return {operation_id(op) for op in running(self.state) if refs & op.reads or refs & op.writes}

    def let_go(self, name: str, refs: Iterable[tuple[PoolName, int]]) -> None:
        """What the operation `name`, now off the books, still owned is released."""
        mine: Owner = ("op", name)
        for pool_name, pool in self.state.pools.items():
            owner = pool.owner
            self.release(pool_name, tuple(page for where, page in refs if where == pool_name and owner[page] == mine))

    def free_count(self, pool_name: PoolName) -> int:
        """The number of free pages."""
        return len(self.state.pools[pool_name].free)

    def tick(self) -> int:
        """A moment later than all before."""
        self.state.clock += 1
        return self.state.clock
