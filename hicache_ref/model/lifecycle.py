"""Polling, changes of policy, audit and reset."""

from typing import TypeVar

from hicache_ref.model.commit import CommitRules
from hicache_ref.model.records import BackupWriting, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Pass, Ticket, fresh, no_storage, operation_id, running
from hicache_ref.vocabulary.events import AllBlocksCleared
from hicache_ref.vocabulary.ids import KV_HOST, ROOT
from hicache_ref.vocabulary.operations import (
    Abort,
    Attach,
    Audit,
    ClearStorage,
    Detach,
    Poll,
    ReadDone,
    RegisterDraft,
    Reset,
    SetWritePolicy,
    WriteDone,
)
from hicache_ref.vocabulary.outcomes import Audited, Done, Invalid, Polled, Refused
from hicache_ref.vocabulary.profile import WritePolicy


class LifecycleRules(CommitRules):
    """What the scheduler does between requests."""

    def requires_poll(self, op: Poll) -> Invalid | None:
        """The agreed numbers are not negative."""
        numbers = (op.backups, op.loads, op.answers, op.reads, op.writes, op.releases)
        return Invalid(why="agreed numbers must not be negative") if min(numbers) < 0 else None

    def on_poll(self, op: Poll) -> Polled:
        """Up to the agreed number of leading ends of each kind are applied, in fixed order (HC-XFER-02, HC-PREF-18).

        Copies to host, copies to device, then storage: answers, batches read, writes, releases. What there is to
        apply is taken before the first is applied.
        """
        # change
        storage = self.storage
        backups, loads = self.leading("host", op.backups), self.leading("device", op.loads)
        answers, batches = _first(storage.answers, op.answers), min(op.reads, len(storage.reads))
        writes, releases = _first(storage.writes, op.writes), _first(storage.release, op.releases)
        told: set[str] = set()
        for ticket in (*backups, *loads):
            told |= self.apply_end(self.state.tickets[ticket.id])
        revoked = [name for name in answers if self.apply_answer(name)]
        reads, committed = self._apply_reads(batches)
        given_up = [name for name in writes if self.apply_write(name)]
        self.release(KV_HOST, tuple(releases))
        # tell
        if told:
            self.facts.append("receipt_told")
        return Polled(
            backups=tuple(t.id for t in backups), loads=tuple(t.id for t in loads), lost=tuple(sorted(told)),
            answers=tuple(answers), revoked=tuple(revoked), reads=tuple(reads),
            committed=tuple(committed), writes=tuple(writes), given_up=tuple(given_up), releases=len(releases),
            prefetched=self.counted.get("prefetched", 0), backed_up=self.counted.get("backed_up", 0),
            revoked_pages=self.counted.get("revoked", 0),
        )  # fmt: skip

    def _apply_reads(self, count: int) -> tuple[list[str], list[str]]:
        """The first batches read are applied one by one; returns their prefetches, and those that were committed."""
        reads, committed = [], []
        for _ in range(count):
            name, done = self.storage.reads.pop(0)
            reads.append(name)
            if self.apply_read(name, done):
                committed.append(name)
        return reads, committed

    def leading(self, to: str, agreed: int) -> list[Ticket]:
        """The ended copies in this direction that no running one precedes, as many as were agreed on."""
        found: list[Ticket] = []
        for ticket in self.state.tickets.values():
            if ticket.to != to:
                continue
            if ticket.good is None or len(found) == agreed:
                break
            found.append(ticket)
        return found

    def pending(self) -> tuple[str, ...]:
        """The names of all operations on the books, and of the release queue if pages wait in it."""
        names = [operation_id(op) for op in running(self.state)]
        return tuple(sorted([*names, *(["release queue"] if self.storage.release else [])]))

    def requires_set_write_policy(self, op: SetWritePolicy) -> Invalid | None:
        """The type of the operation refuses unknown names."""
        return None

    def on_set_write_policy(self, op: SetWritePolicy) -> Done | Refused:
        """Later steps follow the policy, unless a backed-up node's parent has no host copy (HC-CONF-03)."""
        if self._leaves_gaps(op.policy):
            return Refused(why="host data without its prefix")
        # change
        self._follow(op.policy)
        # tell
        return Done()

    def _leaves_gaps(self, policy: WritePolicy) -> bool:
        """Whether a node with a host copy lies below one without, which the policy does not allow (HC-BACKUP-01)."""
        state = self.state
        if state.policy != "write_back" or policy == "write_back" or not self.rules.contiguity:
            return False
        backed = (node for node in state.nodes.values() if node.host is not None and node.id != ROOT)
        return any(state.nodes[node.parent].host is None for node in backed)

    def _follow(self, policy: WritePolicy) -> None:
        """Later backups follow the policy."""
        if self.state.tickets and policy != self.state.policy:
            self.facts.append("policy_changed_in_flight")
        self.state.policy = policy

    def requires_register_draft(self, op: RegisterDraft) -> Invalid | None:
        """A draft model may be registered at any time."""
        return None

    def on_register_draft(self, op: RegisterDraft) -> Done | Refused:
        """Draft pages go with their pages from now on; what was written before has none (HC-DRAFT-11)."""
        moving: tuple[Ticket | Pass, ...] = (*self.state.tickets.values(), *self.state.passes.values())
        if moving:
            return Refused(why="work in flight", wait_for=tuple(sorted(operation_id(each) for each in moving)))
        # change
        self.state.draft = True
        # tell
        return Done()

    # -- storage comes and goes ------------------------------------------------------------------------------------

    def requires_attach(self, op: Attach) -> Invalid | None:
        """What is attached is not opened again, and so cannot fail; the type refuses settings that are none."""
        return Invalid(why="a backend is attached") if op.fails and self.storage.attached else None

    def on_attach(self, op: Attach) -> Done | Refused:
        """The backend is attached and what is on host is owed to it; or its settings changed (HC-LIFE-07)."""
        storage = self.storage
        if storage.attached and storage.backend != op.backend:
            return Refused(why=f"{storage.backend} is attached")
        if op.fails:
            self.facts.append("attach_failed")
            return Refused(why=f"{op.fails} failed")
        if op.write_policy is not None and self._leaves_gaps(op.write_policy):
            return Refused(why="host data without its prefix")
        # change
        if op.write_policy is not None:
            self._follow(op.write_policy)
        fresh_attach = not storage.attached
        if fresh_attach or self.rules.attach_again == "settings":
            storage.attached, storage.backend, storage.settings = True, op.backend, op.settings
        else:
            policy = {"prefetch_policy": op.settings.prefetch_policy}
            storage.settings = storage.settings.model_copy(update=policy)
        if fresh_attach and self.rules.attach_offers:
            self.owe_everything()
        # tell
        return Done()

    def requires_detach(self, op: Detach) -> Invalid | None:
        """A detach may be asked for at any time, also when nothing is attached."""
        return None

    def on_detach(self, op: Detach) -> Done | Refused:
        """No storage is attached and nothing of it is on the books; what runs is waited for or ended (HC-LIFE-08)."""
        # change
        self._close_storage_work(force=op.force)
        if self.storage.records:
            return Refused(why="work in flight", wait_for=tuple(sorted(self.storage.records)))
        self.state.storage = no_storage()
        # tell
        return Done()

    def _close_storage_work(self, *, force: bool) -> None:
        """Every prefetch is closed, what has ended is applied, what was only queued is over; by `force` all is."""
        storage = self.storage
        for rid in list(storage.open):
            self.on_abort(Abort(rid=rid))
        storage.loaded.clear()
        for name, record in list(storage.records.items()):
            if isinstance(record, PrefetchQueued):
                self.give_up_queued(name)
            elif force and isinstance(record, PrefetchReading):
                self.on_read_done(ReadDone(id=name, raised=True))
            elif force and isinstance(record, BackupWriting):
                self.on_write_done(WriteDone(id=name, raised=True))
        for name in storage.answers:
            self.apply_answer(name)
        self._apply_reads(len(storage.reads))
        for name in storage.writes:
            self.apply_write(name)
        storage.answers.clear()
        storage.writes.clear()
        self.release(KV_HOST, tuple(storage.release))
        storage.release.clear()

    def requires_clear_storage(self, op: ClearStorage) -> Invalid | None:
        """A backend is attached."""
        return None if self.storage.attached else Invalid(why="no storage is attached")

    def on_clear_storage(self, op: ClearStorage) -> Done:
        """Storage is believed to be empty; what is on host stays there and is owed again (HC-LIFE-09)."""
        # change
        storage = self.storage
        storage.believed.clear()
        storage.believed_draft.clear()
        storage.believed_states.clear()
        for name, record in storage.records.items():
            storage.records[name] = record.model_copy(update={"cleared": True})
        if self.rules.attach_offers:
            self.owe_everything()
        # tell
        return Done()

    def requires_audit(self, op: Audit) -> Invalid | None:
        """An audit may be asked for at any time."""
        return None

    def on_audit(self, op: Audit) -> Audited:
        """Nothing changes; the requirements hold in every state, so what is pending is all there is to tell."""
        # tell
        return Audited(pending=self.pending())

    def is_forced(self, op: Detach | Reset) -> bool:
        """Whether storage work that runs ends by it: it says so, or a reset was waited for long enough (HC-LIFE-02)."""
        limit = self.rules.reset_waits
        return op.force or (isinstance(op, Reset) and limit is not None and op.waited >= limit)

    def requires_reset(self, op: Reset) -> Invalid | None:
        """A reset may be asked for at any time."""
        return None

    def on_reset(self, op: Reset) -> Done | Refused:
        """Every field is as in a new cache; while something runs it has to be waited for (HC-LIFE-02)."""
        # change
        copying = self.state.tickets or self.state.passes
        self._close_storage_work(force=self.is_forced(op) and not copying)
        pending = self.pending()
        if pending:
            return Refused(why="work in flight", wait_for=pending)
        storage, draft = self.storage, self.state.draft
        self.state = fresh(self.profile)
        self.state.draft = draft
        if storage.attached:
            self.storage.attached, self.storage.backend, self.storage.settings = True, storage.backend, storage.settings
        # tell
        self.events = [AllBlocksCleared()]  # also of a dead end that went as its prefetch was closed
        return Done()


_T = TypeVar("_T")


def _first(queue: list[_T], agreed: int) -> list[_T]:
    """The first `agreed` entries, taken out of the queue."""
    taken = queue[:agreed]
    del queue[:agreed]
    return taken
