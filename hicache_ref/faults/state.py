"""Faults of recurrent state in the tree: where matches end, and what splits and locks do to states."""

from hicache_ref.faults.catalogue import OWN, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.locks import LockRules, Pins
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, STATE, STATE_DEVICE, STATE_HOST, NodeId, Pages, PoolName
from hicache_ref.vocabulary.operations import Lock, MatchPrefix
from hicache_ref.vocabulary.outcomes import Done, Matched

# -- matches and splits ---------------------------------------------------------------------------------------------


@plant_in_hybrid(
    "match-ends-with-kv", "K14", "SG-25088", expected=("HC-STATE-03", "HC-STATE-24", "HC-MATCH-02", "HC-LOCK-02")
)
class MatchEndsWithKv(Model):
    """A match ends where KV ends, with or without a state there.

    SGLang's unified tree: KV, window and state have different deepest nodes, and the KV one was taken for all.
    """

    def best_end(self, node: Node) -> Node:
        """The node that the key reaches."""
        return node


@plant_in_hybrid("match-ignores-host-states", "K11", OWN, expected=("HC-MATCH-02", "HC-MATCH-03"))
class MatchIgnoresHostStates(Model):
    """A match ends at a state on device, so that states on host are never asked for again."""

    def best_end(self, node: Node) -> Node:
        """Where a request could go on at once."""
        return self.resident_end(node)


@plant_in_hybrid(
    "device-end-with-kv", "K14", "D13", expected=("HC-STATE-03", "HC-MATCH-02", "HC-CONF-01", "HC-LOAD-04")
)
class DeviceEndWithKv(Model):
    """The device end is the deepest resident node, and the state that comes with it is that of another position.

    SGLang's hybrid cache: the prefix of a request is longer than the state that it goes on from.
    """

    def resident_end(self, node: Node) -> Node:
        """States do not count."""
        while KV_DEVICE not in node.at:
            node = self.state.nodes[node.parent]
        return node


@plant_in_hybrid("branching-off-the-grid", "K14", OWN, expected="HC-STATE-04")
class BranchingOffTheGrid(Model):
    """The branching length is as far as KV reaches, also inside a chunk, where no state can be made."""

    def _branching(self, reach: Node, best: Node) -> int:
        """Not aligned."""
        while KV_DEVICE not in reach.at:
            reach = self.state.nodes[reach.parent]
        depth = self.depth(reach)
        return depth if depth > self.depth(best) else 0


@plant_in_hybrid("match-leaves-state-old", "K5", "N5", "SG-12007", expected="HC-STATE-24")
class MatchLeavesStateOld(Model):
    """A match makes its path recently used, and not the state at its end, which is then evicted first.

    SGLang from 0.5.16: states have a clock of their own, and the hybrid cache moves them in the list without it.
    """

    def touch(self, number: NodeId) -> None:
        """States are as old as before."""
        for each in reversed(self.path(number)):
            self.stamp(self.state.nodes[each])


@plant_in_hybrid(
    "split-takes-state-up", "K14", OWN, expected=("HC-STATE-02", "HC-EVICT-01", "HC-PAGE-06", "HC-PAGE-07")
)
class SplitTakesStateUp(Model):
    """A split hands the node's state to the upper half, whose end is not where the state was made."""

    def split(self, lower: Node, at: int) -> Node:
        """The states go along."""
        upper = super().split(lower, at)
        for pool_name in (STATE_DEVICE, STATE_HOST):
            if pool_name in lower.at:
                upper.at[pool_name] = lower.at.pop(pool_name)
                self.own(pool_name, upper.at[pool_name], upper.id)
        return upper


@plant_in_hybrid("split-shares-state", "K2", OWN, expected=("HC-PAGE-01", "HC-STATE-02"))
class SplitSharesState(Model):
    """After a split both halves have the same state slot."""

    def split(self, lower: Node, at: int) -> Node:
        """Also the upper one."""
        upper = super().split(lower, at)
        if STATE_DEVICE in lower.at:
            upper.at[STATE_DEVICE] = lower.at[STATE_DEVICE]
        return upper


@plant_in_hybrid("split-under-copy-takes-state", "K6", OWN, expected=("HC-STATE-02", "HC-STATE-07", "HC-PAGE-07"))
class SplitUnderCopyTakesState(Model):
    """A split while the node's state is copied to host hands what is being written to the upper half."""

    def split(self, lower: Node, at: int) -> Node:
        """The state on host goes along, if it is on its way there."""
        upper = super().split(lower, at)
        slots = lower.at.get(STATE_HOST)
        if slots is not None and self.is_being_written(STATE_HOST, slots):
            upper.at[STATE_HOST] = lower.at.pop(STATE_HOST)
            self.own(STATE_HOST, slots, upper.id)
        return upper


