"""Both cores side by side: upstream means them to be equal, so whatever one does and the other does not is told first.

The model says here only what is worth trying next; no answer is compared with it, and where the cores leave it they
go on together. `python -m hicache_ref.adapters.sglang_unified.twins full+mamba 20000 0` looks for so many steps.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from hicache_ref.adapters import sglang_unified
from hicache_ref.adapters.failures import ImplementationFailed
from hicache_ref.model import Model
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.minimise import Replay, minimise
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.vocabulary.adapter import Adapter
from hicache_ref.vocabulary.choices import Choice
from hicache_ref.vocabulary.observation import Observation, Segment
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile, profile_named

WALK_STEPS = 150
EQUAL = "equal cores"
"""What is broken where they are not."""

Twins = tuple[Adapter, Adapter]
"""The Python core and the compiled one, each with a caller of its own."""


class Walked(NamedTuple):
    """One walk on both cores."""

    steps: int
    difference: Replay | None


class TwinStepper:
    """A stepper of walks: the model goes ahead, both cores are told the same, and are to answer and show the same."""

    def __init__(self, twins: Twins, profile: Profile) -> None:
        self.model = Model(profile)
        self.twins = twins
        self.steps: list[Recorded] = []
        for each in twins:
            each.reset(profile)

    def leaves_out(self, op: Operation) -> bool:
        """What breaks a precondition: no core defines what it does then."""
        return self.model.requires(op) is not None

    def step(self, op: Operation, choices: Sequence[Choice] | None = None) -> Outcome:
        """Both have done it. Raises Found where one answers or shows what the other does not."""
        self.steps.append(Recorded(op))
        outcome = self.model.step(op).outcome
        self._expect_equal(op, "answer", *(_told(each, op) for each in self.twins))
        python, rust = (_shown(each.observe("bytes")) for each in self.twins)
        for name, one in python.items():
            self._expect_equal(op, name, one, rust[name])
        return outcome

    @staticmethod
    def _expect_equal(op: Operation, name: str, python: object, rust: object) -> None:
        if python != rust:
            text = f"{name} of the Python core: {python}; of the compiled one: {rust}"
            raise Found(Finding(EQUAL, text, op.op, "difference", outcomes=(name,)))


def _told(adapter: Adapter, op: Operation) -> str:
    """What the caller is told; of an exception only that there was one, for no two languages raise the same."""
    try:
        return repr(adapter.apply(op))
    except ImplementationFailed:
        return "raised"


def _shown(seen: Observation) -> dict[str, object]:
    """What must be equal. Nodes by their whole key, for they come in any order; a check complains in its own words."""
    ends: list[tuple[object, ...]] = []
    nodes: set[tuple[object, ...]] = set()
    for each in seen.segments:
        above = ends[each.parent] if each.parent >= 0 else ()
        ends.append((*above, each.tokens))
        nodes.add((ends[-1], *_owned(each)))
    return {
        "nodes": nodes, "counts": seen.counts, "requests": (seen.requests, seen.request_states),
        "free device pages": sorted(seen.free_device), "free host pages": sorted(seen.free_host),
        "free states": (sorted(seen.free_device_state), sorted(seen.free_host_state)),
        "held": (seen.held_device, seen.held_device_state), "copies": seen.copies,
        "events": sorted(map(repr, seen.events or ())), "complaint": seen.self_check is not None,
        "contents": seen.contents,
    }  # fmt: skip


def _owned(each: Segment) -> tuple[object, ...]:
    return each.extra, each.device, each.host, each.locked, each.device_state, each.host_state


@contextmanager
def both(components: str, *, fetch: bool = False) -> Iterator[Twins]:
    """Both cores, each in a process of its own. Raises AdapterError where the wheel cannot be had."""
    with ExitStack() as stack:
        made = [
            sglang_unified.make({"core": core, "components": components}, fetch, 30.0) for core in ("python", "rust")
        ]
        python, rust = (stack.enter_context(each) for each in made)
        yield python, rust


def differences(twins: Twins, steps: int, seed: int) -> Iterator[Walked]:
    """Walks until so many steps were made; each with the shortest way found to its first difference, if it has one."""
    description = twins[0].describe()
    base = profile_named(description.profile)
    count, index = 0, 0
    while count < steps:
        rng = random.Random(f"{seed}/{index}")
        profile = draw_profile(
            rng, base, page_sizes=description.page_sizes, bigram=description.bigram, draft=False,
            hybrid=description.hybrid,
        )  # fmt: skip
        stepper = TwinStepper(twins, profile)
        plan = Plan(steps=WALK_STEPS, invalid_share=0.0, operations=description.alphabet)
        difference: Replay | None = None
        try:
            Walk(stepper, rng, plan, swarm=index % 2 == 1).run()
        except Found as found:
            difference = minimise(stepper.steps, partial(TwinStepper, twins, profile), found.finding)
        yield Walked(len(stepper.steps), difference)
        count, index = count + len(stepper.steps), index + 1


def main(arguments: list[str]) -> int:
    """Each difference was told, and how many steps were made; 1 if there was a difference."""
    components, steps, seed = arguments
    made, found = 0, 0
    with both(components) as twins:
        for walked in differences(twins, int(steps), int(seed)):
            made += walked.steps
            if walked.difference is not None:
                found += 1
                _tell(walked.difference)
    sys.stdout.write(f"{made} steps on both cores, {found} walks with a difference\n")
    return int(found > 0)


def _tell(each: Replay) -> None:
    text = each.finding.text if each.finding is not None else "a difference that did not come again"
    told = [f"  {number} {recorded.op.model_dump_json()}" for number, recorded in enumerate(each.steps)]
    sys.stdout.write("\n".join([text, *told, ""]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
