"""Faults of the way down: pages that never reach storage, reach it under other names, or are called stored."""

from collections.abc import Mapping
from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, RuleValue, plant_in_storage
from hicache_ref.model import Model
from hicache_ref.model.records import Backup, BackupEnded, BackupWriting, Prefetch, Record
from hicache_ref.model.state import Node, Part
from hicache_ref.vocabulary.effects import StorageWrite
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, PageHash, Pages, PoolName
from hicache_ref.vocabulary.operations import WriteDone
from hicache_ref.vocabulary.outcomes import Done

ONE_TRY: Mapping[str, RuleValue] = {"storage_retries": 1}
"""Rules under which a page is offered to storage once."""

# -- what storage work pins -------------------------------------------------------------------------------------------


@plant_in_storage("anchor-unpinned", "K5", "SG-23696", expected=("HC-LEAF-02", "HC-EVICT-04", "HC-PREF-03"))
class AnchorUnpinned(Model):
    """The node below which pages are to come is evicted like any other."""

    def pinned_by(self, node: Node) -> set[str]:
        """Writes only."""
        return {name for name in super().pinned_by(node) if isinstance(self.storage.records[name], Backup)}


@plant_in_storage("write-source-unpinned", "K6", OWN, expected="HC-LEAF-02")
class WriteSourceUnpinned(Model):
    """A node whose host pages a write to storage reads is evicted like any other."""

    def pinned_by(self, node: Node) -> set[str]:
        """Prefetches only."""
        return {name for name in super().pinned_by(node) if isinstance(self.storage.records[name], Prefetch)}


# -- what is owed and offered -----------------------------------------------------------------------------------------


@plant_in_storage("last-fragment-owed", "K4", "D1", "SG-16946", expected="HC-STORE-10")
class LastFragmentOwed(Model):
    """Of a node that was split while it was backed up only the lower half is owed to storage.

    SGLang: the pending entry names the node, which is the suffix after a split.
    """

    def acknowledged(self, parts: tuple[Part, ...]) -> None:
        """The deepest node that owns a page of the copy."""
        owners = [node for part in parts for node in self.owners(KV_HOST, part.host)]
        super().acknowledged(tuple(replace(part, host=node.host or ()) for part in parts for node in owners[-1:]))


@plant_in_storage("never-offered-twice", "K4", "D38", expected="HC-STORE-02")
class NeverOfferedTwice(Model):
    """What could not be put is never tried again, and what hangs below it is stored in vain."""

    def offer(self, node: Node) -> None:
        """Pages of the first try."""
        kept = dict(self.storage.owed)
        self.storage.owed = {digest: tries for digest, tries in kept.items() if not tries}
        super().offer(node)
        self.storage.owed = kept


@plant_in_storage("owed-above-not-offered", "K4", OWN, expected="HC-STORE-02")
class OwedAboveNotOffered(Model):
    """A backup offers the pages of its own node, and not what is still owed above it."""

    def offer(self, node: Node) -> None:
        """The rest is owed later."""
        kept = dict(self.storage.owed)
        self.storage.owed = {digest: tries for digest, tries in kept.items() if digest in node.hashes}
        super().offer(node)
        self.storage.owed = kept


@plant_in_storage("owed-outlives-host-copy", "K5", OWN, expected="HC-STORE-03")
class OwedOutlivesHostCopy(Model):
    """A page that has left the host is still owed to storage."""

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """The list is not looked at."""
        owed = dict(self.storage.owed)
        super().place(node, pool_name, pages)
        self.storage.owed = owed


@plant_in_storage("attach-owes-nothing", "K4", OWN, expected=("HC-STORE-06", "HC-STORE-10", "HC-LIFE-09"))
class AttachOwesNothing(Model):
    """What is on host when storage is attached or cleared is never put, and what is computed below it is in vain."""

    def owe_everything(self) -> None:
        """Nothing."""


@plant_in_storage("namespace-put-unhashed", "K9", "D9", expected="HC-HASH-03", rules={"hash_namespace": False})
class NamespacePutUnhashed(Model):
    """Pages of a namespace are put although the hash does not tell namespaces apart."""

    def may_be_stored(self, node: Node) -> bool:
        """Always."""
        return True


@plant_in_storage("namespace-not-asked", "K9", "D9", "SG-38577", expected="HC-HASH-04", rules={"hash_namespace": True})
class NamespaceNotAsked(Model):
    """Storage is asked for a key in a namespace as if it were in none, and one adapter is served another's pages."""

    def storage_seed(self, extra: str | None) -> PageHash | None:
        """None."""
        return None


