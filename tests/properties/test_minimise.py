"""The minimiser: what is found stays, with fewer steps and plainer ones, by the same way each time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.faults import model as model_with
from hicache_ref.model import Model
from hicache_ref.oracle.campaign import LONG_TRACE, TRIES_AGAIN, Budget, Campaign
from hicache_ref.oracle.known import Known
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.minimise import Replay, minimise, replay
from hicache_ref.search.simpler import EVERYTHING, fitted, plainer, weight, with_a_match, without, without_two
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import (
    Attach,
    Audit,
    Detach,
    Evict,
    Forward,
    ForwardDone,
    Insert,
    MatchPrefix,
    Operation,
    Poll,
    Prefetch,
    Progress,
    QueryDone,
    ReadDone,
    TakePages,
)
from hicache_ref.vocabulary.outcomes import Outcome, Progressed
from hicache_ref.vocabulary.profile import Profile, profile_named
from hicache_ref.vocabulary.storage import StorageSettings

PROFILE = profile_named("reference/tiny")
PAGE = PROFILE.sizes.page_size
LOADED = Finding("HC-CONF-01", "something was loaded", "progress", "requirement")
ATTACH = Attach(settings=StorageSettings(prefetch_threshold=1, prefetch_policy="wait_complete"))
POLL = Poll(answers=1, reads=2)


def key(*pages: int) -> Key:
    """A key whose pages repeat these tokens."""
    return Key(tokens=tuple(token for token in pages for _ in range(PAGE)))


class Watched:
    """A model in which it counts as a finding that a request goes on with something that was fetched for it."""

    made = 0

    def __init__(self, profile: Profile = PROFILE) -> None:
        self.model = Model(profile)
        type(self).made += 1

    def leaves_out(self, op: Operation) -> bool:
        """Never."""
        return False

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """As the model; a progress that loads something is found."""
        outcome = self.model.step(op).outcome
        if isinstance(outcome, Progressed) and outcome.loaded:
            raise Found(LOADED)
        return outcome


def steps_of(*ops: Operation) -> tuple[Recorded, ...]:
    """The operations as steps without choices."""
    return tuple(map(Recorded, ops))


def fetching() -> tuple[Recorded, ...]:
    """A request fetches four pages in two batches, while another one computes something else."""
    whole, name = key(1, 0, 0, 1), f"p:{key(1, 0, 0, 1)}"
    assert PROFILE.sizes.storage_batch < 4
    reads = [ReadDone(id=name, pages=PROFILE.sizes.storage_batch)] * -(-4 // PROFILE.sizes.storage_batch)
    return steps_of(
        ATTACH, TakePages(rid="r0", n=1), Forward(rid="r0", key=key(0), start=0), ForwardDone(rid="r0"),
        Prefetch(rid="r1", key=whole, now=700), QueryDone(id=name, hits=4), POLL, *reads, POLL,
        Progress(rid="r1", now=900),
    )  # fmt: skip


def small(give_up: Callable[[], bool] = lambda: False, replays: int = 4_000) -> Replay:
    """What becomes of that."""
    return minimise(fetching(), Watched, LOADED, replays, give_up)


def others(*ops: Operation) -> list[tuple[Operation, ...]]:
    """What is tried instead of a trace to tell it more plainly."""
    return [tuple(step.op for step in steps) for steps in plainer(steps_of(*ops), Model(PROFILE))]


def test_a_long_key_costs_no_steps() -> None:
    """Goal: what only a long key needs is gone. Method: four pages come in batches; one page does as well."""
    steps = small().steps
    ops = [step.op for step in steps]
    assert {1} == {len(op.key.tokens) // PAGE for op in ops if isinstance(op, Prefetch)}
    assert [Progress(rid="r1")] == ops[-1:]
    assert {EVERYTHING} == {op for op in ops if isinstance(op, Poll)}


def test_each_step_that_is_left_is_needed() -> None:
    """Goal: nothing is left over. Method: what is left, without each of its steps in turn."""
    steps = small().steps
    less = [(*steps[:at], *steps[at + 1 :]) for at in range(len(steps))]

    assert LOADED.same_as(replay(steps, Watched).finding)
    assert [None] * len(steps) == [replay(each, Watched).finding for each in less]


def test_the_finding_stays_and_the_way_is_the_same_each_time() -> None:
    """Goal: nothing but the finding steers it. Method: twice the same, which replays to the finding and weighs less."""
    assert small() == small()
    assert LOADED.same_as(small().finding)
    assert weight(small().steps) < weight(fetching())
    assert minimise(small().steps, Watched, LOADED) == small()


def test_it_ends_when_it_is_told_to() -> None:
    """Goal: budgets hold. Method: count what is made under a budget of ten, and give up at once."""
    Watched.made = 0
    assert LOADED.same_as(small(replays=10).finding)
    assert Watched.made <= 10 + 3
    assert fetching() == small(give_up=lambda: True).steps


def test_a_count_that_has_become_too_large_is_made_smaller() -> None:
    """Goal: a step is kept where a smaller count makes it valid. Method: reports of more than there is, and of none."""
    model = Watched().model
    for op in (ATTACH, Prefetch(rid="r", key=key(1)), QueryDone(id=f"p:{key(1)}", hits=1), POLL):
        model.step(op)
    assert ReadDone(id=f"p:{key(1)}", pages=1) == fitted(ReadDone(id=f"p:{key(1)}", pages=4), model)
    assert fitted(ReadDone(id="p:nothing", pages=4), model) is None
    assert Evict(n=2) == fitted(Evict(n=2), model)


def test_what_is_deleted() -> None:
    """Goal: the last step stays. Method: all traces of four steps without some of them."""
    steps = steps_of(Evict(n=1), Evict(n=2), Evict(n=3), POLL)
    assert [(2, 3), (1, 3), (1, 2)] == [tuple(step.op.n for step in each[:-1]) for each in without(steps)]
    assert [(3,), (2,), (1,)] == [tuple(step.op.n for step in each[:-1]) for each in without_two(steps)]
    assert {POLL} == {each[-1].op for each in (*without(steps, 2), *without_two(steps))}


def test_a_page_goes_from_all_keys_and_what_depends_on_it_follows() -> None:
    """Goal: a shorter key leaves a trace that may happen. Method: the first page of two gone, handles too."""
    more = (
        TakePages(rid="r", n=1), Forward(rid="r", key=key(1, 2), start=1), Insert(rid="r", key=key(1, 2), start=1),
        QueryDone(id=f"p:{key(1, 2)}#2", hits=2),
    )  # fmt: skip
    less = (
        TakePages(rid="r", n=1), Forward(rid="r", key=key(2), start=0), Insert(rid="r", key=key(2), start=0),
        QueryDone(id=f"p:{key(2)}#2", hits=2),
    )  # fmt: skip
    assert less in others(*more)


def test_keys_and_names_become_one() -> None:
    """Goal: nothing is told apart that need not be. Method: two keys, a namespace, two requests."""
    named = Key(tokens=key(1).tokens, extra="a")
    tried = others(MatchPrefix(key=named), MatchPrefix(key=key(2)), TakePages(rid="r0", n=1), TakePages(rid="r1", n=1))
    assert MatchPrefix(key=key(1)) in {ops[0] for ops in tried}
    assert MatchPrefix(key=key(2)) in {ops[0] for ops in tried}
    assert {("r0", "r1"), ("r0", "r0"), ("r1", "r1")} == {(ops[2].rid, ops[3].rid) for ops in tried if len(ops) == 4}


def test_two_steps_of_a_kind_become_one() -> None:
    """Goal: evictions, reports and polls are joined. Method: two of each with a step between."""
    read = ReadDone(id="p:1", pages=1)
    assert (Evict(n=3), POLL) in others(Evict(n=1), Evict(n=2), POLL)
    assert (read.model_copy(update={"pages": 2}), POLL) in others(read, read, POLL)
    assert (Evict(n=1), EVERYTHING, Evict(n=1), POLL) in others(POLL, Evict(n=1), Evict(n=1), POLL, POLL)


def test_a_request_goes_on_from_the_tree() -> None:
    """Goal: a load that only gives a request its state is not needed. Method: what comes before is left out."""
    forward = Forward(rid="r", key=key(1, 2), start=1)
    expected = (TakePages(rid="r", n=1, prefix=key(1)), forward)
    assert expected in others(Evict(n=1), POLL, TakePages(rid="r", n=1), forward)


def test_a_match_may_do_for_what_names_its_key() -> None:
    """Goal: part of a trace gives way to one step. Method: a request's steps before an eviction."""
    steps = steps_of(TakePages(rid="r", n=1), Forward(rid="r", key=key(1), start=0), ForwardDone(rid="r"), Evict(n=1))
    assert steps_of(MatchPrefix(key=key(1)), Evict(n=1)) in list(with_a_match(steps))


