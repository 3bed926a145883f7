"""A model whose copies and passes are done by a controller on a simulated device, walked at random.

The facts of the world are the device's: a walk makes a step like `copy_done` only once the controller has told the end.
Bytes are compared where passes read them and where copies come to rest, and every call is judged by its order.
"""

import random
from collections.abc import Iterator
from typing import Any

from hicache_ref.engine.cache import ALL_ENDS
from hicache_ref.engine.contents import PatternPasses, held
from hicache_ref.engine.controller import Controller
from hicache_ref.engine.happens_before import Ordering
from hicache_ref.engine.simulated import SimulatedDevice
from hicache_ref.engine.small import SmallModel
from hicache_ref.engine.verify import WrongBytes
from hicache_ref.model import Model
from hicache_ref.search.alphabet import SINGLE, load_back
from hicache_ref.search.composites import request, request_for
from hicache_ref.search.drawing import Drawing
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyToDevice, CopyToHost, RunForward
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import DEVICE, HOST
from hicache_ref.vocabulary.operations import (
    CopyDone,
    CopyFailed,
    Evict,
    Forward,
    ForwardDone,
    LoadBack,
    Operation,
)
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes

STEPS = 30
SMALL = SmallModel()
SIZES = Sizes(device_pages=6, host_pages=8, page_size=1, load_back_threshold=0, device_states=3, host_states=3)


def _profile(**given: Any) -> Profile:
    return Profile(sizes=SIZES, **given)


HYBRID = _profile(state=True)
PROFILES = (
    _profile(),
    _profile(draft=True),
    HYBRID,
    _profile(rules=Rules(write_policy="write_back", write_back_copy="blocking")),
    _profile(rules=Rules(write_policy="write_back", write_back_copy="staged"), draft=True),
)
"""What the engine is driven under: a model alone, with a draft model, a hybrid one, and evictions that copy."""


OPERATIONS = frozenset({
    "take_pages", "give_back", "forward", "forward_done", "insert", "load_back", "evict", "evict_host", "evict_state",
    "evict_host_state", "copy_done", "poll", "set_write_policy", "audit",
})  # fmt: skip
"""What moves pages. Copies do not fail here, and a reset would end what runs."""


class Driven:
    """A model, a device, and a controller between them. `kind` may be a faulty controller."""

    def __init__(self, profile: Profile, rng: random.Random, kind: type[Controller] = Controller, *,
                 small: SmallModel = SMALL) -> None:  # fmt: skip
        self.model = Model(profile)
        self.device = SimulatedDevice(rng.randrange, Ordering().take)
        self.pairs = small.pairs(profile, self.device)
        self.passes = PatternPasses(self.pairs)
        self.controller = kind(self.device, self.pairs, self.passes)
        self._rng = rng
        self._ended: set[str] = set()

    def step(self, op: Operation) -> Outcome:
        """The operation has happened, and its effects are under way."""
        step = self.model.step(op)
        if isinstance(op, Forward) and op.rid in self.model.state.passes:
            seed = namespace_seed(op.key.extra)
            hashes = chain(self.model.pages(op.key), seed, self.model.profile.bigram)
            self.passes.expect(f"f:{op.rid}", hashes, doomed=self.model.state.passes[op.rid].doomed)
        for effect in step.effects:
            assert isinstance(effect, RunForward | CopyToHost | CopyToDevice | CopyOnDevice)
            self.controller.submit(effect)
            if isinstance(effect, CopyToHost) and effect.id not in self.model.state.tickets:
                self.controller.finish([effect.id])
        if self._rng.random() < 0.3:
            self.controller.start_loading()
        self._ended -= {name_of(op)}
        return step.outcome

    def is_not_yet(self, op: Operation) -> bool:
        """Whether the step tells an end that the device has not come to,"""
        name = name_of(op)
        if name is None:
            return False
        self._ended.update(self.controller.ended())
        return name not in self._ended

    def ends(self) -> list[Operation]:
        """The steps that tell what the device has come to."""
        self._ended.update(self.controller.ended())
        return [fact_of(name) for name in sorted(self._ended)]

    def finish(self) -> None:
        """The device is idle, and every page of the tree holds what its hash says."""
        self.controller.start_loading()
        self.device.drain()
        self._ended.update(self.controller.ended())
        for op in self.ends():
            self.step(op)
        self._expect_right_pages()

    def _expect_right_pages(self) -> None:
        """Every page that holds something holds all of it. Raises WrongBytes."""
        for component, pairs in self.pairs.items():
            for tier, names in (("device", DEVICE), ("host", HOST)):
                for page, digest in enumerate(self.model.state.pools[names[component]].stamp):
                    pool = getattr(pairs[0], tier)
                    if digest is not None and pool.read(page) != held(pool, digest):
                        raise WrongBytes(f"{pool.name}:{page} does not hold its page")


def fact_of(name: str) -> Operation:
    """The step that tells the end of this effect."""
    return ForwardDone(rid=name[2:]) if name.startswith("f:") else CopyDone(ticket=name)


def name_of(op: Operation) -> str | None:
    """The id of the effect whose end the operation tells."""
    if isinstance(op, ForwardDone):
        return f"f:{op.rid}"
    return op.ticket if isinstance(op, CopyDone | CopyFailed) else None


def walk(driven: Driven, rng: random.Random, steps: int = STEPS) -> None:
    """So many moves were made, without storage, then all that runs has ended. Raises Race, WrongBytes, Deadlock."""
    drawing = Drawing(driven.model, rng, OPERATIONS, namespaces=False)
    kinds, weights = list(MOVES), list(MOVES.values())
    for _ in range(steps):
        for op in _move(rng.choices(kinds, weights)[0], drawing, driven):
            if driven.model.requires(op) is None and not driven.is_not_yet(op):
                driven.step(op)
    driven.finish()


MOVES = {"request": 4, "reload": 4, "evict": 3, "ends": 3, "evict_host": 1, "give_back": 2, "evict_state": 1,
         "evict_host_state": 1}  # fmt: skip
"""Each with its weight: loads come only where something was backed up and left the device before."""


def _move(kind: str, drawing: Drawing, driven: Driven) -> Iterator[Operation]:
    """The steps of one move, as many as are enabled."""
    if kind == "request":
        yield from request(drawing)
    elif kind == "reload":
        yield from _reload(drawing)
    elif kind == "ends":
        yield from driven.ends()
        yield ALL_ENDS
    elif (op := SINGLE[kind](drawing)) is not None and (driven.model.profile.state or "state" not in kind):
        yield op


def _reload(drawing: Drawing) -> Iterator[Operation]:
    """What is on host only is loaded, and mostly a pass goes on from there at once."""
    if drawing.rng.random() < 0.7:
        yield Evict(n=drawing.rng.randint(1, SIZES.device_pages))
    for _ in range(drawing.rng.randint(1, 2)):
        load = load_back(drawing)
        if isinstance(load, LoadBack):
            yield LoadBack(key=load.key)
            if drawing.rng.random() < 0.6:
                yield from request_for(drawing, load.key)
