"""EVICT: victims are unpinned leaves in the order of the policy, as many as are needed, and nothing is lost."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.leaves import device_leaves, host_leaves, is_droppable
from hicache_ref.requirements.load import is_held_by_a_load
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.room import Wanted, wanted_by
from hicache_ref.requirements.rows import Row
from hicache_ref.requirements.sweep import answered, sweep_of
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, STATE_DEVICE, STATE_HOST, TIER, NodeId, PoolName
from hicache_ref.vocabulary.operations import (
    Evict,
    EvictHost,
    EvictHostState,
    EvictState,
    Insert,
    LoadBack,
    Poll,
    Prefetch,
    TakePages,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import Evicted, Outcome, Polled, Prefetching, Refused

Making = Change[
    Evict | EvictHost | EvictState | EvictHostState | TakePages | LoadBack | Insert | WriteBackup | Prefetch | Poll,
    Outcome,
]
_MAKE_ROOM = (
    "evict",
    "evict_host",
    "evict_state",
    "evict_host_state",
    "take_pages",
    "load_back",
    "insert",
    "write_backup",
    "prefetch",
    "poll",
)


@step("HC-EVICT-01", *_MAKE_ROOM, needs="victims")
def victims_are_leaves(change: Making) -> int:
    """Each victim was a leaf of its tier when it was taken."""
    for taken in sweep_of(change):
        if not taken.leaf:
            raise Broken.because(f"node {taken.row.id} was evicted from {TIER[taken.pool]} and was no leaf there")
    return len(sweep_of(change))


@step("HC-EVICT-02", *_MAKE_ROOM, needs="victims")
def victims_in_order(change: Making) -> int:
    """No leaf of that moment came before the victim in the order of the policy."""
    for taken in sweep_of(change):
        if taken.rank > taken.least:
            text = f"node {taken.row.id} of rank {taken.rank} was evicted before a leaf of rank {taken.least}"
            raise Broken.because(text)
    return len(sweep_of(change))


@step("HC-EVICT-04", *_MAKE_ROOM, needs="victims")
def pinned_is_kept(change: Making) -> int:
    """Nothing that a receipt, a copy or storage work pins is evicted."""
    for taken in sweep_of(change):
        if taken.pinned:
            raise Broken.because(f"node {taken.row.id} was evicted from {TIER[taken.pool]} while it was pinned")
    return len(sweep_of(change))


@step("HC-EVICT-03", "evict", "evict_host")
def evicts_enough(change: Change[Evict | EvictHost, Evicted]) -> int:
    """Enough was given up or no leaf remains, and as many are told as became free or are still touched."""
    told, n, device = change.told, change.op.n, isinstance(change.op, Evict)
    before, after = change.before, change.after
    was, now = (before.device, after.device) if device else (before.host, after.host)
    if told.freed != len(now.free) - len(was.free):
        raise Broken.because(f"{told.freed} pages are told to be freed, {len(now.free) - len(was.free)} were")
    staged = set(now.unheld) - set(was.unheld)
    if told.staged != len(staged):
        raise Broken.because(f"{told.staged} pages are told to be still touched, {len(staged)} are")
    if told.freed + told.staged >= n:
        return 1
    below = after.below()
    left = device_leaves(after) if device else host_leaves(after)
    rows = [after.row[number] for number in left]
    free = after.rules.dead_ends == "stay"
    could = [
        row.id
        for row in rows
        if (free and row.host is not None) or _is_demotable(row, below) or is_droppable(after, row, below)
    ]
    if could:
        raise Broken.because(f"{told.freed + told.staged} of {n} pages were given up, leaves {could} remain")
    return 1


def _is_demotable(row: Row, below: dict[NodeId, list[Row]]) -> bool:
    """It has a host copy; of a hybrid model a leaf of the tree also one of its state (HC-STATE-08)."""
    lacks_state = row.device_state is not None and row.host_state is None
    return row.host is not None and (bool(below.get(row.id)) or not lacks_state)


@step("HC-EVICT-05", *_MAKE_ROOM, needs="victims")
def nothing_is_lost(change: Making) -> int:
    """A device victim stays on host if it has a copy there; else it is copied, kept, or gone with all below it."""
    after = change.after
    taken = [each.row for each in sweep_of(change) if each.pool == KV_DEVICE]
    gone = {row.id for row in taken if row.id not in after.row}
    for row in taken:
        now = after.row.get(row.id)
        if now is not None and now.device is None and row.host is None:
            _must_be_written(after, now)
        elif now is None:
            orphans = [each.id for each in after.rows if each.parent == row.id]
            if orphans:
                raise Broken.because(f"node {row.id} was dropped, nodes {orphans} below it were not")
            if row.id in change.memo["lost_ends"]:
                continue
            dropped_above = any(above.id in gone for above in change.before.up(row) if above is not row)
            evicted_later = any((pool, row.hashes[-1]) in change.what.victims for pool in (KV_HOST, STATE_HOST))
            if row.host is not None and not dropped_above and not evicted_later:
                raise Broken.because(f"node {row.id} was dropped, and it had a host copy")
    return len(taken)


def _must_be_written(view: View, row: Row) -> None:
    """Each host page of the row is written, or a copy into it is on the books."""
    for page in row.host or ():
        if view.host.stamp[page] is None and page not in view.host.written:
            raise Broken.because(f"node {row.id} was demoted, but host page {page} was never written")


@step("HC-EVICT-06", "take_pages", "load_back", "write_backup", "insert", "prefetch", "poll")
def nothing_for_nothing(change: Making) -> int:
    """Nothing is evicted for an allocation that cannot succeed."""
    victims, told = change.what.victims, change.told
    if not victims or (isinstance(told, Polled) and answered(change) is None):
        return int(isinstance(told, Refused))
    rules = change.before.rules
    hopeless = rules.evict_host_for_hopeless
    allowed: set[PoolName] = {KV_HOST} if hopeless else set()
    if rules.evict_device_for_hopeless and isinstance(change.op, LoadBack):
        allowed |= {KV_DEVICE, STATE_DEVICE, STATE_HOST}  # on host, for what is written back
    if isinstance(told, Refused) and not told.wait_for:
        blamed = [digest for pool, digest in victims if pool not in allowed]
        if blamed:
            raise Broken.because(f"{len(blamed)} nodes were evicted, and the answer is {told.why}")
    if victims[0][0] in (KV_HOST, STATE_HOST) and not hopeless and not _got_host_pages(change):
        raise Broken.because(f"{len(victims)} host nodes were evicted for what was not submitted")
    return 1


def _got_host_pages(change: Making) -> bool:
    """A backup was submitted, or a prefetch has all the host pages, or the state slot, that room was made for."""
    wanted = _host_pages_wanted(change)
    if not isinstance(change.told, Prefetching | Polled):
        return bool(wanted) or any(effect.kind == "copy_to_host" for effect in change.what.effects)
    was, now = change.before.storage.records, change.after.storage.records
    taken = [now[name] for name in now if name not in was or not was[name].pages]
    for_slot = all(pool == STATE_HOST for pool, _ in change.what.victims)
    return any(len(each.pages) == wanted or (for_slot and each.states) for each in taken)


def _host_pages_wanted(change: Making) -> int:
    """How many host pages the step allocated, or tried to: for backups, for a prefetch, for one that was answered."""
    if isinstance(change.op, Prefetch):
        return len(change.hashes) - ends(change.before, change.hashes).best
    record = answered(change)
    if record is not None:
        return len(record.hashes)
    copies = [effect for effect in change.what.effects if effect.kind == "copy_to_host"]
    return sum(len(part.host) for effect in copies for part in effect.parts if part.component == KV)


def _pages_short(change: Making) -> int:
    """How many device pages had to be given up."""
    op, before = change.op, change.before
    if isinstance(op, Evict):
        return op.n
    free = len(before.device.free)
    if isinstance(op, TakePages):
        return op.n - free
    need = sum(row.device is None for row, _ in before.cached(change.hashes))
    return need if before.rules.eviction_asks == "need" and need > free else need - free


@step("HC-EVICT-07", *_MAKE_ROOM, needs="victims")
def no_more_than_needed(change: Making) -> int:
    """Nothing is evicted while enough pages are free, and nothing after enough was given up."""
    taken = sweep_of(change)
    device = [len(each.row.device or ()) for each in taken if each.pool == KV_DEVICE and not each.stayed]
    if device and sum(device[:-1]) >= _pages_short(change):
        raise Broken.because(f"device nodes of {device} pages were evicted, {_pages_short(change)} were short")
    host = [len(each.row.host or ()) for each in taken if each.pool == KV_HOST]
    if not host:
        return 1
    storage = isinstance(change.op, Prefetch | Poll)
    if isinstance(change.op, EvictHost):
        short = change.op.n
    elif change.before.rules.evict_host_for_hopeless:
        return 1
    else:
        short = _host_pages_wanted(change) - len(change.before.host.free)
        if short <= 0 and change.before.states and change.before.policy == "write_back":
            return 1  # what room was made for has left with what was evicted for it
        if short <= 0:
            raise Broken.because(f"host nodes of {host} pages were evicted while enough pages were free")
        if change.before.rules.eviction_asks == "need":
            short = _host_pages_wanted(change)
    if (storage or isinstance(change.op, EvictHost)) and sum(host[:-1]) >= short:
        raise Broken.because(f"host nodes of {host} pages were evicted, {short} were short")
    return 1


@step("HC-EVICT-08", "take_pages", "load_back", told=("refused",))
def no_is_well_founded(change: Change[TakePages | LoadBack, Refused]) -> int:
    """Room is refused only where free and evictable pages are too few, or what was given up is still touched."""
    op, before, after, told = change.op, change.before, change.after, change.told
    wanted = wanted_by(change)
    need = wanted.pages
    if _is_beyond_a_limit(change, wanted):
        return 0
    if before.states and not _has_state_room(wanted, change):
        # Those of a load are judged with its limits (HC-LOAD-04).
        if isinstance(op, TakePages) and not told.wait_for and wanted.could_be_had(before):
            raise Broken.because(f"{wanted.slots} state slots are refused, which are free or could be evicted")
        return int(isinstance(op, TakePages))
    room = _room_for(change, wanted)
    if room.is_enough and need <= len(after.device.free):
        raise Broken.because(f"{need} device pages are refused, {len(after.device.free)} are free")
    if room.is_enough and not room.waits:
        raise Broken.because(f"{need} device pages are refused, {room.evictable} could be evicted")
    return 1


def _is_beyond_a_limit(change: Change[TakePages | LoadBack, Refused], wanted: Wanted) -> bool:
    """Whether a load was refused by its threshold, its quota or a load that runs, whatever room there was."""
    op, before = change.op, change.before
    if not isinstance(op, LoadBack):
        return False
    gained = len(before.cached(change.hashes)) - ends(before, change.hashes).device
    if gained * before.profile.sizes.page_size < before.profile.sizes.load_back_threshold:
        return True
    return (op.quota is not None and wanted.pages > op.quota) or is_held_by_a_load(before, change.hashes)


class Room(NamedTuple):
    """What a refused allocation of device pages could have had."""

    evictable: int
    is_enough: bool
    """Whether free and evictable pages would have done."""

    waits: set[str]
    """What has to end for it; nothing if that would not help."""


def _room_for(change: Change[TakePages | LoadBack, Refused], wanted: Wanted) -> Room:
    before, after, path = change.before, change.after, wanted.path
    evictable = sum([len(row.device or ()) for row in before.rows if not row.lock and row.id not in path])
    short = wanted.pages - len(before.device.free)
    held = [page for page in before.device.unheld if page in before.device.touched]
    waits = touching(after, KV_DEVICE, after.device.unheld) if short <= evictable + len(held) else set()
    if short <= evictable:
        waits |= _keepers(after, path)
    return Room(evictable, short <= evictable, waits)


@step("HC-EVICT-11", "evict", "evict_host", "evict_state", "evict_host_state", "take_pages", "load_back",
      told=("evicted", "refused"))  # fmt: skip
def all_that_touch_are_named(change: Change[Any, Any]) -> int:
    """What has to be waited for is all that touches what was given up, and what keeps leaves from being dropped."""
    told, after = change.told, change.after
    if isinstance(told, Evicted):
        name = _EVICTED_FROM[change.op.op]
        expected = touching(after, name, set(after.pool(name).unheld) - set(change.before.pool(name).unheld))
    else:
        wanted = wanted_by(change)
        if _is_beyond_a_limit(change, wanted):
            return 0
        by_slots = bool(after.states) and not _has_state_room(wanted, change)
        expected = _slots_waited_for(change, wanted) if by_slots else _room_for(change, wanted).waits
    if sorted(told.wait_for or ()) != sorted(expected):
        raise Broken.because(f"{told.wait_for} are told to be waited for, expected {sorted(expected)}")
    return len(expected)


_EVICTED_FROM: dict[str, PoolName] = {
    "evict": KV_DEVICE, "evict_host": KV_HOST, "evict_state": STATE_DEVICE, "evict_host_state": STATE_HOST,
}  # fmt: skip


def touching(view: View, pool: PoolName, pages: Iterable[int]) -> set[str]:
    """The operations on the books that touch one of these pages."""
    wanted = frozenset(pages)
    return {each.name for each in view.busy.values() if wanted & each.reads(pool) or wanted & each.writes(pool)}


def _has_state_room(wanted: Wanted, change: Change[TakePages | LoadBack, Refused]) -> bool:
    """Whether the state slots that the step asks for are free before and after, so that KV alone was short."""
    return wanted.slots <= min(len(change.before.states[0].free), len(change.after.states[0].free))


def _slots_waited_for(change: Change[TakePages | LoadBack, Refused], wanted: Wanted) -> set[str]:
    """What has to end where state slots are short: pages come first, and nothing is evicted for what cannot succeed."""
    before, after = change.before, change.after
    left = touching(after, STATE_DEVICE, after.states[0].unheld)
    if not wanted.slots_could_be_had(before):
        return left
    room = _room_for(change, wanted)
    if not room.is_enough or wanted.pages > len(after.device.free):
        return room.waits
    return left | _keepers(after, wanted.path)


def _keepers(view: View, path: frozenset[NodeId]) -> set[str]:
    """The storage work that keeps leaves, but those of a path to be loaded, from being dropped by pinning below."""
    if not view.storage_pins:
        return set()
    leaves = device_leaves(view) - path
    kept = [row for row in view.rows if row.id in view.storage_pins and any(up.id in leaves for up in view.up(row))]
    pages = {page for row in kept for page in row.host or ()}
    anchors = {row.id for row in kept}
    opened = [record.id for record in map(view.storage.prefetch, view.storage.open.values())
              if record is not None and record.anchor in anchors]  # fmt: skip
    return {*opened, *(record.id for record in view.storage.backups if not pages.isdisjoint(record.pages))}


@step("HC-EVICT-09", *_MAKE_ROOM, needs="victims")
def written_back_where_there_is_room(change: Making) -> int:
    """Under write_back a victim without host copy is dropped only if the host had no room, or its copy failed."""
    if change.before.policy != "write_back":
        return 0
    judged = 0
    for taken in sweep_of(change):
        if taken.pool != KV_DEVICE or taken.row.host is not None or taken.stayed:
            continue
        if taken.row.id in change.memo["lost_ends"]:
            continue
        judged += 1
        if not taken.copied and len(taken.row.key) <= taken.host_room:
            text = f"node {taken.row.id} was dropped without a copy, {taken.host_room} host pages could be had"
            raise Broken.because(text)
    return judged
