"""Twins: states that differ in what the canonical form leaves out, and how they go on."""

import random
from collections.abc import Callable
from dataclasses import replace

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.model.records import Prefetch, PrefetchEnded
from hicache_ref.model.state import PageRef, Part, Storage
from hicache_ref.search.drawing import RECEIPTS, REQUESTS
from hicache_ref.search.walk import Plan, Walk
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV, ROOT, NodeId, Pages, PoolName
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STORAGE_OPERATIONS, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile
from hicache_ref.vocabulary.storage import StorageSettings

TWINS = 30
"""Twins that are made for each field."""

STEPS_BEFORE, STEPS_AFTER = 30, 30


def told(outcome: Outcome) -> tuple[object, ...]:
    """The outcome without names: of names and pages only how many there are, of keys how long they are."""
    values = [len(value.tokens) if isinstance(value, Key) else value for field, value in outcome if field != "id"]
    return tuple(len(value) if isinstance(value, tuple) else value for value in values)


Names = dict[str, str]
Make = Callable[[State, random.Random], Names]
"""Changes the state in a way that may not matter; returns how names of requests and receipts are changed."""


def other_pages(state: State, rng: random.Random) -> Names:
    """Pages change places."""
    to = {name: rng.sample(range(len(pool.owner)), len(pool.owner)) for name, pool in state.pools.items()}

    def moved(name: PoolName, pages: Pages) -> Pages:
        return tuple(to[name][page] for page in pages)

    def refs(them: frozenset[PageRef]) -> frozenset[PageRef]:
        return frozenset((name, to[name][page]) for name, page in them)

    for name, pool in state.pools.items():
        owner, stamp = pool.owner[:], pool.stamp[:]
        for page, new in enumerate(to[name]):
            pool.owner[new], pool.stamp[new] = owner[page], stamp[page]
        pool.free = list(moved(name, tuple(pool.free)))
    for node in state.nodes.values():
        node.at = {name: moved(name, pages) for name, pages in node.at.items()}
    for request in list(state.requests.values()):
        state.requests[request.id] = replace(request, pages=moved(DEVICE[KV], request.pages))
    for each in list(state.passes.values()):
        state.passes[each.id] = replace(
            each, reads=refs(each.reads), writes=refs(each.writes),
            pages=moved(DEVICE[KV], each.pages),
        )  # fmt: skip
    for ticket in list(state.tickets.values()):
        parts = tuple(Part(KV, moved(DEVICE[KV], part.device), moved(HOST[KV], part.host)) for part in ticket.parts)
        state.tickets[ticket.id] = replace(ticket, parts=parts, reads=refs(ticket.reads), writes=refs(ticket.writes))
    for record in list(state.storage.records.values()):
        pages = moved(HOST[KV], record.pages)
        state.storage.records[record.id] = record.model_copy(update={"pages": pages})
    state.storage.release = list(moved(HOST[KV], tuple(state.storage.release)))
    return {}


def other_free_order(state: State, rng: random.Random) -> Names:
    """Free pages are listed in another order."""
    for pool in state.pools.values():
        rng.shuffle(pool.free)
    return {}


def other_nodes(state: State, rng: random.Random) -> Names:
    """Nodes have other numbers and are listed in another order, children and pins too."""
    numbers = list(state.nodes)
    new = dict(zip(numbers, rng.sample(range(1, 1000), len(numbers)), strict=True)) | {ROOT: ROOT, -1: -1}

    def pins(held: tuple[tuple[str, NodeId], ...]) -> tuple[tuple[str, NodeId], ...]:
        return tuple((component, new[number]) for component, number in rng.sample(held, len(held)))

    nodes = rng.sample(list(state.nodes.values()), len(numbers))
    for node in nodes:
        node.id, node.parent = new[node.id], new[node.parent]
        children = rng.sample(list(node.children.items()), len(node.children))
        node.children = {key: new[number] for key, number in children}
    state.nodes = {node.id: node for node in nodes}
    state.next_node = 1000
    state.device_leaves = {new[number] for number in state.device_leaves}
    state.host_leaves = {new[number] for number in state.host_leaves}
    for pool in state.pools.values():
        pool.owner = [(kind, new[held] if isinstance(held, int) else held) for kind, held in pool.owner]
    for receipt in list(state.receipts.values()):
        state.receipts[receipt.id] = replace(receipt, pins=pins(receipt.pins))
    for ticket in list(state.tickets.values()):
        state.tickets[ticket.id] = replace(ticket, pins=pins(ticket.pins))
    for record in list(state.storage.records.values()):
        if isinstance(record, Prefetch):
            anchor = new.get(record.anchor, record.anchor + 1000)
            state.storage.records[record.id] = record.model_copy(update={"anchor": anchor})
    return {}


