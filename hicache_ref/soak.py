"""The soak: thousands of drawn steps over a store that misbehaves, real threads and real bytes, and then the reckoning.

The walk draws from the alphabet of the search. Where it draws a fact of the world, device and workers are asked for
theirs instead: nothing about storage is made up. A run is cut into episodes, each a new cache of another profile.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hicache_ref.engine.cache import WORLD, StoredCache
from hicache_ref.engine.settings import EngineSettings
from hicache_ref.engine.workers import StorageWorkers, WorkerSettings
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import DrawnChooser
from hicache_ref.requirements import Broken, Checker
from hicache_ref.search.alphabet import SINGLE
from hicache_ref.search.kinds import COMPOSITE
from hicache_ref.search.walk import Plan, Walk, draw_profile
from hicache_ref.storage.base import Backend
from hicache_ref.storage.faulty import Faults, FaultyBackend
from hicache_ref.storage.files import FilesBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Audited, Done, Outcome, Progressed
from hicache_ref.vocabulary.profile import Profile

EPISODE_STEPS = 400
EPISODES_A_FOLDER = 10
FETCH_SHARE = 0.1
SETTLE_SECONDS = 2.0
GLANCE_SECONDS = 0.002
"""How long a fact is waited for where the walk drew one."""

FAULTS = Faults(
    miss=0.03, short=0.03, error=0.05, delay=0.02, vanish=0.03, refuse=0.1, wrong_length=0.005, evict=0.05,
    delay_seconds=0.001,
)  # fmt: skip

Opening = Callable[[int], Backend]
"""Opens the store for the n-th attach."""


@dataclass
class SoakResult:
    """What a soak came to."""

    steps: int = 0
    """Steps of the model, facts of the world included."""

    episodes: int = 0
    checks: int = 0
    """Steps that the requirements judged."""

    pages_verified: int = 0
    pages_fetched: int = 0
    """Pages that requests got from storage."""

    late_reports: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    """Facts that the model stated, and how often."""

    wrong_bytes: int = 0
    pages_missing_at_end: int = 0
    references_left: int = 0
    complaints: list[str] = field(default_factory=list)
    """Broken requirements, ends that never came, wrong pages: in words."""

    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong, missing or left."""
        return not (self.wrong_bytes or self.pages_missing_at_end or self.references_left or self.complaints)


class Lost(Exception):
    """A worker took a job and never reported its end."""


