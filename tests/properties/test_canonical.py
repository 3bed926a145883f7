"""The canonical form: what it leaves out can make no difference to what follows.

Two proofs. In small scopes every two ways into a form are followed one step further, and must lead to the same forms.
And for each field that is left out a twin is made that differs in it; then both go the same way for a while.
"""

import random
from collections import Counter
from itertools import product

import pytest

from hicache_ref.model import Model, State, clone
from hicache_ref.model.canonical import canonical
from hicache_ref.search.moves import Moves
from hicache_ref.search.scopes import SCOPES, Scope
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV, KV_POOLS
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.profile import EvictionPolicy, Profile, Rules, Sizes, WritePolicy
from hicache_ref.vocabulary.storage import StorageSettings
from tests.properties.twins import (
    Make,
    more_hits,
    more_uses,
    other_beliefs,
    other_births,
    other_clock,
    other_closed_work,
    other_free_order,
    other_names,
    other_nodes,
    other_order_on_a_path,
    other_pages,
    other_priorities,
    other_release_order,
    told,
    twins_go_the_same_way,
    way,
)


def derived(state: State) -> tuple[object, ...]:
    """What the state keeps although the rest implies it."""
    nodes = [
        (node.hashes, node.locks[KV], number in state.device_leaves, number in state.host_leaves)
        for number, node in state.nodes.items()
    ]
    free = [len(state.pools[name].free) for name in KV_POOLS]
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
        ("hybrid-small", True, 198),
        ("hybrid-small", False, 198),
        ("hybrid", True, 300),
        ("hybrid-write-back", True, 200),
        ("hybrid-copy", True, 200),
        ("lower-small", True, 3485),
        ("lower-small", False, 300),
        ("lower", True, 1000),
        ("lower-reuse", True, 1000),
        ("lower-early", True, 1000),
        ("lower-terminate", True, 1000),
        ("lower-terminate-early", True, 1000),
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
        (more_hits, "lfu"),
        (more_uses, "lru"),
        (more_uses, "slru"),
        (other_priorities, "lru"),
        (other_priorities, "filo"),
    ],
)
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_the_form_leaves_out_makes_no_difference(
    policy: WritePolicy, make: Make, eviction: EvictionPolicy
) -> None:
    """Goal: each field that the form leaves out is irrelevant. Method: twins that differ in it go the same way."""
    assert twins_go_the_same_way(profile_of(policy, eviction), make)


EARLY = SCOPES["lower-early"].profile.rules.model_copy(update={"storage_retries": 3})
WITH_STORAGE = (
    other_pages,
    other_free_order,
    other_nodes,
    other_names,
    other_clock,
    other_beliefs,
    other_closed_work,
)


@pytest.mark.parametrize(
    ("make", "rules"),
    [*product(WITH_STORAGE, (Rules(), EARLY)), (other_release_order, EARLY)],
    ids=lambda value: getattr(value, "__name__", "early" if value == EARLY else "reference"),
)
def test_what_the_form_leaves_out_of_storage_makes_no_difference(make: Make, rules: Rules) -> None:
    """Goal: likewise with storage at work, also what is believed stored. Method: likewise, storage attached first."""
    profile = Profile(rules=rules, sizes=Sizes(device_pages=5, host_pages=4))
    assert twins_go_the_same_way(profile, make, StorageSettings(prefetch_threshold=1, prefetch_timeout_base=1))


@pytest.mark.parametrize(
    ("make", "eviction"),
    [(other_births, "fifo"), (more_uses, "lfu"), (other_priorities, "priority"), (other_order_on_a_path, "lru")],
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
