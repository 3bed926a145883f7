"""Faults of reset, audit and refusals."""

from hicache_ref.faults.catalogue import OWN, plant
from hicache_ref.model import Model
from hicache_ref.vocabulary.operations import Audit, Reset
from hicache_ref.vocabulary.outcomes import Audited, Done, Refused


@plant("reset-does-not-wait", "K6", "OR-4", expected="HC-LIFE-02")
class ResetDoesNotWait(Model):
    """A reset drops running copies from the books, and their pages are given out again under them.

    SGLang's hybrid cache drops the lists of pending copies without waiting when storage is off, and never waits for
    loads.
    """

    def on_reset(self, op: Reset) -> Done | Refused:
        """Nothing is pending."""
        self.state.tickets.clear()
        self.state.passes.clear()
        return super().on_reset(op)


@plant(
    "reset-refused-at-rest", "K11", OWN, expected="HC-CONF-02",
    lockstep_only="no requirement says that a reset succeeds where nothing pends",
)  # fmt: skip
class ResetRefusedAtRest(Model):
    """A reset is refused while somebody holds a receipt, although nothing runs."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """Receipts count as work."""
        return Refused(why="receipts are held") if self.state.receipts else super().on_reset(op)


@plant("reset-keeps-receipts", "K3", OWN, expected="HC-LIFE-02")
class ResetKeepsReceipts(Model):
    """Receipts from before a reset are still good after it."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """The ledger is taken over."""
        receipts = self.state.receipts
        told = super().on_reset(op)
        self.state.receipts = receipts
        return told


@plant("audit-says-idle", "K11", OWN, expected="HC-CONF-05")
class AuditSaysIdle(Model):
    """An audit calls the cache idle while loads run."""

    def on_audit(self, op: Audit) -> Audited:
        """Loads are not asked about."""
        return Audited(pending=tuple(name for name in self.pending() if not name.startswith("d:")))
