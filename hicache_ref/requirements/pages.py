"""PAGE: every page has exactly one holder, the kept owner map knows it, and the page holds what its holder says."""

from hicache_ref.model.state import FREE, Owner
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.holders import PoolView
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.rows import copy_in
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, KV_POOLS, STATE_DEVICE, STATE_HOST, TIER, Pages
from hicache_ref.vocabulary.operations import GiveBack, TakePages
from hicache_ref.vocabulary.outcomes import Done, Took


def _claims(view: View, pool: PoolView) -> list[tuple[Pages, Owner]]:
    """Who says to hold what, one entry a holder."""
    claims: list[tuple[Pages, Owner]] = [((page,), FREE) for page in pool.free]
    claims.extend((copy_in(row, pool.name) or (), ("node", row.id)) for row in view.rows)
    if pool.name == KV_DEVICE:
        claims.extend((request.pages, ("request", request.id)) for request in view.requests.values())
    elif pool.name == STATE_DEVICE:
        claims.extend((request.state, ("request", request.id)) for request in view.requests.values())
    if pool.name == STATE_HOST:
        claims.extend(view.storage.state_holders())
    if pool.name != KV_HOST:
        return claims
    claims.extend((record.pages, ("prefetch", record.id)) for record in view.storage.opened)
    claims.append((tuple(view.storage.release), ("queue", "")))
    return claims


def _named(pool: PoolView, page: int) -> str:
    return f"{TIER[pool.name]} {'page' if pool.name in KV_POOLS else 'state slot'} {page}"


def _owner_text(owner: Owner | None) -> str:
    if owner is None:
        return "nobody"
    if owner == FREE:
        return "the free list"
    if owner[0] == "queue":
        return "the release queue"
    return f"{'operation' if owner[0] == 'op' else owner[0]} {owner[1]}"


@always("HC-PAGE-01", "nodes", "owners", "requests", "storage")
def one_holder(view: View) -> int:
    """No page is held twice."""
    for pool in view.pools():
        if pool.claims == len(pool.held):
            continue
        seen: dict[int, Owner] = {}
        for pages, holder in _claims(view, pool):
            for page in pages:
                if page in seen:
                    who = f"{_owner_text(seen[page])} and {_owner_text(holder)}"
                    raise Broken.because(f"{_named(pool, page)} is held by {who}")
                seen[page] = holder
    return view.device.claims + view.host.claims


def _no_orphan(pool: PoolView) -> int:
    for page in pool.unheld:
        if pool.owner[page][0] != "op":
            raise Broken.because(f"{_named(pool, page)} is held by nobody, and was left to no operation")
    return pool.size


@always("HC-PAGE-02", "nodes", "owners", "requests")
def no_device_orphan(view: View) -> int:
    """Every device page has a holder, or was left to an operation; likewise every state slot there."""
    return sum([_no_orphan(pool) for pool in (view.device, *view.states[:1])])


@always("HC-PAGE-03", "nodes", "owners", "storage")
def no_host_orphan(view: View) -> int:
    """Every host page has a holder, or was left to an operation; likewise every state slot there."""
    return sum([_no_orphan(pool) for pool in (view.host, *view.states[1:])])


@always("HC-PAGE-04", "nodes", "owners", "requests", "books", "storage")
def op_pages_are_touched(view: View) -> int:
    """A page that the owner map gives to an operation is touched by it, and the operation is on the books."""
    judged = 0
    for pool in view.pools():
        for page in pool.unheld:
            owner = pool.owner[page]
            if owner[0] != "op":
                continue
            judged += 1
            busy = view.busy.get(str(owner[1]))
            if busy is None:
                raise Broken.because(f"{_named(pool, page)} stays with operation {owner[1]}, which is over")
            if page not in busy.reads(pool.name) | busy.writes(pool.name):
                raise Broken.because(f"{_named(pool, page)} belongs to operation {owner[1]}, which does not touch it")
    return judged


