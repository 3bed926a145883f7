"""Faults of locks: pins that are lost, kept, or undone by somebody else."""

from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, plant
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.locks import Pins
from hicache_ref.model.state import Node, Ticket
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, Component, NodeId
from hicache_ref.vocabulary.operations import LoadBack, Lock, Operation, Unlock
from hicache_ref.vocabulary.outcomes import Done, Invalid, Refused, Submitted


@plant("evicted-lock-drives-sums", "K10", "R19", expected=("HC-PAGE-09", "HC-EVICT-08", "HC-EVICT-11"))
class EvictedLockDrivesSums(Model):
    """Locking a node that is on host only takes its pages from the evictable ones, where they are not counted.

    SGLang's HiRadixCache: the evictable size falls to minus the length of the node until it is unlocked.
    """

    def _change_lock(self, node: Node, component: Component, by: int) -> None:
        """Its length counts, resident or not."""
        was = node.locks[component]
        super()._change_lock(node, component, by)
        if node.device is None and bool(was) != bool(was + by):
            self.state.evictable -= by * len(node.key)
            self.state.protected += by * len(node.key)


@plant("lock-outlives-policy", "K3", "R16", expected="HC-LOCK-01")
class LockOutlivesPolicy(Model):
    """The lock of a write-through copy is not released if the policy has become write_back when the copy ends.

    SGLang's blocking check of write_back takes the copy off its list and does not unlock the node.
    """

    def apply_end(self, ticket: Ticket) -> set[str]:
        """The pins are forgotten."""
        if self.state.policy == "write_back" and ticket.to == "host":
            self.state.tickets[ticket.id] = replace(ticket, pins=())
        return super().apply_end(ticket)


@plant("unlock-skips-by-tier", "K3", "OR-12", expected="HC-LOCK-01")
class UnlockSkipsByTier(Model):
    """An unlock passes over nodes that are on host only by then, although the lock had counted them.

    SGLang's caches decide at lock and at unlock by the present tier of a node, not by what the lock did.
    """

    def unpin(self, pins: Pins) -> None:
        """Resident nodes only."""
        super().unpin(tuple(pin for pin in pins if KV_DEVICE in self.state.nodes[pin[1]].at))


@plant("unlock-takes-anothers-lock", "K3", "SG-24972", expected=("HC-LOCK-02", "HC-CONF-01"))
class UnlockTakesAnothersLock(Model):
    """An unlock walks up from the key's end as it is now, and undoes locks that somebody else took after a revival.

    SGLang: acquire skips a node without the copy, a load brings it back and locks it, and the first holder's release
    does not remember the skip. Two methods, since the lock has to note where it began.
    """

    def on_lock(self, op: Lock) -> Done:
        """The node at the key's end is remembered."""
        told = super().on_lock(op)
        self.__dict__.setdefault("ends", {})[op.receipt] = self.look(self.pages(op.key), op.key.extra).node.id
        return told

    def on_unlock(self, op: Unlock) -> Done:
        """Everything resident from there up loses a lock."""
        end: NodeId = self.__dict__["ends"].pop(op.receipt)
        held = self.state.receipts[op.receipt]
        if end in self.state.nodes:
            now = tuple((KV, each) for each in self.path(end) if KV_DEVICE in self.state.nodes[each].at)
            self.state.receipts[op.receipt] = replace(held, pins=now)
        return super().on_unlock(op)


@plant("load-keeps-its-pin", "K3", "LM-3884", expected="HC-LOCK-01")
class LoadKeepsItsPin(Model):
    """What a load pinned stays locked after the load was applied.

    LMCache's retrieve kept reference and pin of each chunk after it had copied it out.
    """

    def apply_end(self, ticket: Ticket) -> set[str]:
        """The pins of a load are forgotten."""
        if ticket.to == "device":
            self.state.tickets[ticket.id] = replace(ticket, pins=())
        return super().apply_end(ticket)


