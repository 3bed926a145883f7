"""A draft model changes nothing but its own pages (HC-DRAFT-05)."""

import random
from typing import Any

import pytest

from hicache_ref.model import Model
from hicache_ref.model.chooser import DrawnChooser, ReplayChooser
from hicache_ref.model.state import dump
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.operations import CopyDone, Evict, LoadBack, Poll, ReadDone, RegisterDraft, Reset, WriteDone
from hicache_ref.vocabulary.profile import RULES, Profile
from tests.properties.breaking import DEVICE, HOST, World, key


def without_draft(state: Any) -> dict[str, Any]:
    """The state as plain data, the draft model and its pages left out."""
    data: dict[str, Any] = dump(state)
    for pool in data["pools"].values():
        del pool["draft"]
    del data["draft"]
    del data["storage"]["believed_draft"]
    return data


@pytest.mark.parametrize("seed", range(30))
def test_a_draft_model_changes_nothing_else(seed: int) -> None:
    """Goal: a missing or failed draft never changes the target's result. Method: a walk, and its steps without draft.

    The same operations, with no draft page moved, are taken by a cache without draft model: each outcome, effect and
    event is the same, and so is the state but for draft pages.
    """
    rng = random.Random(seed)
    profile = draw_profile(rng, Profile(rules=RULES[rng.choice(list(RULES))])).model_copy(update={"draft": True})
    walked = ModelStepper(profile, chooser=DrawnChooser(rng))
    Walk(walked, rng, Plan(steps=100), swarm=seed % 2 == 1).run()

    twins = [Model(profile), Model(profile.model_copy(update={"draft": False}))]
    for op, choices in walked.steps:
        if twins[0].requires(op) is not None:
            continue
        bare = op.model_copy(update={"draft": 0}) if isinstance(op, ReadDone | WriteDone) else op
        told, told_without = (
            twin.step(each, ReplayChooser(choices)) for twin, each in zip(twins, (op, bare), strict=True)
        )
        assert told[:3] == told_without[:3]
        assert without_draft(twins[0].state) == without_draft(twins[1].state)


def test_what_was_written_before_the_draft_model_has_no_draft_page() -> None:
    """Goal: a late draft model takes no page for its own. Method: pages from before and after it go both ways."""
    world = World(write_through_threshold=1)
    world.insert("1")
    world.settle()
    world.do(RegisterDraft())
    world.insert("2")
    world.settle()
    assert {None, *world.node("2").hashes} == {*world.state.pools[HOST].draft}
    world.do(Evict(n=9))
    for text in ("1", "2"):
        world.do(LoadBack(key=key(text)))
        world.do(CopyDone(ticket=f"d:{text}"), Poll(loads=1))
    draft = world.state.pools[DEVICE].draft
    assert [None] == [draft[page] for page in world.node("1").at[DEVICE]]
    assert list(world.node("2").hashes) == [draft[page] for page in world.node("2").at[DEVICE]]
    world.do(Reset())
    assert world.state.draft
