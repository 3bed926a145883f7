"""EVENT: whoever adds up what is published knows what is cached where."""

from collections import Counter

from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.view import NOWHERE, Change, View
from hicache_ref.vocabulary.events import BlockStored
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_HOST, Medium, PageHash
from hicache_ref.vocabulary.keys import PageKey
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome, Polled

Any_ = Change[Operation, Outcome]
MEDIA: tuple[Medium, Medium] = ("GPU", "CPU_PINNED")
_BLOCKING = ("evict", "take_pages", "load_back")


def signed(digest: PageHash) -> int:
    """The first 16 hex digits of a hash as a signed 64-bit number."""
    return int.from_bytes(bytes.fromhex(digest[:16]), "big", signed=True)


def published_hash(view: View, digest: PageHash) -> PageHash:
    """The hash under which a page of the view is published: its own, or that of its tokens in no namespace."""
    row, at = view.where[digest]
    if row.extra is None or view.rules.event_namespace:
        return digest
    path = list(view.up(row))[::-1]
    pages = [page for each in path for page in each.key][: sum([len(each.key) for each in path[:-1]]) + at + 1]
    return chain(tuple(pages), None, view.profile.bigram)[-1]


def _numbers(view: View, digests: frozenset[PageHash]) -> Counter[int]:
    return Counter([signed(published_hash(view, digest)) for digest in digests])


@step("HC-EVENT-01")
def events_add_up(change: Any_) -> int:
    """What was resident, with what was stored and without what was removed, is what is resident, on each medium."""
    before, after, events = change.before.residency, change.after.residency, change.what.events
    if not events and before == after:
        return 0
    if change.op.op == "reset":
        cleared = [event.kind for event in events] == ["all_blocks_cleared"]
        if not cleared or after != (frozenset(), frozenset()):
            raise Broken.because("a reset publishes that all blocks are cleared, once")
        return 1
    for medium, was, now in zip(MEDIA, before, after, strict=True):
        net: Counter[int] = Counter()
        for event in events:
            if event.kind == "all_blocks_cleared":
                raise Broken.because("all blocks are told to be cleared without a reset")
            if event.medium == medium:
                net[event.block_hash] += 1 if event.kind == "block_stored" else -1
        if was != now:
            net.subtract(_numbers(change.after, now - was))
            net.update(_numbers(change.before, was - now))
        wrong = [number for number, count in net.items() if count]
        if wrong:
            raise Broken.because(f"the events on {medium} do not add up for blocks {wrong}")
    return len(events)


def _published(change: Any_) -> dict[int, tuple[PageKey, int | None]]:
    """What may be published in this step: number of a page -> its tokens and the number of the page before it."""
    found: dict[int, tuple[PageKey, int | None]] = {}
    for view in (change.before, change.after):
        for digest, (row, at) in view.where.items():
            if at:
                prior: PageHash | None = row.hashes[at - 1]
            else:
                above = view.row.get(row.parent, NOWHERE)
                prior = above.hashes[-1] if above.hashes else None
            number = signed(published_hash(view, digest))
            found[number] = (row.key[at], None if prior is None else signed(published_hash(view, prior)))
    return found


def _stored(change: Any_) -> list[BlockStored]:
    return [event for event in change.what.events if event.kind == "block_stored"]


@step("HC-EVENT-02")
def parents_are_named(change: Any_) -> int:
    """A stored block names its tokens and the page before it in its path, at the top none."""
    stored = _stored(change) if change.what.events else []
    pages = _published(change) if stored else {}
    for event in stored:
        token_ids, parent = pages.get(event.block_hash, (event.token_ids, event.parent_block_hash))
        if (event.token_ids, event.parent_block_hash) != (token_ids, parent):
            said = f"tokens {event.token_ids} after block {event.parent_block_hash}"
            raise Broken.because(f"block {event.block_hash} is stored as {said}, it is {token_ids} after {parent}")
    return len(stored)


@step("HC-EVENT-03")
def numbers_are_hashes(change: Any_) -> int:
    """The number of a block is the beginning of the hash of a page that was or is in the tree."""
    events = [event for event in change.what.events if event.kind != "all_blocks_cleared"]
    pages = _published(change) if events else {}
    for event in events:
        if event.block_hash not in pages:
            raise Broken.because(f"block {event.block_hash} is no page that was or is in the tree")
    return len(events)


@step("HC-EVENT-04")
def host_is_stored_at_the_end(change: Any_) -> int:
    """A block is stored on host only when a copy that wrote it is applied."""
    stored = [event for event in _stored(change) if event.medium == "CPU_PINNED"] if change.what.events else []
    if not stored:
        return 0
    written: set[int] = set()
    if isinstance(change.told, Polled):
        for name in change.told.backups:
            busy = change.before.busy[name]
            written |= busy.host_writes - busy.lost(KV_HOST)
    elif change.op.op in _BLOCKING and change.before.rules.write_back_copy == "blocking":
        copies = [effect for effect in change.what.effects if effect.kind == "copy_to_host"]
        written = {page for effect in copies for part in effect.parts for page in part.host}
    view = change.before if isinstance(change.told, Polled) else change.after
    settled = {
        signed(published_hash(view, digest))
        for digest, (row, at) in view.where.items()
        if row.host is not None and row.host[at] in written
    }
    for event in stored:
        if event.block_hash not in settled and (isinstance(change.told, Polled) or not written):
            raise Broken.because(f"block {event.block_hash} is stored on host, no copy of it was applied")
    return len(stored)


@step("HC-EVENT-05")
def events_alternate(change: Any_) -> int:
    """A block is stored where it was not, and removed from where it was."""
    events = change.what.events
    if not events:
        return 0
    strict = change.before.rules.event_namespace
    present = {
        medium: _numbers(change.before, digests) for medium, digests in zip(MEDIA, change.before.residency, strict=True)
    }
    for event in events:
        if event.kind == "all_blocks_cleared":
            present = {medium: Counter() for medium in MEDIA}
            continue
        there = present[event.medium]
        storing = event.kind == "block_stored"
        if there[event.block_hash] > 0 if storing and strict else not storing and there[event.block_hash] < 1:
            raise Broken.because(f"block {event.block_hash} is {event.kind[6:]} twice on {event.medium}")
        there[event.block_hash] += 1 if storing else -1
    return len(events)
