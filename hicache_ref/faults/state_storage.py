"""Faults of states in storage: slots freed under their thread, states of other positions, states never put."""

from functools import partial

from hicache_ref.faults.catalogue import OWN, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.hybrid import HybridRules
from hicache_ref.model.records import BackupWriting, Prefetch, PrefetchEnded, PrefetchReading, at_stage
from hicache_ref.model.state import FREE, Node, Part
from hicache_ref.model.tree import Found
from hicache_ref.vocabulary.ids import KV, STATE_HOST, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import PageKeys
from hicache_ref.vocabulary.operations import Abort, Progress, ReadDone, WriteDone
from hicache_ref.vocabulary.outcomes import Done, Progressed

_plant = partial(plant_in_hybrid, storage=True)
_EARLY_SLOT = {"prefetch_state": "submission", "unread_slot": "given_up"}


class _FreesAtOnce(Model):
    """What D5 and its variants have in common: a slot that somebody still writes is free."""

    def _slots_of(self, rid: str) -> Pages:
        """The state slot of the open prefetch of this request."""
        name = self.storage.open.get(rid)
        return self.storage.records[name].states if name is not None else ()

    def _free(self, slots: Pages) -> None:
        """Left to no operation."""
        pool = self.state.pools[STATE_HOST]
        for slot in slots:
            if pool.owner[slot][0] == "op":
                pool.owner[slot], pool.stamp[slot] = FREE, None
                pool.free.append(slot)


@_plant("abort-frees-slot-that-is-read", "K6", "D5", "OR-3", expected="HC-XFER-01")
class AbortFreesSlotThatIsRead(_FreesAtOnce):
    """The abort of a request frees the state slot of its prefetch, and the thread goes on to write it.

    SGLang's hybrid cache leaves pages of unfinished reads to the thread, and not the slot.
    """

    def on_abort(self, op: Abort) -> Done:
        """At once."""
        slots = self._slots_of(op.rid)
        told = super().on_abort(op)
        self._free(slots)
        return told


@_plant("stop-frees-slot-that-is-read", "K6", "D5b", expected="HC-XFER-01")
class StopFreesSlotThatIsRead(_FreesAtOnce):
    """A request that waits no longer for its prefetch frees the state slot, and the thread goes on to write it.

    SGLang's hybrid cache under best_effort, and under timeout as well.
    """

    def on_progress(self, op: Progress) -> Progressed:
        """At once."""
        slots = self._slots_of(op.rid)
        told = super().on_progress(op)
        self._free(slots)
        return told


@_plant("unread-slot-is-kept", "K1", OWN, expected="HC-STATE-37", rules=_EARLY_SLOT)
class UnreadSlotIsKept(Model):
    """A prefetch that is closed before it reads keeps its state slot, though by the rules nothing needs it."""

    def _never_gets_a_state(self, record: Prefetch) -> bool:
        """It is not asked."""
        return False


@_plant("state-of-longer-prefix", "K12", "D26", "OR-5", expected=("HC-STATE-31", "HC-PAGE-07", "HC-XFER-08"))
class StateOfLongerPrefix(Model):
    """A prefetch of which a part is committed brings the state of the whole, which belongs to a later position.

    SGLang's hybrid cache: ranks agree on fewer pages, or the reading ends early, and the state is attached all the
    same.
    """

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """The state goes with whatever there is."""
        known = record.known if isinstance(record, PrefetchReading | PrefetchEnded) else 0
        if 0 < known < len(record.pages):
            cut = {"pages": record.pages[:known], "hashes": record.hashes[:known], "key": record.key[:known]}
            record = at_stage(PrefetchEnded, record, **cut, done=known, known=known, has_state=True)
        super()._commit(record, agreed)


@_plant("fetched-without-its-state", "K5", "D32", expected=("HC-STATE-31", "HC-STATE-07"))
class FetchedWithoutItsState(Model):
    """Pages that were fetched hang in the tree although their state did not come, and no match can end there.

    SGLang's hybrid cache keeps leaves without state on both tiers.
    """

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """KV is enough."""
        whole = isinstance(record, PrefetchEnded) and record.known == len(record.pages)
        if not whole or record.has_state:  # type: ignore[union-attr]
            super()._commit(record, agreed)
            return
        super()._commit(record.model_copy(update={"has_state": True, "states": ()}), agreed)
        self.release(STATE_HOST, record.states)


