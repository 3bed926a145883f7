"""LIFE: what is left when nothing runs, and after a reset."""

from typing import Any

from hicache_ref.model.records import BackupEnded, PrefetchAnswered, PrefetchEnded, PrefetchQueued
from hicache_ref.model.state import FREE
from hicache_ref.requirements.busy import kv_pins
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.conformance import leaves_gap
from hicache_ref.requirements.holders import StorageView
from hicache_ref.requirements.registry import Broken, eventually, step
from hicache_ref.requirements.rows import copy_in
from hicache_ref.requirements.store import to_be_stored
from hicache_ref.requirements.view import View
from hicache_ref.requirements.waited import is_by_force
from hicache_ref.vocabulary.ids import ROOT, TIER
from hicache_ref.vocabulary.operations import Attach, ClearStorage, Detach, Reset
from hicache_ref.vocabulary.outcomes import Done, Outcome, Refused


@eventually("HC-LIFE-01")
def nothing_pends(view: View) -> int:
    """Nothing is on the books, no copy pins anything, no page belongs to an operation."""
    if view.busy:
        raise Broken.because(f"{sorted(view.busy)} are still on the books")
    for pool in view.pools():
        for page, owner in enumerate(pool.owner):
            if owner[0] in ("op", "prefetch", "queue"):
                raise Broken.because(f"{TIER[pool.name]} page {page} still belongs to {owner[0]} {owner[1]}")
    receipts = [number for receipt in view.receipts.values() for number in kv_pins(receipt)]
    for row in view.rows:
        if row.lock != receipts.count(row.id):
            raise Broken.because(f"node {row.id} has lock count {row.lock}, {receipts.count(row.id)} receipts name it")
    return 1


_PASSING = PrefetchQueued | PrefetchAnswered | PrefetchEnded | BackupEnded


def at_work(view: View, op: Reset | Detach) -> list[str]:
    """What `op` has to wait for: storage work that touches pages; a reset also for copies and passes.

    By force only these count, but then it waits for all.
    """
    waits = [name for name, busy in view.busy.items() if not isinstance(busy.record, _PASSING)]
    others = [name for name in waits if name not in view.storage.records and isinstance(op, Reset)]
    if is_by_force(view, op) and not others:
        return []
    return sorted({*others, *(view.storage.records.keys() & set(waits))})


_EMPTY = ("records", "open", "answers", "reads", "writes", "release", "owed", "believed", "believed_draft", "reported",
          "loaded", "occupied")  # fmt: skip


def left_of(storage: StorageView) -> list[str]:
    """The parts of the storage part that are not as in a new cache, whether it is attached or not."""
    return [name for name in _EMPTY if getattr(storage, name)]


@step("HC-LIFE-02", "reset", told=("done",))
def reset_is_fresh(change: Change[Reset, Done]) -> int:
    """Every field is as in a cache that was just made, to which the same storage is attached."""
    before, view = change.before, change.after
    if running := at_work(before, change.op):
        raise Broken.because(f"a reset succeeded while {running} ran")
    said = [(each.attached, each.backend, each.settings) for each in (before.storage, view.storage)]
    if said[0] != said[1] or left_of(view.storage) or before.draft != view.draft:
        raise Broken.because(f"after a reset {left_of(view.storage) or 'another storage or draft model'} is there")
    left = view.receipts or view.requests or view.device_leaves or view.host_leaves or view.rows or view.busy
    sums = (view.evictable, view.protected, view.clock, view.root.lock, view.root.hits, view.root.uses, view.root.last)
    if left or any(sums) or view.policy != view.rules.write_policy or view.root.children:
        raise Broken.because("something of before is left after a reset")
    for pool in view.pools():
        written = any(pool.stamp) or any(pool.draft)
        if pool.free != list(range(pool.size))[::-1] or pool.owner != [FREE] * pool.size or written:
            raise Broken.because(f"pool {pool.name} is not as in a new cache")
    return 1


