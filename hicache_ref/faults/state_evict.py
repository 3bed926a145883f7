"""Faults of losing states: tombstones and their cascades, eviction of states, and slots given up wrongly."""

from collections.abc import Iterator

from hicache_ref.faults.catalogue import OWN, STAGED, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.locks import LockRules, Pins
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, STATE, STATE_DEVICE, STATE_HOST, NodeId, PoolName

# -- tombstones -----------------------------------------------------------------------------------------------------


@plant_in_hybrid("no-cascade", "K5", "D32", expected=("HC-STATE-07", "HC-EVICT-01"))
class NoCascade(Model):
    """A leaf that has lost its state stays in the tree, where no match can end at it.

    SGLang's hybrid cache keeps leaves without state on both tiers, in five ways.
    """

    def prune(self, number: NodeId) -> None:
        """It stays."""


@plant_in_hybrid("cascade-stops-at-parent", "K5", OWN, expected=("HC-STATE-07", "HC-EVICT-01"))
class CascadeStopsAtParent(Model):
    """A leaf without state goes, and the tombstone above that has thereby become a leaf stays."""

    def remove(self, node: Node) -> None:
        """Nobody looks further up."""
        parent = self.state.nodes[node.parent]
        held, parent.locks[KV] = parent.locks[KV], parent.locks[KV] + 1
        super().remove(node)
        parent.locks[KV] = held
        self.update_leaf(parent.id)


@plant_in_hybrid(
    "cascade-ignores-pins", "K5", "SG-23696", expected=("HC-LOCK-03", "HC-LOCK-01", "HC-CONF-01"),
    rules={"dead_ends": "leave"},
)  # fmt: skip
class CascadeIgnoresPins(Model):
    """A leaf without state leaves the tree although a lock or a copy holds it.

    SGLang's hybrid cache: the upward cascade deleted a parent that a prefetch or a write to storage was holding.
    """

    def is_in_use(self, node: Node) -> bool:
        """Asked of a node without state: no."""
        return super().is_in_use(node) and self.has_state(node)


@plant_in_hybrid("unlocked-tombstone-stays", "K5", OWN, expected="HC-STATE-07")
class UnlockedTombstoneStays(Model):
    """Whoever takes the last pin of a leaf without state leaves it in the tree."""

    def unpin(self, pins: Pins) -> None:
        """Counts and nothing else."""
        LockRules.unpin(self, pins)


# -- eviction -------------------------------------------------------------------------------------------------------


@plant_in_hybrid("leaf-demoted-without-state", "K4", "D32", expected="HC-STATE-08")
class LeafDemotedWithoutState(Model):
    """A leaf with a host copy of its KV is demoted and its state dropped, so that nobody can load what is on host.

    SGLang's hybrid cache keeps a leaf on host that no match can end at.
    """

    def evict_device_leaf(self, node: Node) -> None:
        """The KV copy is enough."""
        if node.host is not None:
            self.leave_device(node)
        else:
            super().evict_device_leaf(node)


@plant_in_hybrid("tombstone-loses-kv", "K4", OWN, expected=("HC-STATE-20", "HC-TREE-06", "HC-LOCK-03"))
class TombstoneLosesKv(Model):
    """An inner node whose state is evicted loses its KV with it, on which those below build."""

    def drop_state(self, node: Node, pool_name: PoolName) -> None:
        """On device both go."""
        if pool_name == STATE_DEVICE and node.children and node.device is not None and not node.locks[KV]:
            self.leave_device(node)
        else:
            super().drop_state(node, pool_name)


@plant_in_hybrid("tombstone-loses-host-state", "K4", "SG-29204", expected=("HC-STATE-20", "HC-STATE-07"))
class TombstoneLosesHostState(Model):
    """An inner node that becomes a tombstone on device keeps no state on host either.

    SGLang under write_back: the state of an inner node leaves the device, and no tier has it.
    """

    def drop_state(self, node: Node, pool_name: PoolName) -> None:
        """Both copies."""
        super().drop_state(node, pool_name)
        if pool_name == STATE_DEVICE and node.children:
            super().drop_state(node, STATE_HOST)


@plant_in_hybrid("state-goes-uncopied", "K4", "SG-29204", expected="HC-STATE-26", rules=STAGED)
class StateGoesUncopied(Model):
    """Under write_back the state of an inner node is evicted and lost, although the host has room for a copy."""

    def copy_before_state_goes(self, node: Node) -> None:
        """It goes as it is."""


