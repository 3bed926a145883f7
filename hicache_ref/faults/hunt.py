"""The hunt: walks under one model until something is found, which is then made small.

Every fault is hunted in the same way, with the same seeds, weights and profiles; nothing here knows which fault it
is after, only whether it is one of the storage tier or of recurrent state. Budgets are steps, so that a hunt ends in
the same way on every machine.
"""

import random
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple, Protocol

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.model import Model
from hicache_ref.model.chooser import POLICY, Chooser, DrawnChooser
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.minimise import Replayable, minimise
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import WITHOUT_STORAGE, Plan, Walk, draw_profile
from hicache_ref.vocabulary.profile import Profile, Rules

WALK_STEPS = 100
AFTERWARDS = 2_000
"""Steps in which a smaller trace of what was found is looked for."""

REFERENCE = Profile()


class Catch(NamedTuple):
    """What a hunt brought home."""

    finding: Finding | None
    profile: Profile
    steps: tuple[Recorded, ...]
    """The smallest trace that ends in the finding."""

    taken: int
    """Steps of the search, up to the finding or to the end of the budget."""


class Recording(Replayable, Protocol):
    """A stepper that keeps its steps."""

    steps: list[Recorded]


Opening = Callable[[Profile, Chooser], Recording]
"""A new stepper under a profile; the chooser answers what the model leaves open."""


def alone(kind: type[Model]) -> Opening:
    """Steppers in which a model of this kind is judged by the requirements."""
    return lambda profile, chooser: ModelStepper(profile, kind, chooser=chooser)


def beside_the_model(kind: type[Model]) -> Opening:
    """Steppers in which a model of this kind is an implementation, compared with the healthy model."""
    adapter = ReferenceAdapter(kind)
    description = adapter.describe()
    return lambda profile, chooser: Lockstep(adapter, description, profile, description.level, Checker(profile))


def hunt(
    opening: Opening,
    *,
    seed: int,
    steps: int,
    base: Profile = REFERENCE,
    rules: Mapping[str, str | int | bool | None] | None = None,
    storage: bool = False,
    state: bool = False,
    tries: int = 1,
) -> Catch:
    """The first finding of the walks with this seed, or none within `steps` steps.

    Profiles are drawn around `base`, and have these `rules`. With `storage` no walk leaves storage out. With `state`
    every profile is that of a hybrid model, and but for `storage` every walk leaves storage out. With more than one
    try the search goes on for `AFTERWARDS` steps at most, and the smallest trace of that many that end in the same
    requirement is the one that is kept.
    """
    without_storage = 0.0 if storage else 1.0 if state else WITHOUT_STORAGE
    first: Catch | None = None
    best: Catch | None = None
    taken, end, profile = 0, steps, base
    for index in count():
        if taken >= end or tries == 0:
            break
        rng = random.Random(f"{seed}/{index}")
        profile = _with_rules(
            draw_profile(rng, base, hybrid="always" if state else "never", disabled=True, silent=True), rules or {}
        )
        stepper = opening(profile, DrawnChooser(random.Random(f"{seed}/{index}/choices")))
        plan = Plan(steps=min(WALK_STEPS, end - taken), without_storage=without_storage)
        walk = Walk(stepper, rng, plan, swarm=index % 2 == 1)
        try:
            walk.run()
        except Found as found:
            steps_taken = taken + len(stepper.steps)
            catch = _made_small(
                opening, Catch(found.finding, profile, tuple(stepper.steps), steps_taken), plainly=False
            )
            first = first or catch
            best = _smaller(best or catch, catch)
            end = min(steps, first.taken + AFTERWARDS)
            tries -= 1
        taken += len(stepper.steps)
    if best is None or first is None:
        return Catch(None, profile, (), taken)
    return _made_small(opening, best, plainly=True)._replace(taken=first.taken)


def _smaller(one: Catch, other: Catch) -> Catch:
    """The other, if it is the same story in fewer steps."""
    same = one.finding and other.finding and one.finding.requirement == other.finding.requirement
    return other if same and len(other.steps) < len(one.steps) else one


def _with_rules(profile: Profile, rules: Mapping[str, str | int | bool | None]) -> Profile:
    """The profile, with these rules. Raises pydantic.ValidationError where they do not fit the others."""
    return profile.model_copy(update={"rules": Rules.model_validate({**profile.rules.model_dump(), **rules})})


def _made_small(opening: Opening, catch: Catch, *, plainly: bool) -> Catch:
    """The catch by fewer steps, or fewer and plainer ones."""
    assert catch.finding is not None
    small = minimise(catch.steps, lambda: opening(catch.profile, POLICY), catch.finding, plainly=plainly)
    return catch._replace(finding=small.finding or catch.finding, steps=small.steps)
