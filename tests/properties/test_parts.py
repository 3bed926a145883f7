"""A judge that is not asked again must have nothing new to see: parts of a view, and what looks at which."""

import contextlib
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from hicache_ref.model import State
from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.requirements import Broken
from hicache_ref.requirements.checker import Checker
from hicache_ref.requirements.registry import ALWAYS
from hicache_ref.requirements.view import PART, View
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.operations import Audit
from hicache_ref.vocabulary.profile import RULES, profile_named
from tests.properties import broken_hybrid, broken_state_storage, broken_states

_HOLDERS = "nodes owners requests storage"
IN_POOL = {
    "name": "", "size": "", "owner": "owners", "free": "owners", "listed": "owners", "stamp": "contents",
    "draft": "contents", "contents": "contents", "unlike": "nodes contents", "touched": "books", "written": "books",
    "writes": "books", "held": _HOLDERS, "claims": _HOLDERS, "unheld": _HOLDERS,
}  # fmt: skip
"""The parts from which each attribute of a pool is made."""

IN_VIEW = {
    "profile": "", "rules": "", "hashes_of": "", "page_count": "", "pools": "", "policy": "policy", "draft": "policy",
    "evictable": "sums", "protected": "sums", "device_leaves": "leaves", "host_leaves": "leaves",
    "receipts": "receipts", "tickets": "books", "passes": "books", "busy": "books", "requests": "requests",
    "row": "nodes", "rows": "nodes", "pairs": "nodes", "root": "nodes", "sums": "nodes", "where": "nodes",
    "cached": "nodes", "up": "nodes", "below": "nodes", "pins": "receipts books", "state_pins": "receipts books",
    "residency": "nodes books",
    "storage": "storage", "has_storage": "storage", "storage_pins": "nodes storage",
}  # fmt: skip
"""Likewise of a view."""


class Watched:
    """A view or pool that notes from which parts what is asked of it is made."""

    def __init__(self, subject: Any, made_from: dict[str, str], seen: set[str], **inside: Any) -> None:
        self._subject, self._made_from, self._seen, self._inside = subject, made_from, seen, inside

    def __getattr__(self, name: str) -> Any:
        if name in self._inside:
            return self._inside[name]
        self._seen.update(self._made_from[name].split())
        return getattr(self._subject, name)


def looked_at(judge: Any, view: View) -> set[str]:
    """The parts that the judge looks at in this view."""
    seen: set[str] = set()
    without_storage = {name: parts.replace("storage", "") for name, parts in IN_POOL.items()}
    without_requests = {name: parts.replace("requests", "") for name, parts in IN_POOL.items()}
    made_from = without_storage, without_requests
    device, host = (Watched(*each, seen) for each in zip((view.device, view.host), made_from, strict=True))
    states = tuple(Watched(*each, seen) for each in zip(view.states, made_from, strict=False))
    pools = {pool.name: watched for pool, watched in zip(view.pools(), (device, host, *states), strict=True)}
    inside = {"device": device, "host": host, "states": states, "pool": pools.get}
    watched = Watched(view, IN_VIEW, seen, pools=lambda: tuple(pools.values()), **inside)
    with contextlib.suppress(Broken):
        judge(watched)
    return seen


def runs(count: int) -> Iterator[tuple[ModelStepper, Walk]]:
    """Walks under all presets in turn, each about to begin."""
    for seed in range(count):
        rng = random.Random(seed)
        profile = draw_profile(rng, profile_named(sorted(RULES)[seed % len(RULES)]), hybrid="drawn")
        stepper = ModelStepper(profile, chooser=DrawnChooser(rng))
        yield stepper, Walk(stepper, rng, Plan(), swarm=seed % 2 == 1)


@cache
def views() -> list[View]:
    """Views of healthy states, some of each walk, and of those that are broken by hand."""
    found = []
    for stepper, walk in runs(60):
        for _ in range(100):
            stepper.step(walk.draw())
            if walk.rng.random() < 0.1:
                found.append(View(stepper.model.state, stepper.model.profile))
    worlds = [case.make() for case in broken_states.ALWAYS] + [broken_hybrid.healthy(), broken_state_storage.healthy()]
    return found + [View(world.state, world.profile) for world in worlds]


@pytest.mark.parametrize("requirement", ALWAYS)
def test_a_judge_looks_at_nothing_but_its_parts(requirement: str) -> None:
    """Goal: no broken state is passed over because its judge was not asked. Method: each attribute asked is noted."""
    judge = ALWAYS[requirement]
    named = {part for part, bit in PART.items() if judge.parts & bit}
    seen = {part for view in views() for part in looked_at(judge.judge, view)}

    assert set() == seen - named


def plain(view: View) -> dict[str, Any]:
    """All that the view tells, by attribute."""
    pools = {f"{pool.name} {name}": getattr(pool, name) for pool in view.pools() for name in pool.__slots__}
    storage = {f"storage {name}": getattr(view.storage, name) for name in view.storage.__slots__}
    asked = {name: getattr(view, name) for name in ("where", "residency", "storage_pins")}
    hidden = ("device", "host", "states", "storage", "_where", "_residency", "_storage_pins")
    return pools | storage | asked | {name: each for name, each in vars(view).items() if name not in hidden}


def looks() -> Iterator[tuple[State, View, View]]:
    """Each state of some walks, the view before it, and that of it which is made from the one before."""
    for stepper, walk in runs(40):
        before = View(stepper.model.state, stepper.model.profile)
        for _ in range(100):
            stepper.step(walk.draw())
            after = View(stepper.model.state, stepper.model.profile, before)
            yield stepper.model.state, before, after
            before = after


def test_a_view_that_shares_tells_the_same() -> None:
    """Goal: what is taken over from the view before is still true. Method: the same state, looked at from nothing."""
    steps = 0
    for state, _, after in looks():
        steps += 1
        assert plain(View(state, after.profile)) == plain(after)
    assert 4_000 == steps


def test_what_is_not_judged_again_would_be_judged_alike() -> None:
    """Goal: a part that is said not to have changed has not. Method: judges that are passed over are asked anyway."""
    passed_over = 0
    for _, before, after in looks():
        changed = after.changed(before)
        for each in ALWAYS.values():
            if not each.parts & changed:
                passed_over += 1
                assert each.judge(before) == each.judge(after)
    assert 50_000 < passed_over


def test_a_broken_state_is_found_where_only_that_part_changed() -> None:
    """Goal: the judge is asked when its part changes. Method: after a judged state one lock count goes astray."""
    world = broken_states.healthy()
    checker = Checker(world.profile)
    checker.start(world.state, judged=True)
    world.lock(world.node("1"), 7)
    step = world.model.step(op := Audit())

    with pytest.raises(Broken, match="HC-LOCK-01"):
        checker.check(op, step, world.state)
