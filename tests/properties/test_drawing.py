"""What walks draw: thresholds between two pages, caches that are switched off, and reports that claim too much."""

import random

from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.search.alphabet import invalid
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.storing import attach
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import OPERATION_TYPES
from hicache_ref.vocabulary.profile import Profile
from tests.properties.breaking import World, key
from tests.properties.broken_storage import attached, reading

DRAWS = 300
EVERYTHING = frozenset(OPERATION_TYPES)


def test_thresholds_lie_between_two_pages_now_and_then() -> None:
    """Goal: rounding of thresholds shows. Method: many drawn profiles and attaches, and what their thresholds leave."""
    loads, prefetches = set(), set()
    for seed in range(DRAWS):
        rng = random.Random(seed)
        profile = draw_profile(rng, Profile())
        size = profile.sizes.page_size
        op = attach(Drawing(ModelStepper(profile).model, rng, EVERYTHING))
        assert isinstance(op, ops.Attach)
        loads.add((size, profile.sizes.load_back_threshold // size, profile.sizes.load_back_threshold % size))
        prefetches.add((size, op.settings.prefetch_threshold // size, op.settings.prefetch_threshold % size))

    assert (2, 1, 1) in loads
    assert (2, 1, 1) in prefetches


def test_only_who_can_be_switched_off_is() -> None:
    """Goal: walks of disabled caches, where there are any. Method: profiles drawn with and without that ability."""
    able = [draw_profile(random.Random(seed), Profile(), disabled=True).enabled for seed in range(DRAWS)]
    other = [draw_profile(random.Random(seed), Profile()).enabled for seed in range(DRAWS)]

    assert {True, False} == set(able)
    assert able.count(False) < DRAWS // 10
    assert {True} == set(other)


def test_only_who_can_be_silent_is() -> None:
    """Goal: walks of caches whose events are off. Method: profiles drawn with and without that ability."""
    able = [draw_profile(random.Random(seed), Profile(), silent=True).events for seed in range(DRAWS)]
    other = [draw_profile(random.Random(seed), Profile()).events for seed in range(DRAWS)]

    assert {True, False} == set(able)
    assert able.count(False) < DRAWS // 10
    assert {True} == set(other)


def test_a_disabled_cache_is_walked_to_its_end() -> None:
    """Goal: no false alarm there. Method: walks of every kind in caches that are switched off, states among them."""
    judged = 0
    for seed in range(20):
        rng = random.Random(seed)
        profile = draw_profile(rng, Profile(), hybrid="drawn").model_copy(update={"enabled": False})
        stepper = ModelStepper(profile, chooser=DrawnChooser(rng))
        assert Plan().steps < Walk(stepper, rng, Plan(), swarm=seed % 2 == 1).run()
        judged += stepper.checker.tally["HC-CONF-11"]

    assert judged > 20 * Plan().steps // 2


def _drawn_claims(world: World) -> set[str]:
    """The invalid calls that are drawn where this runs, as far as they are about it, in words."""
    names = {*world.state.tickets, *world.state.storage.records}
    drawing = Drawing(world.model, random.Random(0), EVERYTHING)
    calls = [invalid(drawing) for _ in range(DRAWS)]
    assert all(world.model.step(op).outcome.kind == "invalid" for op in calls)
    return {repr(op) for op in calls if names & {getattr(op, "id", None), getattr(op, "ticket", None)}}


def test_reports_claim_a_page_too_many() -> None:
    """Goal: claims at the very edge are made. Method: the calls drawn while a query, a read or a copy runs."""
    asked = attached()
    asked.do(ops.Prefetch(rid="q", key=key("12")))
    read, record = reading()
    copied = World()
    copied.insert("1")
    copied.do(ops.WriteBackup(key=key("1")))

    assert repr(ops.QueryDone(id="p:1.2", hits=3)) in _drawn_claims(asked)
    assert repr(ops.ReadDone(id=record.id, pages=3)) in _drawn_claims(read)
    assert repr(ops.CopyFailed(ticket="h:1", first_failed=1)) in _drawn_claims(copied)
