"""Faults of insert: what a request's pages hold, which of them come back, and what may happen meanwhile."""

from typing import Any

from hicache_ref.faults.catalogue import OWN, plant
from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.keys import PageKeys
from hicache_ref.vocabulary.operations import GiveBack, Insert, TakePages
from hicache_ref.vocabulary.outcomes import Done, Inserted, Invalid, Refused, Took


@plant("stale-match-inserted", "K6", "VL-42289", expected="HC-TREE-02")
class StaleMatchInserted(Model):
    """An insert trusts the prefix that was resident when the request matched, although it is gone by now.

    vLLM's SimpleCPUOffload: look-up and use are two calls, and nothing pins the found blocks in between.
    """

    def requires_insert(self, op: Insert) -> Invalid | None:
        """Whether the prefix is still there is not asked."""
        why = super().requires_insert(op)
        return None if why is not None and why.why.endswith("are not resident") else why


@plant("evicted-while-inserting", "K6", "TR-17926", expected=("HC-EVICT-07", "HC-TREE-06"))
class EvictedWhileInserting(Model):
    """An insert allocates half way, and the eviction for that takes the node that it is about to extend.

    TensorRT-LLM's cache manager v2: a commit allocates, the allocation evicts, and eviction detaches blocks of the
    chain that is being committed.
    """

    def _attach_rest(self, above: Node, pages: PageKeys, walk: Any) -> Node:
        """Room is made first, where the node above is on host too: one that is dropped could not be extended."""
        if not self.free_count(KV_DEVICE) and above.host is not None:
            self.evict_device(1)
        return super()._attach_rest(above, pages, walk)


@plant("insert-forgets-start", "K9", "TS-293", expected=("HC-INSERT-02", "HC-CONF-01"))
class InsertForgetsStart(Model):
    """The pages of a request, which hold the end of its key, are inserted as if they held the beginning.

    A prefetch of TokenSpeed asks only for what is not on host, and its completion forgets that offset.
    """

    def on_insert(self, op: Insert) -> Inserted:
        """From the start."""
        return super().on_insert(op.model_copy(update={"start": 0}))


@plant("duplicates-never-freed", "K1", OWN, expected="HC-PAGE-02")
class DuplicatesNeverFreed(Model):
    """The duplicates that an insert gives back never reach the free list."""

    def on_insert(self, op: Insert) -> Inserted:
        """They are taken off the list again."""
        told = super().on_insert(op)
        free = self.state.pools[KV_DEVICE].free
        free[:] = [page for page in free if page not in told.given_back]
        return told


@plant("fewer-pages-than-asked", "K14", OWN, expected="HC-PAGE-10")
class FewerPagesThanAsked(Model):
    """A request that asks for several pages gets one less."""

    def on_take_pages(self, op: TakePages) -> Took | Refused:
        """One less, but at least one."""
        return super().on_take_pages(op.model_copy(update={"n": max(1, op.n - 1)}))


@plant("give-back-ends-pass", "K6", OWN, expected="HC-XFER-11")
class GiveBackEndsPass(Model):
    """A request that gives its pages back takes its running pass off the books, and the pages are free under it."""

    def on_give_back(self, op: GiveBack) -> Done:
        """The pass is forgotten first."""
        self.state.passes.pop(op.rid, None)
        return super().on_give_back(op)


@plant("request-keeps-pages", "K2", OWN, expected="HC-INSERT-03")
class RequestKeepsPages(Model):
    """After an insert the request still holds the pages that are the tree's now."""

    def on_insert(self, op: Insert) -> Inserted:
        """The request stays."""
        request = self.state.requests[op.rid]
        told = super().on_insert(op)
        self.state.requests[op.rid] = request
        return told


@plant("chunks-count-again", "K10", OWN, expected=("HC-BACKUP-05", "HC-EVICT-10"))
class ChunksCountAgain(Model):
    """Each chunk of a request counts a hit on everything that the request has inserted before."""

    def on_insert(self, op: Insert) -> Inserted:
        """Nothing was inserted before."""
        return super().on_insert(op.model_copy(update={"inserted": 0}))


@plant("priority-not-raised", "K5", OWN, expected="HC-INSERT-04", rules={"eviction": "priority"})
class PriorityNotRaised(Model):
    """An insert of high priority does not raise that of the nodes on its path."""

    def on_insert(self, op: Insert) -> Inserted:
        """All inserts are alike."""
        return super().on_insert(op.model_copy(update={"priority": 0}))
