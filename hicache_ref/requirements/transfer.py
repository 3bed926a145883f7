"""XFER: order, contents and ends of copies and forward passes, and what a failure takes with it."""

from hicache_ref.model.state import Pass, Ticket
from hicache_ref.requirements.backup import is_losing
from hicache_ref.requirements.busy import NO_PAGES, NO_SLOTS, Touched, moves
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, STATE, STATE_DEVICE, STATE_HOST, TIER, PageHash, PoolName
from hicache_ref.vocabulary.operations import CopyDone, CopyFailed, ForwardDone, Operation, Poll
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled


@always("HC-XFER-01", "owners", "books", about="books")
def touched_is_not_free(view: View) -> int:
    """No page that an operation on the books touches is free."""
    for pool in view.pools():
        for page in pool.free:
            if page in pool.touched:
                raise Broken.because(f"{TIER[pool.name]} page {page} is free under {pool.touched[page]}")
    return len(view.device.touched) + len(view.host.touched)


@step("HC-XFER-02", "poll")
def polled_in_order(change: Change[Poll, Polled]) -> int:
    """A poll applies the leading ended copies of each direction in the order of submission, as many as agreed."""
    before, op, told = change.before, change.op, change.told
    gone: list[str] = []
    for to, agreed, names in (("host", op.backups, told.backups), ("device", op.loads, told.loads)):
        leading: list[str] = []
        for ticket in before.tickets.values():
            if ticket.to == to:
                if ticket.good is None or len(leading) == agreed:
                    break
                leading.append(ticket.id)
        if names != tuple(leading):
            raise Broken.because(f"copies {names} to {to} were applied, {leading} were to be")
        gone += leading
    left = [name for name in before.tickets if name not in gone]
    if list(change.after.tickets) != left:
        raise Broken.because(f"copies {list(change.after.tickets)} are on the books, {left} should be")
    return len(before.tickets)


def _touches(effect: Effect) -> Touched:
    """What an effect reads and writes, from its page lists."""
    none, slots = NO_PAGES, (NO_SLOTS, NO_SLOTS)
    if effect.kind == "run_forward":
        changes = frozenset([(STATE_DEVICE, slot) for slot in effect.state])
        return frozenset(effect.reads), frozenset(effect.writes), none, none, NO_SLOTS, changes
    if effect.kind == "copy_on_device":
        source, target = ([(STATE_DEVICE, slot) for slot in side] for side in (effect.source, effect.target))
        return none, none, none, none, frozenset(source), frozenset(target)
    if effect.kind == "storage_read" or effect.kind == "storage_write":
        batch, reads = frozenset(effect.pages), effect.kind == "storage_read"
        named = effect.state if effect.kind == "storage_read" else effect.states
        moved = frozenset([(STATE_HOST, slot) for slot in named])
        return (none, none, none, batch, NO_SLOTS, moved) if reads else (none, none, batch, none, moved, NO_SLOTS)
    if effect.kind == "storage_query" or effect.kind == "storage_cancel":
        return none, none, none, none, *slots
    device = frozenset([page for part in effect.parts if part.component == KV for page in part.device])
    host = frozenset([page for part in effect.parts if part.component == KV for page in part.host])
    states = [part for part in effect.parts if part.component == STATE]
    above = frozenset([(STATE_DEVICE, slot) for part in states for slot in part.device])
    below = frozenset([(STATE_HOST, slot) for part in states for slot in part.host])
    to_host = effect.kind == "copy_to_host"
    return (device, none, none, host, above, below) if to_host else (none, device, host, none, below, above)


def _must_wait(mine: Touched, other: Touched) -> bool:
    """Whether the other writes what this one reads or writes, or reads what this one writes, on either tier."""
    (reads, writes, from_host, to_host, state_reads, state_writes) = mine
    (read, written, host_read, host_written, state_read, state_written) = other
    return bool(
        written & reads or written & writes or read & writes
        or host_written & from_host or host_written & to_host or host_read & to_host
        or state_written & state_reads or state_written & state_writes or state_read & state_writes
    )  # fmt: skip


