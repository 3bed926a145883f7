"""Faults of polls, reset, audit and refusals, and of storage that comes and goes."""

from collections.abc import Callable

from hicache_ref.faults.catalogue import OWN, PAGES_FIRST, plant, plant_in_storage
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.records import BackupWriting, PrefetchEnded, PrefetchReading, Record
from hicache_ref.vocabulary.ids import KV_HOST
from hicache_ref.vocabulary.operations import Attach, Audit, ClearStorage, Detach, Insert, Operation, Poll, Reset
from hicache_ref.vocabulary.outcomes import Audited, Done, Polled, Refused


@plant("reset-does-not-wait", "K6", "OR-4", expected="HC-LIFE-02")
class ResetDoesNotWait(Model):
    """A reset drops running copies from the books, and their pages are given out again under them.

    SGLang's hybrid cache drops the lists of pending copies without waiting when storage is off, and never waits for
    loads.
    """

    def on_reset(self, op: Reset) -> Done | Refused:
        """No copy and no pass is pending; where storage is at work, nothing is dropped."""
        copies, passes = dict(self.state.tickets), dict(self.state.passes)
        self.state.tickets.clear()
        self.state.passes.clear()
        told = super().on_reset(op)
        if isinstance(told, Refused):
            self.state.tickets.update(copies)
            self.state.passes.update(passes)
            return super().on_reset(op)
        return told


@plant("reset-refused-at-rest", "K11", OWN, expected="HC-LIFE-06")
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


@plant_in_storage("audit-forgets-queue", "K11", OWN, expected="HC-CONF-05", rules=PAGES_FIRST)
class AuditForgetsQueue(Model):
    """An audit calls the cache idle while pages wait in the release queue."""

    def on_audit(self, op: Audit) -> Audited:
        """The queue is not asked about."""
        return Audited(pending=tuple(name for name in self.pending() if name != "release queue"))


# -- what a poll takes ------------------------------------------------------------------------------------------------


@plant_in_storage("all-released-at-once", "K8", OWN, expected="HC-PREF-16", rules=PAGES_FIRST)
class AllReleasedAtOnce(Model):
    """A poll empties the release queue, whatever the ranks had agreed on."""

    def on_poll(self, op: Poll) -> Polled:
        """As many as wait."""
        return super().on_poll(op.model_copy(update={"releases": len(self.storage.release)}))


@plant_in_storage("storage-ends-not-agreed", "K8", OWN, expected="HC-PREF-18")
class StorageEndsNotAgreed(Model):
    """A poll applies all answers and ends of storage work, whatever the ranks had agreed on."""

    def on_poll(self, op: Poll) -> Polled:
        """As many as wait."""
        storage = self.storage
        waiting = {"answers": len(storage.answers), "reads": len(storage.reads), "writes": len(storage.writes)}
        return super().on_poll(op.model_copy(update=waiting))


# -- reset with storage -----------------------------------------------------------------------------------------------


def _forget_reads(model: Model, wanted: Callable[[PrefetchReading], bool]) -> None:
    """The running reads that are wanted are off the books of the model, and their pages are not given back."""
    storage = model.storage
    reading = [record for record in storage.records.values() if isinstance(record, PrefetchReading)]
    gone = {record.id for record in reading if wanted(record)}
    storage.records = {name: each for name, each in storage.records.items() if name not in gone}
    storage.open = {rid: name for rid, name in storage.open.items() if name not in gone}
    storage.reads = [each for each in storage.reads if each[0] not in gone]


@plant_in_storage("reset-forgets-reads", "K6", "D12", "SG-27501", expected=("HC-LIFE-02", "HC-LIFE-06", "HC-PREF-22"))
class ResetForgetsReads(Model):
    """A reset drops running reads, whose worker goes on writing into pages of the next owner.

    SGLang: the thread of the reads is not joined, survives, and takes up work again.
    """

    def on_reset(self, op: Reset) -> Done | Refused:
        """Nothing is read."""
        _forget_reads(self, lambda record: True)
        return super().on_reset(op)


