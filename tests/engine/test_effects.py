"""The controller decides nothing: each effect is carried out once, and the same effects are the same calls."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hicache_ref.engine.calls import Call, Launch, Location, Query
from hicache_ref.engine.controller import Controller, DeviceEffect
from hicache_ref.engine.device import Work
from hicache_ref.engine.simulated import SimulatedDevice
from hicache_ref.vocabulary.effects import CopyToDevice, RunForward
from tests.engine.driven import PROFILES, SMALL, Driven, walk

RUNS = 1_000
STEPS = 12

Request = Callable[[Controller], object]
"""What was asked of a controller, to be asked of another."""


class _Keeping(Controller):
    """A controller that keeps what it is asked by its caller."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.asked: list[Request] = []
        self.effects: list[DeviceEffect] = []
        self._inside = False

    def submit(self, effect: DeviceEffect) -> None:
        """Kept, and done."""
        self.effects.append(effect)
        self._keep(lambda other: other.submit(effect), lambda: super(_Keeping, self).submit(effect))

    def start_loading(self) -> None:
        """Kept unless the controller itself asks, and done."""
        self._keep(lambda other: other.start_loading(), super().start_loading)

    def finish(self, names: Sequence[str]) -> None:
        """Kept, and done."""
        self._keep(lambda other: other.finish(names), lambda: super(_Keeping, self).finish(names))

    def ended(self) -> Iterator[str]:
        """Kept, and done."""
        self.asked.append(lambda other: list(other.ended()))
        return super().ended()

    def _keep(self, request: Request, do: Callable[[], None]) -> None:
        if self._inside:
            do()
            return
        self.asked.append(request)
        self._inside = True
        do()
        self._inside = False


def _wanted(effects: Sequence[DeviceEffect], depth: int) -> Counter[str]:
    """What has to be launched: passes and loads layer by layer, all else once."""
    found: Counter[str] = Counter()
    for effect in effects:
        layered = isinstance(effect, RunForward | CopyToDevice)
        found.update(f"{effect.id} layer {layer}" for layer in range(depth)) if layered else found.update([effect.id])
    return found


def _launched(calls: Sequence[Call]) -> Counter[str]:
    """What was launched, a launch for several effects once for each."""
    found: Counter[str] = Counter()
    for call in calls:
        if isinstance(call, Launch) and call.name != "indices":
            names, space, layer = call.name.partition(" ")
            found.update(name + space + layer for name in names.split("+"))
    return found


class _Logged(random.Random):
    """Keeps what a device draws."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.drawn: list[int] = []

    def randrange(self, *args: int) -> int:  # type: ignore[override]
        """As it is drawn."""
        self.drawn.append(super().randrange(*args))
        return self.drawn[-1]


def _walked(seed: int) -> tuple[Driven, list[Call], list[int]]:
    """A model and its controller after a walk, all calls of the device, and what that drew."""
    rng, lot = random.Random(f"effects/{seed}"), _Logged(f"effects/{seed}/device")
    driven = Driven(rng.choice(PROFILES), lot, _Keeping)
    calls: list[Call] = []
    driven.device.watch = calls.append
    walk(driven, rng, STEPS)
    return driven, calls, lot.drawn


def test_each_effect_is_carried_out_once_and_nothing_else_is() -> None:
    """Goal: no copy lacks an effect, and no effect its copy. Method: 1,000 walks, effects and launches counted."""
    copies = 0
    for seed in range(RUNS):
        driven, calls, _ = _walked(seed)
        assert isinstance(driven.controller, _Keeping)
        assert _wanted(driven.controller.effects, driven.controller.depth) == _launched(calls)
        copies += sum(not isinstance(effect, RunForward) for effect in driven.controller.effects)
    assert copies > RUNS


def test_the_same_effects_are_the_same_calls() -> None:
    """Goal: nothing but effects steers the controller. Method: one without a model is asked the same as one with it."""
    compared = 0
    for seed in range(100):
        driven, calls, drawn = _walked(seed)
        again: list[Call] = []
        device = SimulatedDevice(partial(_next, iter(drawn)), again.append)
        pairs = SMALL.pairs(driven.model.profile, device)
        other = Controller(device, pairs, _SamePasses(calls, sum(map(len, pairs.values()))))
        assert isinstance(driven.controller, _Keeping)
        for request in driven.controller.asked:
            request(other)
        # At the end the device was let finish, which nobody asked the controller for: then answers differ.
        assert _but_answers(calls) == _but_answers(again)
        compared += len(again)
    assert compared > 3_000


def _but_answers(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if not isinstance(call, Query)]


class _SamePasses:
    """Passes that do nothing, and touch what those before them touched."""

    def __init__(self, calls: Sequence[Call], pieces: int) -> None:
        self._pieces = pieces
        self._launches = (each for each in calls if isinstance(each, Launch) and each.name.startswith("f:"))

    def layer(self, effect: RunForward, layer: int) -> tuple[Sequence[Work], Sequence[Location], Sequence[Location]]:
        """As the next one did."""
        before = next(self._launches)
        return [_nothing] * self._pieces, before.reads, before.writes


def _nothing() -> None:
    """No work is done."""


def _next(drawn: Iterator[int], limit: int) -> int:
    return min(next(drawn, 0), limit - 1)