def test_a_long_trace_gives_way_to_a_shorter_one_of_another_walk() -> None:
    """Goal: one unlucky walk is not the last word. Method: a campaign's first trace is made long, and it goes on."""
    campaign = Campaign(ReferenceAdapter(model_with("locked-leaf")), PROFILE, keep_going=True)
    outlook = campaign.run(Budget(steps=3_000))
    first = outlook.divergences[0]
    longer = replace(first, steps=(Recorded(Audit()),) * LONG_TRACE + first.steps)
    outlook.divergences[0] = longer
    campaign.run(Budget(steps=2 * outlook.steps))
    again = outlook.divergences[0]

    assert again.finding.same_as(first.finding)
    assert len(again.steps) <= LONG_TRACE
    assert {1} == set(campaign.tried_again.values())
    campaign.tried_again[first.finding.identity] = TRIES_AGAIN
    outlook.divergences[0] = longer
    campaign.run(Budget(steps=2 * outlook.steps))
    assert longer == outlook.divergences[0]


class Stumbling(ReferenceAdapter):
    """A model that raises at every detach, also of nothing."""

    def describe(self) -> Description:
        """As the model's, but that nothing is said of what is invalid."""
        return super().describe().model_copy(update={"invalid": "undefined"})

    def apply(self, operation: Operation) -> Outcome:
        """As the model; a detach raises."""
        if operation.op == "detach":
            raise LookupError("gone")
        return super().apply(operation)


