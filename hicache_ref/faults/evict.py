"""Faults of eviction: too little, too much, the wrong node, in the wrong order, or for nothing."""

from collections.abc import Iterable, Iterator

from hicache_ref.faults.catalogue import OWN, STAGED, WRITE_BACK, plant
from hicache_ref.model import Model
from hicache_ref.model.evict import Rank
from hicache_ref.model.state import Node, Ticket
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, ROOT, NodeId, PoolName
from hicache_ref.vocabulary.keys import PageKeys
from hicache_ref.vocabulary.operations import Evict
from hicache_ref.vocabulary.outcomes import Evicted, Refused


@plant("evict-forgets-parents", "K5", "D2", "SG-5499", expected=("HC-EVICT-03", "HC-EVICT-06", "HC-EVICT-02"))
class EvictForgetsParents(Model):
    """A sweep ends with the leaves that it began with: a parent that became a leaf is not looked at.

    SGLang's hybrid cache does not push the surviving ancestor of a cascade; its early write-back never filled the
    list of nodes whose parents had to be looked at again.
    """

    def _victims(self, pool_name: PoolName, leaves: set[NodeId]) -> Iterator[Node]:
        """The set as it is now."""
        return super()._victims(pool_name, leaves.copy())


@plant("failed-backup-demotes", "K12", "D3", "SG-27108", expected="HC-TREE-03", rules=WRITE_BACK)
class FailedBackupDemotes(Model):
    """Under write_back a node leaves the device although its backup found no room or failed.

    SGLang's hybrid cache and unified tree ignored what the backup returned; the next step met a node without host
    copy.
    """

    def evict_device_leaf(self, node: Node) -> None:
        """Whatever the backup says."""
        if self.state.policy != "write_back" or node.host is not None:
            super().evict_device_leaf(node)
        elif not self._write_back(node):
            self.leave_device(node)


@plant("host-eviction-takes-victim", "K2", "D14", expected=("HC-PAGE-01", "HC-PAGE-05", "HC-PAGE-08"), rules=WRITE_BACK)
class HostEvictionTakesVictim(Model):
    """Host eviction for a backup cascades upwards, and frees the pages of the very node that is being backed up.

    SGLang's hybrid cache under write_back: the victim's device pages are freed, copied from, and freed again.
    """

    def evict_host(self, count: int) -> Evicted:
        """A parent that is left without children and without host copy gives its pages up."""
        above = [self.state.nodes[number].parent for number in self.state.host_leaves]
        evicted = super().evict_host(count)
        for number in above:
            node = self.state.nodes.get(number)
            if node is not None and number != ROOT and not node.children and node.host is None:
                self.release(KV_DEVICE, node.at[KV_DEVICE])
        return evicted


@plant("host-eviction-counts-nodes", "K10", "D15", expected="HC-EVICT-03")
class HostEvictionCountsNodes(Model):
    """Host eviction reports another number of pages than it freed.

    SGLang's hybrid cache counts the device tokens of what a cascade removes, and not the host tokens.
    """

    def evict_host(self, count: int) -> Evicted:
        """One for each node."""
        before = len(self.state.nodes)
        super().evict_host(count)
        return Evicted(freed=before - len(self.state.nodes))


@plant("host-eviction-empties-pool", "K10", "SG-4987", expected="HC-EVICT-07")
class HostEvictionEmptiesPool(Model):
    """Host eviction goes on until no leaf remains, however little was asked for.

    SGLang's early evict_host never raised the counter on which its loop depends.
    """

    def evict_host(self, count: int) -> Evicted:
        """As much as there is."""
        return super().evict_host(len(self.state.pools[KV_HOST].owner))


@plant("host-evicted-beside-free-pages", "K4", "TR-18868", expected=("HC-EVICT-07", "HC-EVICT-09", "HC-PREF-08"))
class HostEvictedBesideFreePages(Model):
    """A backup evicts host content as if no page were free.

    TensorRT-LLM queues an emptied slot behind live blocks, which are evicted first.
    """

    def host_room(self, count: int, states: int = 0) -> bool:
        """Free pages do not count."""
        if self._host_can_free(count):
            self.evict_host(count)
        return super().host_room(count, states)


@plant("host-evicted-for-hopeless", "K4", "OR-11", "LM-4659", expected=("HC-EVICT-07", "HC-EVICT-06"))
class HostEvictedForHopeless(Model):
    """Host content is evicted for a backup that finds no room even then.

    SGLang's write_backup and LMCache's disk admission evict before they know that it helps.
    """

    def host_room(self, count: int, states: int = 0) -> bool:
        """Nobody asks whether it suffices."""
        short = count - self.free_count(KV_HOST)
        if short > 0:
            self.evict_host(short)
        return count <= self.free_count(KV_HOST)


@plant("device-evicted-for-hopeless", "K4", OWN, expected=("HC-EVICT-06", "HC-EVICT-07"))
class DeviceEvictedForHopeless(Model):
    """Device content is evicted for a request that is refused all the same."""

    def device_room(self, count: int, states: int = 0, *, for_copy: bool = False) -> Refused | None:
        """Nobody asks whether it suffices."""
        short = count - self.free_count(KV_DEVICE)
        if short > 0:
            self.evict_device(short)
        return super().device_room(count, states, for_copy=for_copy)


@plant("device-full-of-leaves", "K11", OWN, expected=("HC-EVICT-08", "HC-EVICT-11"))
class DeviceFullOfLeaves(Model):
    """A request for pages is refused although evicting a leaf would make room for it."""

    def device_room(self, count: int, states: int = 0, *, for_copy: bool = False) -> Refused | None:
        """What is free, and nothing more."""
        return Refused(why="device full") if count > self.free_count(KV_DEVICE) else None


