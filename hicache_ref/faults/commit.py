"""Faults of what becomes of a prefetch: pages freed under the worker or twice, ends of another request, and gaps."""

from collections.abc import Mapping

from hicache_ref.faults.catalogue import OWN, RuleValue, plant_in_storage
from hicache_ref.model import Model
from hicache_ref.model.records import Prefetch, PrefetchEnded, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import FREE, Node
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, Pages
from hicache_ref.vocabulary.outcomes import Done, Polled, Progressed

SELECTIVE: Mapping[str, RuleValue] = {"write_policy": "write_through_selective"}
"""Rules under which a node has no host copy when it is computed."""

TAIL_STAYS: Mapping[str, RuleValue] = {"read_tail": "end_applied"}
"""Rules under which a poll gives up what was not read."""


class _WhoAsked(Model):
    """The healthy model, which also knows for whom a closed prefetch was opened."""

    asked_by: dict[str, str | None] = {}

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        self.asked_by = {**self.asked_by, name: self._prefetch(name).rid}
        return super()._close(name, with_state=with_state)


def _free_under_worker(model: Model, pages: Pages) -> None:
    """The pages are free, whoever touches them."""
    pool = model.state.pools[KV_HOST]
    for page in pages:
        pool.owner[page], pool.stamp[page], pool.draft[page] = FREE, None, None
        pool.free.append(page)


# -- when the request goes on or goes ---------------------------------------------------------------------------------


@plant_in_storage("policy-lets-go-early", "K12", OWN, expected="HC-PREF-10")
class PolicyLetsGoEarly(Model):
    """A request goes on before what it was told to wait for has been read."""

    def may_stop(self, record: Prefetch, now: int) -> bool:
        """Always."""
        return True


@plant_in_storage("time-begins-anew", "K11", OWN, expected="HC-PREF-10")
class TimeBeginsAnew(Model):
    """The time of a prefetch begins anew whenever its request asks, so that it is never over."""

    def on_progress(self, op: ops.Progress) -> Progressed:
        """The clock has not started."""
        name = self.storage.open.get(op.rid)
        if name is not None:
            self.storage.records[name] = self._prefetch(name).model_copy(update={"since": -1})
        return super().on_progress(op)


@plant_in_storage("told-again", "K10", OWN, expected="HC-PREF-12")
class ToldAgain(Model):
    """A request is told its pages each time that it asks."""

    def on_progress(self, op: ops.Progress) -> Progressed:
        """The number is kept."""
        told = super().on_progress(op)
        if told.loaded:
            self.storage.loaded[op.rid] = told.loaded
        return told


@plant_in_storage("abort-keeps-count", "K10", "SG-30053", expected="HC-PREF-09")
class AbortKeepsCount(Model):
    """The pages of a prefetch whose request has gone count against the limit for ever."""

    def on_abort(self, op: ops.Abort) -> Done:
        """The count is not lowered."""
        occupied = self.storage.occupied
        told = super().on_abort(op)
        self.storage.occupied = occupied
        return told


@plant_in_storage("abort-leaves-query", "K1", "SG-9874", expected="HC-PREF-11")
class AbortLeavesQuery(Model):
    """A request that goes while its query runs leaves its prefetch behind, for which nobody will ask.

    Two methods, since a detach and a reset abort what is open too, and do so well.
    """

    all_close = False

    def on_abort(self, op: ops.Abort) -> Done:
        """Only what is read is closed."""
        record = self.storage.records.get(self.storage.open.get(op.rid, ""))
        queued = isinstance(record, PrefetchQueued) and not self.all_close
        return Done() if queued else super().on_abort(op)

    def _close_storage_work(self, *, force: bool) -> None:
        """All is."""
        self.all_close = True
        super()._close_storage_work(force=force)
        self.all_close = False


@plant_in_storage("abort-frees-what-is-read", "K6", "D5", expected=("HC-XFER-01", "HC-PREF-11"))
class AbortFreesWhatIsRead(Model):
    """When a request goes, all pages of its prefetch are free, those into which the worker reads too."""

    def on_abort(self, op: ops.Abort) -> Done:
        """Nothing is left to the operation."""
        name = self.storage.open.get(op.rid)
        told = super().on_abort(op)
        record = self.storage.records.get(name or "")
        _free_under_worker(self, record.pages if record is not None else ())
        return told


@plant_in_storage("leave-frees-what-is-read", "K6", "D5b", expected=("HC-XFER-01", "HC-PREF-07"))
class LeaveFreesWhatIsRead(Model):
    """When a request goes on before all was read, the pages into which the worker reads are free."""

    def on_progress(self, op: ops.Progress) -> Progressed:
        """Nothing is left to the operation."""
        name = self.storage.open.get(op.rid)
        told = super().on_progress(op)
        record = self.storage.records.get(name or "")
        _free_under_worker(self, record.pages if told.done and record is not None else ())
        return told


