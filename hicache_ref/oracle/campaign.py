"""A campaign: walks in lockstep until the budget is spent, each finding made small and told apart from the known."""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hicache_ref.oracle.heeding import go_on_after, keep_out_of
from hicache_ref.oracle.known import Known, watched
from hicache_ref.oracle.lockstep import RAISED, Lockstep
from hicache_ref.oracle.triggers import BARS
from hicache_ref.requirements import Checker
from hicache_ref.requirements.catalogue import catalogue_digest
from hicache_ref.requirements.reach import Reach, reach_of
from hicache_ref.search.finding import Finding, Found, Recorded
from hicache_ref.search.minimise import Replay, minimise, replay
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.trace import Implementation, TraceHeader, WriteAhead
from hicache_ref.vocabulary.adapter import Adapter, AdapterError, Description
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import EVICTION_POLICIES, Profile

WALK_STEPS = 100
MINIMISE_REPLAYS = 1_500
MINIMISE_SECONDS = 30.0
"""Where each replay waits for an implementation that hangs, a longer trace is better than none."""

LONG_TRACE = 15
TRIES_AGAIN = 2
"""How often a finding whose smallest trace is longer than that is made small from another walk that met it."""

NAMES_AGAIN = 10
"""How often, blind, it is looked which known divergence a finding is that several are told like."""


@dataclass(frozen=True)
class Budget:
    """When a campaign ends: after so many steps, walks or seconds, whichever comes first."""

    steps: int | None = None
    walks: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Divergence:
    """A finding with its smallest trace, and which known divergence it is, if any."""

    finding: Finding
    profile: Profile
    steps: tuple[Recorded, ...]
    found_after: int
    """Steps of the walk in which it was found, up to it."""

    known: str | None = None


@dataclass
class Outlook:
    """What a campaign has seen so far."""

    steps: int = 0
    walks: int = 0
    seconds: float = 0.0
    stopped: bool = False
    """By the user, before the budget was spent."""

    cut_off: bool = False
    """The recording that was judged ends within a step, or says why it went no further."""

    unfinished: int = 0
    """Steps of the walk in which the user stopped it."""

    tally: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    reaches: set[Reach] = field(default_factory=set)
    """What the walks had to go by."""

    barred: Mapping[str, str] = field(default_factory=dict)
    """Witnesses that walks cannot reach because they leave a trigger out -> the trigger."""

    divergences: list[Divergence] = field(default_factory=list)
    elsewhere: Counter[str] = field(default_factory=Counter)
    """Walks that ended at a requirement that was not asked for."""

    oracle_fault: Divergence | None = None
    replayed: dict[str, bool] = field(default_factory=dict)
    """Known divergence -> whether its own trace still fails."""


class _Enough(Exception):
    """Ends a walk between two steps."""