@_plant("state-taken-for-read", "K12", "SG-31108", expected="HC-STATE-36")
class StateTakenForRead(Model):
    """A state that storage did not have counts as read where the last page was.

    SGLang: presence is asked for all pools at once, and a side pool that comes back shorter is only logged.
    """

    def on_read_done(self, op: ReadDone) -> Done:
        """As the pages, so the state."""
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        last = record.done + op.pages == len(record.pages)
        return super().on_read_done(op.model_copy(update={"state": bool(last and record.states)}))


@_plant("anchor-loses-host-state", "K4", "D36", expected="HC-STATE-33")
class AnchorLosesHostState(Model):
    """The state slot for a prefetch is made by evicting the state of the node that the prefetch hangs on.

    SGLang's hybrid cache protects the KV of the anchor and takes its state, as that of an inner node.
    """

    def may_lose_state(self, node: Node, pool_name: PoolName) -> bool:
        """Whatever hangs on it."""
        return HybridRules.may_lose_state(self, node, pool_name)


@_plant("closed-prefetch-keeps-slot", "K1", OWN, expected=("HC-PAGE-03", "HC-PAGE-04"))
class ClosedPrefetchKeepsSlot(Model):
    """A prefetch that is closed gives its pages up, and its state slot stays taken."""

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        """The slot is taken, by nobody."""
        return super()._close(name, with_state=True)


@_plant("fetched-duplicate-state-kept", "K1", OWN, expected="HC-PAGE-03")
class FetchedDuplicateStateKept(Model):
    """A state that was fetched for a node which has one by then is not given back."""

    def _hang_state(self, node: Node | None, record: Prefetch) -> None:
        """Nobody has it."""
        if node is None or STATE_HOST not in node.at:
            super()._hang_state(node, record)


@_plant("state-never-put", "K4", "D16", expected=("HC-STATE-34", "HC-STORE-04"))
class StateNeverPut(Model):
    """What a backup took to host is put into storage, but for the states.

    SGLang's hybrid cache: a state that came after the KV of its node gets neither to host nor to storage.
    """

    def acknowledged(self, parts: tuple[Part, ...]) -> None:
        """Pages only."""
        super().acknowledged(tuple(part for part in parts if part.component == KV))


@_plant("state-believed-with-page", "K12", OWN, expected="HC-STATE-36")
class StateBelievedWithPage(Model):
    """Where the last page of a node was put its state is believed stored too, and is never put."""

    def on_write_done(self, op: WriteDone) -> Done:
        """As the pages, so the states."""
        record = self.storage.records[op.id]
        assert isinstance(record, BackupWriting)
        last = record.done + op.pages == len(record.pages)
        return super().on_write_done(op.model_copy(update={"states": len(record.states) if last else 0}))


@_plant("state-put-under-first-page", "K9", OWN, expected="HC-STATE-35")
class StatePutUnderFirstPage(Model):
    """A state is put under the hash of the first page of its key, and is found by every prompt that begins so."""

    def _put(self, node: Node, pages: list[int], path: list[PageHash], states: dict[PageHash, int]) -> None:
        """Where the sequence begins."""
        super()._put(node, pages, path, dict.fromkeys(path[:1], next(iter(states.values()))) if states else states)


@_plant("state-owed-before-it-is-there", "K7", OWN, expected=("HC-STATE-30", "HC-STATE-35", "HC-XFER-03"))
class StateOwedBeforeItIsThere(Model):
    """A state is offered to storage as soon as its node has a slot on host, while the copy into it runs."""

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """At once."""
        super().place(node, pool_name, pages)
        if pool_name == STATE_HOST and pages and self.storage.attached and self.may_be_stored(node):
            self.storage.owed_states.setdefault(node.hashes[-1], 0)


@_plant("prefetch-begins-where-kv-ends", "K14", "SG-25088", expected=("HC-PREF-15", "HC-PREF-03"))
class PrefetchBeginsWhereKvEnds(Model):
    """A prefetch leaves out the pages of tombstones, and hangs on a node that no match can end at."""

    def _from_where(self, pages: PageKeys, extra: str | None) -> Found:
        """States do not count."""
        return self.look(pages, extra)