@plant_in_storage("reset-forgets-writes", "K6", "OR-4", expected=("HC-LIFE-02", "HC-LIFE-06"))
class ResetForgetsWrites(Model):
    """A reset drops running writes, which then put what the next owner writes into their pages."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """Nothing is written."""
        records = self.storage.records
        self.storage.records = {n: r for n, r in records.items() if not isinstance(r, BackupWriting)}
        return super().on_reset(op)


@plant_in_storage("closed-end-outlives-reset", "K2", "D12b", expected="HC-LIFE-02")
class ClosedEndOutlivesReset(Model):
    """The end of a prefetch that was closed outlives a reset, and then frees pages of their next owner."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """It waits to be applied as before."""
        records = self.storage.records
        closed: dict[str, Record] = {
            name: each for name, each in records.items() if isinstance(each, PrefetchEnded) and each.rid is None
        }
        reads = [each for each in self.storage.reads if each[0] in closed]
        told = super().on_reset(op)
        if isinstance(told, Done):
            self.storage.records, self.storage.reads = closed, reads
        return told


@plant_in_storage("reset-keeps-release-queue", "K2", "R8", "SG-26009", expected="HC-LIFE-02")
class ResetKeepsReleaseQueue(Model):
    """A reset leaves the release queue, whose pages are freed again, and the number of pages asked for."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """Both are taken over."""
        release, occupied = list(self.storage.release), self.storage.occupied
        told = super().on_reset(op)
        if isinstance(told, Done):
            self.storage.release, self.storage.occupied = release, occupied
        return told


# -- attach, detach, clear --------------------------------------------------------------------------------------------


@plant_in_storage("refused-attach-leaves-policy", "K12", "D18", "OR-7", expected=("HC-LIFE-07", "HC-CONF-10"))
class RefusedAttachLeavesPolicy(Model):
    """The settings of an attach that was refused, or that failed, are in force."""

    def on_attach(self, op: Attach) -> Done | Refused:
        """They are taken first."""
        told = super().on_attach(op)
        self.storage.settings = op.settings
        return told


@plant_in_storage("refused-attach-leaves-write-policy", "K12", "D18", expected=("HC-LIFE-07", "HC-CONF-10"))
class RefusedAttachLeavesWritePolicy(Model):
    """The write policy of an attach that was refused, or that failed, is followed from then on.

    SGLang sets both policies before it opens the store.
    """

    def on_attach(self, op: Attach) -> Done | Refused:
        """It is taken first."""
        told = super().on_attach(op)
        if op.write_policy is not None:
            self.state.policy = op.write_policy
        return told


@plant_in_storage("refused-attach-leaves-name", "K12", "R17", expected=("HC-LIFE-07", "HC-CONF-10"))
class RefusedAttachLeavesName(Model):
    """The backend of an attach that was refused counts as the one that is attached."""

    def on_attach(self, op: Attach) -> Done | Refused:
        """Its name is taken first."""
        told = super().on_attach(op)
        self.storage.backend = op.backend
        return told


@plant_in_storage("failed-attach-half-on", "K11", "D34", expected=("HC-LIFE-07", "HC-CONF-10"))
class FailedAttachHalfOn(Model):
    """An attach fails when the host pools are to be registered, and storage stays on.

    SGLang: they are registered after the threads have started, without a way back.
    """

    def on_attach(self, op: Attach) -> Done | Refused:
        """What was begun is not undone."""
        told = super().on_attach(op)
        if op.fails == "pools" and not self.storage.attached:
            super().on_attach(op.model_copy(update={"fails": None}))
        return told


@plant_in_storage("second-attach-sets-up-again", "K5", "R6", expected="HC-LIFE-07")
class SecondAttachSetsUpAgain(Model):
    """An attach that only changes settings does once more what the first one did: all on host is to be put again."""

    def on_attach(self, op: Attach) -> Done | Refused:
        """Nothing is believed stored."""
        told = super().on_attach(op)
        if isinstance(told, Done):
            self.storage.believed.clear()
            self.owe_everything()
        return told


@plant_in_storage("counted-twice", "K10", "R6", expected="HC-STORE-14")
class CountedTwice(Model):
    """What moves after storage was attached again is counted once more for each earlier attach.

    SGLang makes a second collector of metrics beside the first. Two methods, since who counts is made in an attach.
    """

    collectors = 0
    """How many count."""

    def on_attach(self, op: Attach) -> Done | Refused:
        """There is one more."""
        told = super().on_attach(op)
        if isinstance(told, Done):
            self.collectors += 1
        return told

    def count(self, counter: str, pages: int) -> None:
        """All of them count."""
        super().count(counter, pages * self.collectors)


@plant_in_storage("detach-drops-closed-reads", "K1", "D17", expected=("HC-LIFE-08", "HC-PAGE-04", "HC-STORE-13"))
class DetachDropsClosedReads(Model):
    """A detach forgets reads whose request has gone, and their pages belong to nobody."""

    def on_detach(self, op: Detach) -> Done | Refused:
        """Only reads that somebody waits for count."""
        _forget_reads(self, lambda record: record.rid is None)
        return super().on_detach(op)


@plant_in_storage(
    "force-forgets-reads", "K1", "D4", "D17", expected=("HC-LIFE-08", "HC-PAGE-03", "HC-PAGE-04", "HC-PREF-22")
)
class ForceForgetsReads(Model):
    """A detach by force forgets what is read, and the pages belong to nobody.

    SGLang: the threads end, what was queued for them is dropped, and what they gave back is freed once more in vain.
    """

    def on_detach(self, op: Detach) -> Done | Refused:
        """Nothing is read."""
        if op.force:
            _forget_reads(self, lambda record: True)
        return super().on_detach(op)


@plant_in_storage("force-is-for-copies-too", "K6", OWN, expected=("HC-LIFE-02", "HC-LIFE-06"))
class ForceIsForCopiesToo(Model):
    """A reset by force drops running copies and passes, and their pages are given out again under them."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """Nothing is copied or computed."""
        if op.force:
            self.state.tickets.clear()
            self.state.passes.clear()
        return super().on_reset(op)


@plant_in_storage("force-waits", "K11", OWN, expected="HC-LIFE-06")
class ForceWaits(Model):
    """A detach by force is refused while something runs, at the end of a process that has no time to repeat it."""

    def on_detach(self, op: Detach) -> Done | Refused:
        """As any."""
        return super().on_detach(op.model_copy(update={"force": False}))


@plant_in_storage("reset-waits-without-end", "K11", OWN, expected="HC-LIFE-06", rules={"reset_waits": 30_000})
class ResetWaitsWithoutEnd(Model):
    """A reset whose time is over is refused all the same: a backend that hangs keeps the server from flushing."""

    def on_reset(self, op: Reset) -> Done | Refused:
        """The clock is not looked at."""
        return super().on_reset(op.model_copy(update={"waited": 0}))


@plant_in_storage("detach-frees-tail-again", "K2", "D4", "OR-1", expected="HC-PAGE-01", rules=PAGES_FIRST)
class DetachFreesTailAgain(Model):
    """A detach frees every page that a prefetch had at first, also those that waited for release.

    SGLang: the queue is drained, and then each tracked prefetch is released by its first list of pages.
    """

    def on_detach(self, op: Detach) -> Done | Refused:
        """What waits is freed by the queue, and once more by its prefetch."""
        tails = tuple(self.storage.release) if self.storage.records else ()
        told = super().on_detach(op)
        self.release(KV_HOST, tails)
        return told


@plant_in_storage("detach-keeps-count", "K3", "SG-38483", expected=("HC-PREF-09", "HC-LIFE-06"))
class DetachKeepsCount(Model):
    """A detach closes every prefetch, and their pages count against the limit for ever.

    SGLang: the clean-up had only a part of what an abort does, and counted by another length.
    """

    def _close_storage_work(self, *, force: bool) -> None:
        """The count is not lowered."""
        occupied = self.storage.occupied
        super()._close_storage_work(force=force)
        self.storage.occupied = occupied


@plant_in_storage("refused-detach-stops-work", "K11", "N2", expected=("HC-LIFE-06", "HC-CONF-01"))
class RefusedDetachStopsWork(Model):
    """A detach that is refused has stopped the workers: storage counts as attached, and nothing is read any more.

    SGLang: a thread that does not stop makes the detach fail, and the flag that told it to stays up.
    """

    def on_detach(self, op: Detach) -> Done | Refused:
        """Half of it happened."""
        told = super().on_detach(op)
        self.storage.attached = self.storage.attached and not isinstance(told, Refused)
        return told


@plant_in_storage("detach-of-nothing-fails", "K11", "D19", expected="HC-LIFE-06")
class DetachOfNothingFails(Model):
    """A detach is refused where nothing is attached, although there is nothing to wait for."""

    def on_detach(self, op: Detach) -> Done | Refused:
        """The queues that it would drain are missing."""
        return super().on_detach(op) if self.storage.attached else Refused(why="no storage")


@plant_in_storage("clear-still-believes", "K4", "MC-1869", "MC-337", expected="HC-LIFE-09")
class ClearStillBelieves(Model):
    """After storage was emptied its pages are still believed to be there, and are not put again.

    Mooncake: the index keeps the entry of a file or segment that has gone, and upper copies go on its word.
    """

    def on_clear_storage(self, op: ClearStorage) -> Done:
        """The index is not told."""
        believed = set(self.storage.believed)
        told = super().on_clear_storage(op)
        self.storage.believed = believed
        return told


@plant("switched-off-still-caches", "K1", OWN, expected="HC-CONF-11")
class SwitchedOffStillCaches(Model):
    """A cache that is switched off keeps what is inserted, and never evicts it."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """An insert has not heard of the switch."""
        profile = self.profile
        if isinstance(op, Insert):
            self.profile = profile.model_copy(update={"enabled": True})
        told = super().step(op, choose)
        self.profile = profile
        return told
