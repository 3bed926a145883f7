"""Faults of asking storage and of its answers: wrong keys, limits, pages and anchors, workers that count or die."""

import sys

from hicache_ref.faults.catalogue import OWN, PAGES_FIRST, plant_in_storage
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.records import Prefetch, PrefetchEnded, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Node
from hicache_ref.model.tree import Found
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.effects import StorageRead
from hicache_ref.vocabulary.ids import KV, KV_HOST, ROOT, NodeId, PageHash, Pages
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Done, Prefetching, Refused

# -- what is asked for ------------------------------------------------------------------------------------------------


@plant_in_storage("second-prefetch-replaces-first", "K1", "D30", expected="HC-PREF-04")
class SecondPrefetchReplacesFirst(Model):
    """A prefetch for a request that has one open takes its place, and nobody gives back what the first one holds."""

    def on_prefetch(self, op: ops.Prefetch) -> Prefetching | Refused:
        """The first is forgotten."""
        self.storage.open.pop(op.rid, None)
        return super().on_prefetch(op)


@plant_in_storage("root-keys-asked", "K9", "D35", expected="HC-HASH-04")
class RootKeysAsked(Model):
    """A prefetch below a node asks for the keys that its pages would have at the start of a sequence.

    SGLang: below a node without hashes storage is asked for another prompt, whose pages are then hung there.
    """

    def _last_hash(self, found: Found) -> PageHash | None:
        """Nothing comes before."""
        return None


@plant_in_storage("anchor-without-host-copy", "K1", "SG-9601", expected="HC-PREF-15")
class AnchorWithoutHostCopy(Model):
    """A prefetch hangs on a node that is on device only, which eviction takes out of the tree."""

    def _refuses(self, op: ops.Prefetch, wanted: int, anchor: Node) -> Refused | None:
        """Not for that."""
        refused = super()._refuses(op, wanted, anchor)
        return None if refused is not None and refused.why == "anchor without host copy" else refused


@plant_in_storage("anchor-one-above", "K5", OWN, expected="HC-PREF-15")
class AnchorOneAbove(Model):
    """A prefetch hangs on the node above the one where its match ends."""

    def _anchor(self, record: PrefetchQueued, anchor: Node) -> None:
        """Its parent, if it has one."""
        super()._anchor(record, anchor if anchor.id == ROOT else self.state.nodes[anchor.parent])


@plant_in_storage(
    "limit-is-zero", "K11", "R9", "SG-26449", expected="HC-PREF-15", rules={"prefetch_limit": "submission"}
)
class LimitIsZero(Model):
    """The limit of running prefetches is what the host has more than the device, so that nothing is fetched.

    SGLang: a part of the difference, not below zero, and reached at once where the host is not larger.
    """

    def prefetch_capacity(self) -> int:
        """Zero where the host is not larger."""
        sizes = self.profile.sizes
        return super().prefetch_capacity() if sizes.host_pages > sizes.device_pages else 0


@plant_in_storage("no-limit", "K10", OWN, expected="HC-PREF-15", rules={"prefetch_limit": "submission"})
class NoLimit(Model):
    """Any number of pages may be asked for at a time."""

    def prefetch_capacity(self) -> int:
        """More than anybody asks for."""
        return sys.maxsize


@plant_in_storage("limit-forgotten-by-query", "K10", OWN, expected="HC-PREF-05", rules={"prefetch_limit": "query"})
class LimitForgottenByQuery(Model):
    """A query asks storage although as much is asked for as may be."""

    def is_over_limit(self) -> bool:
        """Never."""
        return False


@plant_in_storage("threshold-ignored", "K10", OWN, expected="HC-PREF-15")
class ThresholdIgnored(Model):
    """Storage is asked for fewer pages than are worth it."""

    def _refuses(self, op: ops.Prefetch, wanted: int, anchor: Node) -> Refused | None:
        """Any page counts for as many as are wanted."""
        return super()._refuses(op, max(wanted, self.prefetch_threshold()) if wanted else 0, anchor)