_KEPT = ("tickets", "passes", "requests", "receipts", "policy", "clock")


def _changed(before: View, after: View) -> list[str]:
    """The parts beside storage that are not as before; the tree may have lost what only ended work kept there."""
    changed = [name for name in _KEPT if getattr(before, name) != getattr(after, name)]
    return changed if _has_kept_rows(before, after) else [*changed, "row"]


def _has_kept_rows(before: View, after: View) -> bool:
    """The nodes are as before, but for such as no match can end at, nor below."""
    if before.row == after.row:
        return True
    gone = before.row.keys() - after.row.keys()
    if any(before.row[number].has_state for number in gone) or not before.profile.state:
        return False
    left = {number: row for number, row in before.row.items() if number not in gone}
    cut = {
        number: row._replace(children=tuple(each for each in row.children if each[1] not in gone))
        for number, row in left.items()
    }
    return cut == after.row


@step("HC-LIFE-06", "reset", "detach", told=("refused",))
def refused_closes_storage_work(change: Change[Reset | Detach, Refused]) -> int:
    """What has to be waited for is named, all other storage work is over, and all else is as before."""
    before, after, told = change.before, change.after, change.told
    waiting = at_work(before, change.op)
    if sorted(told.wait_for or ()) != waiting or not waiting:
        raise Broken.because(f"{told.wait_for} are to be waited for, at work are {waiting}")
    was, now = before.storage, after.storage
    over = (now.open, now.answers, now.reads, now.writes, now.release, now.occupied, now.loaded)
    if any(over) or now.records.keys() - waiting or now.records.keys() != was.records.keys() & set(waiting):
        raise Broken.because(f"storage work {sorted(now.records)} is left, with {over}, at work were {waiting}")
    changed = _changed(before, after)
    if changed or (was.attached, was.backend, was.settings) != (now.attached, now.backend, now.settings):
        raise Broken.because(f"a refused {change.op.op} changed {changed or 'what is attached'}")
    return 1


@step("HC-LIFE-07", "attach", told=("done", "refused"))
def attach_is_whole(change: Change[Attach, Done | Refused]) -> int:
    """Backend, settings and policy are those asked for; or the attach was lawfully refused and nothing changed."""
    before, after, op = change.before.storage, change.after.storage, change.op
    other = before.attached and before.backend != op.backend
    gap = op.write_policy is not None and leaves_gap(change.before, op.write_policy)
    refused = other or gap or op.fails is not None
    if refused != isinstance(change.told, Refused):
        raise Broken.because(
            f"an attach of {op.backend} is {change.told.kind}, attached is {before.backend or 'nothing'}, and"
            f" {op.fails or 'nothing'} failed; host data {'lacks' if gap else 'has'} its prefix"
        )
    policy = change.before.policy if refused or op.write_policy is None else op.write_policy
    if change.after.policy != policy:
        raise Broken.because(f"after the attach the write policy is {change.after.policy}, expected {policy}")
    settings = op.settings
    if before.attached and change.before.rules.attach_again == "policy":
        settings = before.settings.model_copy(update={"prefetch_policy": op.settings.prefetch_policy})
    expected = (before.attached, before.backend, before.settings) if refused else (True, op.backend, settings)
    if (after.attached, after.backend, after.settings) != expected or not change.still:
        raise Broken.because(f"after the attach {after.backend} is attached with {after.settings}")
    same = ("records", "open", "answers", "reads", "writes", "release", "believed", "loaded", "occupied")
    changed = [name for name in same if getattr(before, name) != getattr(after, name)]
    if changed or ((before.attached or refused) and before.owed != after.owed):
        raise Broken.because(f"an attach changed {changed or 'what is owed'}")
    return 1


