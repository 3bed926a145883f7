"""DRAFT: a draft model's pages go where their pages go, and never change what becomes of those."""

from hicache_ref.model.records import Backup, BackupWriting, PrefetchReading
from hicache_ref.model.state import FREE, Pass, Ticket
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.prefetch import Reading, counts_no_more, takes_draft
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV, TIER
from hicache_ref.vocabulary.outcomes import Done, Refused

Copied = Change[ops.CopyDone | ops.CopyFailed, Done]


@always("HC-DRAFT-01", "owners", "contents", "policy")
def draft_is_of_its_page(view: View) -> int:
    """A valid draft page of a page in use holds what the page holds."""
    if not view.draft:
        return 0
    for pool in view.pools():
        if pool.draft == pool.stamp:
            continue
        for page, (draft, held) in enumerate(zip(pool.draft, pool.stamp, strict=True)):
            if draft is not None and draft != held and pool.owner[page] != FREE:
                raise Broken.because(f"the draft of {TIER[pool.name]} page {page} is valid and of another page")
    return view.device.size + view.host.size


@always("HC-DRAFT-06", "contents", "policy", "storage")
def no_draft_without_model(view: View) -> int:
    """Without draft model no draft page is valid or believed stored."""
    if not view.draft and (any(view.device.draft) or any(view.host.draft) or view.storage.believed_draft):
        raise Broken.because("there is no draft model, and a draft page is valid or believed stored")
    return 1


@always("HC-DRAFT-07", "owners", "contents", "policy")
def free_page_has_no_draft(view: View) -> int:
    """The draft page of a free page is invalid."""
    if not view.draft:
        return 0
    for pool in view.pools():
        full = [page for page in pool.free if pool.draft[page] is not None]
        if full:
            raise Broken.because(f"{TIER[pool.name]} pages {full} are free, and their draft pages are valid")
    return len(view.device.free) + len(view.host.free)


@always("HC-DRAFT-08", "storage", about="storage")
def draft_is_stored_behind_its_page(view: View) -> int:
    """A draft page is believed stored only where its page was put."""
    storage = view.storage
    if not storage.believed_draft:
        return 0
    alone = storage.believed_draft.difference(
        storage.believed, *[record.hashes[: record.done] for record in storage.backups]
    )
    if alone:
        raise Broken.because(f"{len(alone)} draft pages are believed stored, and their pages are not")
    return len(storage.believed_draft)


@step("HC-DRAFT-02", "copy_done", "copy_failed")
def draft_is_copied(change: Copied) -> int:
    """The draft pages of a copy's targets hold what those of its sources did; no other draft page changed."""
    op, before, after = change.op, change.before, change.after
    ticket = before.tickets[op.ticket]
    if not before.draft or ticket.to == "request":
        return 0
    good = op.first_failed if isinstance(op, ops.CopyFailed) else len(ticket.parts)
    source, target, now = _sides(change, ticket)
    expected = target.copy()
    for part in [part for part in ticket.parts[:good] if part.component == KV]:
        pairs = (part.device, part.host) if ticket.to == "host" else (part.host, part.device)
        for from_page, to_page in zip(*pairs, strict=True):
            expected[to_page] = source[from_page]
    stamp = (after.host if ticket.to == "host" else after.device).stamp
    wrong = [page for page in range(len(now)) if now[page] != expected[page] and stamp[page] is not None]
    if wrong:
        raise Broken.because(f"{op.ticket} did not take the draft of {ticket.to} pages {wrong} with them")
    return sum([len(part.host) for part in ticket.parts[:good]])


def _sides(change: Copied, ticket: Ticket) -> tuple[list[str | None], list[str | None], list[str | None]]:
    """The draft pages of the source before, of the target before, and of the target after."""
    before, after = change.before, change.after
    if ticket.to == "host":
        return before.device.draft, before.host.draft, after.host.draft
    return before.host.draft, before.device.draft, after.device.draft


