"""How often walks of a healthy model meet each requirement: where the steps `within` of the catalogue come from.

`python -m tests.properties.rates 20000` walks so many steps under each preset of rules, with sizes drawn and named and
with states, and prints for each requirement its least rate and the steps that a promise needs at that rate.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.requirements.reach import Reach, reach_of
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.adapter import Hybrid
from hicache_ref.vocabulary.profile import RULES, profile_named

MARGIN = 15
"""Walks that are to meet in the steps of a promise what is promised; where 15 are expected none is by chance 3e-7."""

STEPS = (3_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000, 200_000, 300_000, 500_000, 1_000_000)
"""The steps that a promise may need; what is rarer than the last is promised there all the same."""

KINDS: tuple[tuple[str, Hybrid], ...] = (("", "drawn"), ("", "always"), ("/tiny", "never"), ("/small", "never"))
"""Sizes, drawn where none are named, and whether there are states."""


class Rates(NamedTuple):
    """What walks of one kind under one preset met."""

    steps: int
    met: Counter[str]
    """In how many walks."""

    reaches: set[Reach]


def rates(preset: str, sizes: str, hybrid: Hybrid, steps: int, seed: int = 0) -> Rates:
    """The model has walked so many steps."""
    described = ReferenceAdapter().describe()
    base = profile_named(preset + sizes)
    met: Counter[str] = Counter()
    reaches: set[Reach] = set()
    taken = 0
    for index in range(steps):
        rng = random.Random(f"{seed}/{index}")
        profile = draw_profile(
            rng, base, fixed_sizes=bool(sizes), page_sizes=described.page_sizes, hybrid=hybrid,
            disabled=described.disabled, silent=described.silent,
        )  # fmt: skip
        stepper = ModelStepper(profile)
        Walk(stepper, rng, Plan(), swarm=index % 2 == 1).run()
        checker = stepper.checker
        met.update(name for name, times in (*checker.tally.items(), *checker.reached.items()) if times)
        reaches.add(reach_of(profile, described))
        taken += len(stepper.steps)
        if taken >= steps:
            break
    return Rates(taken, met, reaches)


def least(all_rates: list[Rates]) -> Iterator[tuple[str, float]]:
    """Each requirement that walks can meet, and in how many walks of a thousand steps it was met where it is rarest."""
    for name, requirement in REQUIREMENTS.items():
        found = [
            1000 * each.met[name] / each.steps for each in all_rates if any(map(requirement.applies, each.reaches))
        ]
        if requirement.by == "state" and found:
            yield name, min(found)


def needed(rate: float) -> int:
    """The steps in which a promise is kept that has this rate."""
    return next((steps for steps in STEPS if rate * steps >= 1000 * MARGIN), STEPS[-1])


def main(arguments: list[str]) -> int:
    """The rates were printed; 1 if one does not fit what the catalogue says."""
    (steps,) = arguments
    found = [rates(preset, *kind, int(steps)) for preset, kind in product(RULES, KINDS)]
    wrong = 0
    for name, rate in least(found):
        says, fits = REQUIREMENTS[name].within, needed(rate)
        wrong += fits > says
        note = "" if fits == says else f", not {says:,}"
        sys.stdout.write(f"{name:<12} {rate:8.3f} walks of 1,000 steps: within {fits:,}{note}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