# -- locks ----------------------------------------------------------------------------------------------------------


@plant_in_hybrid("unlock-takes-later-state", "K3", "D8", expected=("HC-STATE-06", "HC-CONF-01"))
class UnlockTakesLaterState(Model):
    """An unlock releases the state that is there by then, although it came after the lock, and another holds it.

    SGLang's hybrid cache asks at the unlock whether there is a state: a lock on a tombstone, a state attached, a
    second lock, and the first unlock takes the lock of the second.
    """

    def unpin(self, pins: Pins) -> None:
        """By what is there now."""
        kv = tuple(pin for pin in pins if pin[0] == KV)
        there = kv and STATE_DEVICE in self.state.nodes[kv[0][1]].at
        super().unpin((*kv, (STATE, kv[0][1])) if there else kv)


@plant_in_hybrid("unlock-by-count", "K3", "SG-24972", expected=("HC-STATE-06", "HC-CONF-01"))
class UnlockByCount(Model):
    """An unlock lowers the state lock count of its end wherever that is not zero, whoever raised it.

    SGLang: acquire skips a component without value, a load restores it and locks it, and the first holder's release
    does not remember the skip.
    """

    def unpin(self, pins: Pins) -> None:
        """By the counter."""
        kv = tuple(pin for pin in pins if pin[0] == KV)
        locked = kv and self.state.nodes[kv[0][1]].locks[STATE]
        super().unpin((*kv, (STATE, kv[0][1])) if locked else kv)


@plant_in_hybrid("path-pins-its-states", "K3", OWN, expected="HC-STATE-16")
class PathPinsItsStates(Model):
    """A lock pins the state of every node of its path, so that none can be evicted, although one is needed."""

    def on_lock(self, op: Lock) -> Done:
        """Those above too."""
        told = super().on_lock(op)
        held, nodes = self.state.receipts[op.receipt], self.state.nodes
        named = [number for _, number in held.pins]
        more = [nodes[each] for each in named if STATE_DEVICE in nodes[each].at and named.count(each) == 1]
        for node in more:
            self._change_lock(node, STATE, +1)
        self._rewrite(held, (*held.pins, *((STATE, node.id) for node in more)))
        return told


@plant_in_hybrid("host-state-not-told", "K12", OWN, expected="HC-MATCH-02")
class HostStateNotTold(Model):
    """A match does not tell that the state at its host end has to come back too, and no slot is kept for it."""

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        """No state is on host only."""
        return super().on_match_prefix(op).model_copy(update={"state_host_hit": 0})


@plant_in_hybrid("state-pinned-without-kv", "K3", OWN, expected=("HC-STATE-22", "HC-LOCK-02", "HC-EVICT-04"))
class StatePinnedWithoutKv(Model):
    """A lock pins the state at its end and not the KV before it, which is evicted from under its holder."""

    def pin(self, anchor: NodeId, *, evicted_too: bool) -> Pins:
        """The state, where there is one."""
        pins = super().pin(anchor, evicted_too=evicted_too)
        kv = tuple(pin for pin in pins if pin[0] == KV) if len(pins) and pins[-1][0] == STATE else ()
        LockRules.unpin(self, kv)
        return tuple(pin for pin in pins if pin not in kv)


@plant_in_hybrid("split-copies-state-lock", "K3", OWN, expected="HC-STATE-06")
class SplitCopiesStateLock(Model):
    """The upper half of a split has the state lock count of the lower one, and nobody ever lowers it."""

    def split(self, lower: Node, at: int) -> Node:
        """As for KV."""
        upper = super().split(lower, at)
        upper.locks[STATE] = lower.locks[STATE]
        return upper


@plant_in_hybrid("freed-state-zeroes-lock", "K3", "OR-9", expected=("HC-STATE-06", "HC-CONF-01"))
class FreedStateZeroesLock(Model):
    """When a node loses its state its lock count becomes 0, whoever holds it, which hides that somebody does.

    SGLang's hybrid cache takes a positive count from the sum of the protected slots, and goes on.
    """

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """The count is forgotten."""
        super().place(node, pool_name, pages)
        if pool_name == STATE_DEVICE and pages is None:
            node.locks[STATE] = 0
