"""The minimiser: deletes steps while the same finding stays. One for walks, machines, and traces of others."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple, Protocol

from hicache_ref.model import Model
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome

REPLAYS_MAX = 4_000
PAIRS_MAX = 30
"""Steps of a trace from which any two are tried to be left out: a lock and its end, a request and what it gives."""


class Replayable(Protocol):
    """A stepper that can be told the choices of a step."""

    @property
    def model(self) -> Model:
        """The model, which says what is enabled."""

    def is_out_of_turn(self, op: Operation) -> bool:
        """Whether what is under test cannot come to this step now, though the model can."""

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """As in `Stepper`; None leaves the choices to the stepper."""


class Replay(NamedTuple):
    """The steps that were executed, and what was found at the last of them."""

    steps: tuple[Recorded, ...]
    finding: Finding | None


def replay(steps: Sequence[Recorded], make: Callable[[], Replayable], *, with_choices: bool = True) -> Replay:
    """Executes the steps on a new stepper. One that has become invalid is left out, unless it is the last.

    One that is out of turn is left out in any case.
    """
    stepper = make()
    done: list[Recorded] = []
    for index, recorded in enumerate(steps):
        if index < len(steps) - 1 and stepper.model.requires(recorded.op) is not None:
            continue
        if stepper.is_out_of_turn(recorded.op):
            continue
        done.append(recorded)
        try:
            stepper.step(recorded.op, recorded.choices if with_choices else ())
        except Found as found:
            return Replay(tuple(done), found.finding)
    return Replay(tuple(done), None)


def minimise(
    steps: Sequence[Recorded],
    make: Callable[[], Replayable],
    finding: Finding,
    replays_max: int = REPLAYS_MAX,
    give_up: Callable[[], bool] = lambda: False,
) -> Replay:
    """The fewest steps found that still end in the same finding; the given ones if they do not replay.

    Tried with plain choices first, since recorded ones go stale when a step is deleted; then with the recorded.
    Once `give_up` says so, what has been found by then is returned.
    """
    for with_choices in (False, True):
        first = replay(steps, make, with_choices=with_choices)
        if finding.same_as(first.finding):
            kept = first.steps if with_choices else tuple(Recorded(each.op) for each in first.steps)
            return _delete(Replay(kept, first.finding), make, replays_max, give_up)
    return Replay(tuple(steps), finding)


def _delete(best: Replay, make: Callable[[], Replayable], budget: int, give_up: Callable[[], bool]) -> Replay:
    """Chunks of halving size are deleted, then single steps until none can be, nor two of a short trace at once."""
    chunk = max(1, len(best.steps) // 2)
    while budget > 0 and not give_up():
        start, shorter = 0, False
        while start < len(best.steps) - 1 and budget > 0 and not give_up():
            rest = best.steps[:start] + best.steps[min(start + chunk, len(best.steps) - 1) :]
            budget -= 1
            tried = replay(rest, make)
            if best.finding is not None and best.finding.same_as(tried.finding):
                best, shorter = tried, True
            else:
                start += chunk
        if chunk == 1 and not shorter:
            fewer, budget = _without_two(best, make, budget, give_up)
            if fewer is best:
                return best
            best = fewer
        chunk = max(1, chunk // 2)
    return best


def _without_two(
    best: Replay, make: Callable[[], Replayable], budget: int, give_up: Callable[[], bool]
) -> tuple[Replay, int]:
    """The trace without some two steps, if it is short and the finding stays; else itself. And what budget is left."""
    for gone in combinations(range(len(best.steps) - 1), 2) if len(best.steps) <= PAIRS_MAX else ():
        if budget <= 0 or give_up():
            break
        budget -= 1
        tried = replay([step for at, step in enumerate(best.steps) if at not in gone], make)
        if best.finding is not None and best.finding.same_as(tried.finding):
            return tried, budget
    return best, budget
