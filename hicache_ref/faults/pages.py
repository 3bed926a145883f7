"""Faults of owners: pages that leak, that two hold, or that are free while something still touches them."""

from collections.abc import Iterable

from hicache_ref.faults.catalogue import OWN, STAGED, plant
from hicache_ref.model import Model
from hicache_ref.model.state import Node, Owner, running
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, NodeId, Pages, PoolName


@plant("freed-under-copy", "K6", "VL-46951", "LM-3130", expected=("HC-XFER-01", "HC-XFER-05", "HC-PAGE-07"))
class FreedUnderCopy(Model):
    """A page that is given up while a copy still touches it is free at once.

    vLLM's OffloadingConnector misses some allocations, so that the pages of a running store are handed to a new
    request; LMCache's batched removal goes past the count that single removal honours.
    """

    def _touched(self, pool_name: PoolName, pages: Pages) -> dict[int, str]:
        """Only forward passes count."""
        return {page: name for page, name in super()._touched(pool_name, pages).items() if name.startswith("f:")}


@plant("freed-under-writing-pass", "K7", "SG-36738", expected=("HC-XFER-01", "HC-XFER-09"))
class FreedUnderWritingPass(Model):
    """A page that its request gives up is free at once, although the request's forward pass still writes it.

    SGLang with overlapped scheduling: a load then writes into the page, ordered after the scheduler's stream only.
    """

    def _touched(self, pool_name: PoolName, pages: Pages) -> dict[int, str]:
        """Pages that a pass writes do not count."""
        written = {ref for each in self.state.passes.values() for ref in each.writes}
        busy = super()._touched(pool_name, pages)
        return {page: name for page, name in busy.items() if (pool_name, page) not in written}


@plant("freed-under-reader", "K7", "VL-47282", "AT-373", expected=("HC-XFER-01", "HC-XFER-05", "HC-PAGE-07"))
class FreedUnderReader(Model):
    """A page that leaves the tree is free at once, although somebody still reads it.

    vLLM's SimpleCPUOffload loads into a reused page that kernels of its former owner read; the Atlas engine zeroes
    the page count at eviction although a sequence uses the page.
    """

    def _touched(self, pool_name: PoolName, pages: Pages) -> dict[int, str]:
        """Only writers count."""
        written = {ref for each in running(self.state) for ref in each.writes}
        busy = super()._touched(pool_name, pages)
        return {page: name for page, name in busy.items() if (pool_name, page) in written}


@plant("last-toucher-keeps-page", "K1", "LM-1130", expected="HC-PAGE-04")
class LastToucherKeepsPage(Model):
    """A page that two operations touched is never free again if the one that owned it ends first.

    LMCache frees an object when its reference count reaches zero unless it is pinned, and the unpin that comes
    later does not try again.
    """

    def let_go(self, name: str, refs: Iterable[tuple[PoolName, int]]) -> None:
        """What somebody else touches is left as it is."""
        super().let_go(name, [ref for ref in refs if not self._touched(ref[0], (ref[1],))])


@plant("staged-pages-kept", "K1", "SG-5499", "BI-744", expected="HC-PAGE-04", rules=STAGED)
class StagedPagesKept(Model):
    """The device pages of an evicted node stay taken after the copy that they waited for was applied.

    SGLang's early write-back never released the device copy at completion; the EIC backend of a fork returns before
    its staging slots are handed back.
    """

    def let_go(self, name: str, refs: Iterable[tuple[PoolName, int]]) -> None:
        """Only passes give back."""
        if name.startswith("f:"):
            super().let_go(name, refs)


@plant("host-pages-never-freed", "K1", "LM-987", expected="HC-PAGE-03")
class HostPagesNeverFreed(Model):
    """Host pages are never free again, so that the hit rate decays to nothing.

    LMCache 0.3.1 loses the memory objects of its CPU backend after a look-up.
    """

    def release(self, pool_name: PoolName, pages: Pages) -> None:
        """They are taken off the free list again."""
        super().release(pool_name, pages)
        if pool_name == KV_HOST:
            free = self.state.pools[pool_name].free
            free[:] = [page for page in free if page not in pages]


@plant("alias-of-free-list", "K1", "R11", "SG-21624", expected=("HC-PAGE-01", "HC-PREF-05", "HC-TREE-04"))
class AliasOfFreeList(Model):
    """A node keeps a view of the allocator's buffer instead of its pages, and the buffer goes on living.

    SGLang's host pool returns a view of its tensor of free slots. There the buffer is only kept alive; here the
    next allocation of that size is written into it, which makes the alias visible.
    """

    def take(self, pool_name: PoolName, count: int, owner: Owner) -> Pages:
        """One list for each pool and size."""
        buffers: dict[tuple[PoolName, int], list[int]] = self.__dict__.setdefault("buffers", {})
        buffer = buffers.setdefault((pool_name, count), [])
        buffer[:] = super().take(pool_name, count, owner)
        return buffer  # type: ignore[return-value]


@plant("victim-stays-cached", "K2", "VL-4764", expected=("HC-PAGE-01", "HC-PAGE-05"))
class VictimStaysCached(Model):
    """The pages of an evicted node are free, and the node still answers with them.

    vLLM's block manager v2 kept the content hash of a block that its evictor had given to somebody else.
    """

    def leave_device(self, node: Node) -> None:
        """The node keeps its copy."""
        self.release(KV_DEVICE, node.at[KV_DEVICE])


@plant("tier-read-after-swap", "K10", "TR-12834", expected=("HC-PAGE-01", "HC-PAGE-05", "HC-CONF-01"))
class TierReadAfterSwap(Model):
    """Device pages go to the free list of the tier on which the node is by then: the host.

    TensorRT-LLM looks up a block's tier through a property that the swap before has changed already.
    """

    def leave_device(self, node: Node) -> None:
        """The tier is asked for too late."""
        pages = node.at[KV_DEVICE]
        self.place(node, KV_DEVICE, None)
        self.release(KV_DEVICE if KV_DEVICE in node.at else KV_HOST, pages)


@plant("split-keeps-old-owner", "K5", OWN, expected="HC-PAGE-05")
class SplitKeepsOldOwner(Model):
    """After a split the owner map still gives the pages of the upper half to the lower node.

    What is asked by page (whose copy ended, who loses it) then gets the wrong node.
    """

    def own(self, pool_name: PoolName, pages: Iterable[int], node: NodeId) -> None:
        """Pages of a node stay with it."""
        owner = self.state.pools[pool_name].owner
        super().own(pool_name, [page for page in pages if owner[page][0] != "node"], node)