@step("HC-LIFE-08", "detach", told=("done",))
def detach_leaves_nothing(change: Change[Detach, Done]) -> int:
    """Nothing of storage is left or touches a page, and the cache is as before; also if none was attached."""
    before, after = change.before, change.after
    if running := at_work(before, change.op):
        raise Broken.because(f"a detach succeeded while {running} ran")
    if after.storage.attached or left_of(after.storage):
        raise Broken.because(f"after a detach {left_of(after.storage) or 'storage'} is there")
    changed = _changed(before, after)
    if changed or (change.what.events and before.row == after.row):
        raise Broken.because(f"a detach changed {changed or 'what is published'}")
    return 1


@step("HC-LIFE-09", "clear_storage", "poll", "progress", "detach", "reset", needs="storage")
def clear_forgets_storage(change: Change[Any, Outcome]) -> int:
    """After a clear nothing is believed stored, and neither is anything by the end of what was under way then."""
    if isinstance(change.op, ClearStorage):
        return _all_is_owed_again(change)
    was, now = change.before.storage, change.after.storage
    cleared = [record for record in was.records.values() if record.cleared]
    if cleared:
        anew = {digest for each in was.records.values() if not each.cleared for digest in each.hashes}
        late = {digest for each in cleared for digest in each.hashes} - anew - was.believed
        if not late.isdisjoint(now.believed):
            raise Broken.because(f"storage was cleared, and {len(late & now.believed)} pages of before are believed")
    return len(cleared)


def _all_is_owed_again(change: Change[ClearStorage, Outcome]) -> int:
    """Nothing is believed stored, what may be stored is owed again where attach_offers, and the cache is as before."""
    before, after = change.before, change.after
    was, now = before.storage, after.storage
    if now.believed or now.believed_draft or not change.still:
        raise Broken.because("storage was cleared, and something is believed stored, or a node changed")
    expected = set(was.owed) | (to_be_stored(after) if before.rules.attach_offers else set())
    if now.owed.keys() != expected or (before.rules.attach_offers and now.reported):
        raise Broken.because(f"storage was cleared, and {len(now.owed)} pages are owed, expected {len(expected)}")
    if (
        now.open != was.open
        or now.records.keys() != was.records.keys()
        or not all(r.cleared for r in now.records.values())
    ):
        raise Broken.because("storage was cleared under its work, which ended or does not know it")
    return 1


@eventually("HC-LIFE-03")
def all_can_be_freed(view: View) -> int:
    """Without receipts, requests and operations every page is free or in a node that may be evicted."""
    if view.receipts or view.requests or view.busy:
        return 0
    locked = [row.id for row in view.rows if row.lock]
    if locked:
        raise Broken.because(f"nodes {locked} are locked, and nobody holds a receipt")
    for pool in view.pools():
        in_nodes = {page for row in view.rows for page in copy_in(row, pool.name) or ()}
        lost = set(range(pool.size)) - in_nodes - set(pool.free)
        if lost:
            raise Broken.because(f"{TIER[pool.name]} pages {sorted(lost)} can never be freed")
    return 1


@eventually("HC-LIFE-04")
def all_is_written(view: View) -> int:
    """Every cached page holds what its node says: what was unwritten has been written or has left."""
    for pool in view.pools():
        for number, pages in pool.unlike:
            held = pool.contents(pages)
            raise Broken.because(f"node {number} has {TIER[pool.name]} pages {pages} that hold {held}")
    return len(view.rows)


@eventually("HC-LIFE-05")
def nothing_is_stuck(view: View) -> int:
    """Without pins there is a leaf to evict on a tier wherever there is something to evict."""
    judged = 0
    if not view.busy and not view.receipts:
        resident = any(row.device is not None for row in view.rows if row.id != ROOT)
        on_host = any(row.device is None for row in view.rows)
        judged = int(resident) + int(on_host)
        if (resident and not view.device_leaves) or (on_host and not view.host_leaves):
            raise Broken.because("something is cached, nothing is locked, and there is no leaf to evict")
    return judged
