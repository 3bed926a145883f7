"""Prefetches and writes through every order of their steps: the healthy model keeps the rules, faulty ones are named.

Walks draw storage operations and composites around them under drawn storage rules. The planted faults are those of the
catalogue.
"""

import random
from collections import Counter

import pytest

from hicache_ref.faults import FAULTS, Fault, commit, draft, prefetch, store
from hicache_ref.model import Model
from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.search.finding import Finding, Found
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.profile import RULES, Profile, Rules

WALKS = 140
WALKS_MAX = 1_000
"""How long a fault is looked for; most are found within ten walks of about a hundred steps."""

FAMILIES = {family.__name__ for family in (store, prefetch, commit, draft)}
PLANTED = [name for name, fault in FAULTS.items() if fault.storage and fault.model.__module__ in FAMILIES]

STORAGE_RULES: dict[str, tuple[object, ...]] = {
    "prefetch_allocation": ("after", "before"),
    "prefetch_clock": ("submission", "first_poll"),
    "prefetch_capacity": ("half_host", "half_host", "host_minus_device", "host_minus_device_clamped"),
    "prefetch_limit": ("submission", "submission", "query"),
    "prefetch_progress": ("polled", "live"),
    "prefetch_commit": ("poll", "progress"),
    "commit_adopts": (True, True, False),
    "cancelled_query": ("answers_0", "goes_on"),
    "give_back": ("at_once", "queued"),
    "storage_retries": (1, 2, 3),
    "attach_offers": (True, True, False),
    "hash_namespace": (True, True, False),
}


def drawn(rng: random.Random) -> Profile:
    """A profile with storage rules and batch size drawn too."""
    profile = draw_profile(rng, Profile(rules=RULES["reference"]))
    rules = profile.rules.model_copy(update={name: rng.choice(values) for name, values in STORAGE_RULES.items()})
    sizes = profile.sizes.model_copy(update={"storage_batch": rng.choice((1, 2, 2, 3))})
    return profile.model_copy(update={"rules": rules, "sizes": sizes})


def walk(seed: int, fault: Fault | None = None) -> tuple[ModelStepper, Finding | None]:
    """One walk, and what was found in it: of the healthy model, or of this fault, under its rules."""
    rng = random.Random(seed)
    profile, kind, plan = drawn(rng), Model, Plan(steps=100)
    if fault is not None:
        rules = Rules.model_validate(profile.rules.model_dump() | dict(fault.rules))
        profile, kind = profile.model_copy(update={"rules": rules}), fault.model
        plan = Plan(steps=100, without_storage=0.0)
    stepper = ModelStepper(profile, kind, chooser=DrawnChooser(rng))
    try:
        Walk(stepper, rng, plan, swarm=seed % 2 == 1).run()
    except Found as found:
        return stepper, found.finding
    return stepper, None


def test_prefetch_lifecycle() -> None:
    """Goal: prefetches and writes keep their rules in any order. Method: walks, every state and step judged.

    No rule of these areas may go unjudged, and no phase of a prefetch unreached.
    """
    judged: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for seed in range(WALKS):
        stepper, found = walk(seed)
        assert found is None
        judged.update(stepper.checker.tally)
        reached.update(stepper.checker.reached)

    areas = {name for name, each in REQUIREMENTS.items() if each.area in ("PREF", "STORE", "DRAFT")}
    areas = {name for name in areas if REQUIREMENTS[name].by == "state"}
    assert set() == {name for name in areas if REQUIREMENTS[name].kind != "sometimes" and not judged[name]}
    assert set() == {f"HC-PREF-{number}" for number in range(51, 64)} - {"HC-PREF-58"} - {
        n for n in reached if reached[n]
    }


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught(name: str) -> None:
    """Goal: the rules are worth having. Method: such walks under each faulty model."""
    fault = FAULTS[name]
    found = next((end for _, end in (walk(seed, fault) for seed in range(WALKS_MAX)) if end is not None), None)

    assert found is not None
    assert fault.named_by(found) in fault.expected, found
