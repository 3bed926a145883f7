"""Faults of backup: gaps in the prefix, the wrong moment, the wrong order, and sources that may go."""

from hicache_ref.faults.catalogue import OWN, WRITE_BACK, plant
from hicache_ref.model import Model
from hicache_ref.model.state import Direction, Node, Part, Ticket
from hicache_ref.vocabulary.ids import ROOT, NodeId
from hicache_ref.vocabulary.operations import SetWritePolicy, WriteBackup
from hicache_ref.vocabulary.outcomes import Done, Refused, Submitted


@plant("child-backup-refused", "K4", "SG-25065", expected="HC-BACKUP-05")
class ChildBackupRefused(Model):
    """A node below one that is not backed up is not backed up either, and nobody is told.

    SGLang's unified tree: a split inside an insert leaves a fresh parent without host copy, and the check for
    contiguity silently refuses the child.
    """

    def _scope(self, node: Node) -> list[NodeId]:
        """The node, if what is above it is on host."""
        above = self.state.nodes[node.parent]
        return super()._scope(node) if above.id == ROOT or above.host is not None else []


@plant("backup-of-node-alone", "K4", OWN, expected="HC-BACKUP-01")
class BackupOfNodeAlone(Model):
    """A backup copies the node alone, and leaves a gap above it.

    SGLang up to 0.5.9 does so by design; there it is a rule, here the rules promise a prefix.
    """

    def _scope(self, node: Node) -> list[NodeId]:
        """The node."""
        return [node.id]


@plant("chain-child-first", "K4", OWN, expected=("HC-BACKUP-02", "HC-BACKUP-01"))
class ChainChildFirst(Model):
    """The chain is copied from the leaf upwards, so that it has a gap if it does not end."""

    def _scope(self, node: Node) -> list[NodeId]:
        """The other way round."""
        return super()._scope(node)[::-1]


@plant("backup-source-unpinned", "K6", OWN, expected="HC-BACKUP-03")
class BackupSourceUnpinned(Model):
    """The node that a backup reads is not pinned, and may be evicted while it is copied."""

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """Loads are pinned."""
        return super().submit(to, anchor, parts, pinned=pinned and to == "device")


@plant("hit-counts-twice", "K10", OWN, expected=("HC-BACKUP-05", "HC-EVICT-10"))
class HitCountsTwice(Model):
    """An insert counts two hits on each node that it finds."""

    def count_hit(self, node: Node) -> bool:
        """Once more than once."""
        return super().count_hit(node) | super().count_hit(node)


@plant("threshold-off-by-one", "K4", OWN, expected="HC-BACKUP-05")
class ThresholdOffByOne(Model):
    """A node is backed up one hit later than the threshold says."""

    def count_hit(self, node: Node) -> bool:
        """Above the threshold, not at it."""
        return super().count_hit(node) and node.hits > self.rules.hits_before_backup(self.state.policy)


@plant(
    "backup-refused-beside-room", "K11", OWN, expected="HC-CONF-02",
    lockstep_only="no requirement says that a backup which has room is submitted when it is asked for by name",
)  # fmt: skip
class BackupRefusedBesideRoom(Model):
    """A backup that is asked for is refused, although there is room for it."""

    def on_write_backup(self, op: WriteBackup) -> Submitted | Refused:
        """Always."""
        return Refused(why="host full")


@plant("write-back-backs-up-early", "K4", OWN, expected="HC-BACKUP-05", rules=WRITE_BACK)
class WriteBackBacksUpEarly(Model):
    """Under write_back an insert backs nodes up as if the policy were write_through."""

    def count_hit(self, node: Node) -> bool:
        """Every node without host copy is due."""
        return super().count_hit(node) or node.host is None


@plant("policy-change-leaves-gap", "K4", "OR-7", expected="HC-BACKUP-01", rules=WRITE_BACK)
class PolicyChangeLeavesGap(Model):
    """A change from write_back to a write-through policy is accepted while host data lacks its prefix.

    SGLang changes the policy at attach, and keeps a backed-up set that need not be a prefix.
    """

    def on_set_write_policy(self, op: SetWritePolicy) -> Done | Refused:
        """Always."""
        self.state.policy = op.policy
        return Done()