@plant_in_storage("closed-keeps-its-mark", "K2", "SG-27010r", expected=("HC-PREF-07", "HC-PREF-11", "HC-PREF-13"))
class ClosedKeepsItsMark(Model):
    """What a closed prefetch has handed over still counts as its own, for a late end to free.

    SGLang: the handler of late acknowledgements freed from the old mark of completion, without moving it.
    """

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        """While it reads, the record names all of its pages."""
        record = self._prefetch(name)
        taken = super()._close(name, with_state=with_state)
        if taken and isinstance(record, PrefetchReading):
            whole = {part: getattr(record, part) for part in ("pages", "hashes", "key", "done")}
            self.storage.records[name] = self._prefetch(name).model_copy(update=whole)
        return taken


# -- what hangs in the tree -------------------------------------------------------------------------------------------


@plant_in_storage("commit-before-poll", "K8", OWN, expected="HC-PREF-07")
class CommitBeforePoll(Model):
    """A commit takes pages that no poll has applied, of which other ranks know nothing."""

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """All that is in place is known."""
        if isinstance(record, PrefetchReading | PrefetchEnded):
            record = record.model_copy(update={"known": record.done})
            self.storage.records[record.id] = record
        super()._commit(record, agreed)


@plant_in_storage("commit-without-anchor", "K4", "SG-30106", expected=("HC-BACKUP-01", "HC-PREF-07"))
class CommitWithoutAnchor(Model):
    """Fetched pages are hung below an anchor that has lost its host copy."""

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """As long as it is in the tree."""
        anchor = self.state.nodes.get(record.anchor)
        lost = anchor is not None and anchor.id != ROOT and anchor.host is None
        if anchor is None or not lost or (record.extra, record.key[0]) in anchor.children:
            super()._commit(record, agreed)
            return
        pages = self._close(record.id)
        self.storage.loaded.pop(str(record.rid), None)
        if pages:
            leaf = self.attach(anchor, record.key[: len(pages)], record.extra, 0)
            self._place_fetched(leaf, pages, record)
            self.storage.loaded[str(record.rid)] = len(pages)


@plant_in_storage(
    "commit-below-device-only", "K4", "D6", "SG-30106", expected=("HC-BACKUP-01", "HC-PREF-07"), rules=SELECTIVE
)
class CommitBelowDeviceOnly(Model):
    """Fetched pages are hung below a node that was computed meanwhile and has no host copy.

    SGLang: the next eviction meets a device leaf with children, and asserts.
    """

    def _hang(self, anchor: Node, record: Prefetch, pages: Pages) -> int:
        """What such a node took goes back under write_through, and what hangs below it stays."""
        without = {node.id for node in self.state.nodes.values() if node.host is None and self.needs_backed_parent()}
        new = super()._hang(anchor, record, pages)
        for node in self.owners(KV_HOST, pages):
            if node.id in without and node.children:
                taken = node.at[KV_HOST]
                self.place(node, KV_HOST, None)
                self.release(KV_HOST, taken)
                new -= len(taken)
        return new


@plant_in_storage(
    "commit-forgets-namespace", "K9", "D9", expected=("HC-PAGE-07", "HC-PREF-07"), rules={"hash_namespace": True}
)
class CommitForgetsNamespace(Model):
    """What was fetched at the top is hung into the tree without its namespace, for everybody to read.

    SGLang: a prefetch that begins at the root inserts without the extra key.
    """

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """Below the root there is none."""
        super()._commit(record.model_copy(update={"extra": None}) if record.anchor == ROOT else record, agreed)


@plant_in_storage("cleared-read-believed", "K12", OWN, expected="HC-LIFE-09")
class ClearedReadBelieved(Model):
    """What was read before storage was emptied is believed to be there when it is committed."""

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """It has not heard of it."""
        super()._commit(record.model_copy(update={"cleared": False}), agreed)


@plant_in_storage("commit-uses-anchor", "K5", OWN, expected="HC-PREF-21", rules={"commit_stamps_anchor": False})
class CommitUsesAnchor(Model):
    """A commit makes its anchor recently used, so that another node is evicted before it."""

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """Against the rule."""
        anchor = self.state.nodes.get(record.anchor)
        if anchor is not None:
            self.stamp(anchor)
        super()._commit(record, agreed)


@plant_in_storage("closed-is-not-told", "K11", OWN, expected="HC-PREF-22")
class ClosedIsNotTold(Model):
    """Nobody tells storage that a prefetch was closed, and it is read to its end."""

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        """Not a word."""
        told = len(self.effects)
        taken = super()._close(name, with_state=with_state)
        del self.effects[told:]
        return taken


