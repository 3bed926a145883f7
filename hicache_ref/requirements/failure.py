"""XFER: what a failure may take, which is as little as it can."""

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.rows import Row, copy_in
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, STATE_DEVICE, STATE_HOST, NodeId, Pages
from hicache_ref.vocabulary.operations import Poll
from hicache_ref.vocabulary.outcomes import Polled


@step("HC-XFER-12", "poll")
def the_rest_is_spared(change: Change[Poll, Polled]) -> int:
    """Nodes that no failed copy was to fill, and that are below none, keep their copies; others keep what is sound."""
    before, after, told = change.before, change.after, change.told
    if change.still:
        return 0
    no_host = frozenset[int]().union(*(before.busy[name].lost(KV_HOST) for name in told.backups))
    no_device = frozenset[int]().union(*(before.busy[name].lost(KV_DEVICE) for name in told.loads))
    lost_host = _at_or_below(before, {row.id for row in before.rows if no_host.intersection(row.host or ())})
    lost_device = _at_or_below(before, {row.id for row in before.rows if no_device.intersection(row.device or ())})
    applied = {page for name in told.backups for page in before.busy[name].host_writes}
    evicted = {digest for pool, digest in change.what.victims if pool in (KV_HOST, STATE_HOST)}
    for row in before.rows:
        if row.hashes[-1] in evicted:
            continue
        now = after.row.get(row.id)
        if now is None and before.states and _is_dead_end(change, row):
            continue
        has_host = now is not None and _has(now.host, row.host)
        has_device = now is not None and _has(now.device, row.device)
        if row.id not in lost_device:
            if row.device is not None and not has_device:
                raise Broken.because(f"node {row.id} lost its device pages, and no load at or above it failed")
            if row.id not in lost_host and not has_host:
                raise Broken.because(f"node {row.id} lost its host pages, and no copy at or above it failed")
        elif not (has_host or no_host) and row.parent in after.row and _is_sound(before, row, applied):
            raise Broken.because(f"node {row.id} left with a failed load, and its host copy was good")
    return len(before.rows)


def _is_dead_end(change: Change[Poll, Polled], row: Row) -> bool:
    """Of a hybrid model: nothing that hung below the row is left, and its states were to be filled in vain."""
    before, names = change.before, (*change.told.backups, *change.told.loads)
    lost = {
        (pool.name, page) for pool in before.pools() for name in names for page in before.busy[name].lost(pool.name)
    }
    kept = [
        (state, slot)
        for kv, state in ((KV_DEVICE, STATE_DEVICE), (KV_HOST, STATE_HOST))
        if not any((kv, page) in lost for page in copy_in(row, kv) or ())
        for slot in copy_in(row, state) or ()
        if (state, slot) not in lost
    ]
    return not kept and not any(each.parent == row.id for each in change.after.rows)


def _has(now: Pages | None, was: Pages | None) -> bool:
    """Whether what the node had is there: all of it, or the end of it where a prefetch split the node."""
    return was is None or (now is not None and was[-len(now) :] == now)


def _at_or_below(view: View, numbers: set[NodeId]) -> set[NodeId]:
    """These nodes and all that hang below them."""
    if not numbers:
        return set()
    return {row.id for row in view.rows if any(above.id in numbers for above in view.up(row))}


def _is_sound(view: View, row: Row, applied: set[int]) -> bool:
    """The row's host copy is written, and no copy into it is left on the books."""
    pages = row.host or ()
    coming = view.host.written - applied
    return bool(pages) and all(view.host.contents(pages)) and not coming.intersection(pages)
