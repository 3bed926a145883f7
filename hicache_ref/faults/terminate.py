"""Faults of a prefetch that is told to stop while its request waits: closed, leaked, forgotten, or read on."""

from collections.abc import Mapping
from functools import partial

from hicache_ref.faults.catalogue import OWN, RuleValue, plant, plant_in_storage
from hicache_ref.model import Model
from hicache_ref.model.records import Prefetch, PrefetchEnded, PrefetchQueued, PrefetchReading
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.effects import StorageCancel
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.outcomes import Done

_plant_in_hybrid_storage = partial(plant, storage=True, state=True)

WORKER_FREES: Mapping[str, RuleValue] = {"read_tail": "io_end", "prefetch_progress": "live"}
"""Rules under which the worker gives back what it did not read."""


@plant_in_storage("terminate-closes", "K4", OWN, expected=("HC-PREF-19", "HC-PREF-23"))
class TerminateCloses(Model):
    """A terminate closes the prefetch at once, and what was read for its request is given up."""

    def on_terminate(self, op: ops.Terminate) -> Done:
        """As an abort does."""
        name = self.storage.open.get(op.rid)
        if name is not None:
            self._give_up(self._close(name))
            self._retire(name)
        return Done()


@plant_in_storage(
    "terminated-tail-leaks", "K1", OWN, expected=("HC-PREF-06", "HC-PAGE-03"), rules=WORKER_FREES
)  # fmt: skip
class TerminatedTailLeaks(Model):
    """When the I/O of a terminated prefetch ends, nobody gives back the pages that were not read."""

    def _without_tail(self, record: PrefetchEnded) -> PrefetchEnded:
        """The worker takes itself for one whose scheduler has them already."""
        waiting = len(self.storage.release)
        cut = super()._without_tail(record)
        if record.cancelled and record.rid is not None:
            del self.storage.release[waiting:]
        return cut


@plant_in_storage("terminate-is-forgotten", "K11", OWN, expected=("HC-PREF-22", "HC-PREF-23"))
class TerminateIsForgotten(Model):
    """A terminate that comes while the query runs is taken for one of nothing, since no page was taken yet.

    SGLang from 0.5.9 to 0.5.15 asks for host pages before it marks the operation; there each has them by then.
    """

    def on_terminate(self, op: ops.Terminate) -> Done:
        """Only what has pages is marked."""
        record = self.storage.records.get(self.storage.open.get(op.rid, ""))
        return Done() if record is not None and not record.pages else super().on_terminate(op)


@plant_in_storage("terminated-is-read", "K11", OWN, expected="HC-PREF-08")
class TerminatedIsRead(Model):
    """An answered prefetch that was terminated takes host pages and begins to read."""

    def apply_answer(self, name: str) -> bool:
        """The poll does not look at the mark."""
        record = self._prefetch(name)
        self.storage.records[name] = record.model_copy(update={"cancelled": record.rid is None})
        told = super().apply_answer(name)
        if name in self.storage.records:
            mark = {"cancelled": record.cancelled}
            self.storage.records[name] = self._prefetch(name).model_copy(update=mark)
        return told


@plant_in_storage("terminated-has-to-wait", "K11", OWN, expected="HC-PREF-10")
class TerminatedHasToWait(Model):
    """A request whose prefetch was terminated waits as long as its policy says, for what does not come any more."""

    def may_stop(self, record: Prefetch, now: int) -> bool:
        """Nothing but the policy is asked."""
        return super().may_stop(record.model_copy(update={"cancelled": False}), now)


@plant_in_storage("terminated-is-told-again", "K10", OWN, expected="HC-PREF-22")
class TerminatedIsToldAgain(Model):
    """Storage is told a second time to stop, when a prefetch that was terminated is closed."""

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        """Whatever it knows."""
        record = self._prefetch(name)
        if record.cancelled and isinstance(record, PrefetchQueued | PrefetchReading):
            self.effects.append(StorageCancel(id=name))
        return super()._close(name, with_state=with_state)


@plant_in_storage("late-batch-counts", "K10", OWN, expected="HC-PREF-06", rules={"prefetch_progress": "live"})
class LateBatchCounts(Model):
    """What comes for a prefetch after it was terminated counts, and moves what the scheduler has counted by then."""

    def _counts_no_more(self, record: PrefetchReading) -> bool:
        """It always counts."""
        return False


@_plant_in_hybrid_storage(
    "state-of-more-than-counts", "K14", OWN, expected=("HC-PAGE-07", "HC-STATE-31", "HC-PAGE-03"),
    rules=WORKER_FREES,
)  # fmt: skip
class StateOfMoreThanCounts(Model):
    """A terminated prefetch is committed with a state that belongs behind pages that came too late to count."""

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """The state has come, so the prefetch has it."""
        told = super().on_read_done(op)
        record = self.storage.records[op.id]
        if op.state and isinstance(record, PrefetchEnded):
            self.storage.records[op.id] = record.model_copy(update={"has_state": True})
        return told
