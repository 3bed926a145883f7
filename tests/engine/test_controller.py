"""The controller on a simulated device: no race and no wrong byte, and every missing wait is found."""

import random
from statistics import median

import pytest

from hicache_ref.engine.calls import Call, Launch
from hicache_ref.engine.contents import PatternPasses
from hicache_ref.engine.controller import RING, Controller
from hicache_ref.engine.happens_before import Ordering, Race
from hicache_ref.engine.simulated import SimulatedDevice
from hicache_ref.engine.verify import WrongBytes
from hicache_ref.vocabulary.effects import CopyPart, CopyToDevice, CopyToHost
from tests.engine.driven import HYBRID, PROFILES, SMALL, Driven, walk
from tests.engine.missing_waits import OF_STATES, PLANTED

EXAMPLES, LONG_EXAMPLES = 1_000, 100_000
SEEDS, WITHIN = 20, 200


def _example(kind: type[Controller], seed: str) -> Driven:
    """One walk. Raises Race or WrongBytes."""
    rng = random.Random(seed)
    driven = Driven(HYBRID if kind in OF_STATES else rng.choice(PROFILES), rng, kind)
    walk(driven, rng)
    return driven


def _examples_until_found(kind: type[Controller], seed: int) -> int | None:
    """How many walks it takes; None where that many are too few."""
    for number in range(WITHIN):
        try:
            _example(kind, f"{seed}/{number}")
        except (Race, WrongBytes):
            return number + 1
    return None


def _expect_no_alarm(examples: int) -> None:
    """Every effect of so many walks was carried out, without a race and without a wrong byte."""
    for number in range(examples):
        assert () == _example(Controller, f"all/{number}").controller.in_flight


def test_the_controller_is_free_of_races() -> None:
    """Goal: no alarm where nothing is wrong. Method: 1,000 walks, each call judged and each page compared."""
    _expect_no_alarm(EXAMPLES)


@pytest.mark.long
def test_the_controller_is_free_of_races_for_long() -> None:
    """Goal: nor where it is rare. Method: 100,000 walks."""
    _expect_no_alarm(LONG_EXAMPLES)


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_a_missing_wait_is_found(kind: type[Controller]) -> None:
    """Goal: silence means something. Method: walks with one wait less, until the first alarm."""
    assert _examples_until_found(kind, 0) is not None


@pytest.mark.long
@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_a_missing_wait_is_found_by_every_seed(kind: type[Controller]) -> None:
    """Goal: it is no luck. Method: 20 seeds, at most 200 walks each, a median of at most 10."""
    found = [_examples_until_found(kind, seed) for seed in range(SEEDS)]
    assert None not in found
    assert median(each for each in found if each is not None) <= 10


def test_there_are_enough_planted_faults() -> None:
    """Goal: the list does not shrink unseen. Method: it is counted."""
    assert len(PLANTED) >= 20


class _Bench:
    """A controller whose calls are kept, over the pools of a plain model."""

    def __init__(self, draw: int = 0) -> None:
        self.calls: list[Call] = []
        self.ordering = Ordering()
        device = SimulatedDevice(lambda n: min(draw, n - 1), self._keep)
        self.device = device
        pairs = SMALL.pairs(PROFILES[0], device)
        self.controller = Controller(device, pairs, PatternPasses(pairs))

    def _keep(self, call: Call) -> None:
        self.calls.append(call)
        self.ordering.take(call)

    def launches(self, stream: str) -> list[str]:
        """The names of what was launched on a stream."""
        return [call.name for call in self.calls if isinstance(call, Launch) and call.stream == stream]


def _load(name: str, host: int, device: int, *after: str) -> CopyToDevice:
    return CopyToDevice(id=name, parts=(CopyPart(device=(device,), host=(host,)),), after=after)


def _backup(name: str, device: int, host: int, *after: str) -> CopyToHost:
    return CopyToHost(id=name, parts=(CopyPart(device=(device,), host=(host,)),), after=after)


def test_queued_loads_are_one_copy_of_each_layer() -> None:
    """Goal: a launch for each layer, not for each load. Method: two loads, started together."""
    bench = _Bench()
    bench.controller.submit(_load("d:0", 0, 0))
    bench.controller.submit(_load("d:1", 1, 1))
    assert [] == bench.launches("load")
    bench.controller.start_loading()
    assert [f"d:0+d:1 layer {layer}" for layer in range(3)] == bench.launches("load")
    assert ("d:0", "d:1") == bench.controller.in_flight


def test_a_load_that_comes_after_another_is_a_copy_of_its_own() -> None:
    """Goal: nothing is merged that has an order. Method: a load into a page that the one before loads too."""
    bench = _Bench()
    bench.controller.submit(_load("d:0", 0, 0))
    bench.controller.submit(_load("d:1", 1, 0, "d:0"))
    bench.controller.start_loading()
    assert [f"d:{name} layer {layer}" for name in range(2) for layer in range(3)] == bench.launches("load")


def test_all_that_an_effect_comes_after_is_waited_for() -> None:
    """Goal: the last wait counts as much as the first. Method: a load behind two backups, and two that are merged."""
    for merged in (False, True):
        bench = _Bench()
        bench.controller.submit(_backup("h:0", 0, 0))
        bench.controller.submit(_backup("h:1", 1, 1))
        if merged:
            bench.controller.submit(_load("d:0", 0, 2, "h:0"))
            bench.controller.submit(_load("d:1", 1, 3, "h:1"))
        else:
            parts = (CopyPart(device=(2, 3), host=(0, 1)),)
            bench.controller.submit(CopyToDevice(id="d:0", parts=parts, after=("h:0", "h:1")))
        bench.controller.start_loading()
        assert ("h:0", "h:1", *(["d:0", "d:1"] if merged else ["d:0"])) == bench.controller.in_flight


def test_a_fourth_load_waits_until_the_first_is_over() -> None:
    """Goal: no slot is taken from a load that runs. Method: a device that does nothing unless it is waited for."""
    bench = _Bench()
    for number in range(RING):
        bench.controller.submit(_load(f"d:{number}", number, number))
        bench.controller.start_loading()
    assert [] == list(bench.controller.ended())
    bench.controller.submit(_load("d:3", 3, 3))
    bench.controller.start_loading()
    assert ["d:0"] == list(bench.controller.ended())


def test_an_end_is_told_once() -> None:
    """Goal: each effect is told once, when it is over. Method: a load and a backup on a device that works late."""
    bench = _Bench()
    bench.controller.submit(_load("d:0", 0, 0))
    bench.controller.start_loading()
    bench.controller.submit(_backup("h:1", 1, 1))
    assert [] == list(bench.controller.ended())
    bench.device.drain()
    assert ["d:0", "h:1"] == list(bench.controller.ended())
    assert [] == list(bench.controller.ended())
    assert () == bench.controller.in_flight


def test_who_waits_for_an_end_has_it_told_later() -> None:
    """Goal: a wait takes no end from anybody. Method: a queued load is finished, then told."""
    bench = _Bench()
    bench.controller.submit(_load("d:0", 0, 0))
    bench.controller.finish(["d:0"])
    assert ["d:0"] == list(bench.controller.ended())