@plant("write-back-drops", "K4", OWN, expected="HC-EVICT-09", rules=WRITE_BACK)
class WriteBackDrops(Model):
    """Under write_back a node without host copy is dropped, although there is room for one."""

    def _write_back(self, node: Node) -> bool:
        """Never."""
        return False


@plant("pruned-not-demoted", "K4", "SG-33713", expected=("HC-EVICT-05", "HC-EVICT-09"))
class PrunedNotDemoted(Model):
    """A backed-up node that leaves the device leaves the tree too, and its host copy is lost.

    SGLang's unified tree with recurrent state: pages arrive on host, and the next match finds nothing to load.
    """

    def evict_device_leaf(self, node: Node) -> None:
        """Dropped where it can be."""
        if not self._drop(node):
            super().evict_device_leaf(node)


@plant("evict-gives-up-early", "K11", "VL-55461", expected=("HC-EVICT-03", "HC-EVICT-06", "HC-EVICT-08"))
class EvictGivesUpEarly(Model):
    """Eviction takes leaves that are backed up, and ends where none is left, although others could go.

    vLLM's ARC policy prefers one of its lists and ends when that runs dry.
    """

    def _victims(self, pool_name: PoolName, leaves: set[NodeId]) -> Iterator[Node]:
        """Backed-up leaves and what becomes a leaf by that."""
        nodes = self.state.nodes
        return super()._victims(pool_name, {number for number in leaves if nodes[number].host is not None})


@plant("staged-counts-as-freed", "K12", OWN, expected="HC-EVICT-03", rules=STAGED)
class StagedCountsAsFreed(Model):
    """Eviction reports pages as free that a copy still reads."""

    def on_evict(self, op: Evict) -> Evicted:
        """Given up is freed."""
        evicted = self.evict_device(op.n)
        return Evicted(freed=evicted.freed + evicted.staged)


@plant("lru-by-first-use", "K5", OWN, expected="HC-EVICT-02", rules={"eviction": "lru"})
class LruByFirstUse(Model):
    """The least recently used node is the one that came first, whatever was used since."""

    def _rank(self, number: NodeId) -> Rank:
        """By age."""
        super()._rank(number)
        return (self.state.nodes[number].born,)


@plant(
    "poll-makes-recent", "K5", OWN, expected="HC-MATCH-06", rules={"eviction": "lru"},
)  # fmt: skip
class PollMakesRecent(Model):
    """The end of a copy counts as a use of its nodes, so that what was copied last is evicted last."""

    def apply_end(self, ticket: Ticket) -> set[str]:
        """Its nodes are used now."""
        told = super().apply_end(ticket)
        for node in self.owners(KV_HOST, tuple(page for part in ticket.parts for page in part.host)):
            self.stamp(node)
        return told


@plant(
    "birth-not-noted", "K5", OWN, expected="HC-EVICT-02", rules={"eviction": "fifo"},
    lockstep_only="no requirement says when a node was born; the order of victims is judged by what nodes say",
)  # fmt: skip
class BirthNotNoted(Model):
    """Every node is as old as the cache, and first in, first out is by recency."""

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """Born at the beginning."""
        node = super().attach(above, key, extra, priority)
        node.born = 0
        return node


@plant("slru-protects-too-late", "K5", OWN, expected="HC-EVICT-02", rules={"eviction": "slru"})
class SlruProtectsTooLate(Model):
    """A node is protected one use later than the threshold says."""

    def _rank(self, number: NodeId) -> Rank:
        """Above the threshold, not at it."""
        _, last = super()._rank(number)
        return (int(self.use_count(self.state.nodes[number]) > self.rules.slru_protected_threshold), last)


@plant("priority-upside-down", "K5", OWN, expected="HC-EVICT-02", rules={"eviction": "priority"})
class PriorityUpsideDown(Model):
    """Nodes of high priority are evicted first."""

    def _rank(self, number: NodeId) -> Rank:
        """The other way round."""
        priority, last = super()._rank(number)
        return (-priority, last)


@plant(
    "uses-end-under-write-back", "K5", OWN, expected="HC-EVICT-10", rules={**WRITE_BACK, "eviction": "lfu"},
)  # fmt: skip
class UsesEndUnderWriteBack(Model):
    """Under write_back no use is counted, and the least frequently used node is the least recently used one.

    SGLang has one count for eviction and backup, and leaves it alone where no hit leads to a backup.
    """

    def count_hit(self, node: Node) -> bool:
        """What counts toward a backup."""
        return self.state.policy != "write_back" and super().count_hit(node)


@plant("split-forgets-uses", "K5", OWN, expected="HC-EVICT-10", rules={"eviction": "lfu"})
class SplitForgetsUses(Model):
    """The upper half of a split node begins anew, and goes before nodes that were used less often."""

    def split(self, lower: Node, at: int) -> Node:
        """As if it were a new node."""
        upper = super().split(lower, at)
        upper.uses = 0
        return upper


@plant("lfu-ignores-hits", "K5", OWN, expected="HC-EVICT-02", rules={"eviction": "lfu"})
class LfuIgnoresHits(Model):
    """The least frequently used node is the least recently used one."""

    def _rank(self, number: NodeId) -> Rank:
        """By recency alone."""
        return super()._rank(number)[1:]


@plant("one-of-several-is-named", "K11", OWN, expected="HC-EVICT-11")
class OneOfSeveralIsNamed(Model):
    """Who needs a page that several operations touch is told to wait for one of them, and asks again in vain."""

    def touching(self, pool_name: PoolName, pages: Iterable[int]) -> set[str]:
        """The last by name."""
        return set(sorted(super().touching(pool_name, pages))[-1:])
