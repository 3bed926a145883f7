"""Every witness can be reached: one that cannot says nothing by being missing."""

import random
from itertools import count, cycle

from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.requirements.reach import TRAITS, Reach
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.operations import OPERATION_TYPES
from hicache_ref.vocabulary.profile import RULES, Rules, profile_named

STEPS = 200_000


def test_walks_reach_every_witness() -> None:
    """Goal: no dead witness. Method: walks under all presets, the reference between them, until each was reached."""
    presets = [preset for other in RULES for preset in ("reference", other)]
    left = {name for name, each in REQUIREMENTS.items() if each.kind == "sometimes"}
    steps = 0
    for seed, preset in zip(count(), cycle(presets), strict=False):
        rng = random.Random(seed)
        profile = draw_profile(rng, profile_named(preset), hybrid="drawn")
        stepper = ModelStepper(profile, chooser=DrawnChooser(rng))
        Walk(stepper, rng, Plan(), swarm=seed % 2 == 1).run()
        steps += len(stepper.steps)
        left -= {name for name, times in stepper.checker.reached.items() if times}
        if not left or steps > STEPS:
            break

    assert set() == left


def test_conditions_say_where_a_rule_can_be_met() -> None:
    """Goal: only what can be missing counts as missing. Method: conditions with one and with several alternatives."""
    staged = REQUIREMENTS["HC-EVICT-51"]
    every = frozenset(OPERATION_TYPES)

    assert staged.applies(Reach(Rules(write_policy="write_back"), frozenset(), frozenset()))
    assert staged.applies(Reach(Rules(), every, frozenset()))
    assert not staged.applies(Reach(Rules(), every - {"set_write_policy"}, frozenset(TRAITS)))
    assert not staged.applies(Reach(Rules(write_policy="write_back", write_back_copy="blocking"), every, frozenset()))
    assert REQUIREMENTS["HC-PAGE-01"].applies(Reach(Rules(), frozenset(), frozenset()))
    assert not REQUIREMENTS["HC-LOAD-02"].applies(Reach(Rules(), every - {"load_back"}, frozenset(TRAITS)))
    assert REQUIREMENTS["HC-TREE-54"].applies(Reach(Rules(), every, frozenset({"namespaces"})))
    assert not REQUIREMENTS["HC-TREE-54"].applies(Reach(Rules(), every, frozenset(TRAITS) - {"namespaces"}))
