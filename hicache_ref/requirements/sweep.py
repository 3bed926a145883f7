"""The victims of one step, replayed by definition: what each of them was at the moment when it was taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hicache_ref.model.records import Record
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.leaves import arrives_on_host
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.rows import NOWHERE, Row, copy_in
from hicache_ref.requirements.taken import Rank, Taken, rank_of
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    NodeId,
    PageHash,
    PoolName,
)
from hicache_ref.vocabulary.operations import Insert, LoadBack, Poll, Prefetch, TakePages
from hicache_ref.vocabulary.outcomes import Polled


class Sweep:
    """Replays the victims of a step from the state before it; `taken` lists them in order."""

    def __init__(self, change: Change[Any, Any]) -> None:
        before = change.before
        self.change = change
        self.before = before
        self.kv_decides = before.rules.dead_ends == "stay"
        self.row: dict[NodeId, Row] = {row.id: row for row in before.rows}
        self.resident = {row.id for row in before.rows if row.device is not None}
        self.on_host = {row.id for row in before.rows if row.host is not None}
        self.children = {number: {each.id for each in rows} for number, rows in before.below().items()}
        self.locks = {row.id: row.lock for row in before.rows}
        self.last = {row.id: row.last for row in before.rows}
        self.states: dict[PoolName, set[NodeId]] = {
            STATE_DEVICE: {row.id for row in before.rows if row.device_state is not None},
            STATE_HOST: {row.id for row in before.rows if row.host_state is not None},
        }
        self.state_locks = {row.id: row.state_lock for row in before.rows}
        self.lost_ends: set[NodeId] = set()
        """Leaves that left the tree with their host copy, for their state had none."""

        self.settled = {row.id for row in before.rows if not arrives_on_host(before, row)}
        self.staged: set[NodeId] = set()
        """Nodes into whose host copy the eviction has submitted a copy."""

        self.pins = set(before.storage_pins)
        self.anchors = {record.anchor for record in before.storage.opened}
        """Nodes whose state on host storage work needs."""

        self.protected: set[NodeId] = set()
        """Nodes that the eviction has backed up itself, where the rule write_back_protects says so."""

        self.perhaps_protected: set[NodeId] = set()
        """Those that were, until a victim was dropped or left later: which of the two it was does not show."""

        self.free_host = len(before.host.free)
        self.free_host_states = len(before.states[1].free) if before.states else 0
        self.tried: set[NodeId] = set()
        self.unsure: set[NodeId] = set()
        self.taken: list[Taken] = []
        self._take_op()
        self._replay(change.what.victims)

    def _take_op(self) -> None:
        """What the operation did before its first eviction: it pinned its path or anchor, or revived its path."""
        op, rules = self.change.op, self.before.rules
        if isinstance(op, LoadBack):
            path = self.before.cached(self.change.hashes)
            for row, at in path:
                self.locks[row.id] = row.lock + 1
                if rules.load_matches:
                    self._pass_by(row)
                if at + 1 == len(row.hashes) and row.hashes[-1] == self.change.hashes[-1]:
                    self.state_locks[row.id] += 1
            above = [row for row, _ in path if row.device is not None]
            hangs = bool(above) and above[-1] is not path[-1][0] and rules.load_keeps_state_above
            if hangs and (above[-1].device_state is not None or rules.lock_state == "to_come"):
                self.state_locks[above[-1].id] += 1
        elif isinstance(op, TakePages) and op.prefix is not None:
            prefix = self.before.hashes_of(op.prefix)
            for row, _ in self.before.cached(prefix):
                self.locks[row.id] = row.lock + 1
                self.state_locks[row.id] = row.state_lock + (row.hashes[-1] == prefix[-1])
        elif isinstance(op, Insert):
            found = self.before.cached(self.change.hashes)
            cut = [row.id for row, at in found[-1:] if at + 1 < len(row.hashes) and rules.split_stamps == "none"]
            for row, at in found:
                if rules.split_raises_priority == "both":
                    self.row[row.id] = row._replace(priority=max(row.priority, op.priority))
                if row.id not in cut:
                    self._pass_by(row)
                if at + 1 == len(row.hashes):
                    self.resident.add(row.id)
                if row.hashes[-1] == self.change.hashes[-1]:
                    self.row[row.id] = self.row[row.id]._replace(state_last=self.before.clock + 1)
        elif isinstance(op, Prefetch):
            found = self.before.cached(self.change.hashes)[: ends(self.before, self.change.hashes).best]
            self.pins.update([row.id for row, _ in found[-1:]])
            self.anchors.update([row.id for row, _ in found[-1:]])

    def _pass_by(self, row: Row) -> None:
        """The row is on a path that is used now; by the rule its state is used too."""
        self.last[row.id] = self.before.clock + 1
        if self.before.rules.match_stamps_states == "path":
            self.row[row.id] = self.row[row.id]._replace(state_last=self.before.clock + 1)

    def _replay(self, victims: tuple[tuple[PoolName, PageHash], ...]) -> None:
        unsettled: list[Callable[[], None]] = []
        for pool, digest in victims:
            if pool in (KV_DEVICE, STATE_DEVICE) and unsettled:
                unsettled.pop()()
            row, index = self.before.where.get(digest, (NOWHERE, 0))
            if row.id not in self.row or index + 1 != len(row.hashes):
                self.taken.append(Taken(row, pool, False, False, (), (), False, False, 0))
                continue
            self._take(row, pool)
            if pool == STATE_HOST and row.id not in self._host_leaves():
                self._drop_state(row.id, pool)
            elif pool in (KV_HOST, STATE_HOST):
                self.free_host += len(row.host or ())
                self._remove(row.id)
            elif pool == STATE_DEVICE and self._stays(row.id):
                self.locks[row.id] += 1  # it is pinned while room is made for it
                unsettled.append(partial(self._settle_state, row))
            elif row.id in self.on_host and self._may_be_demoted(row.id):
                self._settle(row)
            else:
                self.locks[row.id] += 1
                unsettled.append(partial(self._settle, row))
        if unsettled:
            unsettled.pop()()

    # -- of a hybrid model ------------------------------------------------------------------------------------------

    def _lacks_state(self, number: NodeId) -> bool:
        """Whether its state is on device and not on host."""
        return number in self.states[STATE_DEVICE] and number not in self.states[STATE_HOST]

    def _may_be_demoted(self, number: NodeId) -> bool:
        return self.kv_decides or not self._lacks_state(number)

    def _stays(self, number: NodeId) -> bool:
        """Whether a victim among states on device keeps its KV."""
        if self.kv_decides:
            return number not in self._device_leaves()
        return bool(self.children.get(number)) or self._is_in_use(number)

    def _is_copied_first(self, row: Row) -> bool:
        """Whether the rule write_back_states has the state, and the KV with it, copied before the state goes."""
        copied = self.before.rules.write_back_states == "copied" and self.before.policy == "write_back"
        return copied and row.id not in self.on_host

    def _settle_state(self, row: Row) -> None:
        """The victim among states that stays has lost it on device, and is on host if it was copied there before."""
        number, now = row.id, self.change.after.row.get(row.id)
        self.locks[number] -= 1
        if self._is_copied_first(row) and self._was_copied(row) and not (now and now.host is None):
            self._come_to_host(row)
            if now is None:
                self._doubt(number)
                self._doubt_above(row.parent)
        self._drop_state(number, STATE_DEVICE)

    def _come_to_host(self, row: Row) -> None:
        """The eviction has copied to host what the row lacked there, or has submitted a copy of it."""
        number = row.id
        if number in self.states[STATE_DEVICE]:
            self.states[STATE_HOST].add(number)
            self.free_host_states -= 1
        self._pin_offered(row)
        self.free_host -= 0 if number in self.on_host else len(row.key)
        self.on_host.add(number)
        if self.before.rules.write_back_copy == "staged":
            self.settled.discard(number)
            self.staged.add(number)

    def _arrive(self, number: NodeId) -> None:
        """By the rule host_states = arrived a state that is on host alone now is used by that."""
        if self.before.rules.host_states == "arrived" and number in self.states[STATE_HOST]:
            self.row[number] = self.row[number]._replace(state_last=self.before.clock + 1 + len(self.taken))

    def _is_in_use(self, number: NodeId) -> bool:
        return bool(self.locks[number]) or number in self.pins

    def _drop_state(self, number: NodeId, pool: PoolName) -> None:
        self.states[pool].discard(number)
        if pool == STATE_DEVICE:
            self._arrive(number)
        self._prune(number)

    def _prune(self, number: NodeId) -> None:
        """A leaf without state has left unless something pins it, and so upward."""
        if not self.before.states or self.kv_decides or number not in self.row or self.children.get(number):
            return
        if not self._is_in_use(number) and not any(number in held for held in self.states.values()):
            self.free_host += len(self.row[number].host or ()) if number in self.on_host else 0
            self.lost_ends.add(number)
            self._remove(number)

    def _may_lose_state(self, pool: PoolName) -> set[NodeId]:
        """The nodes whose state there may be taken."""
        loose = {number for number in self.states[pool] - self.unsure if not self.state_locks[number]}
        if pool == STATE_DEVICE:
            return loose
        touched = self.before.pool(pool).touched
        slots = {row.id: (copy_in(row, pool) or (-1,))[0] for row in self.before.rows}
        if self.before.rules.host_states == "arrived":
            loose -= self.states[STATE_DEVICE]
        return {number for number in loose - self.staged - self.anchors if slots[number] not in touched}

    # ---------------------------------------------------------------------------------------------------------------

    def _take(self, row: Row, pool: PoolName) -> None:
        mine: Rank = (self.row[row.id].state_last,)
        if pool in self.states:
            may = self._may_lose_state(pool)
            left = may - self.tried if pool == STATE_DEVICE else may  # a leaf that was kept is not tried again
            least = min([(self.row[number].state_last,) for number in left], default=mine)
            held = bool(self.state_locks[row.id])
            copied_first = pool == STATE_DEVICE and self._stays(row.id) and self._is_copied_first(row)
            chances = self._chances(row, pool) if copied_first else (False, 0)
            self.taken.append(Taken(row, pool, row.id in may | self.unsure, held, mine, least, False, *chances))
            return
        leaves = self._device_leaves() if pool == KV_DEVICE else self._host_leaves()
        rank = self._rank(row.id)
        least = min([self._rank(number) for number in leaves], default=rank)
        maybe = self._is_maybe_device_leaf(row.id) if pool == KV_DEVICE else self._is_maybe_host_leaf(row.id)
        leaf = row.id in leaves or row.id in self.unsure or maybe
        now = self.change.after.row.get(row.id)
        stayed = pool == KV_DEVICE and now is not None and now.device is not None
        pinned = bool(self.locks[row.id]) or (pool == KV_HOST and row.id in self.pins | self.protected)
        self.taken.append(Taken(row, pool, leaf, pinned, rank, least, stayed, *self._chances(row, pool)))

    def _chances(self, row: Row, pool: PoolName) -> tuple[bool, int]:
        """Whether the victim was copied, and how much room there was for it."""
        if pool == KV_HOST or row.host is not None or self.before.policy != "write_back":
            return False, 0
        if self._lacks_state(row.id) and self.free_host_states <= 0:
            return self._was_copied(row), 0
        tops = [number for number in self.row if self.row[number].parent not in self.row]
        return self._was_copied(row), self.free_host + sum([self._reclaimable(number)[1] for number in tops])

    def _reclaimable(self, number: NodeId) -> tuple[bool, int]:
        """Whether evicting host leaves would take the node, and how many host pages from there down."""
        below = [self._reclaimable(child) for child in self.children.get(number, ())]
        total = sum([count for _, count in below])
        host_only = number in self.on_host and number not in self.resident and number in self.settled
        host_only = host_only and number not in self.pins | self.protected | self.perhaps_protected
        if not host_only or self.locks[number] or number in self.unsure or not all(gone for gone, _ in below):
            return False, total
        return True, total + len(self.row[number].key)

    def _rank(self, number: NodeId) -> Rank:
        return rank_of(self.row[number], self.last[number], self.before.rules)

    def _device_leaves(self) -> set[NodeId]:
        return {
            number
            for number in self.resident - self.tried - self.unsure
            if not self.locks[number] and not self.children.get(number, set()) & self.resident
        }

    def _host_leaves(self) -> set[NodeId]:
        return {
            number
            for number in self.on_host - self.resident - self.unsure - self.pins - self.protected
            if not self.locks[number] and not self.children.get(number) and number in self.settled
            if number not in self.perhaps_protected
        }

    def _is_maybe_host_leaf(self, number: NodeId) -> bool:
        """It is a host leaf if all is gone that may be."""
        kept = number in self.on_host and number not in self.resident and number in self.settled
        kept = kept and not self.locks[number] and number not in self.pins | self.protected
        return kept and self.children.get(number, set()) <= self.unsure

    def _is_maybe_device_leaf(self, number: NodeId) -> bool:
        """Likewise."""
        below = self.children.get(number, set()) & self.resident
        return number in self.resident and not self.locks[number] and below <= self.unsure

    def _settle(self, row: Row | None) -> None:
        """The device victim was demoted, copied, dropped or kept, as the state after and the effects say."""
        if row is None:
            return
        number = row.id
        now = self.change.after.row.get(number)
        if number not in self.on_host or not self._may_be_demoted(number):
            self.locks[number] -= 1
            self._prune(number)
            if number not in self.row:
                return
        if number in self.on_host and self._may_be_demoted(number):
            self._leave_device(number)
        elif now is not None and now.device is not None:
            self.tried.add(number)
            self.states[STATE_DEVICE] -= {number} if now.device_state is None else set()
            self._protect_no_more()
        elif self._was_copied(row):
            if now is None:
                self.lost_ends.update({number} & self.on_host)
            late = number in self.on_host
            self._come_to_host(row)
            self._leave_device(number)
            if self.before.rules.write_back_protects:
                self.protected.add(number)
            if now is None and (KV_HOST, row.hashes[-1]) not in self.change.what.victims:
                self._doubt(number)
                self._doubt_above(row.parent)
                self.perhaps_protected |= self.protected
                self.protected.clear()
                self.lost_ends.update({number} if late else ())
        elif number in self.on_host and self.children.get(number):
            self._leave_device(number)
        else:
            self._protect_no_more()
            self.lost_ends.update({number} & self.on_host)
            self._remove(number)

    def _protect_no_more(self) -> None:
        self.protected.clear()
        self.perhaps_protected.clear()

    def _leave_device(self, number: NodeId) -> None:
        self.resident.discard(number)
        if number in self.states[STATE_DEVICE]:
            self.states[STATE_DEVICE].discard(number)
            self._arrive(number)

    def _pin_offered(self, row: Row) -> None:
        """A copy that ended inside the step may have been offered to storage at once; that write pins what it reads."""
        where = self.before.where
        for record in self.change.after.storage.backups:
            if record.id not in self.before.storage.records and row.hashes[-1] in {*record.hashes, *record.ends}:
                read = [[where[each][0].id for each in side if each in where] for side in (record.hashes, record.ends)]
                self.pins.update(read[0], read[1])
                self.anchors.update(read[1])

    def _was_copied(self, row: Row) -> bool:
        mine = {KV: row.device, STATE: row.device_state}
        return any(
            effect.kind == "copy_to_host" and any(part.device == mine[part.component] for part in effect.parts)
            for effect in self.change.what.effects
        )

    def _doubt(self, number: NodeId) -> None:
        """The copy failed, or the node left later with one above: nothing is concluded about it and what is below."""
        self.unsure.add(number)
        for child in self.children.get(number, ()):
            self._doubt(child)

    def _doubt_above(self, number: NodeId) -> None:
        """Of a hybrid model: what has left the tree may have done so as soon as what is doubted had."""
        if not self.before.states or number not in self.row or number in self.change.after.row:
            return
        has_state = any(number in held for held in self.states.values())
        if not has_state and not self._is_in_use(number) and self.children.get(number, set()) <= self.unsure:
            self.unsure.add(number)
            self._doubt_above(self.row[number].parent)

    def _remove(self, number: NodeId) -> None:
        for child in list(self.children.get(number, ())):
            self._remove(child)
        if number not in self.row:
            return
        above = self.row[number].parent
        self.children.get(above, set()).discard(number)
        for kept in (self.resident, self.on_host, self.unsure, *self.states.values()):
            kept.discard(number)
        self.row.pop(number)
        self._prune(above)


def sweep_of(change: Change[Any, Any]) -> list[Taken]:
    """The victims of the step; replayed once a step. Those of a poll that did other things before are left out."""
    if "sweep" not in change.memo:
        replayable = not isinstance(change.op, Poll) or answered(change) is not None
        sweep = Sweep(change) if replayable else None
        change.memo["sweep"] = sweep.taken if sweep is not None else []
        change.memo["lost_ends"] = sweep.lost_ends if sweep is not None else set()
    taken: list[Taken] = change.memo["sweep"]
    return taken


def answered(change: Change[Any, Any]) -> Record | None:
    """The prefetch whose answer a poll applied, if that was the first thing it did and the only answer."""
    told = change.told
    if not isinstance(told, Polled) or told.backups or told.loads or len(told.answers) != 1:
        return None
    return change.before.storage.records.get(told.answers[0])
