"""Faults of copies: order, ends that are applied too early or never, failures that do not travel, swapped slots."""

from dataclasses import replace

from hicache_ref.faults.catalogue import BLOCKING, OWN, STAGED, plant
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.copies import Refs
from hicache_ref.model.state import Direction, Node, PageRef, Part, Pass, Ticket
from hicache_ref.vocabulary.effects import CopyPart, CopyToDevice
from hicache_ref.vocabulary.ids import KV_HOST
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed, Operation
from hicache_ref.vocabulary.outcomes import Invalid


@plant("backup-overtakes-load", "K7", "VL-35092", expected="HC-XFER-03")
class BackupOvertakesLoad(Model):
    """A backup of a page does not wait for the load that fills it.

    vLLM's MultiConnector: one connector allocates and fills, another one sees the blocks and stores them.
    """

    def must_follow(self, reads: Refs, writes: Refs) -> tuple[str, ...]:
        """Loads do not count."""
        return tuple(name for name in super().must_follow(reads, writes) if not name.startswith("d:"))


@plant("backup-overtakes-forward", "K7", "R1", expected="HC-XFER-03")
class BackupOvertakesForward(Model):
    """A backup of a page does not wait for the forward pass that writes it.

    SGLang's controller has no fence with the forward stream.
    """

    def must_follow(self, reads: Refs, writes: Refs) -> tuple[str, ...]:
        """Passes do not count."""
        return tuple(name for name in super().must_follow(reads, writes) if not name.startswith("f:"))


@plant("end-before-source", "K7", OWN, expected="HC-XFER-04")
class EndBeforeSource(Model):
    """A copy may end well while the forward pass that writes its source still runs."""

    def waits_for(self, op: Ticket | Pass) -> tuple[str, ...]:
        """For other copies only."""
        return tuple(name for name in super().waits_for(op) if not name.startswith("f:"))


@plant("waited-for-may-fail", "K7", OWN, expected="HC-XFER-13", rules=BLOCKING)
class WaitedForMayFail(Model):
    """A copy that ended inside an eviction was computed from a load, which may still turn out to have failed."""

    def rely_on(self, reads: Refs) -> None:
        """On nothing: the end of a copy tells nothing of its sources."""


@plant("content-counts-at-submission", "K7", "SG-8901b", expected="HC-XFER-05")
class ContentCountsAtSubmission(Model):
    """A copy's pages count as written from the moment of its submission.

    SGLang's page reader raised its counter of completed pages before their content was in place.
    """

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """What can be moved is moved at once."""
        ticket = super().submit(to, anchor, parts, pinned=pinned)
        if not ticket.doomed and not self.waits_for(ticket):
            self.land(ticket, len(ticket.parts))
            self.state.tickets[ticket.id] = ticket
        return ticket


@plant("applied-before-end", "K7", OWN, expected="HC-XFER-02")
class AppliedBeforeEnd(Model):
    """A poll applies copies that still run."""

    def leading(self, to: str, agreed: int) -> list[Ticket]:
        """The first ones, ended or not."""
        return [ticket for ticket in self.state.tickets.values() if ticket.to == to][:agreed]


@plant("applied-out-of-order", "K7", OWN, expected="HC-XFER-02")
class AppliedOutOfOrder(Model):
    """A poll passes over a copy that still runs, and applies later ones."""

    def leading(self, to: str, agreed: int) -> list[Ticket]:
        """All that ended."""
        ended = [each for each in self.state.tickets.values() if each.to == to and each.good is not None]
        return ended[:agreed]


@plant("agreed-number-ignored", "K8", OWN, expected="HC-XFER-02")
class AgreedNumberIgnored(Model):
    """A poll applies all ended copies, also those that other ranks have not seen end."""

    def leading(self, to: str, agreed: int) -> list[Ticket]:
        """As many as there are."""
        return super().leading(to, len(self.state.tickets))


@plant("failed-copy-never-applied", "K11", "DY-3730", expected="HC-XFER-02")
class FailedCopyNeverApplied(Model):
    """A failed copy stays on the books for ever, and keeps what it pinned.

    Dynamo's KVBM: the set of outstanding transfers of a request never becomes complete.
    """

    def leading(self, to: str, agreed: int) -> list[Ticket]:
        """Up to the first that failed."""
        found = super().leading(to, agreed)
        failed = [index for index, ticket in enumerate(found) if ticket.good != len(ticket.parts)]
        return found[: failed[0]] if failed else found


