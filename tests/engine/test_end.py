"""The end of a cache: by the caller, by the garbage collector, by the interpreter."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from hicache_ref.vocabulary import operations as ops
from tests.engine.stores import KEY, PATIENCE_SECONDS, SMALL, HeldBackend, attached, insert, storage_threads

ROOT = Path(__file__).parents[2]


def test_the_end_is_once() -> None:
    """Goal: a cache can be closed twice and used no more. Method: both."""
    backend = HeldBackend()
    cache = attached(backend)

    assert ((), ()) == (cache.close(), cache.close())
    assert 1 == backend.closed
    with pytest.raises(ValueError, match="closed"):
        cache.step(ops.Audit())


def test_the_end_takes_no_longer_than_it_says() -> None:
    """Goal: a store that hangs holds nobody up. Method: a write that hangs; the store stays open under it."""
    backend = HeldBackend("write")
    cache = attached(backend)
    insert(cache, KEY)
    cache.settle(0.1)
    before = time.monotonic()

    assert ("b:1.2.3",) == cache.close()
    assert time.monotonic() - before < SMALL.stop_timeout_s + 2
    assert 0 == backend.closed
    backend.release()
    for thread in threading.enumerate():
        if thread.name.startswith("storage_"):
            thread.join(PATIENCE_SECONDS)
    assert [] == storage_threads()


def test_the_end_by_the_garbage_collector() -> None:
    """Goal: a cache that was forgotten leaves no threads. Method: dropped while attached."""
    backend = HeldBackend()
    cache = attached(backend)
    alive = weakref.ref(cache)
    del cache
    gc.collect()

    assert (None, 1) == (alive(), backend.closed)
    assert [] == storage_threads()


@pytest.mark.parametrize(
    ("story", "told", "least", "most"),
    [
        ("work", ["attach done", "clean", "store closed"], 0.0, 20.0),
        ("closed", ["attach done", "store closed", "clean"], 0.0, 20.0),
        ("hangs", ["attach done", "clean"], 1.0, 20.0),
        ("failed attach", ["attach refused", "clean"], 0.0, 20.0),
        ("failed attach, then work", ["attach refused", "attach done", "clean", "store closed"], 0.0, 20.0),
    ],
)
def test_the_end_by_the_interpreter(story: str, told: list[str], least: float, most: float) -> None:
    """Goal: the interpreter ends in time, and shuts storage down once. Method: a child ends with work in flight."""
    before = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("ending_child.py"), story],
        capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert ("", 0) == (child.stderr, child.returncode)
    assert told == child.stdout.splitlines()
    assert least <= time.monotonic() - before < most
