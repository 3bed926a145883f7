"""Polling, changes of policy, audit and reset."""

from hicache_ref.model.insert import InsertRules
from hicache_ref.model.state import Ticket, fresh, operation_id, running
from hicache_ref.vocabulary.events import AllBlocksCleared
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.operations import Audit, Poll, Reset, SetWritePolicy
from hicache_ref.vocabulary.outcomes import Audited, Done, Invalid, Polled, Refused


class LifecycleRules(InsertRules):
    """What the scheduler does between requests."""

    def requires_poll(self, op: Poll) -> Invalid | None:
        """The agreed numbers are not negative."""
        return Invalid(why="agreed numbers must not be negative") if min(op.backups, op.loads) < 0 else None

    def on_poll(self, op: Poll) -> Polled:
        """Up to the agreed number of leading ended copies are applied: backups first, then loads (HC-XFER-02).

        Both lists are taken before the first is applied.
        """
        # change
        backups, loads = self._leading("host", op.backups), self._leading("device", op.loads)
        told: set[str] = set()
        for ticket in (*backups, *loads):
            told |= self.apply_end(self.state.tickets[ticket.id])
        # tell
        if told:
            self.facts.append("receipt_told")
        return Polled(backups=tuple(t.id for t in backups), loads=tuple(t.id for t in loads), lost=tuple(sorted(told)))

    def _leading(self, to: str, agreed: int) -> list[Ticket]:
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
        """The names of all operations on the books."""
        return tuple(sorted(operation_id(op) for op in running(self.state)))

    def requires_set_write_policy(self, op: SetWritePolicy) -> Invalid | None:
        """The type of the operation refuses unknown names."""
        return None

    def on_set_write_policy(self, op: SetWritePolicy) -> Done | Refused:
        """Later steps follow the policy, unless a backed-up node's parent has no host copy (HC-CONF-03)."""
        state = self.state
        if state.policy == "write_back" and op.policy != "write_back" and self.rules.contiguity:
            gaps = (n for n in state.nodes.values() if n.host is not None and n.id != ROOT)
            if any(state.nodes[node.parent].host is None for node in gaps):
                return Refused(why="host data without its prefix")
        # change
        if state.tickets and op.policy != state.policy:
            self.facts.append("policy_changed_in_flight")
        state.policy = op.policy
        # tell
        return Done()

    def requires_audit(self, op: Audit) -> Invalid | None:
        """An audit may be asked for at any time."""
        return None

    def on_audit(self, op: Audit) -> Audited:
        """Nothing changes; the requirements hold in every state, so what is pending is all there is to tell."""
        # tell
        return Audited(pending=self.pending())

    def requires_reset(self, op: Reset) -> Invalid | None:
        """A reset may be asked for at any time."""
        return None

    def on_reset(self, op: Reset) -> Done | Refused:
        """Every field is as in a new cache; while something runs it has to be waited for (HC-LIFE-02)."""
        pending = self.pending()
        if pending:
            return Refused(why="work in flight", wait_for=pending)
        # change
        self.state = fresh(self.profile)
        # tell
        self.events.append(AllBlocksCleared())
        return Done()