def soak(
    steps: int,
    seed: int,
    *,
    opening: Opening | None = None,
    page_bytes: int = 256,
    check_every: int = 10,
    workers: type[StorageWorkers] = StorageWorkers,
) -> SoakResult:
    """At least `steps` steps were made, and after each episode every page and reference was looked for.

    `opening` opens the store, by default a new folder of files with `FAULTS`; `page_bytes` is bytes a page; one step
    in `check_every` is judged by the requirements. Stops at the first complaint.
    """
    result = SoakResult()
    start = time.monotonic()
    # A worker that was left behind may still write there.
    with TemporaryDirectory(prefix="hicache-soak-", ignore_cleanup_errors=True) as folder:
        while result.steps < steps and result.is_clean:
            rng = random.Random(f"{seed}:{result.episodes}")
            place = Path(folder, str(result.episodes // EPISODES_A_FOLDER))
            episode = _Episode(rng, opening or _faulty_files(place, seed), page_bytes, check_every, workers, result)
            episode.run(min(EPISODE_STEPS, steps - result.steps))
            result.episodes += 1
    result.seconds = time.monotonic() - start
    return result


def _faulty_files(place: Path, seed: int) -> Opening:
    return lambda number: FaultyBackend(FilesBackend(place), FAULTS, seed=hash((seed, number)))


class _Episode:
    """One cache, from its making to the reckoning."""

    def __init__(self, rng: random.Random, opening: Opening, page_bytes: int, check_every: int,
                 workers: type[StorageWorkers], result: SoakResult) -> None:  # fmt: skip
        self.rng = rng
        self.result = result
        self.check_every = check_every
        self.attaches = 0
        self.opening = opening
        profile = _profile(rng)
        settings = EngineSettings(
            page_bytes=page_bytes, draft_bytes=max(1, page_bytes // 4), strict=False, seed=rng.getrandbits(32),
            copy_failures=0.05, workers=WorkerSettings(call_pages=rng.choice((1, 2, 32)), queue_max=64),
        )  # fmt: skip
        self.chooser = DrawnChooser(rng, fail_share=0.0)
        self.cache = StoredCache(
            profile, self._open, settings, chooser=self.chooser, watch=self._watch, workers=workers
        )
        self.checker = Checker(profile)
        self.is_over = False
        """Whether something is wrong, so that nothing more is judged."""

        self.is_judged = False
        """Whether the checker knows the state before the next step, and judges that."""

        self.walk = Walk(
            self, rng, Plan(invalid_share=0.02, attach_failures=(), forces=False), swarm=rng.random() < 0.5
        )

    @property
    def model(self) -> Model:
        """The model that the walk draws handles from."""
        return self.cache.model

    def step(self, op: Operation) -> Outcome:
        """The operation has happened; a fact of the world only lets the world go on. Raises Lost and Broken."""
        if op.op in WORLD:
            self._glance()
            return Done()
        if self.rng.random() < 0.1:
            self.cache.pump()
        outcome = self.cache.step(op)
        if isinstance(outcome, Progressed):
            self.result.pages_fetched += outcome.loaded
        return outcome

    def run(self, steps: int) -> None:
        """So many steps were made, then everything was given back and counted."""
        result, cache = self.result, self.cache
        goal = result.steps + steps
        try:
            self.step(self._attach())
            while result.steps < goal:
                self.step(self._draw())
            self._reckon()
        except (Broken, Lost) as error:
            self.is_over, self.is_judged = True, False
            result.complaints.append(f"{type(error).__name__}: {error}")
        finally:
            cache.close()
            result.late_reports += cache.late_reports
            result.wrong_bytes += cache.verifier.wrong
            result.pages_verified += cache.verifier.checked
            result.complaints += cache.verifier.examples

    def _open(self) -> Backend:
        self.attaches += 1
        return self.opening(self.attaches)

    def _draw(self) -> Operation:
        """The walk's next operation; more often than it would, a fetch from storage begins."""
        if self.walk.under_way is None and self.rng.random() < FETCH_SHARE:
            self.walk.under_way = COMPOSITE["fetch"](self.walk.drawing)
        return self.walk.draw()

    def _attach(self) -> Operation:
        op = None
        while op is None:
            op = SINGLE["attach"](self.walk.drawing)
        return op

    def _watch(self, op: Operation, step: Step) -> None:
        """The step is counted, and judged if its turn has come."""
        result, state = self.result, self.model.state
        result.steps += 1
        result.reached.update(step.facts)
        self.chooser.log.clear()
        if self.is_judged:
            self.checker.check(op, step, state)
            result.checks += 1
        self.is_judged = not self.is_over and (result.steps + 1) % self.check_every == 0
        if self.is_judged:
            self.checker.start(state)

    def _glance(self) -> None:
        waits = self.rng.random() < 0.5
        if self.cache.pump(block=waits, timeout_s=GLANCE_SECONDS) == 0 and (lost := self.cache.lost()):
            raise Lost(f"no end is told of {', '.join(lost)}")

    # -- the reckoning ----------------------------------------------------------------------------------------------

    def _reckon(self) -> None:
        """Everything is given back; pages and references that are not are counted."""
        cache, result = self.cache, self.result
        state = cache.model.state
        for rid in list(state.storage.open):
            self.step(ops.Abort(rid=rid))
        for receipt in list(state.receipts):
            self.step(ops.Unlock(receipt=receipt))
        for rid in list(state.requests):
            self.step(ops.GiveBack(rid=rid))
        if pending := cache.settle(SETTLE_SECONDS):
            result.complaints.append(f"pending at the end: {', '.join(pending)}")
        outcome = self.step(ops.Audit())
        if isinstance(outcome, Audited) and not outcome.pending:
            self.checker.check_quiescent(cache.model.state)
        self._look_at_all()
        self._clear_tiers()
        state = cache.model.state
        result.pages_missing_at_end += sum(len(pool.owner) - len(pool.free) for pool in state.pools.values())
        locks = sum(sum(node.locks.values()) for node in state.nodes.values())
        result.references_left += locks + len(state.receipts) + len(state.tickets) + len(state.storage.records)
        if not isinstance(detached := cache.detach(SETTLE_SECONDS), Done):
            result.complaints.append(f"detach: {detached}")

    def _look_at_all(self) -> None:
        """Every page of the tree is compared, on both tiers."""
        state = self.model.state
        for node in state.nodes.values():
            for pool, pages in node.at.items():
                for page, digest in zip(pages, node.hashes, strict=True):
                    draft = state.pools[pool].draft[page] == digest
                    self.cache.verifier.expect((pool, page), digest, "at the end", draft=draft)

    def _clear_tiers(self) -> None:
        """What can leave both tiers has left."""
        sizes = self.model.profile.sizes
        for _ in range(sizes.device_pages):
            if self.model.state.device_leaves:
                self.step(ops.Evict(n=sizes.device_pages))
                self.cache.settle(SETTLE_SECONDS)
        for _ in range(sizes.host_pages):
            if self.model.state.host_leaves:
                self.step(ops.EvictHost(n=sizes.host_pages))


def _profile(rng: random.Random) -> Profile:
    """A small cache of the reference rules, with what may differ about storage drawn too."""
    base = draw_profile(rng, Profile())
    rules = base.rules.model_copy(
        update={
            "write_through_threshold": rng.choice((1, 1, base.rules.write_through_threshold)),
            "prefetch_allocation": rng.choice(("after", "before")),
            "prefetch_progress": rng.choice(("polled", "live")),
            "prefetch_commit": rng.choice(("poll", "progress")),
            "cancelled_query": rng.choice(("answers_0", "goes_on")),
            "give_back": rng.choice(("at_once", "queued")),
        }
    )
    more = rng.choice((0, 0, 6))
    sizes = base.sizes.model_copy(
        update={"host_pages": base.sizes.host_pages + more, "storage_batch": rng.choice((1, 2, 2, 4))}
    )
    return base.model_copy(update={"rules": rules, "sizes": sizes, "draft": rng.random() < 0.5})
