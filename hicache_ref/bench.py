"""Speed: what checking costs over what is checked, in CPU time, that of child processes included; and storage, in MB/s.

Both sides of a row take turns and do the same; figures are medians. A row whose peer is not there is left out, and the
report says why.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_rust import make
from hicache_ref.engine.speed import PAGES, ROUNDS, Row, storage_rows
from hicache_ref.model import Model
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Found
from hicache_ref.search.requests import synthetic
from hicache_ref.search.serving import Server
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.search.walk import Plan, Stepper, Walk
from hicache_ref.search.workload import JudgedStepper
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile, Sizes, profile_named

REPEATS = 5
WALKS_MADE = 25
STORAGE_PAGES, STORAGE_ROUNDS = PAGES, ROUNDS
REQUESTS, DEVICE_PAGES, HOST_PAGES = 300, 2_000, 6_000
RUST_RULES = "sglang-0.5.23"
RUST_ROWS = ("oracle over adapter rust", "model vs rust core")

Walks = Sequence[Sequence[Operation]]


class BenchReport(Frozen):
    """All comparisons that could be made."""

    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()
    """One line for each of the others: which, and why."""


class Spent(NamedTuple):
    """Steps made, and CPU seconds spent on them in this process and in its children."""

    steps: int
    here: float
    children: float

    @property
    def per_second(self) -> float:
        """Steps in a CPU second of all processes."""
        return self.steps / (self.here + self.children)

    @property
    def microseconds(self) -> float:
        """CPU microseconds a step, of all processes."""
        return 1e6 * (self.here + self.children) / self.steps


class _Unchecked:
    """The model, and nobody who looks."""

    def __init__(self, profile: Profile) -> None:
        self.model = Model(profile)
        self.operations = 0

    def step(self, op: Operation) -> Outcome:
        """The operation has happened."""
        self.operations += 1
        return self.model.step(op).outcome


def run_bench(
    *, fetch: bool = False, repeats: int = REPEATS, progress: Callable[[str], None] = lambda text: None
) -> BenchReport:
    """Every row was measured `repeats` times on either side, those of storage more often.

    `fetch` allows the download of a peer's pinned wheel.
    """
    stages = iter(enumerate(["walk tiny full check", "workload synthetic", "storage", *RUST_ROWS], start=1))

    def next_stage() -> str:
        at, name = next(stages)
        progress(f"measuring {name}, {at} of {3 + len(RUST_ROWS)}")
        return name

    rows = [measure(next_stage(), repeats) for measure in (_walk, _workload)]
    next_stage()
    rows += storage_rows(pages=STORAGE_PAGES, rounds=STORAGE_ROUNDS)
    try:
        with make({}, fetch) as adapter:
            walks = _walks_of(adapter)
            for measure_peer in (_oracle_over_rust, _model_vs_rust):
                rows.append(measure_peer(next_stage(), repeats, adapter, walks))
    except AdapterError as error:
        return BenchReport(rows=tuple(rows), left_out=tuple(f"{name}: {error}" for name in RUST_ROWS))
    return BenchReport(rows=tuple(rows))


def _row(name: str, unit: str, ours: Sequence[float], other: Sequence[float]) -> Row:
    mine, its = median(ours), median(other)
    return Row(name=name, ours=mine, other=its, unit=unit, ratio=mine / its)


def _turns(repeats: int, ours: Callable[[], int], other: Callable[[], int]) -> tuple[list[Spent], list[Spent]]:
    """What each of the two spent, in turns; both answer how many steps they made. A first turn is not counted."""
    spent = [(_spent(ours), _spent(other)) for _ in range(repeats + 1)][1:]
    return [mine for mine, _ in spent], [its for _, its in spent]


def _spent(run: Callable[[], int]) -> Spent:
    here, children = time.process_time(), _children_seconds()
    steps = run()
    return Spent(steps, time.process_time() - here, _children_seconds() - children)


def _children_seconds() -> float:
    """CPU seconds that live children of this process have had; 0 where the system does not tell."""
    ticks = 0
    for thread in Path("/proc/self/task").glob("*/children"):
        for child in thread.read_text().split():
            fields = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# -- rows ---------------------------------------------------------------------------------------------------------


def _walk(name: str, repeats: int) -> Row:
    """Walks over the tiny model with every requirement checked after each step, and without any."""
    profile = profile_named("tiny")

    def walks(make: Callable[[Profile], Stepper]) -> int:
        return sum(Walk(make(profile), random.Random(seed), Plan(), swarm=False).run() for seed in range(WALKS_MADE))

    ours, other = _turns(repeats, lambda: walks(ModelStepper), lambda: walks(_Unchecked))
    return _row(name, "steps/s", [each.per_second for each in ours], [each.per_second for each in other])


def _workload(name: str, repeats: int) -> Row:
    """Made-up conversations in pools of thousands of pages, each step judged by what it touched, and unjudged."""
    sizes = Sizes(device_pages=DEVICE_PAGES, host_pages=HOST_PAGES)
    profile, requests = Profile(sizes=sizes), list(synthetic("conversation", 0, REQUESTS))

    def served(make: Callable[[Profile], JudgedStepper | _Unchecked]) -> int:
        stepper = make(profile)
        server = Server(stepper)
        for request in requests:
            server.serve(request.blocks)
        return stepper.operations

    ours, other = _turns(repeats, lambda: served(JudgedStepper), lambda: served(_Unchecked))
    return _row(name, "operations/s", [each.per_second for each in ours], [each.per_second for each in other])


def _oracle_over_rust(name: str, repeats: int, adapter: ProcessAdapter, walks: Walks) -> Row:
    """Lockstep with the compiled core, and its adapter alone, looked at after each step likewise."""
    profile, description = profile_named(RUST_RULES), adapter.describe()

    def in_lockstep() -> int:
        for walk in walks:
            lockstep = Lockstep(adapter, description, profile, description.level, Checker(profile))
            for op in walk:
                lockstep.step(op)
        return sum(map(len, walks))

    def alone() -> int:
        for walk in walks:
            adapter.reset(profile)
            for op in walk:
                adapter.step(op, description.level)
        return sum(map(len, walks))

    ours, other = _turns(repeats, in_lockstep, alone)
    return _row(name, "us/step", [each.microseconds for each in ours], [each.microseconds for each in other])


def _model_vs_rust(name: str, repeats: int, adapter: ProcessAdapter, walks: Walks) -> Row:
    """The model's steps, unchecked, and what the same steps take in the process of the compiled core."""
    profile = profile_named(RUST_RULES)

    def model() -> int:
        for walk in walks:
            stepper = _Unchecked(profile)
            for op in walk:
                stepper.step(op)
        return sum(map(len, walks))

    def core() -> int:
        for walk in walks:
            adapter.reset(profile)
            for op in walk:
                adapter.apply(op)
        return sum(map(len, walks))

    ours, other = _turns(repeats, model, core)
    in_child = [1e6 * each.children / each.steps for each in other]
    return _row(name, "us/step", [each.microseconds for each in ours], in_child)


def _walks_of(adapter: ProcessAdapter) -> Walks:
    """Steps of walks on which the compiled core and the model agree. Raises AdapterError where there is none."""
    profile, description = profile_named(RUST_RULES), adapter.describe()
    plan = Plan(invalid_share=0.0, operations=description.operations, attach_failures=(), forces=False)
    walks = []
    for seed in range(WALKS_MADE):
        lockstep = Lockstep(adapter, description, profile, description.level, Checker(profile))
        with suppress(Found):
            Walk(lockstep, random.Random(seed), plan, swarm=False).run()
            walks.append([step.op for step in lockstep.steps])
    if not walks:
        raise AdapterError(f"the model and the core differ on each of {WALKS_MADE} walks, expected one without")
    return walks