@plant_in_storage("all-counts-as-new", "K10", OWN, expected="HC-PREF-12")
class AllCountsAsNew(Model):
    """A request is told pages that the host had already got in the meantime."""

    def _hang(self, anchor: Node, record: Prefetch, pages: Pages) -> int:
        """As many as were read."""
        super()._hang(anchor, record, pages)
        return len(pages)


@plant_in_storage("commit-not-published", "K13", OWN, expected="HC-EVENT-01")
class CommitNotPublished(Model):
    """What was fetched is on host, and nobody learns of it."""

    def _place_fetched(self, node: Node, pages: Pages, record: Prefetch) -> None:
        """Without an event."""
        published = len(self.events)
        super()._place_fetched(node, pages, record)
        del self.events[published:]


# -- what a poll applies ----------------------------------------------------------------------------------------------


@plant_in_storage("revoked-untold", "K11", OWN, expected=("HC-PREF-08", "HC-PREF-19"))
class RevokedUntold(Model):
    """A prefetch is revoked, and no poll says so."""

    def apply_answer(self, name: str) -> bool:
        """Not a word."""
        super().apply_answer(name)
        return False


@plant_in_storage("revocation-by-request", "K1", "OR-6", "N1", expected=("HC-PREF-19", "HC-STORE-13"))
class RevocationByRequest(_WhoAsked):
    """The answer to a closed prefetch takes the one that its request has open now off the books, with its pages.

    SGLang's hybrid cache: what is revoked is looked up by the name of its request, which may have come back.
    """

    def apply_answer(self, name: str) -> bool:
        """The newer one leaves the table."""
        closed = self._prefetch(name).rid is None
        told = super().apply_answer(name)
        newer = self.storage.records.get(self.storage.open.get(self.asked_by.get(name) or "", ""))
        if closed and isinstance(newer, PrefetchQueued | PrefetchReading):
            del self.storage.open[str(newer.rid)], self.storage.records[newer.id]
            self.storage.occupied -= newer.asked
        return told


@plant_in_storage("late-end-by-request", "K1", "OR-6", expected="HC-PREF-19")
class LateEndByRequest(_WhoAsked):
    """The end of a closed prefetch closes the one that its request has open now.

    SGLang 0.5.20: acknowledgements are matched with the name of the request, which may have come back.
    """

    def apply_read(self, name: str, done: int) -> bool:
        """The newer one is committed with what is known of it."""
        closed = self._prefetch(name).rid is None
        told = super().apply_read(name, done)
        newer = self.storage.open.get(self.asked_by.get(name) or "")
        if closed and newer is not None:
            self._commit(self._prefetch(newer))
            self._retire(newer)
        return told


@plant_in_storage("late-end-is-cached", "K6", OWN, expected=("HC-PREF-14", "HC-MATCH-06"))
class LateEndIsCached(Model):
    """What was read for a request that has gone is hung into the tree by the poll that applies its end.

    Two methods, since a detach and a reset apply ends too, and do so well.
    """

    polls = False

    def on_poll(self, op: ops.Poll) -> Polled:
        """From here on, up to its end."""
        self.polls = True
        told = super().on_poll(op)
        self.polls = False
        return told

    def apply_read(self, name: str, done: int) -> bool:
        """If its anchor can hold it, and nothing of it was handed over before."""
        record = self._prefetch(name)
        anchor = self.state.nodes.get(record.anchor)
        late = record.rid is None and isinstance(record, PrefetchEnded) and len(record.key) == record.asked
        if self.polls and late and anchor is not None and (anchor.id == ROOT or anchor.host is not None):
            self._hang(anchor, record, record.pages[:done])
        committed = super().apply_read(name, done)
        for node in self.owners(KV_HOST, record.pages):
            self.update_leaf(node.id)
        return committed


@plant_in_storage("tail-released-twice", "K2", "R14", "SG-13483", expected="HC-PAGE-01", rules=TAIL_STAYS)
class TailReleasedTwice(Model):
    """The pages that were not read go free, and wait for release as well.

    SGLang 0.5.2: the loop over the batches and the thread around it both queue the tail.
    """

    def _retire(self, name: str) -> None:
        """Once more, by the queue."""
        record = self._prefetch(name)
        super()._retire(name)
        owner = self.state.pools[KV_HOST].owner
        if name not in self.storage.records:
            self._queue(tuple(page for page in record.pages if owner[page] == FREE))


@plant_in_storage("empty-read-leaks", "K1", "SG-8901a", expected="HC-PAGE-04", rules=TAIL_STAYS)
class EmptyReadLeaks(Model):
    """A closed prefetch for which nothing at all was read is over, and its pages stay with it.

    SGLang: the page reader returned before the code that frees the tail.
    """

    def _retire(self, name: str) -> None:
        """It leaves the books before its pages do."""
        record = self._prefetch(name)
        if isinstance(record, PrefetchEnded) and record.rid is None and not record.done and not self._is_awaited(name):
            del self.storage.records[name]
        else:
            super()._retire(name)