def other_names(state: State, rng: random.Random) -> Names:
    """Requests, receipts, copies and storage work have other names."""
    new = {name: name.upper() for name in (*REQUESTS, *RECEIPTS)}
    work = (*state.tickets, *state.storage.records)
    copies = {name: f"{number}" for name, number in zip(work, rng.sample(range(99), len(work)), strict=True)}
    owners = {"": ""} | new | {f"f:{old}": f"f:{name}" for old, name in new.items()} | copies
    for pool in state.pools.values():
        pool.owner = [(kind, owners[held] if isinstance(held, str) else held) for kind, held in pool.owner]
    state.requests = {new[name]: replace(each, id=new[name]) for name, each in state.requests.items()}
    state.passes = {new[name]: replace(each, id=new[name]) for name, each in state.passes.items()}
    state.receipts = {new[name]: replace(each, id=new[name]) for name, each in state.receipts.items()}
    state.tickets = {copies[name]: replace(each, id=copies[name]) for name, each in state.tickets.items()}
    rename_storage(state.storage, copies, new)
    return new


def rename_storage(storage: Storage, work: dict[str, str], requests: dict[str, str]) -> None:
    """Storage work and the requests that wait for it have these names."""
    storage.records = {
        work[name]: record.model_copy(
            update={"id": work[name]}
            | ({"rid": requests.get(record.rid or "")} if isinstance(record, Prefetch) else {})
        )
        for name, record in storage.records.items()
    }
    storage.open = {requests[rid]: work[name] for rid, name in storage.open.items()}
    storage.loaded = {requests[rid]: count for rid, count in storage.loaded.items()}
    storage.answers = [work[name] for name in storage.answers]
    storage.reads = [(work[name], done) for name, done in storage.reads]
    storage.writes = [work[name] for name in storage.writes]


def other_clock(state: State, rng: random.Random) -> Names:
    """All that happened was later, and further apart."""
    for node in state.nodes.values():
        node.last[KV] = 10 * node.last[KV] + 100
    state.clock = 10 * state.clock + 200
    return {}


def other_order_on_a_path(state: State, rng: random.Random) -> Names:
    """Nodes were used in another order; it is a twin only if that is so above and below each other."""
    times = [node.last[KV] for node in state.nodes.values()]
    for node, last in zip(state.nodes.values(), rng.sample(times, len(times)), strict=True):
        node.last[KV] = last
    return {}


def other_births(state: State, rng: random.Random) -> Names:
    """Nodes were made at other times."""
    for node in state.nodes.values():
        node.born = rng.randrange(100)
    return {}


def more_hits(state: State, rng: random.Random) -> Names:
    """Nodes had more hits; it is a twin only if they had enough before."""
    for node in state.nodes.values():
        node.hits += rng.randrange(4)
    return {}


def more_uses(state: State, rng: random.Random) -> Names:
    """Nodes were used more often; likewise."""
    for node in state.nodes.values():
        node.uses += rng.randrange(4)
    return {}


def other_priorities(state: State, rng: random.Random) -> Names:
    """Nodes have other priorities."""
    for node in state.nodes.values():
        node.priority = rng.randrange(4)
    return {}


SOME = tuple(str(digit) * 64 for digit in range(4))
"""Hashes of no page."""


def other_beliefs(state: State, rng: random.Random) -> Names:
    """Storage is believed to have other pages, and others were reported."""
    storage = state.storage
    hashes = [*SOME, *(digest for node in state.nodes.values() for digest in node.hashes)]
    for kept in (storage.believed, storage.believed_draft, storage.reported):
        kept.clear()
        kept.update(rng.sample(hashes, rng.randrange(len(hashes))))
    return {}


