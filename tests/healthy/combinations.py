"""Profiles that together have any two values of any two rules, and of what else shapes a cache.

Two rules that are never on at once in a preset are never tried together by walks over presets; here they are. Each row
of the covering set is walked as a model with state and without, under every write policy: most rules matter only there.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, get_args

from covertable import criteria, make

from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.search.finding import Found
from hicache_ref.search.minimise import Replay, minimise
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk
from hicache_ref.vocabulary.clashes import CLASHES, Clash
from hicache_ref.vocabulary.profile import WRITE_POLICIES, Profile, Rules, Sizes

STEPS = 500
WALKS = 5
"""A short walk begins anew, where much is met that a full cache never shows again."""

INVALID_SHARE = 0.02
REPLAYS_MAX = 800

SOME_NUMBERS: dict[str, tuple[int | None, ...]] = {
    "write_through_threshold": (None, 1, 2),
    "selective_hits": (2, 3),
    "slru_protected_threshold": (2, 3),
    "storage_retries": (1, 2, 3),
    "reset_waits": (None, 0, 30_000),
}
"""Of rules that are a number, those that tell one side of a condition from the other."""

SIZES: dict[str, tuple[int, ...]] = {
    "page_size": (1, 2, 3),
    "device_pages": (3, 6, 8),
    "host_pages": (2, 4, 12),
    "device_states": (2, 4),
    "host_states": (1, 4),
    "state_chunk": (1, 2),
    "storage_batch": (1, 2),
    "load_back_threshold": (0, 2),
}
MODELS: dict[str, tuple[bool, ...]] = {"bigram": (False, True), "draft": (False, True)}
CROSSED = ("write_policy",)
"""Rules whose every value is walked with every row."""

Row = dict[str, Any]


def values_of(rule: str) -> tuple[Any, ...]:
    """The values of a rule that are tried."""
    if rule in SOME_NUMBERS:
        return SOME_NUMBERS[rule]
    kind = Rules.model_fields[rule].annotation
    return (False, True) if kind is bool else get_args(kind)


@cache
def rows() -> tuple[Row, ...]:
    """Rules, sizes and models, each name with a value, so that any two values that may meet do so in some row.

    What is no rule has a name that begins with its group.
    """
    choices = {name: list(values_of(name)) for name in Rules.model_fields if name not in CROSSED}
    for group, names in (("sizes", SIZES), ("models", MODELS)):
        choices |= {f"{group}.{name}": list(values) for name, values in names.items()}
    clashes = [{"operator": "not", "condition": _both(clash)} for clash in CLASHES]
    return tuple(make(choices, criterion=criteria.simple, constraints=clashes))


def _both(clash: Clash) -> dict[str, Any]:
    """The condition that both rules have the values which clash."""
    pairs = ((clash.rule, clash.value), (clash.other, clash.forbidden))
    return {"operator": "and", "conditions": [{"operator": "eq", "left": n, "value": v} for n, v in pairs]}


def profiles() -> Iterator[Profile]:
    """Every row as a profile, for each write policy and as a model with state and without."""
    for number, row in enumerate(rows()):
        for state, policy in product((False, True), WRITE_POLICIES):
            yield Profile(
                rules=Rules(write_policy=policy, **{name: row[name] for name in row if "." not in name}),
                sizes=Sizes(**{name: row[f"sizes.{name}"] for name in SIZES}),
                state=state,
                name=f"row {number}, {policy}{', state' if state else ''}",
                **{name: row[f"models.{name}"] for name in MODELS},
            )


def alarm(profile: Profile, seed: int = 0, steps: int = STEPS) -> Replay | None:
    """The smallest run found in which a requirement blames the healthy model under this profile; None: none was met."""
    for walk in range(WALKS):
        rng = random.Random(f"{seed} {profile.name} {walk}")
        stepper = ModelStepper(profile, chooser=DrawnChooser(rng))
        plan = Plan(steps=steps // WALKS, invalid_share=INVALID_SHARE)
        try:
            Walk(stepper, rng, plan, swarm=walk % 2 == 1).run()
        except Found as found:
            return minimise(stepper.steps, lambda: ModelStepper(profile), found.finding, REPLAYS_MAX)
    return None
