"""Recorded traces are judged: no false alarm however little was looked at, and no wrong answer goes unseen."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.oracle.explain import retell
from hicache_ref.oracle.judge import judge
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker, catalogue_digest
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.trace import RAISED_KEY, Implementation, Trace, TraceHeader, TraceStep
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Counts, IssuedCopy, Observation
from hicache_ref.vocabulary.operations import (
    Evict,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    MatchPrefix,
    Operation,
    Reset,
    TakePages,
)
from hicache_ref.vocabulary.outcomes import Done, Evicted, Inserted, Matched, Outcome, Took
from hicache_ref.vocabulary.profile import RULES, Profile, Rules

QUIET = Profile(rules=Rules(write_policy="write_through_selective", write_through_threshold=2))
KEY = Key(tokens=(1, 2))


def recording(profile: Profile, *steps: TraceStep) -> Trace:
    """A trace of somebody's engine."""
    header = TraceHeader(
        requirements=catalogue_digest(), profile=profile, implementation=Implementation(name="theirs", version="1"),
        level="tree",
    )  # fmt: skip
    return Trace(header, steps)


def told(*pairs: tuple[Operation, Outcome]) -> Trace:
    """A recording of what the caller was told, and of nothing else."""
    return recording(QUIET, *(TraceStep(i=i, op=op, outcome=outcome) for i, (op, outcome) in enumerate(pairs)))


def found(trace: Trace) -> list[tuple[str, int]]:
    """Requirement and step of what is found in it."""
    outlook = judge(trace, Checker(trace.header.profile))
    assert outlook.oracle_fault is None
    return [(each.finding.requirement, len(each.steps) - 1) for each in outlook.divergences]


@pytest.mark.parametrize("seed", range(24))
def test_no_false_alarm_however_little_was_seen(seed: int) -> None:
    """Goal: a true recording passes. Method: walks of the model, of which a drawn share of the observations is kept."""
    rng = random.Random(seed)
    profile = draw_profile(rng, Profile(rules=RULES[rng.choice(list(RULES))]))
    adapter = ReferenceAdapter()
    description = adapter.describe()
    walked = Lockstep(adapter, description, profile, "tree", Checker(profile))
    Walk(walked, rng, Plan(steps=100), swarm=False).run()
    story = retell(Lockstep(adapter, description, profile, "tree", Checker(profile)), walked.steps)
    kept = rng.choice((0.0, 0.3, 0.9, 1.0))

    assert [] == found(recording(profile, *looked_at(story.trace_steps(), rng, kept)))


def looked_at(steps: Sequence[TraceStep], rng: random.Random, share: float) -> Iterator[TraceStep]:
    """The steps with a share of the observations; each tells the copies and events since the one before it."""
    copies: list[IssuedCopy] = []
    events: list[Event] = []
    for step in steps:
        assert step.observed is not None
        copies += step.observed.copies
        events += step.observed.events or ()
        if rng.random() >= share:
            yield step.model_copy(update={"observed": None})
            continue
        seen = step.observed.model_copy(update={"copies": tuple(copies), "events": tuple(events)})
        yield step.model_copy(update={"observed": seen})
        copies, events = [], []


def test_a_refused_reset_empties_nothing() -> None:
    """Goal: only a reset that happened makes contents known. Method: pages written unseen, then one that is refused."""
    adapter = ReferenceAdapter()
    walked = Lockstep(adapter, adapter.describe(), QUIET, "tree", Checker(QUIET))
    for op in [op for op, _ in INSERTED]:
        walked.step(op)
    for op in (TakePages(rid="r1", n=1), Forward(rid="r1", key=Key(tokens=(7,)), start=0), Reset()):
        walked.step(op)
    story = retell(Lockstep(adapter, adapter.describe(), QUIET, "tree", Checker(QUIET)), walked.steps)
    *unseen, last = story.trace_steps()
    assert last.observed is not None
    assert last.outcome is not None
    seen = last.model_copy(update={"observed": last.observed.model_copy(update={"events": None})})

    assert "refused" == last.outcome.kind
    assert [] == found(recording(QUIET, *[each.model_copy(update={"observed": None}) for each in unseen], seen))


INSERTED: list[tuple[Operation, Outcome]] = [
    (TakePages(rid="r0", n=2), Took(pages=(40, 41))),
    (Forward(rid="r0", key=KEY, start=0), Done()),
    (ForwardDone(rid="r0"), Done()),
    (Insert(rid="r0", key=KEY, start=0), Inserted(prefix=0, given_back=())),
]
NOWHERE = Key(tokens=())


def matched(*device: int) -> Matched:
    """The whole key is on device."""
    return Matched(device=device, host_hit=0, last_device_node=KEY, last_host_node=NOWHERE, best=KEY)


def test_pages_are_paired_where_they_are_told() -> None:
    """Goal: outcomes alone say which page holds what. Method: a match with the pages taken, two without."""
    assert [] == found(told(*INSERTED, (MatchPrefix(key=KEY), matched(40, 41))))
    assert [("HC-CONF-02", 4)] == found(told(*INSERTED, (MatchPrefix(key=KEY), matched(41, 40))))
    assert [("HC-CONF-02", 4)] == found(told(*INSERTED, (MatchPrefix(key=KEY), matched(40))))


def test_a_recording_that_breaks_off_blames_nobody() -> None:
    """Goal: a recorder that was killed is no fault of the engine. Method: a last step cut off, then one that raised."""
    begun = TraceStep(i=4, op=MatchPrefix(key=KEY))
    whole = told(*INSERTED)
    cut = recording(QUIET, *whole.steps, begun)
    raised = recording(QUIET, *whole.steps, begun.model_copy(update={"meta": {RAISED_KEY: "KeyError: 7"}}))

    assert [] == found(cut)
    assert judge(cut, Checker(QUIET)).cut_off
    assert judge(replace(whole, ended="the disk was full"), Checker(QUIET)).cut_off
    assert not judge(whole, Checker(QUIET)).cut_off
    assert [("HC-CONF-01", 4)] == found(raised)


def test_a_page_is_not_told_to_two() -> None:
    """Goal: a page given out twice shows in what callers are told. Method: a second take, before and after eviction."""
    taken = (TakePages(rid="r1", n=1), Took(pages=(41,)))
    freed = (Evict(n=2), Evicted(freed=2))

    assert [("HC-PAGE-01", 4)] == found(told(*INSERTED, taken))
    assert [] == found(told(*INSERTED, freed, taken, (GiveBack(rid="r1"), Done())))


def test_a_page_beyond_the_pool_is_seen() -> None:
    """Goal: as many pages as the pool has, and those of the pool. Method: a free list with a page that is not there."""
    free = tuple(range(6))
    observed = Observation(level="pages", counts=Counts(), free_device=(*free[1:], 6), free_host=free)
    step = TraceStep(i=0, op=MatchPrefix(key=KEY), outcome=Matched(
        device=(), host_hit=0, last_device_node=NOWHERE, last_host_node=NOWHERE, best=NOWHERE,
    ), observed=observed)  # fmt: skip

    assert [("HC-PAGE-02", 0)] == found(recording(QUIET, step))