def other_closed_work(state: State, rng: random.Random) -> Names:
    """What was closed had been for other keys, below other nodes, and had come further."""
    storage, pool = state.storage, state.pools[HOST[KV]]
    for name, record in list(storage.records.items()):
        if not isinstance(record, Prefetch) or record.rid is not None:
            continue
        hashes = tuple(rng.choice(SOME) for _ in record.hashes)
        update: dict[str, object] = {
            "hashes": hashes, "prefix": tuple(rng.sample(SOME, 2)), "anchor": rng.choice((*state.nodes, 999)),
            "asked": len(hashes) + rng.randrange(3), "since": rng.randrange(9999), "extra": rng.choice((None, "a")),
        }  # fmt: skip
        if isinstance(record, PrefetchEnded):
            update["done"] = rng.randrange(len(record.pages) + 1)
        storage.records[name] = record.model_copy(update=update)
        storage.reads = [(each, rng.randrange(3) if each == name else done) for each, done in storage.reads]
        for page in record.pages:
            pool.stamp[page] = rng.choice((None, *SOME))
    return {}


def other_release_order(state: State, rng: random.Random) -> Names:
    """Pages wait for their release in another order, and hold something else."""
    rng.shuffle(state.storage.release)
    for page in state.storage.release:
        state.pools[HOST[KV]].stamp[page] = rng.choice((None, *SOME))
    return {}


def named(op: Operation, names: Names, ours: State, theirs: State) -> Operation:
    """The same operation in the world of the twin."""
    update = {field: names.get(value, value) for field, value in op if field in ("rid", "receipt")}
    if "ticket" in type(op).model_fields:
        update["ticket"] = list(theirs.tickets)[list(ours.tickets).index(op.ticket)]  # type: ignore[union-attr]
    if "id" in type(op).model_fields:
        work = list(ours.storage.records).index(op.id)  # type: ignore[union-attr]
        update["id"] = list(theirs.storage.records)[work]
    return op.model_copy(update=update)


class Alone:
    """A model that walks, for want of company unchecked."""

    def __init__(self, profile: Profile) -> None:
        self.model = Model(profile)

    def step(self, op: Operation) -> Outcome:
        """The operation has happened."""
        return self.model.step(op).outcome


def way(profile: Profile, rng: random.Random, storage: StorageSettings | None = None) -> tuple[Model, Walk]:
    """A model that has gone some way, with storage or without, and what goes on with it."""
    alone = Alone(profile)
    left_out = {"audit", "reset", "register_draft", "set_write_policy", "attach", "detach"}
    if storage is None:
        left_out |= STORAGE_OPERATIONS
    else:
        alone.step(ops.Attach(settings=storage))
    operations = frozenset(OPERATION_TYPES) - left_out
    plan = Plan(invalid_share=0.0, operations=operations, attach_first=storage is not None)
    walk = Walk(alone, rng, plan, swarm=False)
    for _ in range(rng.randrange(5, STEPS_BEFORE)):
        alone.step(walk.draw())
    return alone.model, walk


def twins_go_the_same_way(profile: Profile, make: Make, storage: StorageSettings | None = None) -> bool:
    """Whether twins of one form that `make` made to differ are told the same and keep one form, step by step."""
    rng = random.Random(f"{profile.rules} {make.__name__}")
    made = 0
    while made < TWINS:
        ours, walk = way(profile, rng, storage)
        theirs = Model(profile, clone(ours.state))
        names = make(theirs.state, rng)
        if ours.state == theirs.state or canonical(ours.state, profile) != canonical(theirs.state, profile):
            continue
        made += 1
        for _ in range(STEPS_AFTER):
            op = walk.draw()
            its = named(op, names, ours.state, theirs.state)
            told_alike = told(ours.step(op).outcome) == told(theirs.step(its).outcome)
            if not told_alike or canonical(ours.state, profile) != canonical(theirs.state, profile):
                return False
    return True