@step("HC-XFER-03", needs="effects")
def comes_after(change: Change[Operation, Outcome]) -> int:
    """An effect names the live operations that write what it reads or touch what it writes, and no other."""
    earlier = {name: busy.touched for name, busy in change.before.busy.items() if busy.live}
    for effect in change.what.effects:
        if effect.kind == "storage_query" or effect.kind == "storage_cancel":
            continue
        mine = _touches(effect)
        expected = {name for name, other in earlier.items() if name != effect.id and _must_wait(mine, other)}
        if set(effect.after) != expected or len(effect.after) != len(expected):
            raise Broken.because(f"{effect.id} comes after {effect.after}, by its pages after {sorted(expected)}")
        busy = change.after.busy.get(effect.id)
        if busy is not None and busy.live:
            earlier[effect.id] = mine
    return len(change.what.effects)


@step("HC-XFER-04", "copy_done", "copy_failed", "forward_done")
def ends_after_its_sources(change: Change[CopyDone | CopyFailed | ForwardDone, Done]) -> int:
    """What ends was live; if it ends well it was not doomed, and nothing that writes its sources was running.

    A copy that fails has the part at which it does.
    """
    op, before = change.op, change.before
    busy = before.busy[f"f:{op.rid}" if isinstance(op, ForwardDone) else op.ticket]
    if not busy.live:
        raise Broken.because(f"{busy.name} ended, and had ended before")
    parts = len(before.tickets[op.ticket].parts) if isinstance(op, CopyFailed) else 0
    if isinstance(op, CopyFailed) and not 0 <= op.first_failed < parts:
        raise Broken.because(f"{busy.name} failed at part {op.first_failed}, and has {parts} parts")
    if (isinstance(op, CopyFailed) and not op.first_failed) or (isinstance(op, ForwardDone) and busy.doomed):
        return 0
    ahead = [
        other.name
        for other in before.busy.values()
        if other.live
        and other is not busy
        and (
            other.device_writes & busy.device_reads
            or other.host_writes & busy.host_reads
            or other.state_writes & busy.state_reads
        )
    ]
    if ahead or busy.doomed:
        why = f"it comes after {ahead}" if ahead else "it is doomed"
        raise Broken.because(f"{busy.name} ended well, but {why}")
    return 1


@always("HC-XFER-05", "contents", "books", about="books")
def doomed_reads_nothing(view: View) -> int:
    """A live operation is doomed if and only if it reads a page that is not written and will not be."""
    judged = 0
    for busy in view.busy.values():
        if not busy.live:
            continue
        judged += 1
        missing = False
        for pool in view.pools():
            reads = busy.reads(pool.name)
            blank = [page for page in reads if pool.stamp[page] is None] if reads else ()
            if blank:
                coming = [o.writes(pool.name) for o in view.busy.values() if o.live and not o.doomed and o is not busy]
                missing = missing or bool(set(blank).difference(*coming))
        if missing != busy.doomed:
            wrong = "reads what will never be written, and is not doomed"
            raise Broken.because(f"{busy.name} {wrong if missing else 'is doomed, and all that it reads is coming'}")
    return judged


def _failed_pages(change: Change[Poll, Polled], names: tuple[str, ...], pool: PoolName) -> list[int]:
    return [page for name in names for page in change.before.busy[name].lost(pool)]


def _nobody_keeps(change: Change[Poll, Polled], names: tuple[str, ...], pool: PoolName) -> int:
    held = change.after.pool(pool).held
    failed = _failed_pages(change, names, pool)
    for page in failed:
        owner = held.get(page)
        if owner is not None and owner[0] == "node":
            raise Broken.because(f"{TIER[pool]} page {page} was not written, and stays with node {owner[1]}")
    return len(failed)


@step("HC-XFER-06", "poll")
def failed_backup_is_forgotten(change: Change[Poll, Polled]) -> int:
    """No node keeps a host page that an applied copy failed to write."""
    pools = (KV_HOST, STATE_HOST) if change.after.states else (KV_HOST,)
    return sum([_nobody_keeps(change, change.told.backups, pool) for pool in pools])


@step("HC-XFER-07", "poll")
def failed_load_is_forgotten(change: Change[Poll, Polled]) -> int:
    """No node keeps a device page that an applied copy failed to write."""
    pools = (KV_DEVICE, STATE_DEVICE) if change.after.states else (KV_DEVICE,)
    return sum([_nobody_keeps(change, change.told.loads, pool) for pool in pools])


