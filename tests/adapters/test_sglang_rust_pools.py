"""The pools that adapters keep for SGLang's tree cores: a pass protects what was freed, and hides no second free."""

import pytest

pytest.importorskip("torch")

from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_rust.pools import DevicePool, Pass, StatePool


def device_pool(*touched: int) -> DevicePool:
    """A pool of four pages, all taken, and a pass that touches some."""
    pool = DevicePool(4, Stamps(1))
    pool.take(4)
    pool.passes["r"] = Pass(frozenset(touched), frozenset(), "end")
    return pool


def state_pool(*touched: int) -> StatePool:
    """Likewise of state slots."""
    pool = StatePool(4, Stamps(1))
    pool.take(4)
    pool.touched["f:r"] = touched
    return pool


@pytest.mark.parametrize("pool", [device_pool(0, 1), state_pool(0, 1)], ids=["pages", "slots"])
def test_what_is_freed_twice_under_a_pass_has_two_holders(pool: DevicePool | StatePool) -> None:
    """Goal: keeping back hides no double free. Method: of two that a pass touches one is freed twice, one once."""
    pool.give_up([0, 1, 2])
    pool.give_up([0])

    assert {0, 1} == set(pool.held)
    assert [2, 0] == pool.free


@pytest.mark.parametrize("pool", [device_pool(0, 1), state_pool(0, 1)], ids=["pages", "slots"])
def test_what_a_pass_held_is_free_after_it(pool: DevicePool | StatePool) -> None:
    """Goal: nothing is lost. Method: free under the pass, end it."""
    pool.give_up([0, 1])
    held = dict(pool.held)
    pool.end_pass("r") if isinstance(pool, DevicePool) else pool.end("f:r")

    assert {0, 1} == set(held)
    assert [0, 1] == pool.free
    assert {} == pool.held
