"""Resets of SGLang's HiMambaRadixCache, which waits for backups within them, and then goes on (rule reset_waits)."""

from pathlib import Path

import pytest

from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Found
from hicache_ref.vocabulary.operations import Attach, CopyDone, Reset
from hicache_ref.vocabulary.outcomes import Done, Refused
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

pytest.importorskip("torch")

from hicache_ref.search.simpler import EVERYTHING
from tests.adapters.himamba_driven import ALL_RELEASES, Driven, child, inserting, key

pytestmark = pytest.mark.peers

WRITING = (
    Attach(settings=StorageSettings(prefetch_threshold=1)), *inserting("r", key(1, 2)), CopyDone(ticket="h:1.2"),
    EVERYTHING,
)  # fmt: skip
"""A write of two pages runs."""


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_reset_waits_thirty_seconds_for_a_backup(version: str) -> None:
    """Goal: the rule reset_waits is what releases do. Method: the store is silent; ask before that time and at it."""
    driven = Driven(version=version)
    for step in WRITING:
        driven(step)

    assert Refused(why="work in flight", wait_for=("b:1.2",)) == driven(Reset(waited=29_999))
    assert 1 == len(driven.see().segments)
    assert Done() == driven(Reset(waited=30_000))
    seen = driven.see()
    assert (8, 8, 4, ()) == (len(seen.free_device), len(seen.free_host), len(seen.free_host_state or ()), seen.segments)


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_reset_is_kept_from_a_prefetch_by_its_caller(version: str) -> None:
    """Goal: the cache asks for no prefetch, so its caller does. Method: a read runs; as above."""
    driven = Driven(Sizes(device_pages=8, host_pages=24), version=version)
    driven.attach()
    name = driven.reading("q", 1, 2)

    assert Refused(why="work in flight", wait_for=(name,)) == driven(Reset(waited=29_999))
    assert Done() == driven(Reset(waited=30_000))


def test_a_reset_that_does_not_wait_is_found(tmp_path: Path) -> None:
    """Goal: it is the cache's own wait that is seen. Method: a cache whose reset goes on at once."""
    file = tmp_path / "hasty.py"
    file.write_text(
        "from sglang.srt.mem_cache.hi_mamba_radix_cache import HiMambaRadixCache\n"
        "HiMambaRadixCache._flush_pending_storage_backups_before_reset = lambda self: None\n"
    )
    adapter, description = child(version="0.5.17", preload=str(file))
    sizes = Sizes(device_pages=8, host_pages=8)
    profile = Profile(rules=RULES["sglang-himamba-0.5.16"], sizes=sizes, state=True, name="here")
    lockstep = Lockstep(adapter, description, profile, "bytes", Checker(profile))
    for step in WRITING:
        lockstep.step(step)
    with pytest.raises(Found) as found:
        lockstep.step(Reset())

    assert ("HC-CONF-02", "reset") == (found.value.finding.requirement, found.value.finding.operation)
