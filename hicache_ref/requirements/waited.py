"""What was waited for: by a copy that ended inside its step (XFER-13), and by the caller of a reset (LIFE-02)."""

from collections.abc import Iterator

from hicache_ref.model.state import Ticket
from hicache_ref.requirements.busy import moves
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV_DEVICE, STATE_DEVICE, PoolName, TicketId
from hicache_ref.vocabulary.operations import CopyFailed, Detach, Operation, Reset
from hicache_ref.vocabulary.outcomes import Outcome

EVICTING = ("evict", "evict_state", "take_pages", "load_back")
"""Operations that may evict from the device, and so copy to host within the step."""

Place = tuple[PoolName, int]


@step("HC-XFER-13", "copy_failed", *EVICTING)
def waited_for_cannot_fail(change: Change[Operation, Outcome]) -> int:
    """What a copy that ended well inside the step has waited for is sure, and what is sure does not fail."""
    if isinstance(change.op, CopyFailed):
        ticket = change.before.tickets[change.op.ticket]
        if change.op.first_failed < ticket.sure:
            raise Broken.because(f"{ticket.id} fails at part {change.op.first_failed}, and {ticket.sure} were sure")
        return ticket.sure
    rules = change.before.rules
    if rules.write_back_copy != "blocking" and not (change.before.states and rules.state_copy == "blocking"):
        return 0
    needed = _waited_for(change.before, set(_read_in_step(change)))
    for name, parts in needed.items():
        if change.after.tickets[name].sure < parts:
            raise Broken.because(f"{parts} parts of {name} were waited for, and are not sure")
    return len(needed)


def _read_in_step(change: Change[Operation, Outcome]) -> Iterator[Place]:
    """The device pages and state slots which copies that ended well inside the step have read."""
    rows, after = change.before.rows, change.after
    pages = [pair for row in rows for pair in zip(row.device or (), row.hashes, strict=False)]
    held = {(KV_DEVICE, page): digest for page, digest in pages}
    held |= {(STATE_DEVICE, slot): row.hashes[-1] for row in rows for slot in row.device_state or ()}
    for effect in change.what.effects:
        for source, (pool, target) in _pairs(effect) if effect.id not in after.busy else ():
            if after.pool(pool).stamp[target] == held.get(source):
                yield source


def _pairs(effect: Effect) -> list[tuple[Place, Place]]:
    """Source and target of each page that the effect copies away from a node on device."""
    if effect.kind == "copy_on_device":
        pairs = zip(effect.source, effect.target, strict=True)
        return [((STATE_DEVICE, source), (STATE_DEVICE, target)) for source, target in pairs]
    return [
        ((DEVICE[part.component], source), (HOST[part.component], target))
        for part in (effect.parts if effect.kind == "copy_to_host" else ())
        for source, target in zip(part.device, part.host, strict=True)
    ]


def _waited_for(view: View, reads: set[Place]) -> dict[TicketId, int]:
    """The running copies upstream of these pages, each with the number of parts up to the last that is needed."""
    needed: dict[TicketId, int] = {}
    ahead, seen = list(reads), set(reads)
    while ahead:
        pool, page = ahead.pop()
        for busy in view.busy.values():
            if not busy.live or page not in busy.writes(pool):
                continue
            sources: set[Place] = {(KV_DEVICE, each) for each in busy.device_reads}
            if isinstance(busy.record, Ticket):
                parts, sources = _up_to(busy.record, (pool, page))
                needed[busy.name] = max(parts, needed.get(busy.name, 0))
            ahead += sources - seen
            seen |= sources
    return needed


def _up_to(ticket: Ticket, place: Place) -> tuple[int, set[Place]]:
    """How many leading parts end with the one that writes the page, and what these read."""
    for number in range(1, len(ticket.parts) + 1):
        pairs = list(moves(ticket, 0, number))
        if place in [target for _, target in pairs]:
            return number, {source for source, _ in pairs}
    return len(ticket.parts), {source for source, _ in moves(ticket)}


def is_by_force(view: View, op: Reset | Detach) -> bool:
    """Whether the operation ends storage work that runs: it says so, or a reset has been waited for long enough."""
    if isinstance(op, Detach) or op.force or view.rules.reset_waits is None:
        return op.force
    return op.waited >= view.rules.reset_waits
