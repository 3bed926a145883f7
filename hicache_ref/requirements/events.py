"""EVENT: whoever adds up what is published knows what is cached where."""

from collections.abc import Iterator
from functools import lru_cache

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.rows import NOWHERE
from hicache_ref.requirements.view import View
from hicache_ref.requirements.waited import EVICTING
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV, KV_HOST, Medium, PageHash
from hicache_ref.vocabulary.operations import Operation, Progress
from hicache_ref.vocabulary.outcomes import Outcome, Polled

Published = Change[Operation, Outcome]
MEDIA: tuple[Medium, Medium] = ("GPU", "CPU_PINNED")


@lru_cache(maxsize=1 << 16)
def signed(digest: PageHash) -> int:
    """The first 16 hex digits of a hash as a signed 64-bit number."""
    return int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True)


def block_number(view: View, digest: PageHash) -> int:
    """The number under which a page of the view is published: by its own hash, or by that of its tokens alone."""
    row, at = view.where[digest]
    if row.extra is None or view.rules.event_namespace:
        return signed(digest)
    path = list(view.up(row))[::-1]
    pages = [page for each in path[:-1] for page in each.key]
    return signed(chain((*pages, *row.key[: at + 1]), None, view.profile.bigram)[-1])


def _blocks(change: Published, number: int) -> set[PageHash]:
    """The pages with this number that were or are in the tree; those that moved in the step are looked at first."""
    before, after = change.before, change.after
    if "moved" not in change.memo:
        pairs = zip(before.residency, after.residency, strict=True)
        change.memo["moved"] = _numbered(change, {digest for was, now in pairs if was != now for digest in was ^ now})
    found: dict[int, set[PageHash]] = change.memo["moved"]
    if number in found and before.rules.event_namespace:
        return found[number]
    if "all" not in change.memo:
        change.memo["all"] = _numbered(change, before.where.keys() | after.where.keys())
    everything: dict[int, set[PageHash]] = change.memo["all"]
    return everything.get(number, set())


def _numbered(change: Published, digests: set[PageHash]) -> dict[int, set[PageHash]]:
    """These pages by number; where events have no namespaces, several can have the same."""
    found: dict[int, set[PageHash]] = {}
    for digest in digests:
        view = change.after if digest in change.after.where else change.before
        found.setdefault(block_number(view, digest), set()).add(digest)
    return found


@step("HC-EVENT-01")
def events_add_up(change: Published) -> int:
    """What was resident, with what was stored and without what was removed, is what is resident, on each medium."""
    events = change.what.events
    if not change.before.profile.events:
        return 0
    if not events and change.still and change.before.host.written == change.after.host.written:
        return 0
    before, after = change.before.residency, change.after.residency
    if not events and before == after:
        return 0
    if change.op.op == "reset" and change.told.kind == "done":
        cleared = [event.kind for event in events] == ["all_blocks_cleared"]
        if not cleared or after != (frozenset(), frozenset()):
            raise Broken.because("a reset publishes that all blocks are cleared, once")
        return 1
    for medium, was, now in zip(MEDIA, before, after, strict=True):
        net: dict[int, int] = {}
        for event in events:
            if event.kind == "all_blocks_cleared":
                raise Broken.because("all blocks are told to be cleared without a reset")
            if event.medium == medium:
                net[event.block_hash] = net.get(event.block_hash, 0) + (1 if event.kind == "block_stored" else -1)
        if was != now:
            for view, digests, by in ((change.after, now - was, -1), (change.before, was - now, 1)):
                for digest in digests:
                    number = block_number(view, digest)
                    net[number] = net.get(number, 0) + by
        if any(net.values()):
            wrong = [number for number, count in net.items() if count]
            raise Broken.because(f"the events on {medium} do not add up for blocks {wrong}")
    return len(events)


@step("HC-EVENT-02", needs="events")
def parents_are_named(change: Published) -> int:
    """A stored block names its tokens and the page before it in its path, at the top none."""
    judged = 0
    for event in change.what.events:
        if event.kind != "block_stored":
            continue
        judged += 1
        for digest in _blocks(change, event.block_hash):
            view = change.after if digest in change.after.where else change.before
            row, at = view.where[digest]
            above = view.row.get(row.parent, NOWHERE).hashes
            prior = row.hashes[at - 1] if at else above[-1] if above else None
            parent = None if prior is None else block_number(view, prior)
            if event.token_ids != row.key[at] or event.parent_block_hash != parent:
                said = f"tokens {event.token_ids} after block {event.parent_block_hash}"
                raise Broken.because(
                    f"block {event.block_hash} is stored as {said}, it is {row.key[at]} after {parent}"
                )
    return judged