@always("HC-PAGE-05", "nodes", "owners", "requests", "books", "storage")
def owner_map_is_true(view: View) -> int:
    """The kept owner map says what holders and operations say."""
    for pool in view.pools():
        held = list(map(pool.held.get, range(pool.size)))
        for page in pool.unheld:
            if page in pool.touched:
                held[page] = ("op", pool.touched[page])
        if held == pool.owner:
            continue
        for page, (owner, holder) in enumerate(zip(pool.owner, held, strict=True)):
            if holder != owner:
                said = f"the owner map says {_owner_text(owner)}"
                raise Broken.because(f"{_named(pool, page)}: {said}, it is held by {_owner_text(holder)}")
    return view.device.size + view.host.size


def _contents(view: View, pool: PoolView) -> None:
    for number, pages in pool.unlike:
        row = view.row[number]
        hashes = row.hashes if pool.name in KV_POOLS else row.hashes[-1:]
        for page, digest, held in zip(pages, hashes, pool.contents(pages), strict=False):
            if held is not None and held != digest:
                said = f"{_named(pool, page)} of node {row.id} holds {held[:8]}"
                raise Broken.because(f"{said}, the node says {digest[:8]}")


@always("HC-PAGE-06", "nodes", "contents")
def device_contents(view: View) -> int:
    """A written device page of a node holds what the node says, a written state slot the state at its end."""
    for pool in (view.device, *view.states[:1]):
        _contents(view, pool)
    return len(view.rows)


@always("HC-PAGE-07", "nodes", "contents")
def host_contents(view: View) -> int:
    """A written host page of a node holds what the node says, a written state slot the state at its end."""
    for pool in (view.host, *view.states[1:]):
        _contents(view, pool)
    return len(view.rows)


@always("HC-PAGE-08", "owners", "contents")
def free_list_is_true(view: View) -> int:
    """The free list names no page twice and none that has an owner, and a free page holds nothing."""
    for pool in view.pools():
        free, owner, stamp = pool.free, pool.owner, pool.stamp
        if pool.listed != len(free) or [owner[page] for page in free].count(FREE) != len(free):
            said = [page for page, each in enumerate(owner) if each == FREE]
            raise Broken.because(f"the free list of {pool.name} is {free}, the owner map calls {said} free")
        if any(map(stamp.__getitem__, free)):
            full = [page for page in free if stamp[page] is not None]
            raise Broken.because(f"pages {full} of {pool.name} are free and hold something")
    return len(view.device.free) + len(view.host.free)


@always("HC-PAGE-09", "nodes", "owners", "requests", "books", "sums", "storage")
def sizes_add_up(view: View) -> int:
    """The kept sums are those of the nodes, and all holders together have exactly the pool."""
    if view.sums != (view.evictable, view.protected):
        kept = f"{view.evictable} evictable and {view.protected} protected pages are kept"
        raise Broken.because(f"{kept}, there are {view.sums[0]} and {view.sums[1]}")
    for pool in view.pools():
        given_up = sum([page in pool.touched for page in pool.unheld]) if pool.unheld else 0
        total = pool.claims + given_up
        if total != pool.size:
            raise Broken.because(f"{pool.name} has {pool.size} pages, its holders have {total}")
    return 2


@step("HC-PAGE-10", "take_pages", told=("took",))
def request_gets_what_it_asks_for(change: Change[TakePages, Took]) -> int:
    """The request holds the pages that were told, as many as it asked for, and they hold nothing yet."""
    op, after, pages = change.op, change.after, change.told.pages
    request = after.requests.get(op.rid)
    if len(pages) != op.n or request is None or request.pages != pages:
        held = request.pages if request is not None else ()
        raise Broken.because(f"request {op.rid} asked for {op.n} pages, was told {pages} and holds {held}")
    if any(after.device.contents(pages)):
        raise Broken.because(f"request {op.rid} was given pages {pages}, which hold something")
    return op.n


@step("HC-PAGE-11", "give_back")
def request_gives_all_back(change: Change[GiveBack, Done]) -> int:
    """The request is gone, and each of its pages is free or left to an operation."""
    rid, after = change.op.rid, change.after
    pages = change.before.requests[rid].pages
    kept = [page for page in pages if after.device.held.get(page, FREE) != FREE]
    if rid in after.requests or kept:
        raise Broken.because(f"request {rid} gave its pages back, and {kept or 'the request'} stayed")
    return len(pages)
