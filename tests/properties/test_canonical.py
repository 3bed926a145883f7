"""The canonical form: what it leaves out can make no difference to what follows.

Two proofs. In small scopes every two ways into a form are followed one step further, and must lead to the same forms.
And for each field that is left out a twin is made that differs in it; then both go the same way for a while.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.model.records import Prefetch, PrefetchEnded
from hicache_ref.model.state import PageRef, Part, Storage
from hicache_ref.search.drawing import RECEIPTS, REQUESTS
from hicache_ref.search.moves import Moves
from hicache_ref.search.scopes import SCOPES, Scope
from hicache_ref.search.walk import Plan, Walk
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import DEVICE, HOST, KV, POOLS, ROOT, NodeId, Pages, PoolName
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STORAGE_OPERATIONS, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import EvictionPolicy, Profile, Rules, Sizes, WritePolicy
from hicache_ref.vocabulary.storage import StorageSettings

TWINS = 30
"""Twins that are made for each field."""

STEPS_BEFORE, STEPS_AFTER = 30, 30


def told(outcome: Outcome) -> tuple[object, ...]:
    """The outcome without names: of names and pages only how many there are, of keys how long they are."""
    values = [len(value.tokens) if isinstance(value, Key) else value for field, value in outcome if field != "id"]
    return tuple(len(value) if isinstance(value, tuple) else value for value in values)


def derived(state: State) -> tuple[object, ...]:
    """What the state keeps although the rest implies it."""
    nodes = [
        (node.hashes, node.locks[KV], number in state.device_leaves, number in state.host_leaves)
        for number, node in state.nodes.items()
    ]
    free = [len(state.pools[name].free) for name in POOLS]
    return (*sorted(nodes), state.evictable, state.protected, *free)


# -- one step further ---------------------------------------------------------------------------------------------


def ahead(scope: Scope, state: State, *, alike: bool) -> Counter[tuple[object, ...]]:
    """What one step may lead to: how it is asked and told, and the form after it."""
    found: Counter[tuple[object, ...]] = Counter()
    for op in Moves(scope).of(Model(scope.profile, state)):
        model = Model(scope.profile, clone(state))
        outcome = told(model.step(op).outcome)
        found[op.op, getattr(op, "n", 0), *outcome, hash(canonical(model.state, scope.profile, alike=alike))] += 1
    return found


@pytest.mark.parametrize(
    ("name", "alike", "states"),
    [
        ("upper-small", True, 682),
        ("upper-small", False, 300),
        ("upper", True, 250),
        ("upper-all", True, 250),
        ("upper-write-back", True, 250),
        ("upper-blocking", True, 250),
        ("lower-small", True, 3485),
        ("lower-small", False, 300),
        ("lower", True, 1000),
        ("lower-reuse", True, 1000),
        ("lower-early", True, 1000),
        pytest.param("lower", True, 10_000, marks=pytest.mark.long),
        pytest.param("lower-reuse", True, 10_000, marks=pytest.mark.long),
        pytest.param("lower-early", True, 10_000, marks=pytest.mark.long),
    ],
)
def test_states_of_one_form_lead_to_the_same_forms(name: str, alike: bool, states: int) -> None:
    """Goal: no state is passed over for a form that it only seems to have.

    Method: breadth first as the search goes, `states` forms far; whenever a form is reached again, what may follow is
    compared with what follows from the state by which it was reached first, and so are the fields it leaves out.
    """
    scope = SCOPES[name]
    first = scope.start()
    known = {hash(canonical(first, scope.profile, alike=alike)): (ahead(scope, first, alike=alike), derived(first))}
    left, again = [first], 0
    while left and len(known) < states:
        state = left.pop(0)
        for op in Moves(scope).of(Model(scope.profile, state)):
            model = Model(scope.profile, clone(state))
            model.step(op)
            form = hash(canonical(model.state, scope.profile, alike=alike))
            what = ahead(scope, model.state, alike=alike), derived(model.state)
            if form not in known:
                known[form] = what
                left.append(model.state)
                continue
            again += 1
            assert known[form][0] == what[0]
            assert alike or known[form][1] == what[1]
    assert again > len(known)


# -- twins --------------------------------------------------------------------------------------------------------

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
            each, reads=refs(each.reads), writes=refs(each.writes), copied=refs(each.copied),
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
    left_out = {"audit", "reset", "set_write_policy", "attach", "detach"}
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


def profile_of(policy: WritePolicy, eviction: EvictionPolicy) -> Profile:
    """Small pools under these policies."""
    return Profile(rules=Rules(write_policy=policy, eviction=eviction), sizes=Sizes(device_pages=5, host_pages=4))


@pytest.mark.parametrize(
    ("make", "eviction"),
    [
        (other_pages, "lru"),
        (other_free_order, "lru"),
        (other_nodes, "lru"),
        (other_names, "lru"),
        (other_clock, "lru"),
        (other_clock, "fifo"),
        (other_order_on_a_path, "lru"),
        (other_order_on_a_path, "mru"),
        (other_births, "lru"),
        (other_births, "slru"),
        (more_hits, "lru"),
        (more_hits, "slru"),
        (other_priorities, "lru"),
        (other_priorities, "filo"),
    ],
)
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_the_form_leaves_out_makes_no_difference(
    policy: WritePolicy, make: Make, eviction: EvictionPolicy
) -> None:
    """Goal: each field that the form leaves out is irrelevant. Method: twins that differ in it go the same way."""
    twins_go_the_same_way(profile_of(policy, eviction), make)


def twins_go_the_same_way(profile: Profile, make: Make, storage: StorageSettings | None = None) -> None:
    """Twins of one form that `make` made to differ are told the same and keep one form, step by step."""
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
            assert told(ours.step(op).outcome) == told(theirs.step(its).outcome)
            assert canonical(ours.state, profile) == canonical(theirs.state, profile)


EARLY = SCOPES["lower-early"].profile.rules.model_copy(update={"storage_retries": 3})


@pytest.mark.parametrize(
    "make",
    [
        other_pages,
        other_free_order,
        other_nodes,
        other_names,
        other_clock,
        other_beliefs,
        other_closed_work,
        other_release_order,
    ],
)
@pytest.mark.parametrize("rules", [Rules(), EARLY], ids=["reference", "early"])
def test_what_the_form_leaves_out_of_storage_makes_no_difference(make: Make, rules: Rules) -> None:
    """Goal: likewise with storage at work, also what is believed stored. Method: likewise, storage attached first."""
    if make is other_release_order and rules.give_back == "at_once":
        pytest.skip("nothing waits for release")
    profile = Profile(rules=rules, sizes=Sizes(device_pages=5, host_pages=4))
    twins_go_the_same_way(profile, make, StorageSettings(prefetch_threshold=1, prefetch_timeout_base=1))


@pytest.mark.parametrize(
    ("make", "eviction"),
    [(other_births, "fifo"), (more_hits, "lfu"), (other_priorities, "priority"), (other_order_on_a_path, "lru")],
)
def test_what_matters_is_in_the_form(make: Make, eviction: EvictionPolicy) -> None:
    """Goal: a form that leaves out too much would be seen. Method: the same twins, where the field does matter."""
    profile = profile_of("write_through", eviction)
    rng = random.Random(make.__name__)

    def differs(state: State) -> bool:
        twin = clone(state)
        make(twin, rng)
        return canonical(state, profile) != canonical(twin, profile)

    assert any(differs(way(profile, rng)[0].state) for _ in range(1000))


def test_keys_of_one_shape_have_one_form() -> None:
    """Goal: with `alike` only the shape of keys counts. Method: one story, told with either of two branches."""

    def story(left: Key, right: Key) -> list[State]:
        model, states = Model(SCOPES["upper"].profile), []
        for op in (
            ops.TakePages(rid="r0", n=2),
            ops.Forward(rid="r0", key=left, start=0),
            ops.Insert(rid="r0", key=left, start=0),
            ops.Lock(receipt="a0", key=Key(tokens=(0,))),
            ops.ForwardDone(rid="r0"),
            ops.TakePages(rid="r1", n=1),
            ops.Forward(rid="r1", key=right, start=1),
            ops.Insert(rid="r1", key=right, start=1),
            ops.MatchPrefix(key=left),
        ):
            model.step(op)
            states.append(clone(model.state))
        return states

    profile = SCOPES["upper"].profile
    one, other = Key(tokens=(0, 0)), Key(tokens=(0, 1))
    for here, there in zip(story(one, other), story(other, one), strict=True):
        assert canonical(here, profile, alike=True) == canonical(there, profile, alike=True)
    assert canonical(here, profile) != canonical(there, profile)


@pytest.mark.parametrize(
    ("keys", "alike"),
    [
        ([(0,), (0, 0), (0, 1)], True),
        ([(0,), (1,)], True),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], True),
        ([(0,), (0, 0), (1, 0)], False),
        ([(0, 0), (0, 1), (1, 0)], False),
        ([(0, 0), (1, 0, 0)], False),
    ],
)
def test_a_scope_knows_whether_its_keys_are_alike(keys: list[tuple[int, ...]], alike: bool) -> None:
    """Goal: forms forget tokens only where that is right. Method: keys that branch evenly, and such that do not."""
    scope = SCOPES["upper"].model_copy(update={"keys": tuple(Key(tokens=tokens) for tokens in keys)})
    assert alike == scope.is_alike