@plant_in_hybrid(
    "locked-leaf-loses-state-and-kv", "K15", "D8b", expected="HC-LOCK-03",
    rules={"lock_state": "there"},
)  # fmt: skip
class LockedLeafLosesStateAndKv(Model):
    """An unlocked state at a leaf is evicted with the KV, although the KV is locked: the state came after the lock.

    SGLang's hybrid cache meets a leaf with a lock in the list of unlocked states, and an assertion fails.
    """

    def _goes_with_kv(self, node: Node) -> bool:
        """Only children make a difference."""
        return not node.children


@plant_in_hybrid("state-eviction-stops-early", "K11", OWN, expected="HC-STATE-09")
class StateEvictionStopsEarly(Model):
    """Eviction of states ends after the first one, however many were asked for."""

    def _state_victims(self, pool_name: PoolName) -> Iterator[Node]:
        """One."""
        for node in super()._state_victims(pool_name):
            yield node
            return


@plant_in_hybrid(
    "state-eviction-wants-leaves", "K11", OWN,
    expected=("HC-STATE-09", "HC-EVICT-02", "HC-EVICT-06", "HC-EVICT-08", "HC-LOAD-04"),
)  # fmt: skip
class StateEvictionWantsLeaves(Model):
    """Only states of leaves leave the device: those of inner nodes stay for ever, and requests find no slot."""

    def _state_victims(self, pool_name: PoolName) -> Iterator[Node]:
        """Leaves of the tree; what is passed over is no victim."""
        for node in super()._state_victims(pool_name):
            if node.children and pool_name == STATE_DEVICE:
                self.victims.pop()
            else:
                yield node


@plant_in_hybrid("host-states-never-refreshed", "K5", "R13", expected="HC-EVICT-02")
class HostStatesNeverRefreshed(Model):
    """States on host are evicted in the order in which their nodes were made, whatever was matched since.

    SGLang's hybrid cache: a match refreshes the list of device states, not that of host states.
    """

    def _state_victims(self, pool_name: PoolName) -> Iterator[Node]:
        """By birth on host."""
        if pool_name == STATE_DEVICE:
            yield from super()._state_victims(pool_name)
            return
        there = sorted((node.born, node.id) for node in self.state.nodes.values() if pool_name in node.at)
        for _, number in there:
            node = self.state.nodes.get(number)
            if node is not None and self.may_lose_state(node, pool_name):
                self.victims.append((pool_name, node.hashes[-1]))
                yield node


@plant_in_hybrid("locked-state-evicted", "K4", OWN, expected=("HC-EVICT-04", "HC-STATE-23", "HC-CONF-01"))
class LockedStateEvicted(Model):
    """The state of a node is evicted while a lock holds it."""

    def may_lose_state(self, node: Node, pool_name: PoolName) -> bool:
        """Locks do not count, all else does."""
        locks, node.locks[STATE] = node.locks[STATE], 0
        may = super().may_lose_state(node, pool_name)
        node.locks[STATE] = locks
        return may


@plant_in_hybrid("kv-goes-state-stays", "K4", OWN, expected=("HC-STATE-01", "HC-CONF-01"))
class KvGoesStateStays(Model):
    """A node that leaves the device keeps its state slot there, without the KV before it."""

    def leave_device(self, node: Node) -> None:
        """KV alone."""
        slots = node.at.pop(STATE_DEVICE, None)
        super().leave_device(node)
        if slots is not None:
            node.at[STATE_DEVICE] = slots


@plant_in_hybrid("state-slot-freed-twice", "K2", "R18", expected=("HC-PAGE-08", "HC-PAGE-01", "HC-STATE-09"))
class StateSlotFreedTwice(Model):
    """A state slot that an eviction gives up is freed once more by the node that it came from.

    SGLang's pool of state slots has no check for that, and hands the slot to two requests.
    """

    def drop_state(self, node: Node, pool_name: PoolName) -> None:
        """Twice."""
        slots = node.at.get(pool_name, ())
        super().drop_state(node, pool_name)
        self.release(pool_name, slots)


@plant_in_hybrid(
    "host-slot-freed-on-device", "K1", "R10", expected=("HC-PAGE-03", "HC-PAGE-02", "HC-PAGE-08", "HC-CONF-01")
)
class HostSlotFreedOnDevice(Model):
    """A state slot that a node gives up on host is freed in the pool of the device.

    SGLang's hybrid cache: states kept in another format go back to the allocator of the ordinary ones.
    """

    def drop_state(self, node: Node, pool_name: PoolName) -> None:
        """Of a host state."""
        slots = node.at.get(pool_name)
        if pool_name == STATE_DEVICE or slots is None:
            super().drop_state(node, pool_name)
            return
        self.place(node, pool_name, None)
        self.state.pools[STATE_DEVICE].free.extend(slots)
        self.prune(node.id)
