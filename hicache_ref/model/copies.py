"""Copies: submission, order, what the world reports of them, and how failure goes downstream.

A copy is on the books from its submission until a poll applies its end. It touches pages, not nodes: who owns the
pages it wrote is asked when its end is applied.
"""

from dataclasses import replace
from typing import Literal

from hicache_ref.model.components import COMPONENT
from hicache_ref.model.match import MatchRules
from hicache_ref.model.records import BackupEnded, PrefetchEnded, Record
from hicache_ref.model.state import Node, PageRef, Part, Pass, Ticket, operation_id, running
from hicache_ref.vocabulary.effects import CopyPart, CopyToDevice, CopyToHost
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV_DEVICE, KV_HOST, PoolName
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed
from hicache_ref.vocabulary.outcomes import Done, Invalid

Refs = frozenset[PageRef]


class CopyRules(MatchRules):
    """What runs, in which order it must end, and what its end means."""

    def submit(self, to: Literal["device", "host"], nodes: list[Node], *, pinned: bool) -> Ticket:
        """A copy of these nodes, which have pages on both tiers, is on the books and asked of the world.

        It is named after the last node. With `pinned` that node's path stays locked until the end is applied.
        """
        parts = tuple(
            Part(component=component, device=node.at[DEVICE[component]], host=node.at[HOST[component]])
            for node in nodes
            for component in COMPONENT
        )
        reads, writes = self._touches(to, parts)
        anchor = nodes[-1]
        name = handle(to[0], self.key_of(anchor), self.state.tickets)
        after = self.must_follow(reads, writes)
        doomed = self._is_unreadable(reads)
        pins = self.pin(anchor.id, evicted_too=True) if pinned else ()
        ticket = Ticket(id=name, to=to, parts=parts, reads=reads, writes=writes, pins=pins, doomed=doomed)
        self.state.tickets[name] = ticket
        effect = CopyToHost if to == "host" else CopyToDevice
        pages = tuple(CopyPart(component=p.component, device=p.device, host=p.host) for p in parts)
        self.effects.append(effect(id=name, parts=pages, after=after))
        if after:
            self.facts.append(f"copy_to_{to}_waits_for_another")
        return ticket

    def _touches(self, to: str, parts: tuple[Part, ...]) -> tuple[Refs, Refs]:
        """What a copy in this direction reads and writes."""
        device = frozenset((DEVICE[part.component], page) for part in parts for page in part.device)
        host = frozenset((HOST[part.component], page) for part in parts for page in part.host)
        return (device, host) if to == "host" else (host, device)

    def must_follow(self, reads: Refs, writes: Refs) -> tuple[str, ...]:
        """The live operations that a new one comes after: those that write what it reads, or touch what it writes.

        The one place where order is decided (HC-XFER-03).
        """
        return tuple(
            operation_id(op)
            for op in running(self.state)
            if _is_live(op) and (op.writes & reads or op.writes & writes or op.reads & writes)
        )

    def _is_unreadable(self, reads: Refs) -> bool:
        """Whether one of these pages is neither written nor about to be."""
        missing = {ref for ref in reads if self.state.pools[ref[0]].stamp[ref[1]] is None}
        if not missing:
            return False
        for op in running(self.state):
            if isinstance(op, Ticket | Pass) and _is_live(op) and not op.doomed:
                missing -= op.writes
        return bool(missing)

    def waits_for(self, op: Ticket | Pass) -> tuple[str, ...]:
        """The live operations that write what `op` reads: it cannot end well before them (HC-XFER-04)."""
        return tuple(
            operation_id(other)
            for other in running(self.state)
            if other is not op and _is_live(other) and other.writes & op.reads
        )

    # -- the world reports ------------------------------------------------------------------------------------------

    def requires_copy_done(self, op: CopyDone) -> Invalid | None:
        """The copy runs, what it reads is written, and it is not doomed."""
        ticket = self.state.tickets.get(op.ticket)
        if ticket is None or ticket.good is not None:
            return Invalid(why=f"no running copy {op.ticket}")
        if ticket.doomed:
            return Invalid(why=f"copy {op.ticket} reads what was never written: it can only fail")
        ahead = self.waits_for(ticket)
        return Invalid(why=f"copy {op.ticket} comes after {', '.join(ahead)}") if ahead else None

    def on_copy_done(self, op: CopyDone) -> Done:
        """Its target pages hold what its source pages held."""
        # change
        ticket = self.state.tickets[op.ticket]
        self.land(ticket, len(ticket.parts))
        # tell
        return Done()

    def requires_copy_failed(self, op: CopyFailed) -> Invalid | None:
        """The copy runs, the part exists, and no part is called good that could not be."""
        ticket = self.state.tickets.get(op.ticket)
        if ticket is None or ticket.good is not None:
            return Invalid(why=f"no running copy {op.ticket}")
        if not 0 <= op.first_failed < len(ticket.parts):
            return Invalid(why=f"copy {op.ticket} has {len(ticket.parts)} parts")
        if op.first_failed < ticket.sure:
            return Invalid(why=f"{ticket.sure} parts of copy {op.ticket} are in place: what was read from them is")
        if op.first_failed and (ticket.doomed or self.waits_for(ticket)):
            return Invalid(why=f"no part of copy {op.ticket} can be in place yet")
        return None

    def on_copy_failed(self, op: CopyFailed) -> Done:
        """Parts before `first_failed` are in place; whatever reads the others is doomed (HC-XFER-05)."""
        # change
        ticket = self.state.tickets[op.ticket]
        self.land(ticket, op.first_failed)
        # tell
        self.facts.append(f"copy_to_{ticket.to}_failed")
        return Done()

    def land(self, ticket: Ticket, good: int) -> None:
        """The copy has ended with `good` parts in place."""
        source, target = (DEVICE, HOST) if ticket.to == "host" else (HOST, DEVICE)
        for part in ticket.parts[:good]:
            pairs = zip(part.device, part.host, strict=True)
            for from_page, to_page in pairs if ticket.to == "host" else ((h, d) for d, h in pairs):
                self._move_stamp((source[part.component], from_page), (target[part.component], to_page))
        self.state.tickets[ticket.id] = replace(ticket, good=good)
        _, lost = self._touches(ticket.to, ticket.parts[good:])
        self.doom_readers(lost)

    def _move_stamp(self, source: PageRef, target: PageRef) -> None:
        """The target page holds what the source page held, its draft page too (HC-DRAFT-02).

        A copy that ended inside a step has waited for the pass that writes its source, although that pass is
        reported later: it takes what the pass writes.
        """
        pools = self.state.pools
        stamp, draft = pools[source[0]].stamp[source[1]], pools[source[0]].draft[source[1]]
        if stamp is None:
            writer = next(each for each in self.state.passes.values() if source in each.writes)
            stamp = writer.hashes[writer.pages.index(source[1])]
            draft = stamp if self.profile.draft else None
        pools[target[0]].stamp[target[1]] = stamp
        pools[target[0]].draft[target[1]] = draft

    def rely_on(self, reads: Refs) -> None:
        """What is still to write these pages, and what that reads, cannot fail any more (HC-XFER-13).

        A copy that ended well inside a step has waited for all of it; only the reports are still to come.
        """
        for op in list(running(self.state)):
            if not _is_live(op) or not op.writes & reads:
                continue
            if isinstance(op, Ticket):
                written = [self._touches(op.to, (part,))[1] & reads for part in op.parts]
                sure = max(at for at, refs in enumerate(written, start=1) if refs)
                self.state.tickets[op.id] = replace(op, sure=max(sure, op.sure))
                self.rely_on(self._touches(op.to, op.parts[:sure])[0])
            else:
                self.rely_on(op.reads)

    def doom_readers(self, unwritten: Refs) -> None:
        """Every live operation that reads one of these pages can only fail, and so on downstream (HC-XFER-05)."""
        for op in list(running(self.state)):
            if not isinstance(op, Ticket | Pass) or not _is_live(op) or op.doomed or not op.reads & unwritten:
                continue
            if isinstance(op, Ticket):
                self.state.tickets[op.id] = replace(op, doomed=True)
                self.facts.append("doomed_copy")
            else:
                self.state.passes[op.id] = replace(op, doomed=True)
                self.facts.append("doomed_forward")
            self.doom_readers(op.writes)

    # -- the scheduler applies --------------------------------------------------------------------------------------

    def apply_end(self, ticket: Ticket) -> set[str]:
        """The ended copy is off the books; the receipts that lost something by its failure are returned."""
        good = len(ticket.parts) if ticket.good is None else ticket.good
        target = KV_HOST if ticket.to == "host" else KV_DEVICE
        told: set[str] = set()
        for part in ticket.parts[good:]:
            for node in self.owners(target, part.host if ticket.to == "host" else part.device):
                told |= self.lose_host(node) if ticket.to == "host" else self.lose_device(node)
        pins = self.state.tickets[ticket.id].pins
        del self.state.tickets[ticket.id]
        self.unpin(pins)
        if ticket.to == "host":
            self._acknowledge(ticket.parts[:good])
        self.let_go(ticket.id, ticket.reads | ticket.writes)
        for node in self.owners(KV_HOST, tuple(page for part in ticket.parts for page in part.host)):
            self.update_leaf(node.id)
        return told

    def _acknowledge(self, parts: tuple[Part, ...]) -> None:
        """Each node that owns a page of these parts is published as stored on host (HC-EVENT-04)."""
        for part in parts:
            for node in self.owners(KV_HOST, part.host):
                self.publish_stored(node, "CPU_PINNED", node.hashes)
            self.acknowledged(part)

    def acknowledged(self, part: Part) -> None:
        """What else follows once a part of a backup is known to be on host: nothing here."""

    def owners(self, pool_name: PoolName, pages: tuple[int, ...]) -> list[Node]:
        """The nodes that own these pages, those nearer the root first."""
        owner = self.state.pools[pool_name].owner
        numbers = dict.fromkeys(owner[page][1] for page in pages if owner[page][0] == "node")
        return sorted((self.state.nodes[number] for number in numbers if isinstance(number, int)), key=self.depth)

    def lose_host(self, node: Node) -> set[str]:
        """The node has no host copy; what needed it to be restorable has none either, or left the tree (HC-XFER-06).

        A node that is on host only leaves with what hangs below it. Returns the receipts that lost a node.
        """
        if node.id not in self.state.nodes:
            return set()
        if node.device is None:
            self.facts.append("staged_node_lost")
            return self.lose_subtree(node)
        if node.host is not None:
            pages = node.host
            self.place(node, KV_HOST, None)
            self.release(KV_HOST, pages)
            self.facts.append("failed_backup_of_resident")
        if not self.needs_backed_parent():
            return set()
        below = [self.state.nodes[child] for child in list(node.children.values())]
        return {told for child in below if child.host is not None for told in self.lose_host(child)}

    def lose_device(self, node: Node) -> set[str]:
        """The node and all below it are on host only, or left the tree where no settled copy is there (HC-XFER-07).

        Returns the receipts that named one of them.
        """
        if node.id not in self.state.nodes:
            return set()
        below = self.subtree(node)
        told = self.receipts_naming({each.id for each in below if each.device is not None})
        for each in below:
            if each.id not in self.state.nodes:
                continue
            if each.device is not None and each is not node:
                self.facts.append("resident_below_failed_load")
            if not self.is_settled_on_host(each):
                told |= self.lose_subtree(each)
            elif each.device is not None:
                pages = each.device
                self.place(each, KV_DEVICE, None)
                self.release(KV_DEVICE, pages)
        return told

    def lose_subtree(self, node: Node) -> set[str]:
        """The node and all below it have left the tree; the receipts that named one of them are returned."""
        told = self.receipts_naming({each.id for each in self.subtree(node)})
        self.drop_subtree(node)
        return told

    def is_settled_on_host(self, node: Node) -> bool:
        """The node's host copy is written and no copy into it is on the books."""
        if node.host is None or self.is_being_written(KV_HOST, node.host):
            return False
        stamps = self.state.pools[KV_HOST].stamp
        return all(stamps[page] is not None for page in node.host)

    def needs_backed_parent(self) -> bool:
        """Whether a backed-up node's parent must be backed up too, not merely resident (HC-BACKUP-01)."""
        return self.rules.contiguity and self.state.policy != "write_back"


def _is_live(op: Ticket | Pass | Record) -> bool:
    """Whether the world still works on it: passes leave the books when they end, others when that is applied."""
    if isinstance(op, Ticket):
        return op.good is None
    return not isinstance(op, PrefetchEnded | BackupEnded)
