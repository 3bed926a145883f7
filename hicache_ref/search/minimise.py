"""The minimiser: deletes steps and tells the others more plainly while the same finding stays.

One for walks, machines, and traces of others. What is tried is in `simpler`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from hicache_ref.model import Model
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.simpler import Steps, fitted, plainer, weight, with_a_match, without, without_two
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome

REPLAYS_MAX = 4_000
PAIRS_MAX = 30
"""Steps of a trace from which any two are tried to be left out: a lock and its end, a request and what it gives."""

LONG = 12
"""A trace of more steps is worth the many tries to tell a part of it by one step."""


class Replayable(Protocol):
    """A stepper that can be told the choices of a step."""

    @property
    def model(self) -> Model:
        """The model, which says what is enabled."""

    def leaves_out(self, op: Operation) -> bool:
        """Whether a search makes no such step now: what is under test cannot come to it, or is known to go wrong."""

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """As in `Stepper`; None leaves the choices to the stepper."""


class Replay(NamedTuple):
    """The steps that were executed, and what was found at the last of them."""

    steps: tuple[Recorded, ...]
    finding: Finding | None


def replay(
    steps: Sequence[Recorded], make: Callable[[], Replayable], *, with_choices: bool = True, fit: bool = False
) -> Replay:
    """Executes the steps on a new stepper. One that has become invalid is left out, unless it is the last.

    With `fit` it gets smaller counts instead where it is valid with them. What the stepper leaves out is left out in
    any case, so that a trace does not shrink through a step that no walk would have made.
    """
    stepper = make()
    done: list[Recorded] = []
    for index, recorded in enumerate(steps):
        is_last = index == len(steps) - 1
        if stepper.model.requires(recorded.op) is not None and (not is_last or stepper.leaves_out(recorded.op)):
            less = fitted(recorded.op, stepper.model) if fit else None
            if less is None:
                continue
            recorded = recorded._replace(op=less)
        if stepper.leaves_out(recorded.op):
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
    *,
    plainly: bool = True,
) -> Replay:
    """The fewest and plainest steps found that still end in the same finding; the very ones given if none do.

    If they need not be told `plainly`, steps are only deleted, which takes half as long.
    Tried with plain choices first, since recorded ones go stale when a step is deleted; then with the recorded.
    Once `give_up` says so, what has been found by then is returned.
    """
    for with_choices in (False, True):
        first = replay(steps, make, with_choices=with_choices)
        if finding.same_as(first.finding):
            kept = first.steps if with_choices else tuple(Recorded(each.op) for each in first.steps)
            return _Search(finding, Replay(kept, first.finding), make, replays_max, give_up, plainly).run()
    return Replay(tuple(steps), finding)


class _Search:
    """One search: the plainest trace so far, and what may still be spent on a plainer one."""

    def __init__(self, finding: Finding, best: Replay, make: Callable[[], Replayable], budget: int,
                 give_up: Callable[[], bool], plainly: bool) -> None:  # fmt: skip
        self.finding = finding
        self.best = best
        self.make = make
        self.budget = budget
        self.give_up = give_up
        self.plainly = plainly
        self.tried: set[str] = set()
        self.told: dict[int, tuple[Recorded, str]] = {}
        """Steps by identity, each with its text: to make that takes longer than anything else but a replay."""

    def run(self) -> Replay:
        """Chunks of halving size are deleted, then single steps, then more is tried as long as anything helps."""
        chunk = len(self.best.steps) // 2
        while chunk > 1:
            self._improve(partial(without, size=chunk))
            chunk //= 2
        helped = True
        while helped and not self._is_over():
            length = len(self.best.steps)
            self._improve(without)
            if self.plainly:
                self._improve(partial(plainer, model=self.make().model))
            helped = len(self.best.steps) < length or self._is_shorter_by_more()
        return self.best

    def _is_shorter_by_more(self) -> bool:
        """Whether what takes many tries helped once: any two steps of a short trace gone, or a part of a long one."""
        length = len(self.best.steps)
        return (length <= PAIRS_MAX and self._improve(without_two, once=True)) or (
            self.plainly and length > LONG and self._improve(with_a_match, once=True)
        )

    def _is_over(self) -> bool:
        return self.budget <= 0 or self.give_up()

    def _improve(self, others: Callable[[Steps], Iterator[Steps]], *, once: bool = False) -> bool:
        """None of the other traces is better any more, or one was and once is enough; tells whether any was.

        After one that was, it goes on at the same place of what can be made of that, and round.
        """
        at = failures = 0
        count: int | None = None
        found = False
        left = others(self.best.steps)
        while not self._is_over() and (count is None or failures < count) and not (once and found):
            steps = next(left, None)
            if steps is None:
                count, at, left = at, 0, others(self.best.steps)
            elif self._is_better(steps):
                found, failures, left = True, 0, islice(others(self.best.steps), at, None)
            else:
                at, failures = at + 1, failures + 1
        return found

    def _text_of(self, step: Recorded) -> str:
        if id(step) not in self.told:
            self.told[id(step)] = step, repr(step)
        return self.told[id(step)][1]

    def _is_better(self, steps: Steps) -> bool:
        """Whether these steps, not tried before, end in the finding and weigh less; then they are the best so far."""
        name = "\n".join(map(self._text_of, steps))
        if name in self.tried:
            return False
        self.tried.add(name)
        self.budget -= 1
        tried = replay(steps, self.make, fit=True)
        better = self.finding.same_as(tried.finding) and weight(tried.steps) < weight(self.best.steps)
        if better:
            self.best = tried
        return better