def kept_small(campaign: Campaign, *ops: Operation) -> tuple[Operation, ...]:
    """What the campaign keeps of a walk that made these steps and was found at the last of them."""
    lockstep = campaign.lockstep(PROFILE)
    for op in ops[:-1]:
        lockstep.step(op)
    with pytest.raises(Found) as found:
        lockstep.step(ops[-1])
    campaign._keep(lockstep, found.value.finding)
    return tuple(step.op for step in campaign.outlook.divergences[-1].steps)


def test_a_trace_does_not_shrink_through_a_known_trigger() -> None:
    """Goal: what is known stays apart. Method: a detach that fails anywhere; that of nothing is known, or not."""
    entry = {"id": "K", "requirement": "HC-CONF-01", "operation": "detach", "reason": "why", "profile": {}, "trace": [],
             "differs": [{"kind": "crash"}], "raised": "LookupError in apply",
             "trigger": "detach_of_nothing"}  # fmt: skip
    walked = (Prefetch(rid="r", key=key(1)), ATTACH, MatchPrefix(key=key(1)), Detach())
    assert (Detach(),) == kept_small(Campaign(Stumbling(), PROFILE), *walked)
    known = (Known.model_validate(entry),)
    assert (ATTACH, Detach()) == kept_small(Campaign(Stumbling(), PROFILE, known=known), *walked)


def test_a_crash_does_not_shrink_to_a_call_that_breaks_a_precondition() -> None:
    """Goal: undefined behaviour is no finding. Method: an insert that fails wherever it is made, also of no pass."""
    given = (TakePages(rid="r", n=1), Forward(rid="r", key=key(1), start=0))
    insert = Insert(rid="r", key=key(1), start=0)
    assert (*given, insert) == kept_small(Campaign(Falling(), PROFILE), *given, ForwardDone(rid="r"), insert)


class Falling(Stumbling):
    """A model that raises at every insert."""

    def apply(self, operation: Operation) -> Outcome:
        """As the model; an insert raises."""
        if operation.op == "insert":
            raise LookupError("gone")
        return super().apply(operation)
