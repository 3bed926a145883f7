"""LOAD: a load fills exactly what was on host only, from sources that stay, or nothing happens."""

from hicache_ref.requirements.busy import kv_pins
from hicache_ref.requirements.change import Change
from hicache_ref.requirements.locks import unpinned
from hicache_ref.requirements.match import ends
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.room import wanted_by
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import KV, PageHash
from hicache_ref.vocabulary.operations import LoadBack
from hicache_ref.vocabulary.outcomes import Refused, Submitted


@step("HC-LOAD-01", "load_back", told=("refused",))
def refused_loads_nothing(change: Change[LoadBack, Refused]) -> int:
    """No node became resident, no load was submitted, and the locks are as before."""
    before, after = change.before, change.after
    if any(effect.kind == "copy_to_device" for effect in change.what.effects):
        raise Broken.because(f"a load was refused ({change.told.why}) and submitted")
    for row in after.rows:
        was = before.row.get(row.id)
        if was is None or (row.device is not None and row.device != was.device):
            raise Broken.because(f"node {row.id} got device pages by a refused load")
        if row.lock != was.lock:
            raise Broken.because(f"a refused load left lock count {row.lock} on node {row.id}, it was {was.lock}")
    return 1


@always("HC-LOAD-02", "nodes", "owners", "books", "storage", about="books")
def sources_are_pinned(view: View) -> int:
    """What a load reads on host belongs to a node which that load pins, or to nobody but operations."""
    judged = 0
    for name, ticket in view.tickets.items():
        if ticket.to != "device":
            continue
        pinned = set(kv_pins(ticket))
        for pool in (view.host, *view.states[1:]):
            for page in view.busy[name].reads(pool.name):
                judged += 1
                owner = pool.held.get(page)
                if owner is not None and not (owner[0] == "node" and owner[1] in pinned):
                    what = "host page" if pool is view.host else "state slot on host"
                    raise Broken.because(f"load {name} reads {what} {page}, now held by {owner[0]} {owner[1]}")
    return judged


@always("HC-LOAD-05", "nodes", "owners", "requests", "books", "storage", about="books")
def targets_are_pinned(view: View) -> int:
    """A load pins every node that owns a page which it writes, and all above."""
    judged = 0
    for ticket in view.tickets.values():
        if ticket.to == "device":
            judged += 1
            loose = unpinned(view, ticket)
            if loose:
                raise Broken.because(f"load {ticket.id} runs, and does not pin nodes {loose}")
    return judged


@step("HC-LOAD-03", "load_back", told=("submitted",))
def one_copy_fills_the_chain(change: Change[LoadBack, Submitted]) -> int:
    """Every page of the key is resident, and one copy fills those that were not, each from its own host page."""
    before, after, told = change.before, change.after, change.told
    now = after.cached(change.hashes)
    if len(now) != len(change.hashes) or any(row.device is None for row, _ in now):
        raise Broken.because(f"{change.op.key} was loaded, and is not resident")
    wanted = [
        (now[at][0].device[now[at][1]], row.host[index])  # type: ignore[index]
        for at, (row, index) in enumerate(before.cached(change.hashes))
        if row.device is None and row.host is not None
    ]
    copies = [effect for effect in change.what.effects if effect.kind == "copy_to_device"]
    parts = [part for effect in copies for part in effect.parts if part.component == KV]
    got = [pair for part in parts for pair in zip(part.device, part.host, strict=False)]
    if len(copies) != 1 or got != wanted:
        raise Broken.because(f"the load copies (device, host) pages {got}, not {wanted}")
    if told.tickets != (copies[0].id,) or told.pages != len(wanted) or copies[0].id not in after.tickets:
        raise Broken.because(f"{told.pages} pages under {told.tickets} are told, {len(wanted)} are loaded")
    return len(wanted)


@step("HC-LOAD-04", "load_back")
def limits(change: Change[LoadBack, Submitted | Refused]) -> int:
    """A load below the threshold or over its quota is refused; any other is refused only for want of room.

    Also refused is one to a node that another load has, where the rules say so.
    """
    before, op = change.before, change.op
    need = sum([row.device is None for row, _ in before.cached(change.hashes)])
    sizes = before.profile.sizes
    over = op.quota is not None and need > op.quota
    gained = len(before.cached(change.hashes)) - ends(before, change.hashes).device
    limited = gained * sizes.page_size < sizes.load_back_threshold or over or is_held_by_a_load(before, change.hashes)
    refused = isinstance(change.told, Refused)
    if limited and not refused:
        raise Broken.because(f"a load of {need} pages was submitted against threshold, quota or rule")
    if isinstance(change.told, Refused) and not limited and not change.told.wait_for:
        wanted = wanted_by(change)
        if wanted.could_be_had(before):
            raise Broken.because(
                f"a load of {need} pages and {wanted.slots} states was refused, which were free or could be evicted"
            )
    return 1


def is_held_by_a_load(view: View, hashes: tuple[PageHash, ...]) -> bool:
    """By the rule load_under_load: a load that began under write_back writes the pages of the node at the key."""
    found = view.cached(hashes)
    if view.rules.load_under_load == "granted" or not found:
        return False
    loads = [name for name, each in view.tickets.items() if each.to == "device" and each.policy == "write_back"]
    return any(view.busy[name].device_writes.intersection(found[-1][0].device or ()) for name in loads)