@plant("refused-load-keeps-pin", "K3", "LM-2785", expected="HC-LOAD-01")
class RefusedLoadKeepsPin(Model):
    """A load that found no room leaves its path locked.

    LMCache's membership test pins, and one of the ways on from there has no unpin.
    """

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """The path is pinned once more than unpinned."""
        node = self.node_at(op.key)
        told = super().on_load_back(op)
        if isinstance(told, Refused) and node is not None and told.why == "device full":
            self.pin(node.id, evicted_too=True)
        return told


@plant("unpinned-twice", "K3", "LM-2954", "LM-1057", expected=("HC-LOCK-01", "HC-CONF-01"))
class UnpinnedTwice(Model):
    """Two routines undo the pin of an ended copy, each for good reason; the second one takes another's lock.

    LMCache: one repair releases staging copies, another one look-up pins, and for the CPU backend both are the same
    object; elsewhere there a count that stands for "never free" is lowered like any other.
    """

    def apply_end(self, ticket: Ticket) -> set[str]:
        """The pins are undone again where a lock is left."""
        told = super().apply_end(ticket)
        nodes = self.state.nodes
        self.unpin(tuple(pin for pin in ticket.pins if pin[1] in nodes and nodes[pin[1]].locks[pin[0]]))
        return told


@plant("lock-pins-nothing", "K3", OWN, expected="HC-LOCK-02")
class LockPinsNothing(Model):
    """A lock gives a receipt that names no node, and the path is evicted under its holder."""

    def on_lock(self, op: Lock) -> Done:
        """What was pinned is unpinned again."""
        told = super().on_lock(op)
        self.unpin(self.state.receipts[op.receipt].pins)
        self.state.receipts[op.receipt] = replace(self.state.receipts[op.receipt], pins=())
        return told


@plant("unlock-tells-the-whole-path", "K3", OWN, expected="HC-LOCK-06")
class UnlockTellsTheWholePath(Model):
    """An unlock tells every page of its path to be evictable, also those that another receipt still pins."""

    def on_unlock(self, op: Unlock) -> Done:
        """All that the receipt named is told."""
        pins = self.state.receipts[op.receipt].pins
        pages = sum(len(self.state.nodes[n].at.get(KV_DEVICE, ())) for component, n in pins if component == KV)
        return super().on_unlock(op).model_copy(update={"evictable": pages})


@plant("lock-without-split", "K3", OWN, expected="HC-LOCK-02")
class LockWithoutSplit(Model):
    """A lock whose key ends inside a node pins all of that node, also what the key does not have."""

    def on_lock(self, op: Lock) -> Done:
        """Such a node is taken for the end of the key."""
        found = self.look(self.pages(op.key), op.key.extra)
        if op.at == "node" or not found.inside:
            return super().on_lock(op)
        return super().on_lock(op.model_copy(update={"key": self.key_of(found.node)}))


@plant("lock-pins-only-the-end", "K3", OWN, expected=("HC-LOCK-04", "HC-BACKUP-03", "HC-LOAD-05"))
class LockPinsOnlyTheEnd(Model):
    """A lock pins the node at its end and nothing above it, so that the path is evicted from above."""

    def pin(self, anchor: NodeId, *, evicted_too: bool) -> Pins:
        """Everything above the end is unpinned again."""
        pins = super().pin(anchor, evicted_too=evicted_too)
        self.unpin(tuple(pin for pin in pins if pin[1] != anchor))
        return tuple(pin for pin in pins if pin[1] == anchor)


@plant("removed-node-stays-pinned", "K3", OWN, expected="HC-LOCK-05")
class RemovedNodeStaysPinned(Model):
    """Receipts go on naming a node that a failed copy took out of the tree."""

    def forget_node(self, number: NodeId) -> None:
        """Copies forget it."""
        receipts = self.state.receipts.copy()
        super().forget_node(number)
        self.state.receipts = receipts


@plant("refused-lock-leaves-trace", "K15", OWN, expected="HC-CONF-04")
class RefusedLockLeavesTrace(Model):
    """A lock under a receipt that is in use is refused, and makes its path recently used all the same."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """Also where the answer is no."""
        step = super().step(op, choose)
        if isinstance(op, Lock) and isinstance(step.outcome, Invalid):
            self.touch(self.look(self.pages(op.key), op.key.extra).node.id)
        return step
