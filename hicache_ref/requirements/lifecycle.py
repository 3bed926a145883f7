"""LIFE: what is left when nothing runs, and after a reset."""

from hicache_ref.model.records import BackupEnded, PrefetchAnswered, PrefetchEnded, PrefetchQueued
from hicache_ref.model.state import FREE
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, eventually, step
from hicache_ref.requirements.view import StorageView, View
from hicache_ref.vocabulary.ids import ROOT, TIER
from hicache_ref.vocabulary.operations import Reset
from hicache_ref.vocabulary.outcomes import Done


@eventually("HC-LIFE-01")
def nothing_pends(view: View) -> int:
    """Nothing is on the books, no copy pins anything, no page belongs to an operation."""
    if view.busy:
        raise Broken.because(f"{sorted(view.busy)} are still on the books")
    for pool in view.pools():
        for page, owner in enumerate(pool.owner):
            if owner[0] in ("op", "prefetch", "queue"):
                raise Broken.because(f"{TIER[pool.name]} page {page} still belongs to {owner[0]} {owner[1]}")
    receipts = [number for receipt in view.receipts.values() for _, number in receipt.pins]
    for row in view.rows:
        if row.lock != receipts.count(row.id):
            raise Broken.because(f"node {row.id} has lock count {row.lock}, {receipts.count(row.id)} receipts name it")
    return 1


def at_work(view: View) -> list[str]:
    """The operations that a reset cannot end: copies, passes, and storage work that touches pages."""
    passing = PrefetchQueued | PrefetchAnswered | PrefetchEnded | BackupEnded
    return sorted([name for name, busy in view.busy.items() if not isinstance(busy.record, passing)])


_EMPTY = ("records", "open", "answers", "reads", "writes", "release", "owed", "believed", "believed_draft", "reported",
          "loaded", "occupied")  # fmt: skip


def left_of(storage: StorageView) -> list[str]:
    """The parts of the storage part that are not as in a new cache, whether it is attached or not."""
    return [name for name in _EMPTY if getattr(storage, name)]


@step("HC-LIFE-02", "reset", told=("done",))
def reset_is_fresh(change: Change[Reset, Done]) -> int:
    """Every field is as in a cache that was just made, to which the same storage is attached."""
    before, view = change.before, change.after
    if at_work(before):
        raise Broken.because(f"a reset succeeded while {at_work(before)} ran")
    said = [(each.attached, each.backend, each.settings) for each in (before.storage, view.storage)]
    if said[0] != said[1] or left_of(view.storage):
        raise Broken.because(f"after a reset {left_of(view.storage) or 'other storage than before'} is there")
    left = view.receipts or view.requests or view.device_leaves or view.host_leaves or view.rows or view.busy
    sums = (view.evictable, view.protected, view.clock, view.root.lock, view.root.hits, view.root.last)
    if left or any(sums) or view.policy != view.rules.write_policy or view.root.children:
        raise Broken.because("something of before is left after a reset")
    for pool in view.pools():
        written = any(pool.stamp) or any(pool.draft)
        if pool.free != list(range(pool.size))[::-1] or pool.owner != [FREE] * pool.size or written:
            raise Broken.because(f"pool {pool.name} is not as in a new cache")
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
        in_nodes = {page for row in view.rows for page in (row.device if pool is view.device else row.host) or ()}
        lost = set(range(pool.size)) - in_nodes - set(pool.free)
        if lost:
            raise Broken.because(f"{TIER[pool.name]} pages {sorted(lost)} can never be freed")
    return 1


@eventually("HC-LIFE-04")
def all_is_written(view: View) -> int:
    """Every cached page holds what its node says: what was unwritten has been written or has left."""
    for row, pool, pages in view.unlike:
        held = pool.contents(pages)
        raise Broken.because(f"node {row.id} has {TIER[pool.name]} pages {pages} that hold {held}")
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
