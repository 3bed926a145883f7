"""Walks: long runs of drawn steps. Uniform weights and swarm weights take turns, for they find different faults."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from hicache_ref.model import Model
from hicache_ref.search.alphabet import SINGLE, invalid
from hicache_ref.search.composites import settle
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.kinds import COMPOSITE, NEEDED
from hicache_ref.search.storing import attach
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.adapter import AttachPolicies, Hybrid
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STATE_OPERATIONS, STORAGE_OPERATIONS, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import EVICTION_POLICIES, WRITE_POLICIES, EvictionPolicy, Profile
from hicache_ref.vocabulary.storage import ATTACH_FAILURES, AttachFailure

CUT_SHARE = 0.06
"""How often a composite is cut off at a step."""

KIND_WEIGHT = {
    "take_pages": 0.4, "request": 3.0, "settle": 1.0, "flush": 0.5, "reload": 0.7,
    "fetch": 1.2, "overtake": 0.5, "come_back": 0.5, "stake": 0.4, "grow": 0.8, "build": 0.4, "abandon": 0.3,
    "collide": 0.1, "break_off": 0.2,
}  # fmt: skip
HYBRID_WEIGHT = KIND_WEIGHT | {"collide": 0.6, "topple": 0.6, "fade": 0.6, "revive": 0.6, "belated": 0.6, "lock": 3.0}
"""Likewise of hybrid models, where a state has to be met that is there for a short while."""

WITHOUT_STORAGE = 0.5
"""How many walks leave storage out, so that what happens above it is not crowded out."""

MORE_HOST = 0.5
"""How often the host is larger than the device, where nothing is prefetched unless it is."""

SWARM_WEIGHTS = (0.1, 0.5, 1.0, 3.0)

DISABLED_SHARE = 0.03
"""Share of the profiles that switch the cache off, where an implementation can be switched off."""

SILENT_SHARE = 0.03
"""Likewise of those that switch events off."""

LEFT_OUT_MAX = 100
"""Steps that a walk may draw in vain while it settles."""


class Stepper(Protocol):
    """What a walk drives: the model alone with its requirements, or an implementation beside it."""

    @property
    def model(self) -> Model:
        """The model, from whose state handles are drawn."""

    def step(self, op: Operation) -> Outcome:
        """The operation has happened and was checked. Raises what the search calls a finding."""


@dataclass(frozen=True)
class Plan:
    """How a walk draws."""

    steps: int = 100
    invalid_share: float = 0.05
    operations: frozenset[str] = frozenset(OPERATION_TYPES)
    namespaces: bool = True
    attach_first: bool = False
    """Storage is attached by the first step and never again."""

    first_only: bool = False
    """Of storage operations of one kind only the one submitted first may end."""

    without_storage: float = WITHOUT_STORAGE
    """How many walks leave storage out."""

    one_backend: bool = False
    """No backend but the first can be attached; another is only asked for where one is, to be refused."""

    peers: bool = True
    """Other ranks may know of fewer pages read."""

    attach_failures: tuple[AttachFailure, ...] = ATTACH_FAILURES
    """In which ways an attach may fail."""

    attach_policies: AttachPolicies = "any"
    """When an attach may bring a write policy."""

    forces: bool = True
    """A detach or a reset may end storage work that runs."""

    leaves_out: Callable[[Operation], bool] = lambda op: False
    """Whether a valid step is not to be made, as it stands before it."""


class Walk:
    """One walk, reproducible from its seed: an iterator over the operations, each drawn when the last was done."""

    def __init__(self, stepper: Stepper, rng: random.Random, plan: Plan, *, swarm: bool) -> None:
        self.stepper = stepper
        self.rng = rng
        self.plan = plan
        operations = plan.operations
        if not stepper.model.profile.state:
            operations = operations - STATE_OPERATIONS
        if not plan.attach_first and rng.random() < plan.without_storage:
            operations = operations - STORAGE_OPERATIONS
        self.drawing = Drawing(
            stepper.model,
            rng,
            operations,
            namespaces=plan.namespaces,
            first_only=plan.first_only,
            one_backend=plan.one_backend,
            peers=plan.peers,
            attach_failures=() if plan.attach_first else plan.attach_failures,
            attach_policies=plan.attach_policies,
            forces=plan.forces,
        )
        useful = [kind for kind in COMPOSITE if NEEDED.get(kind, "take_pages") in operations]
        once = {"attach"} if plan.attach_first else set()
        self.kinds = [kind for kind in SINGLE if kind in operations - once] + useful
        usual = HYBRID_WEIGHT if stepper.model.profile.state else KIND_WEIGHT
        weights = [usual.get(kind, 1.0) for kind in self.kinds]
        if swarm:
            weights = [rng.choice(SWARM_WEIGHTS) for _ in self.kinds]
        self.cumulative = list(accumulate(weights))
        self.under_way: Iterator[Operation] | None = None

    def draw(self) -> Operation:
        """The next operation: the composite under way goes on, or a kind is drawn until one is enabled.

        What is drawn is valid, but for `invalid_share` of the steps.
        """
        if self.under_way is not None and self.rng.random() >= CUT_SHARE:
            op = self._valid(next(self.under_way, None))
            if op is not None:
                return op
        self.under_way = None
        if self.plan.invalid_share and self.rng.random() < self.plan.invalid_share:
            return invalid(self.drawing)
        while True:
            kind = self.rng.choices(self.kinds, cum_weights=self.cumulative)[0]
            if kind in SINGLE:
                op = SINGLE[kind](self.drawing)
            else:
                self.under_way = COMPOSITE[kind](self.drawing)
                op = next(self.under_way, None)
            op = self._valid(op)
            if op is not None:
                return op

    def _valid(self, op: Operation | None) -> Operation | None:
        """The operation if the implementation has it and it may happen now."""
        if op is None or op.op not in self.plan.operations or self.stepper.model.requires(op) is not None:
            return None
        return None if self.plan.leaves_out(op) else op

    def run(self) -> int:
        """All steps were made, then everything was settled and audited; returns how many steps that took."""
        if self.plan.attach_first:
            self.stepper.step(attach(self.drawing))
        for _ in range(self.plan.steps):
            self.drawing.model = self.stepper.model
            self.stepper.step(self.draw())
        count = self.plan.steps
        left_out = 0
        for op in settle(self.drawing):
            if not self.plan.leaves_out(op):
                self.stepper.step(op)
                count += 1
                continue
            left_out += 1
            if left_out == LEFT_OUT_MAX:
                return count
        self.stepper.step(ops.Audit())
        return count + 1


def draw_profile(
    rng: random.Random,
    base: Profile,
    *,
    fixed_sizes: bool = False,
    evictions: tuple[EvictionPolicy, ...] = EVICTION_POLICIES,
    page_sizes: tuple[int, ...] = (1, 2),
    bigram: bool = True,
    draft: bool = True,
    hybrid: Hybrid = "never",
    disabled: bool = False,
    silent: bool = False,
) -> Profile:
    """`base` with what its users configure drawn anew: write policy, threshold, eviction policy, sizes, key mode.

    Thresholds in tokens need not be whole pages. Only with `disabled` may the profile switch the cache off,
    with `silent` its events.
    """
    if disabled and rng.random() < DISABLED_SHARE:
        base = base.model_copy(update={"enabled": False})
    if silent and rng.random() < SILENT_SHARE:
        base = base.model_copy(update={"events": False})
    rules = base.rules.model_copy(
        update={
            "write_policy": rng.choice((*WRITE_POLICIES, "write_through", "write_back")),
            "write_through_threshold": rng.choice((None, 1, 2)),
            "eviction": rng.choice(("lru", *evictions)),
        }
    )
    if fixed_sizes:
        return base.model_copy(update={"rules": rules})
    device, host = rng.randint(3, 8), rng.randint(2, 8)
    if rules.prefetch_capacity != "half_host" and rng.random() < MORE_HOST:
        host += device
    sizes = base.sizes.model_copy(
        update={
            "device_pages": device,
            "host_pages": host,
            "page_size": rng.choice((1, 1, 1, *page_sizes)),
            "load_back_threshold": rng.choice((0, 0, 0, 2, 3)),
        }
    )
    state = base.state or hybrid == "always" or (hybrid == "drawn" and rng.random() < 0.5)
    if state:
        states = {"device_states": rng.randint(2, 5), "host_states": rng.randint(1, 5)}
        sizes = sizes.model_copy(update=states | {"state_chunk": rng.choice((1, 1, 2))})
    return base.model_copy(
        update={
            "rules": rules,
            "sizes": sizes,
            "state": state,
            "bigram": rng.random() < 0.1 and bigram,
            "draft": rng.random() < 0.25 and draft,
        }
    )