# -- what is put ------------------------------------------------------------------------------------------------------


@plant_in_storage("put-under-root-chain", "K9", "D7", expected=("HC-STORE-01", "HC-STORE-08"))
class PutUnderRootChain(Model):
    """Pages are put under the hashes that they would have at the start of a sequence.

    SGLang: a node hashed below one without hashes begins a chain, and storage gets the keys of another prompt.
    """

    def _put(self, node: Node, pages: list[int], path: list[PageHash], states: dict[PageHash, int]) -> None:
        """The node's own pages are chained to nothing."""
        if node.parent != ROOT and path[-1] == node.hashes[-1]:
            own = chain(node.key, self.storage_seed(node.extra), self.profile.bigram)
            path = [*path[: -len(own)], *own]
        super()._put(node, pages, path, states)


@plant_in_storage("whole-write-at-once", "K14", OWN, expected="HC-STORE-08")
class WholeWriteAtOnce(Model):
    """The first batch of a write has all of its pages, however many a batch may have."""

    def _write_batch(self, record: BackupWriting) -> None:
        """All that is left."""
        super()._write_batch(record)
        batch = self.effects[-1]
        assert isinstance(batch, StorageWrite)
        left = {"hashes": record.hashes[record.done :], "pages": record.pages[record.done :]}
        self.effects[-1] = batch.model_copy(update=left)


@plant_in_storage("second-batch-without-prefix", "K9", "D10", expected="HC-STORE-05")
class SecondBatchWithoutPrefix(Model):
    """Where nothing comes before the first batch, nothing is told to come before the second."""

    def told_prefix(self, record: Record, start: int) -> tuple[PageHash, ...]:
        """An empty list is not extended."""
        return super().told_prefix(record, start) if record.prefix else ()


@plant_in_storage("prefix-extended-twice", "K9", "SG-26939", expected="HC-STORE-05")
class PrefixExtendedTwice(Model):
    """The hashes of the batches before are told twice.

    SGLang: a list of prefix keys is kept for the next caller and extended in place by each.
    """

    def told_prefix(self, record: Record, start: int) -> tuple[PageHash, ...]:
        """Once more."""
        told = super().told_prefix(record, start)
        return told + record.hashes[:start] if told else told


# -- what becomes of a write ------------------------------------------------------------------------------------------


@plant_in_storage("write-error-ends-worker", "K11", "D20b", "SG-38428", expected="HC-PREF-02")
class WriteErrorEndsWorker(Model):
    """A write that raised is never reported to the scheduler, and its pages are pinned for ever.

    SGLang: the backup thread catches the empty queue only.
    """

    def on_write_done(self, op: WriteDone) -> Done:
        """Nobody waits for its end."""
        told = super().on_write_done(op)
        if op.raised:
            self.storage.writes.pop()
        return told


@plant_in_storage("failure-taken-for-success", "K12", "SG-39701", expected="HC-STORE-12")
class FailureTakenForSuccess(Model):
    """A write that was cut short counts as done.

    SGLang: after a failed batch the rest is skipped, and the operation acknowledged.
    """

    def apply_write(self, name: str) -> bool:
        """All of it was put."""
        record = self.storage.records[name]
        assert isinstance(record, BackupEnded)
        self.storage.records[name] = record.model_copy(update={"done": len(record.hashes)})
        return super().apply_write(name)


@plant_in_storage("cleared-write-believed", "K12", OWN, expected=("HC-LIFE-09", "HC-STORE-12"))
class ClearedWriteBelieved(Model):
    """What a write had put before storage was emptied is believed to be there when the write ends."""

    def apply_write(self, name: str) -> bool:
        """It has not heard of it."""
        self.storage.records[name] = self.storage.records[name].model_copy(update={"cleared": False})
        return super().apply_write(name)


@plant_in_storage("given-up-untold", "K12", OWN, expected="HC-STORE-12", rules=ONE_TRY)
class GivenUpUntold(Model):
    """Nobody is told that a page was offered for the last time in vain."""

    def apply_write(self, name: str) -> bool:
        """Not a word."""
        super().apply_write(name)
        return False


@plant_in_storage("offered-for-ever", "K11", OWN, expected=("HC-STORE-07", "HC-STORE-12"), rules=ONE_TRY)
class OfferedForEver(Model):
    """A page that storage never takes is offered again and again."""

    def apply_write(self, name: str) -> bool:
        """What would be reported stays owed."""
        reported = set(self.storage.reported)
        given_up = super().apply_write(name)
        self.storage.owed.update(dict.fromkeys(self.storage.reported - reported, self.rules.storage_retries))
        self.storage.reported = reported
        return given_up