@plant(
    "completed-twice", "K7", OWN, expected="HC-CONF-02",
    lockstep_only="no requirement repeats the preconditions: which calls are valid is what the model says",
)  # fmt: skip
class CompletedTwice(Model):
    """The end of a copy that has ended already is accepted once more."""

    def requires_copy_done(self, op: CopyDone) -> Invalid | None:
        """Ended or not."""
        ticket = self.state.tickets.get(op.ticket)
        return None if ticket is not None and ticket.good is not None else super().requires_copy_done(op)


@plant("doom-not-passed-on", "K12", OWN, expected="HC-XFER-05")
class DoomNotPassedOn(Model):
    """What reads the target of a failed copy is not doomed, and reports success."""

    def doom_readers(self, unwritten: Refs) -> None:
        """Nobody is."""


@plant("unwritten-source-accepted", "K12", OWN, expected="HC-XFER-05")
class UnwrittenSourceAccepted(Model):
    """A copy of a page that will never be written is submitted as if it could succeed."""

    def _is_unreadable(self, reads: Refs) -> bool:
        """Everything can be read."""
        return False


@plant("failed-backup-drops-node", "K4", OWN, expected=("HC-XFER-12", "HC-EVICT-03"))
class FailedBackupDropsNode(Model):
    """A resident node whose backup failed leaves the tree, device copy and all."""

    def lose_host(self, node: Node) -> set[str]:
        """The node and all below it."""
        return self.lose_subtree(node) if node.id in self.state.nodes else set()


@plant("failed-backup-keeps-below", "K4", OWN, expected="HC-BACKUP-01")
class FailedBackupKeepsBelow(Model):
    """A node loses its host copy by a failure, and what is backed up below it keeps its own behind the gap."""

    def needs_backed_parent(self) -> bool:
        """Never."""
        return False


@plant("failed-write-back-stays", "K12", OWN, expected="HC-XFER-06", rules=STAGED)
class FailedWriteBackStays(Model):
    """A staged node whose copy failed stays on host with pages that were never written."""

    def lose_host(self, node: Node) -> set[str]:
        """Only resident nodes lose something."""
        return set() if node.device is None else super().lose_host(node)


@plant("slots-swapped", "K14", OWN, expected="HC-LOAD-03")
class SlotsSwapped(Model):
    """A load puts the pages of a node into each other's slots."""

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """The device pages of each part are turned round."""
        ticket = super().submit(to, anchor, parts, pinned=pinned)
        if to == "host":
            return ticket
        turned = tuple(Part(component=p.component, device=p.device[::-1], host=p.host) for p in ticket.parts)
        self.state.tickets[ticket.id] = swapped = replace(ticket, parts=turned)
        pages = tuple(CopyPart(device=part.device, host=part.host) for part in turned)
        self.effects[-1] = CopyToDevice(id=ticket.id, parts=pages, after=self.effects[-1].after)
        return swapped


@plant("backup-slots-swapped", "K14", OWN, expected="HC-PAGE-07")
class BackupSlotsSwapped(Model):
    """A backup puts the pages of a node into each other's slots, and only what comes back from host shows it."""

    def _move_stamp(self, source: PageRef, target: PageRef) -> None:
        """The place of a page in its node is counted from the end."""
        for node in self.owners(KV_HOST, (target[1],) if target[0] == KV_HOST else ()):
            pages = node.at[KV_HOST]
            target = (KV_HOST, pages[-1 - pages.index(target[1])])
        super()._move_stamp(source, target)


@plant("submitted-twice", "K6", OWN, expected="HC-XFER-09")
class SubmittedTwice(Model):
    """A load is submitted a second time, and two copies write the same pages."""

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """Once more for the device."""
        if to == "device":
            super().submit(to, anchor, parts, pinned=pinned)
        return super().submit(to, anchor, parts, pinned=pinned)


@plant("id-used-as-position", "K14", "TR-13124", expected=("HC-XFER-10", "HC-CONF-01"))
class IdUsedAsPosition(Model):
    """A copy writes to the page of the target tier that has the number of its source.

    TensorRT-LLM: after an offload block id and slot differ, and one user kept the old equation.
    """

    def _move_stamp(self, source: PageRef, target: PageRef) -> None:
        """The number is kept, the pool changes."""
        super()._move_stamp(source, (target[0], source[1]))


@plant("failure-behind-the-end-taken", "K12", OWN, expected="HC-XFER-04")
class FailureBehindTheEndTaken(Model):
    """A failure of a part that a copy does not have is taken for the end of the whole copy, done well."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """No part failed."""
        ticket = self.state.tickets.get(op.ticket) if isinstance(op, CopyFailed) else None
        if isinstance(op, CopyFailed) and ticket is not None and op.first_failed >= len(ticket.parts):
            return super().step(CopyDone(ticket=op.ticket), choose)
        return super().step(op, choose)
