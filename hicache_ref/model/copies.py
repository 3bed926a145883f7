"""Copies: submission, order, what the world reports of them, and how failure goes downstream.

A copy is on the books from its submission until a poll applies its end. It touches pages, not nodes: who owns the
pages it wrote is asked when its end is applied.
"""

from collections.abc import Iterator
from dataclasses import replace

from hicache_ref.model.match import MatchRules
from hicache_ref.model.records import BackupEnded, PrefetchEnded, Record
from hicache_ref.model.state import Direction, Node, PageRef, Part, Pass, Ticket, operation_id, running
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyPart, CopyToDevice, CopyToHost, Effect
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV, KV_HOST, STATE, STATE_DEVICE, STATE_HOST, Component, PoolName
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed
from hicache_ref.vocabulary.outcomes import Done, Invalid

Refs = frozenset[PageRef]


class CopyRules(MatchRules):
    """What runs, in which order it must end, and what its end means."""

    def lacking(self, node: Node) -> list[Component]:
        """What the node has on device and not on host: KV, a state that came late, or both."""
        held = node.at
        return [each for each in self.profile.components if DEVICE[each] in held and HOST[each] not in held]

    def part(self, node: Node, component: Component) -> Part:
        """The node's pages of one component, which it has on both tiers."""
        return Part(component=component, device=node.at[DEVICE[component]], host=node.at[HOST[component]])

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """A copy of these parts, KV before state, is on the books and asked of the world.

        It is named after the anchor. With `pinned` the anchor's path stays locked until the end is applied.
        """
        reads, writes = self._touches(to, parts)
        name = handle(_LETTER[to], self.key_of(anchor), self.state.tickets)
        after = self.must_follow(reads, writes)
        doomed = self._is_unreadable(reads)
        pins = self.pin(anchor.id, evicted_too=True) if pinned else ()
        ticket = Ticket(
            id=name, to=to, parts=parts, reads=reads, writes=writes, pins=pins, doomed=doomed, policy=self.state.policy
        )  # fmt: skip
        self.state.tickets[name] = ticket
        self.effects.append(_effect(ticket, after))
        if after:
            self.facts.append(f"copy_to_{to}_waits_for_another")
        return ticket

    def _touches(self, to: Direction, parts: tuple[Part, ...]) -> tuple[Refs, Refs]:
        """What a copy in this direction reads and writes."""
        moves = [move for part in parts for move in _moves(to, part)]
        return frozenset(source for source, _ in moves), frozenset(target for _, target in moves)

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
        self._apply_to_request(ticket)
        # tell
        return Done()

    def _apply_to_request(self, ticket: Ticket) -> None:
        """A copy to a request is over as it ends: only the request waits for it, and it loses no node's copy."""
        if ticket.to == "request":
            self.apply_end(self.state.tickets[ticket.id])

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
        self._apply_to_request(ticket)
        # tell
        self.facts.append(f"copy_to_{ticket.to}_failed")
        return Done()

    def land(self, ticket: Ticket, good: int) -> None:
        """The copy has ended with `good` parts in place."""
        for part in ticket.parts[:good]:
            for source, target in _moves(ticket.to, part):
                self._move_stamp(source, target)
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
            draft = stamp if self.state.draft else None
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
        told: set[str] = set()
        for part in ticket.parts[good:]:
            told |= self._lose(ticket.to, part)
        pins = self.state.tickets[ticket.id].pins
        del self.state.tickets[ticket.id]
        if ticket.to == "host":
            self._acknowledge(ticket.parts[:good])
        self.unpin(pins)
        self.let_go(ticket.id, ticket.reads | ticket.writes)
        for part in ticket.parts if ticket.to != "request" else ():
            for node in self.owners(HOST[part.component], part.host):
                self.update_leaf(node.id)
        return told

    def _lose(self, to: Direction, part: Part) -> set[str]:
        """What the failed part was to fill is not there; returns the receipts that lost something.

        A failed state part costs the state alone, a failed KV part the state too (HC-STATE-11).
        """
        pool, pages = (HOST, part.host) if to == "host" else (DEVICE, part.device)
        told: set[str] = set()
        for node in self.owners(pool[part.component], pages):
            if part.component == STATE:
                self.facts.append("state_part_failed")
                if to == "device":
                    told |= {each.id for each in self.state.receipts.values() if (STATE, node.id) in each.pins}
                self.drop_state(node, pool[STATE])
            else:
                told |= self.lose_host(node) if to == "host" else self.lose_device(node)
        return told

    def _acknowledge(self, parts: tuple[Part, ...]) -> None:
        """Each node that owns a page of these parts is published as stored on host (HC-EVENT-04)."""
        for part in parts:
            for node in self.owners(KV_HOST, part.host) if part.component == KV else ():
                self.publish_stored(node, "CPU_PINNED", node.hashes)
        self.acknowledged(parts)

    def acknowledged(self, parts: tuple[Part, ...]) -> None:
        """What else follows once parts of a backup are known to be on host: nothing here."""

    def owners(self, pool_name: PoolName, pages: tuple[int, ...]) -> list[Node]:
        """The nodes that own these pages, those nearer the root first."""
        if not pages:
            return []
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
        told: set[str] = set()
        if self.needs_backed_parent():
            below = [self.state.nodes[child] for child in list(node.children.values())]
            told = {name for child in below if child.host is not None for name in self.lose_host(child)}
        self.drop_state(node, STATE_HOST)
        return told

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
                self.leave_device(each)
        for each in reversed(below):
            self.prune(each.id)
        return told

    def leave_device(self, node: Node) -> None:
        """The node has no KV on device, and so no state there (HC-STATE-01)."""
        arrives = STATE_DEVICE in node.at
        for component in self.profile.components:
            pages = node.at.get(DEVICE[component])
            if pages is not None:
                self.place(node, DEVICE[component], None)
                self.release(DEVICE[component], pages)
        if arrives:
            self.note_arrival(node)

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


_LETTER: dict[Direction, str] = {"device": "d", "host": "h", "request": "c"}


def _moves(to: Direction, part: Part) -> Iterator[tuple[PageRef, PageRef]]:
    """Source and target of each page of the part."""
    upper, lower = DEVICE[part.component], (DEVICE if to == "request" else HOST)[part.component]
    for device, host in zip(part.device, part.host, strict=True):
        above, below = (upper, device), (lower, host)
        yield (above, below) if to == "host" else (below, above)


def _effect(ticket: Ticket, after: tuple[str, ...]) -> Effect:
    """What the world is asked to do."""
    if ticket.to == "request":
        part = ticket.parts[0]
        return CopyOnDevice(id=ticket.id, source=part.host, target=part.device, after=after)
    parts = tuple(CopyPart(component=part.component, device=part.device, host=part.host) for part in ticket.parts)
    return (CopyToHost if ticket.to == "host" else CopyToDevice)(id=ticket.id, parts=parts, after=after)


def _is_live(op: Ticket | Pass | Record) -> bool:
    """Whether the world still works on it: passes leave the books when they end, others when that is applied."""
    if isinstance(op, Ticket):
        return op.good is None
    return not isinstance(op, PrefetchEnded | BackupEnded)