@step("HC-EVENT-03", needs="events")
def numbers_are_hashes(change: Published) -> int:
    """The number of a block is the beginning of the hash of a page that was or is in the tree."""
    for event in change.what.events:
        if event.kind != "all_blocks_cleared" and not _blocks(change, event.block_hash):
            raise Broken.because(f"block {event.block_hash} is no page that was or is in the tree")
    return len(change.what.events)


@step("HC-EVENT-04", needs="events")
def host_is_stored_at_the_end(change: Published) -> int:
    """A block is stored on host only when a copy that wrote it is applied, or a prefetch that read it is committed."""
    stored = [e for e in change.what.events if e.kind == "block_stored" and e.medium == "CPU_PINNED"]
    if not stored:
        return 0
    before, told = change.before, change.told
    settled = set(_written_by_poll(before, told)) if isinstance(told, Polled) else set(_copied_in_step(change))
    settled.update(_read_by_commit(change))
    for event in stored:
        if not settled & _blocks(change, event.block_hash):
            raise Broken.because(f"block {event.block_hash} is stored on host, and was neither copied nor read")
    return len(stored)


def _read_by_commit(change: Published) -> list[PageHash]:
    """The pages that are in place of the prefetches that the step committed."""
    before, told = change.before.storage, change.told
    names: tuple[str | None, ...] = ()
    if isinstance(told, Polled):
        names = told.committed
    elif isinstance(change.op, Progress):
        names = (before.open.get(change.op.rid),)
    records = [record for record in map(before.prefetch, names) if record is not None]
    return [
        digest
        for record in records
        for digest, page in zip(record.hashes, record.pages, strict=False)
        if change.before.host.stamp[page] == digest
    ]


def _written_by_poll(before: View, told: Polled) -> Iterator[PageHash]:
    """The pages whose host copies the applied backups wrote."""
    written = frozenset[int]().union(*(before.busy[n].host_writes - before.busy[n].lost(KV_HOST) for n in told.backups))
    for row in before.rows:
        if row.host is not None and not written.isdisjoint(row.host):
            yield from [digest for digest, page in zip(row.hashes, row.host, strict=True) if page in written]


def _copied_in_step(change: Published) -> Iterator[PageHash]:
    """The pages that copies took to host which both began and ended in the step, as the blocking rule has them."""
    if change.op.op not in EVICTING or change.before.rules.write_back_copy != "blocking":
        return
    effects = [effect for effect in change.what.effects if effect.kind == "copy_to_host"]
    read = {page for effect in effects for part in effect.parts if part.component == KV for page in part.device}
    for row in change.before.rows:
        if row.device is not None and not read.isdisjoint(row.device):
            yield from row.hashes


@step("HC-EVENT-05", needs="events")
def events_alternate(change: Published) -> int:
    """A block is stored where it was not, and removed from where it was."""
    events = change.what.events
    strict = change.before.rules.event_namespace
    present: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "all_blocks_cleared":
            return len(events)
        where = (event.medium, event.block_hash)
        if where not in present:
            resident = change.before.residency[MEDIA.index(event.medium)]
            present[where] = sum([digest in resident for digest in _blocks(change, event.block_hash)])
        storing = event.kind == "block_stored"
        if (present[where] > 0 and strict) if storing else present[where] < 1:
            raise Broken.because(f"block {event.block_hash} is {event.kind[6:]} twice on {event.medium}")
        present[where] += 1 if storing else -1
    return len(events)


@step("HC-EVENT-07")
def events_are_off(change: Published) -> int:
    """Where events are off nothing is published, at a reset neither."""
    if change.before.profile.events:
        return 0
    if change.what.events:
        kinds = sorted({event.kind for event in change.what.events})
        raise Broken.because(f"events are off, and {change.op.op} publishes {', '.join(kinds)}")
    return 1