class Campaign:
    """Checks one adapter. Setting `stop`, from a signal handler say, ends it after the step under way."""

    def __init__(
        self,
        adapter: Adapter,
        profile: Profile,
        *,
        seed: int = 0,
        known: Sequence[Known] = (),
        blind: bool = False,
        keep_going: bool = False,
        fixed_sizes: bool = False,
        wanted: frozenset[str] = frozenset(),
        write_ahead: Path | None = None,
        progress: Callable[[Outlook], None] = lambda outlook: None,
    ) -> None:
        self.adapter = adapter
        self.description: Description = adapter.describe()
        self.profile = profile
        self.level: Level = self.description.level
        self.seed = seed
        self.known = [each for each in known if each.events in (None, self.description.events)]
        self.triggers = watched(self.known)
        """Those that what is known names; other names of theirs are facts of the model."""

        self.blind = blind
        """Whether walks are made as if nothing was known, which only names what they find."""

        self.heeded = () if blind else self.known
        """What walks leave out, forgive and recognise at once."""

        self.keep_going = keep_going
        self.fixed_sizes = fixed_sizes
        self.wanted = wanted
        """Requirements that are judged; empty: all."""

        self.write_ahead = write_ahead
        self.progress = progress
        self.found: Callable[[Divergence], None] = lambda found: None
        """Gets each finding at once, with the whole walk, before the minimiser makes it small."""

        self.settled: Callable[[Divergence, Divergence | None], None] = lambda found, kept: None
        """Gets what became of a finding: the divergence that is kept, or None for one that was met before."""

        self.outlook = Outlook(barred={BARS[name]: name for name in watched(self.heeded) if name in BARS})
        self.stop = False
        self.ends_at = float("inf")
        self.tried_again: Counter[object] = Counter()
        self.named_again: Counter[object] = Counter()

    def run(self, budget: Budget) -> Outlook:
        """The budget is spent, or the first new divergence was found and the campaign does not keep going."""
        began = time.monotonic()
        self.ends_at = float("inf") if budget.seconds is None else began + budget.seconds
        outlook = self.outlook
        self._replay_known()
        while not self._is_over(budget):
            self._walk(outlook.walks, budget)
            outlook.walks += 1
            outlook.seconds = time.monotonic() - began
            self.progress(outlook)
        outlook.seconds = time.monotonic() - began
        return outlook

    def _is_over(self, budget: Budget) -> bool:
        if self.stop:
            self.outlook.stopped = True
            return True
        if self.outlook.oracle_fault is not None:
            return True
        if not self.keep_going and any(each.known is None for each in self.outlook.divergences):
            return True
        if budget.steps is not None and self.outlook.steps >= budget.steps:
            return True
        if budget.walks is not None and self.outlook.walks >= budget.walks:
            return True
        return time.monotonic() >= self.ends_at

    def _replay_known(self) -> None:
        """Each known divergence is tried again by its own trace, if the adapter has all operations of that."""
        for entry in self.heeded:
            if self.stop:
                return
            if not {op.op for op in entry.trace} <= self.description.operations:
                continue
            steps = tuple(Recorded(op) for op in entry.trace)
            again, met = self._replayed(steps, entry.profile, searching=False)
            fails = again.finding is not None and entry.covers(again.finding, entry.trace, met)
            self.outlook.replayed[entry.id] = fails

    def _replayed(
        self, steps: tuple[Recorded, ...], profile: Profile, *, searching: bool = True
    ) -> tuple[Replay, set[str]]:
        """The steps executed again, and the triggers and facts that were met in them."""
        made: list[Lockstep] = []

        def make() -> Lockstep:
            made.append(self.lockstep(profile, searching=searching))
            return made[-1]

        again = replay(steps, make)
        return again, made[-1].met

    def lockstep(self, profile: Profile, *, searching: bool = True) -> Lockstep:
        """The adapter, reset, beside a new model. Raises AdapterError.

        In walks, and while what they find is made small, steps are left out that are known to go wrong or may do
        anything, and known divergences that say so end nothing. The own trace of a known divergence needs its steps.
        """
        checker = Checker(profile, only=self.wanted or None)
        lockstep = Lockstep(self.adapter, self.description, profile, self.level, checker)
        if searching:
            go_on_after(self.heeded, lockstep)
            keep_out_of(self.heeded, lockstep)
        lockstep.watched = self.triggers
        return lockstep

    def _draw_profile(self, rng: random.Random) -> Profile:
        offered = self.description.evictions
        return draw_profile(
            rng,
            self.profile,
            fixed_sizes=self.fixed_sizes,
            evictions=tuple(policy for policy in EVICTION_POLICIES if offered is None or policy in offered),
            page_sizes=self.description.page_sizes,
            bigram=self.description.bigram,
            draft=self.description.draft,
            hybrid=self.description.hybrid,
            disabled=self.description.disabled,
            silent=self.description.silent,
        )

    def _walk(self, index: int, budget: Budget) -> None:
        rng = random.Random(f"{self.seed}/{index}")
        profile = self._draw_profile(rng)
        lockstep = self._started(profile)
        if lockstep is None:
            return
        left = WALK_STEPS if budget.steps is None else min(WALK_STEPS, budget.steps - self.outlook.steps)
        plan = Plan(
            steps=left,
            invalid_share=0.0 if lockstep.only_valid else 0.05,
            operations=self.description.operations,
            namespaces=self.description.namespaces,
            attach_first=self.description.storage_from_start,
            first_only=self.description.storage_order == "first",
            one_backend=self.description.one_backend,
            peers=self.description.peers,
            attach_failures=self.description.attach_failures,
            attach_policies=self.description.attach_policies,
            forces=self.description.forces,
            leaves_out=lockstep.leaves_out,
        )
        found: Finding | None = None
        with ExitStack() as stack:
            lockstep.before_step = self._pause
            if self.write_ahead is not None:
                self._write_ahead(stack, self.write_ahead, lockstep)
            try:
                Walk(lockstep, rng, plan, swarm=index % 2 == 1).run()
            except _Enough:
                lockstep.steps.pop()
                self.outlook.unfinished = len(lockstep.steps)
            except Found as error:
                found = error.finding
            finally:
                self._count(lockstep, profile)
        if found is not None:
            self._keep(lockstep, found)

    def _started(self, profile: Profile) -> Lockstep | None:
        """A new lockstep; where the implementation fails to start after it once did, None, a finding, and the end.

        Raises AdapterError where it has never made a step.
        """
        try:
            return self.lockstep(profile)
        except AdapterError as error:
            if not self.outlook.steps:
                raise
            finding = Finding(RAISED, f"cannot be reset: {error}", "reset", "crash", raised="reset")
            self.outlook.divergences.append(Divergence(finding, profile, (), 0))
            self.ends_at = 0.0
            return None

    def _pause(self, index: int, op: Operation) -> None:
        """The walk ends here if the user or the clock says so."""
        if self.stop or time.monotonic() >= self.ends_at:
            raise _Enough

    def _write_ahead(self, stack: ExitStack, path: Path, lockstep: Lockstep) -> None:
        """Each step is with the operating system before it runs."""
        writer = stack.enter_context(WriteAhead(path, self.header(lockstep.profile)))

        def before(index: int, op: Operation) -> None:
            self._pause(index, op)
            writer.before(index, op)

        lockstep.before_step = before

        def after(index: int, op: Operation, outcome: Outcome, observation: Observation) -> None:
            writer.after(outcome=outcome)

        lockstep.after_step = after

    def header(self, profile: Profile) -> TraceHeader:
        """The first line of a trace of this campaign."""
        implementation = Implementation(name=self.description.name, version=self.description.version)
        return TraceHeader(
            requirements=catalogue_digest(), profile=profile, implementation=implementation, level=self.level,
            seed=self.seed,
        )  # fmt: skip

    def _count(self, lockstep: Lockstep, profile: Profile) -> None:
        outlook = self.outlook
        outlook.steps += len(lockstep.steps)
        outlook.tally.update(lockstep.checker.tally)
        outlook.reached.update(lockstep.checker.reached)
        outlook.reaches.add(reach_of(profile, self.description))

    def _keep(self, lockstep: Lockstep, finding: Finding) -> None:
        """The finding is made small and filed, once for each identity and known divergence."""
        if self.wanted and finding.requirement not in self.wanted and finding.source != "oracle":
            self.outlook.elsewhere[finding.requirement] += 1
            return
        for at, each in enumerate(self.outlook.divergences):
            if (self.blind or each.known is None) and each.finding.same_as(finding):
                if self._may_be_another(finding):
                    break
                self.outlook.divergences[at] = self._shorter(each, lockstep)
                return
        # What is known by its place or its words needs no small trace to be recognised.
        at_once = any(each.is_told_by_itself and each.covers(finding, (), lockstep.met) for each in self.heeded)
        steps = tuple(lockstep.steps)
        as_found = Divergence(finding, lockstep.profile, steps, len(steps))
        if not at_once:
            self.found(as_found)
        small = Replay(steps, finding) if at_once else self._minimised(lockstep, finding)
        final = small.finding or finding
        known = self._known_as(final, small.steps, lockstep)
        divergence = Divergence(final, lockstep.profile, small.steps, len(steps), known)
        is_new = all(
            (other.known, other.finding.identity) != (known, final.identity) for other in self.outlook.divergences
        )
        if final.source == "oracle":
            self.outlook.oracle_fault = divergence
        elif is_new:
            self.outlook.divergences.append(divergence)
        if not at_once:
            self.settled(as_found, divergence if is_new or final.source == "oracle" else None)

    def _may_be_another(self, finding: Finding) -> bool:
        """Whether, blind, what is told alike may be another known divergence; a few times, for to see takes long."""
        named = [each for each in self.known if self.blind and each.covers(finding, (), {str(each.trigger)})]
        if len(named) <= 1:
            return False
        self.named_again[finding.identity] += 1
        return self.named_again[finding.identity] <= NAMES_AGAIN

    def _shorter(self, divergence: Divergence, lockstep: Lockstep) -> Divergence:
        """The divergence, of a shorter trace if it has a long one and this walk, which met it too, gives that."""
        finding = divergence.finding
        if len(divergence.steps) <= LONG_TRACE or self.tried_again[finding.identity] >= TRIES_AGAIN:
            return divergence
        self.tried_again[finding.identity] += 1
        small = self._minimised(lockstep, finding)
        if small.finding is None or len(small.steps) >= len(divergence.steps):
            return divergence
        if self._known_as(small.finding, small.steps, lockstep) != divergence.known:
            return divergence
        return Divergence(small.finding, lockstep.profile, small.steps, len(lockstep.steps), divergence.known)

    def _known_as(self, finding: Finding, steps: tuple[Recorded, ...], lockstep: Lockstep) -> str | None:
        """Which known divergence the finding is, whose smallest trace is `steps`."""
        if not self.known:
            return None
        met = lockstep.met if len(steps) == len(lockstep.steps) else self._replayed(steps, lockstep.profile)[1]
        ops = [step.op for step in steps]
        return next((entry.id for entry in self.known if entry.covers(finding, ops, met)), None)

    def _minimised(self, lockstep: Lockstep, finding: Finding) -> Replay:
        """The smallest trace that could be found before the user or the clock ended the search for it."""
        end = time.monotonic() + MINIMISE_SECONDS

        def give_up() -> bool:
            return self.stop or time.monotonic() >= end

        try:
            return minimise(lockstep.steps, lambda: self.lockstep(lockstep.profile), finding, MINIMISE_REPLAYS, give_up)
        except AdapterError:
            return Replay(tuple(lockstep.steps), finding)