@step("HC-DRAFT-03", "forward_done")
def pass_writes_draft(change: Change[ops.ForwardDone, Done]) -> int:
    """A pass that ended well wrote the draft pages of its pages too."""
    record = change.before.busy[f"f:{change.op.rid}"].record
    if not change.before.draft or not isinstance(record, Pass) or record.doomed:
        return 0
    device = change.after.device
    for page, digest in zip(record.pages, record.hashes, strict=True):
        if device.draft[page] != digest and device.owner[page] != FREE:
            raise Broken.because(f"the pass of {change.op.rid} wrote device page {page} without its draft page")
    return len(record.pages)


@step("HC-DRAFT-04", "read_done")
def draft_comes_with_its_page(change: Change[ops.ReadDone, Done]) -> int:
    """A batch made valid exactly the draft pages that came with it."""
    op, before, after = change.op, change.before, change.after
    if not before.draft:
        return 0
    record = before.storage.records.get(op.id)
    if not isinstance(record, PrefetchReading):
        return 0
    expected = before.host.draft.copy()
    for at in range(op.pages):
        place = record.done + at
        expected[record.pages[place]] = record.hashes[place] if at < op.draft else None
    if after.host.draft != expected:
        raise Broken.because(f"{op.draft} draft pages of {op.id} came, others are valid")
    return op.pages


@step("HC-DRAFT-05", "read_done", "write_done")
def missing_draft_costs_nothing(change: Change[ops.ReadDone | ops.WriteDone, Done]) -> int:
    """Where draft pages are missing, the pages of the batch are in place and counted all the same."""
    op, before, after = change.op, change.before, change.after
    was, now = before.storage.records.get(op.id), after.storage.records.get(op.id)
    if not before.draft or op.draft == op.pages or not isinstance(was, PrefetchReading | BackupWriting):
        return 0
    if before.rules.read_tail == "io_end" and isinstance(was, PrefetchReading) and was.rid is None:
        return 0  # what is read for nobody has gone back, and is not counted
    if isinstance(was, PrefetchReading) and counts_no_more(before, was):
        return 0
    end = was.done + op.pages
    counted = now.done if isinstance(now, Reading | Backup) else None
    if counted != end or after.host.contents(was.pages[was.done : end]) != was.hashes[was.done : end]:
        raise Broken.because(f"{op.pages} pages of {op.id} moved with {op.draft} draft pages, {counted} of {end} count")
    return 1


@step("HC-DRAFT-09", "write_done")
def draft_is_believed_stored(change: Change[ops.WriteDone, Done]) -> int:
    """A batch written makes exactly the draft pages that were put believed stored."""
    op, was, now = change.op, change.before.storage, change.after.storage
    record = was.records.get(op.id)
    if not isinstance(record, BackupWriting):
        return 0
    put = record.hashes[record.done : record.done + op.draft]
    if now.believed_draft != was.believed_draft.union(() if record.cleared else put):
        raise Broken.because(f"{op.draft} draft pages of {op.id} were put, others are believed stored")
    return op.draft


@step("HC-DRAFT-10", "read_done", "write_done")
def no_draft_where_none_is_taken(change: Change[ops.ReadDone | ops.WriteDone, Done]) -> int:
    """No draft page is read or stored without draft model, or where the backend takes none."""
    if change.op.draft and not takes_draft(change.before):
        raise Broken.because(f"{change.op.draft} draft pages of {change.op.id} moved, and none are taken here")
    return 1


@step("HC-DRAFT-11", "register_draft", told=("done", "refused"))
def registered_without_pages(change: Change[ops.RegisterDraft, Done | Refused]) -> int:
    """There is a draft model now, and no page has a draft page that had none; or copies and passes are to be ended."""
    before, after, told = change.before, change.after, change.told
    waits = sorted(name for name in before.busy if name not in before.storage.records)
    if isinstance(told, Refused) != bool(waits) or sorted(getattr(told, "wait_for", None) or ()) != waits:
        raise Broken.because(f"to register a draft model is {told.kind}, on the books are {waits}")
    if after.draft != (before.draft or not waits):
        raise Broken.because(f"there is {'a' if after.draft else 'no'} draft model, and it was {told.kind}")
    same = change.still and before.storage.equals(after.storage)
    if not same or not all(was.equals(now) for was, now in zip(before.pools(), after.pools(), strict=True)):
        raise Broken.because("to register a draft model has changed what is cached, or what a page has")
    return 1