@always("HC-XFER-08", "nodes", "contents", "books")
def unwritten_is_awaited(view: View) -> int:
    """An unwritten page of a node is about to be written, or a failure at or above the node takes it away."""
    judged = 0
    for pool in view.pools():
        if not pool.unlike:
            continue
        coming = NO_PAGES.union(*[busy.writes(pool.name) for busy in view.busy.values() if busy.live])
        for number, pages in pool.unlike:
            judged += 1
            missing = [page for page in pages if page not in coming and pool.stamp[page] is None]
            if missing and not is_losing(view, view.row[number]):
                pages_named = f"{TIER[pool.name]} pages {missing} of node {number}"
                raise Broken.because(f"{pages_named} are not written, and nothing will write them")
    return judged


@always("HC-XFER-09", "books", about="books")
def one_writer(view: View) -> int:
    """No two operations on the books write the same page."""
    for pool in view.pools():
        if pool.writes != len(pool.written):
            raise Broken.because(f"two of {list(view.busy)} write the same {TIER[pool.name]} page")
    return len(view.busy)


@step("HC-XFER-10", "copy_done", "copy_failed", "forward_done")
def contents_move(change: Change[CopyDone | CopyFailed | ForwardDone, Done]) -> int:
    """What ended well has put into each target page what its source held; no other page holds something new."""
    op, before, after = change.op, change.before, change.after
    put: dict[tuple[PoolName, int], PageHash | None] = {}
    record = before.busy[f"f:{op.rid}" if isinstance(op, ForwardDone) else op.ticket].record
    if isinstance(record, Pass):
        if not record.doomed:
            put = {(KV_DEVICE, page): digest for page, digest in zip(record.pages, record.hashes, strict=True)}
            put.update({(STATE_DEVICE, slot): record.hashes[-1] for slot in record.state})
    elif isinstance(record, Ticket):
        good = len(record.parts) if isinstance(op, CopyDone) else op.first_failed  # type: ignore[union-attr]
        put = _moved(before, record, good)
    for was, now in zip(before.pools(), after.pools(), strict=True):
        if was.stamp == now.stamp:
            changed = []
        else:
            changed = [page for page in range(now.size) if was.stamp[page] != now.stamp[page]]
        for page in changed:
            if now.stamp[page] is not None and put.get((now.name, page)) != now.stamp[page]:
                raise Broken.because(
                    f"{TIER[now.name]} page {page} holds {now.stamp[page]} without having been written"
                )
    for (pool, page), digest in put.items():
        now = after.pool(pool)
        if now.stamp[page] != digest and page not in now.free:
            raise Broken.because(f"{TIER[pool]} page {page} does not hold what was written into it")
    return len(put)


def _moved(before: View, ticket: Ticket, good: int) -> dict[tuple[PoolName, int], PageHash | None]:
    return {target: before.pool(source[0]).stamp[source[1]] for source, target in moves(ticket, 0, good)}


_ENDS_INSIDE = {"copy_to_host": "write_back_copy", "copy_on_device": "state_copy"}
"""Kinds of copies that may end inside the step, and the rule that says so."""


@step("HC-XFER-11")
def books_are_kept(change: Change[Operation, Outcome]) -> int:
    """Copies and passes go on the books when they are asked of the world, and leave them by their end or by a poll."""
    told, was, now = change.told, change.before.busy, change.after.busy
    if was is now or was.keys() == now.keys() or change.op.op == "reset":
        return len(now)
    before, after = (view.busy.keys() - view.storage.records.keys() for view in (change.before, change.after))
    expected = before | {effect.id for effect in change.what.effects if not effect.kind.startswith("storage")}
    if isinstance(change.op, ForwardDone):
        expected -= {f"f:{change.op.rid}"}
    elif isinstance(told, Polled):
        expected -= {*told.backups, *told.loads}
    elif isinstance(change.op, CopyDone | CopyFailed) and change.before.tickets[change.op.ticket].to == "request":
        expected -= {change.op.ticket}
    else:
        may_end = [kind for kind, rule in _ENDS_INSIDE.items() if getattr(change.before.rules, rule) == "blocking"]
        expected -= {effect.id for effect in change.what.effects if effect.kind in may_end and effect.id not in after}
    if after != expected:
        raise Broken.because(f"{sorted(after)} are on the books, expected {sorted(expected)}")
    return len(expected)
