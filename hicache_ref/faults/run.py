"""A run of the catalogue: each fault is hunted twice, and the report says what caught it.

Alone, a faulty model is judged by the requirements; as an implementation it is compared with the healthy model. The
healthy model goes through the same under every preset of rules, where anything found is a false alarm.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import JsonValue

from hicache_ref.faults.catalogue import FAULTS, Fault, Kind
from hicache_ref.faults.hunt import Catch, alone, beside_the_model, hunt
from hicache_ref.model import Model
from hicache_ref.model.chooser import ReplayChooser
from hicache_ref.requirements import catalogue_digest
from hicache_ref.search.finding import Recorded
from hicache_ref.search.stepping import CRASHES
from hicache_ref.trace import Implementation, Trace, TraceHeader, TraceStep, write_trace
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import RULES, Profile

STEPS = 500_000
"""How many steps a fault is hunted alone."""

LOCKSTEP_SHARE = 40
"""A comparison gets one step in so many: what it cannot see would be hunted to the end of the budget."""

HEALTHY_STEPS = 20_000
HEALTHY_LOCKSTEP_SHARE = 20

TRIES = 2
"""So many traces are made small, of which the smallest is kept."""

_T = TypeVar("_T")


class FaultResult(Frozen):
    """What caught one fault."""

    id: str
    origin: str
    kind: Kind
    expected: tuple[str, ...]
    caught_by: str | None = None
    """What the faulty model broke by itself: an expected requirement, else the weakest one."""

    diverged_at: str | None = None
    """Where it differed from the healthy model as an implementation."""

    caught: bool
    """By an expected requirement alone, or by the comparison alone where the fault says why only that can."""

    steps: int
    """Steps of the hunt that decided, up to the finding."""

    seconds: float
    """CPU seconds of both hunts, making traces small included."""

    trace_length: int | None = None
    note: str | None = None


class FaultsReport(Frozen):
    """What a run of the catalogue came to."""

    seed: int
    faults: tuple[FaultResult, ...]
    caught: int
    total: int
    false_alarms: int
    alarms: tuple[str, ...] = ()
    """Each false alarm in words."""


class _Hunted(NamedTuple):
    result: FaultResult
    alarm: str | None
    trace: Trace | None


def run_catalogue(
    ids: Sequence[str] | None = None,
    *,
    seed: int,
    steps: int = STEPS,
    healthy_steps: int = HEALTHY_STEPS,
    jobs: int = 1,
    store: Path | None = None,
    progress: Callable[[FaultResult], None] = lambda result: None,
) -> FaultsReport:
    """Every fault in `ids` (None: all) was hunted for `steps` steps, the healthy model for `healthy_steps` a preset.

    With `store` the smallest trace of each caught fault is in that folder as `ID.jsonl`. `jobs` processes share the
    work. Raises KeyError for an unknown id, and hicache_ref.trace.TraceError where a trace cannot be written.
    """
    wanted = [FAULTS[fault].id for fault in (FAULTS if ids is None else ids)]
    results, alarms = [], []
    for hunted in _mapped(partial(_hunt_fault, seed=seed, steps=steps), wanted, jobs):
        results.append(hunted.result)
        alarms += [hunted.alarm] if hunted.alarm else []
        if store is not None and hunted.trace is not None:
            write_trace(store / f"{hunted.result.id}.jsonl", hunted.trace)
        progress(hunted.result)
    for found in _mapped(partial(_hunt_healthy, seed=seed, steps=healthy_steps), list(RULES), jobs):
        alarms += found
    caught = sum(result.caught for result in results)
    return FaultsReport(
        seed=seed, faults=tuple(results), caught=caught, total=len(results), false_alarms=len(alarms),
        alarms=tuple(alarms),
    )  # fmt: skip


def _mapped(work: Callable[[str], _T], names: Sequence[str], jobs: int) -> Iterator[_T]:
    """The results in the order of the names; new processes, so that nothing of this one is taken along."""
    if jobs == 1:
        yield from map(work, names)
        return
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, names)


def _hunt_fault(name: str, *, seed: int, steps: int) -> _Hunted:
    """Both hunts of one fault, and the smallest trace of the one that decided."""
    fault, began = FAULTS[name], time.process_time()
    compared_steps = steps if fault.lockstep_only else steps // LOCKSTEP_SHARE
    judged_steps = steps // LOCKSTEP_SHARE if fault.lockstep_only else steps
    by_rules = hunt(alone(fault.model), seed=seed, steps=judged_steps, rules=fault.rules,
                    storage=fault.storage, state=fault.state, tries=TRIES)  # fmt: skip
    compared = hunt(beside_the_model(fault.model), seed=seed, steps=compared_steps, rules=fault.rules,
                    storage=fault.storage, state=fault.state, tries=TRIES if fault.lockstep_only else 1)  # fmt: skip
    alarm = None
    if compared.finding is not None and compared.finding.source == "oracle":
        alarm = f"beside {name}: the model itself broke {compared.finding.requirement}: {compared.finding.text}"
    caught_by = fault.named_by(by_rules.finding) if by_rules.finding else None
    diverged_at = compared.finding.requirement if compared.finding and not alarm else None
    decided = compared if fault.lockstep_only else by_rules
    found = diverged_at if fault.lockstep_only else caught_by
    by_right = caught_by is None if fault.lockstep_only else found in fault.expected
    caught = found is not None and by_right
    result = FaultResult(
        id=name, origin=fault.origin, kind=fault.kind, expected=fault.expected, caught_by=caught_by,
        diverged_at=diverged_at, caught=caught, steps=decided.taken, seconds=round(time.process_time() - began, 3),
        trace_length=len(decided.steps) if found else None, note=_note(fault, caught_by, diverged_at),
    )  # fmt: skip
    return _Hunted(result, alarm, _trace(fault, decided, seed) if caught else None)


def _note(fault: Fault, caught_by: str | None, diverged_at: str | None) -> str | None:
    """What is to be said beside the figures."""
    if fault.lockstep_only:
        said = "" if caught_by is None else f"; yet {caught_by} noticed it"
        return f"only a comparison can: {fault.lockstep_only}{said}"
    if caught_by is None:
        return "not found" if diverged_at is None else "found by the comparison alone"
    return None if caught_by in fault.expected else f"{caught_by} was not expected"


def _hunt_healthy(preset: str, *, seed: int, steps: int) -> list[str]:
    """What is found where there is nothing to be found, under one preset of rules."""
    base = Profile(rules=RULES[preset], name=preset)
    share = steps // HEALTHY_LOCKSTEP_SHARE
    openings = {"alone": (alone(Model), steps), "beside itself": (beside_the_model(Model), share)}
    alarms = []
    for (where, (opening, budget)), state in product(openings.items(), (False, True)):
        finding = hunt(opening, seed=seed, steps=budget, base=base, state=state).finding
        if finding is not None:
            kind = "hybrid" if state else "healthy"
            alarms.append(f"the {kind} model {where} under {preset}: {finding.requirement}: {finding.text}")
    return alarms


def _trace(fault: Fault, catch: Catch, seed: int) -> Trace:
    """The catch as a trace; the last step says in `meta` what was found there."""
    finding = catch.finding
    assert finding is not None
    header = TraceHeader(
        requirements=catalogue_digest(), profile=catch.profile, level="tree", seed=seed,
        implementation=Implementation(name=fault.id, version="planted"),
    )  # fmt: skip
    meta: dict[str, JsonValue] = {"finding": fault.named_by(finding), "source": finding.source}
    last = len(catch.steps) - 1
    told = _outcomes(fault, catch.profile, catch.steps)
    steps = (
        TraceStep(i=i, op=step.op, choices=step.choices, outcome=outcome, meta=meta if i == last else {})
        for i, (step, outcome) in enumerate(zip(catch.steps, told, strict=True))
    )
    return Trace(header, tuple(steps))


def _outcomes(fault: Fault, profile: Profile, steps: Sequence[Recorded]) -> Iterator[Outcome | None]:
    """What the faulty model tells; None where it trips over itself."""
    model = fault.model(profile)
    for step in steps:
        try:
            yield model.step(step.op, ReplayChooser(step.choices)).outcome
        except CRASHES:
            yield None