@plant_in_storage("threshold-in-whole-pages", "K10", OWN, expected=("HC-PREF-15", "HC-PREF-08"))
class ThresholdInWholePages(Model):
    """A threshold in tokens is taken for the whole pages that fit into it, so that shorter prefetches are begun."""

    def prefetch_threshold(self) -> int:
        """Rounded down."""
        return max(1, self.storage.settings.prefetch_threshold // self.profile.sizes.page_size)


@plant_in_storage("refused-prefetch-counts", "K10", OWN, expected=("HC-PREF-09", "HC-CONF-10"), rules=PAGES_FIRST)
class RefusedPrefetchCounts(Model):
    """A prefetch that found no room counts against the limit for ever."""

    def _forget(self, record: Prefetch) -> None:
        """Its pages stay asked for."""
        super()._forget(record)
        self.storage.occupied += record.asked


@plant_in_storage("list-keeps-old-place", "K5", "D11", expected="HC-EVICT-02", rules={"eviction": "lru"})
class ListKeepsOldPlace(Model):
    """A prefetch marks the path of its anchor as used, and leaves its nodes where they were in the order of victims.

    SGLang's hybrid cache stamps them and does not move them in its list. Two methods, since here the stamps are the
    list: the places that they should have changed are kept beside them.
    """

    places: dict[NodeId, tuple[int, int]] = {}

    def _anchor(self, record: PrefetchQueued, anchor: Node) -> None:
        """The new stamp of each node has its old place."""
        were = {number: self.state.nodes[number].last[KV] for number in self.path(anchor.id)}
        super()._anchor(record, anchor)
        moved = {number: (self.state.nodes[number].last[KV], last) for number, last in were.items()}
        self.places = self.places | moved

    def _rank(self, number: NodeId) -> tuple[int, ...]:
        """The old place, until it is stamped again."""
        rank = super()._rank(number)
        stamp, place = self.places.get(number, (-1, -1))
        return (place,) if rank == (stamp,) else rank


# -- answers of queries -----------------------------------------------------------------------------------------------


@plant_in_storage("answer-of-another-query", "K11", "SG-9643", expected="HC-PREF-05")
class AnswerOfAnotherQuery(Model):
    """A prefetch whose query came to nothing goes on with the number of pages that the query before had found."""

    found = 0

    def on_query_done(self, op: ops.QueryDone) -> Done:
        """The variable still has it."""
        if op.raised:
            most = len(self.storage.records[op.id].hashes)
            return super().on_query_done(op.model_copy(update={"raised": False, "hits": min(self.found, most)}))
        self.found = op.hits
        return super().on_query_done(op)


@plant_in_storage("query-error-ends-worker", "K11", "D20", "SG-38428", expected="HC-PREF-02")
class QueryErrorEndsWorker(Model):
    """A query that raised is never answered, and its request waits for ever."""

    def on_query_done(self, op: ops.QueryDone) -> Done:
        """Nobody waits for its answer."""
        told = super().on_query_done(op)
        if op.raised:
            self.storage.answers.pop()
        return told


@plant_in_storage("tail-queued-and-kept", "K2", OWN, expected="HC-PAGE-05", rules=PAGES_FIRST)
class TailQueuedAndKept(Model):
    """Pages without a hit wait for release, and are kept as the prefetch's own."""

    def _queue(self, pages: Pages) -> None:
        """Their owner stays."""
        owner = self.state.pools[KV_HOST].owner
        held = [owner[page] for page in pages]
        super()._queue(pages)
        for page, holder in zip(pages, held, strict=True):
            owner[page] = holder


@plant_in_storage("short-prefetch-keeps-long-key", "K14", "SG-25991", expected="HC-PREF-05", rules=PAGES_FIRST)
class ShortPrefetchKeepsLongKey(Model):
    """A prefetch that is cut keeps the key of all that it had asked for."""

    def _as_reading(self, record: Prefetch, pages: Pages) -> PrefetchReading:
        """Pages and hashes are cut."""
        return super()._as_reading(record, pages).model_copy(update={"key": record.key})


@plant_in_storage("one-page-for-all", "K14", "R15", expected="HC-PREF-01")
class OnePageForAll(Model):
    """Every page of a prefetch is read into the same host page.

    SGLang 0.5.1: one dummy page, named once for each page that is missing.
    """

    def _as_reading(self, record: Prefetch, pages: Pages) -> PrefetchReading:
        """The first, as often as there are pages."""
        return super()._as_reading(record, pages[:1] * len(pages))


# -- batches that are read --------------------------------------------------------------------------------------------


@plant_in_storage("whole-read-at-once", "K14", OWN, expected="HC-STORE-09")
class WholeReadAtOnce(Model):
    """The first batch of a read has all of its pages, however many a batch may have."""

    def _read(self, record: PrefetchReading) -> None:
        """All that is left."""
        super()._read(record)
        batch = self.effects[-1]
        assert isinstance(batch, StorageRead)
        left = {"hashes": record.hashes[record.done :], "pages": record.pages[record.done :]}
        self.effects[-1] = batch.model_copy(update=left)


@plant_in_storage("read-error-ends-worker", "K11", "D20", "SG-38428", expected=("HC-PREF-02", "HC-PREF-06"))
class ReadErrorEndsWorker(Model):
    """After a read that raised no end of it is ever applied: the request never goes on, and its pages are pinned."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """Nobody waits for its end."""
        told = super().on_read_done(op)
        if op.raised:
            self.storage.reads.pop()
        return told


@plant_in_storage("counted-before-it-is-there", "K12", "R15", expected="HC-PREF-06")
class CountedBeforeItIsThere(Model):
    """A page counts as read before it is, and when the read ends short it still does."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """One more."""
        told = super().on_read_done(op)
        record = self.storage.records[op.id]
        if isinstance(record, PrefetchEnded) and record.done < len(record.pages):
            self.storage.records[op.id] = record.model_copy(update={"done": record.done + 1})
            self.storage.reads[-1] = (op.id, record.done + 1)
        return told


@plant_in_storage("read-brings-another-page", "K6", "MC-778", expected="HC-PREF-06")
class ReadBringsAnotherPage(Model):
    """A read that takes too long brings what lies there by then, and is taken for good.

    Mooncake: a lease that ends protects no more, and the reader is not told.
    """

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """The last page of the batch holds what the first one does."""
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        told = super().on_read_done(op)
        pages = record.pages[record.done : record.done + op.pages]
        pool = self.state.pools[KV_HOST]
        for page in pages[-1:]:
            pool.stamp[page] = pool.stamp[pages[0]]
        return told


@plant_in_storage("report-of-too-much-taken", "K12", OWN, expected="HC-PREF-17")
class ReportOfTooMuchTaken(Model):
    """A worker that claims a page more than its batch has is believed as far as the batch goes."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """The claim is cut, where it should be refused."""
        record = self.storage.records.get(op.id) if isinstance(op, ops.ReadDone) else None
        if isinstance(op, ops.ReadDone) and isinstance(record, PrefetchReading):
            most = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
            op = op.model_copy(update={"pages": min(op.pages, most)})
        return super().step(op, choose)


@plant_in_storage("batch-known-before-poll", "K8", OWN, expected="HC-PREF-13", rules={"prefetch_progress": "polled"})
class BatchKnownBeforePoll(Model):
    """The scheduler knows of a batch as soon as it is read, before the ranks have agreed on it in a poll."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """As far as it has come."""
        told = super().on_read_done(op)
        record = self.storage.records[op.id]
        if isinstance(record, PrefetchReading | PrefetchEnded) and record.rid is not None:
            self.storage.records[op.id] = record.model_copy(update={"known": record.done})
        return told


@plant_in_storage("vanished-page-counts", "K6", "LM-4405", expected="HC-PREF-06")
class VanishedPageCounts(Model):
    """A page that storage had when it was asked, and not any more when it was read, is taken for read."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """Without an error the batch is whole."""
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        return super().on_read_done(op if op.raised else op.model_copy(update={"pages": batch}))


@plant_in_storage("whole-hit-is-cut", "K11", OWN, expected="HC-PREF-08", rules={"prefetch_truncates": False})
class WholeHitIsCut(Model):
    """A hit for which there is too little room is read in part, where the rules say whole or not at all."""

    def apply_answer(self, name: str) -> bool:
        """As if the rule were on."""
        rules = self.rules
        self.rules = rules.model_copy(update={"prefetch_truncates": True})
        revoked = super().apply_answer(name)
        self.rules = rules
        return revoked


@plant_in_storage("cut-is-revoked", "K11", OWN, expected="HC-PREF-08", rules={"prefetch_allocation": "after"})
class CutIsRevoked(Model):
    """A hit for which there is too little room is revoked, where the rules say that it is cut."""

    def apply_answer(self, name: str) -> bool:
        """As if the rule were off."""
        rules = self.rules
        self.rules = rules.model_copy(update={"prefetch_truncates": False})
        revoked = super().apply_answer(name)
        self.rules = rules
        return revoked
