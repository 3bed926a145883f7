"""STATE: states in storage, which go there behind the KV of their node and come back with it or not at all."""

from hicache_ref.model.records import BackupEnded, PrefetchReading
from hicache_ref.model.state import FREE
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.commits import committed, is_whole
from hicache_ref.requirements.prefetch import Reading
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import NOWHERE
from hicache_ref.requirements.state import AnyChange
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import PageHash
from hicache_ref.vocabulary.operations import ReadDone, WriteDone
from hicache_ref.vocabulary.outcomes import Done, Polled


@always("HC-STATE-30", "nodes", "owners", "books", "storage", about="storage")
def owed_states_are_on_host(view: View) -> int:
    """A state that is owed or was reported is settled on host, and was offered fewer times than allowed."""
    storage = view.storage
    if not storage.owed_states and not storage.reported_states:
        return 0
    known, settled = storage.owed_states.keys() | storage.reported_states, _settled_states(view)
    if not known <= settled:
        raise Broken.because(f"{len(known - settled)} states are owed or reported and not on host")
    for digest, tries in storage.owed_states.items():
        if not 0 <= tries < view.rules.storage_retries or digest in storage.reported_states:
            raise Broken.because(f"the state {digest[:8]} was offered {tries} times and is owed")
    return len(known)


def _settled_states(view: View) -> set[PageHash]:
    """The ends of the nodes whose state is on host, with no copy into it on the books."""
    written = view.states[1].written
    return {row.hashes[-1] for row in view.rows if row.host_state is not None and not written & {*row.host_state}}


@always("HC-STATE-34", "nodes", "owners", "books", "storage", about="storage")
def no_state_is_forgotten(view: View) -> int:
    """Every settled state on host that may be stored is believed stored, owed or reported."""
    storage = view.storage
    if not view.states or not storage.attached or not view.rules.attach_offers:
        return 0
    settled = _settled_states(view)
    if not view.rules.hash_namespace:
        settled -= {row.hashes[-1] for row in view.rows if row.extra is not None}
    forgotten = settled.difference(storage.believed_states, storage.owed_states, storage.reported_states)
    if forgotten:
        raise Broken.because(f"{len(forgotten)} states on host are neither stored nor owed nor reported")
    return len(settled)


@step("HC-STATE-31", "progress", "poll")
def fetched_whole_or_not_at_all(change: AnyChange) -> int:
    """A prefetch is committed with its state, which hangs at the last page read or is given back, or not at all."""
    after, judged = change.after, 0
    for record, known in committed(change) if after.states else ():
        judged += 1
        slot = (*record.states, -1)[0]
        held = after.states[1].held.get(slot)
        row = after.where.get(record.hashes[-1], (NOWHERE, 0))[0] if record.hashes else NOWHERE
        hangs = held == ("node", row.id) and row.hashes[-1:] == record.hashes[-1:]
        if held is not None and held != FREE and not hangs:
            raise Broken.because(f"the state of {record.id} belongs to {held}, its last page is that of node {row.id}")
        if hangs and not is_whole(after, record, known):
            raise Broken.because(f"{record.id} was read in part, and its state is that of node {row.id}")
    return judged


@step("HC-STATE-33", needs="storage")
def anchor_keeps_its_state(change: AnyChange) -> int:
    """The anchor of a prefetch that stays open keeps its state on host, unless a failed copy is applied."""
    before, after, judged = change.before, change.after, 0
    for record in after.storage.opened if after.states else ():
        was = before.row.get(record.anchor, NOWHERE)
        if was.host_state is None or record.id not in before.storage.records:
            continue
        judged += 1
        now = after.row.get(record.anchor, NOWHERE)
        failed = isinstance(change.told, Polled) and bool(change.told.backups or change.told.loads)
        if now.host_state is None and not failed:
            raise Broken.because(f"{record.id} hangs on node {record.anchor}, which lost its state on host")
    return judged


@step("HC-STATE-37", needs="storage")
def unread_slot_goes_by_rule(change: AnyChange) -> int:
    """The slot of a prefetch that is closed before it reads is free, or by the rule left to it until it is over."""
    before, after, judged = change.before, change.after, 0
    for record in before.storage.opened if before.states else ():
        now = after.storage.prefetch(record.id)
        if isinstance(record, Reading) or not record.states or (now is not None and now.rid is not None):
            continue
        judged += 1
        is_left = now is not None and before.rules.unread_slot == "left"
        holder = after.states[1].held.get(record.states[0])
        if holder != (None if is_left else FREE):
            raise Broken.because(f"{record.id} was closed before it read, and its state slot went to {holder}")
    return judged


@always("HC-STATE-35", "owners", "contents", "storage", about="storage")
def written_states_are_settled(view: View) -> int:
    """A write reads for each end a slot that holds the state there."""
    judged = 0
    for record in view.storage.backups if view.states else ():
        judged += len(record.states)
        if record.states and view.states[1].contents(record.states) != record.ends:
            raise Broken.because(f"{record.id} puts states {record.states}, which do not hold what it puts them under")
    return judged


@step("HC-STATE-36", "read_done", "write_done")
def states_are_as_reported(change: Change[ReadDone | WriteDone, Done]) -> int:
    """A read has filled its slot if the state came, else it holds what it held; as many states count as put as were."""
    op, before, after = change.op, change.before, change.after
    was, now = before.storage.records.get(op.id), after.storage.records.get(op.id)
    if isinstance(op, WriteDone):
        if isinstance(now, BackupEnded) and now.states_done != op.states:
            raise Broken.because(f"{op.states} states of {op.id} were put, {now.states_done} count as put")
        return len(now.states) if isinstance(now, BackupEnded) else 0
    if not isinstance(was, PrefetchReading) or not was.states:
        return 0
    expected = was.hashes[-1:] if op.state else before.states[1].contents(was.states)
    if after.states[1].contents(was.states) != tuple(expected):
        raise Broken.because(f"the state of {op.id} {'came' if op.state else 'did not come'}, its slot says otherwise")
    return 1
