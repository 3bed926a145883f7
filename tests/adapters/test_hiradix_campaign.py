"""The oracle against released HiRadixCaches: it finds known faults by itself, and with these known nothing new."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hicache_ref.oracle.campaign import Budget, Campaign, Divergence, Outlook
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.profile import Sizes, profile_named

pytest.importorskip("torch")

from tests.adapters.hiradix_driven import ALL_RELEASES, child, known_of

pytestmark = pytest.mark.peers

DOUBLE_OWNER = "HC-PAGE-01"
REUSE = {"id-reuse-crash", "id-reuse-leak", "id-reuse-lost"}


def checked(version: str, budget: Budget, *, seed: int = 0, known: Sequence[Known] = (), keep: bool = False) -> Outlook:
    """What a check of this release, storage attached, has seen."""
    adapter, description = child(version=version)
    profile = profile_named(description.profile)
    return Campaign(adapter, profile, seed=seed, known=known, keep_going=keep).run(budget)


def new(outlook: Outlook) -> list[Divergence]:
    """The divergences that are none of the known."""
    assert outlook.oracle_fault is None
    return [each for each in outlook.divergences if each.known is None]


def test_the_double_release_is_found_by_walks_alone() -> None:
    """Goal: SG-13483 needs no scenario. Method: check 0.5.2 knowing nothing, look at what it reports."""
    found = new(checked("0.5.2", Budget(steps=2_000), keep=True))
    doubles = [each for each in found if each.finding.requirement == DOUBLE_OWNER]
    assert doubles
    assert all("the release queue, the release queue" in each.finding.text for each in doubles)
    assert all(len(each.steps) <= 15 for each in doubles)


def test_no_page_is_released_twice_in_0_5_20_unless_a_request_comes_back() -> None:
    """Goal: the last HiRadixCache is free of it. Method: of what is known, only that ids are reused is left out."""
    known = [each for each in known_of("0.5.20") if each.id in REUSE]
    found = new(checked("0.5.20", Budget(steps=3_000), known=known, keep=True))
    assert found
    assert DOUBLE_OWNER not in {each.finding.requirement for each in found}


@pytest.mark.parametrize("version", ["0.5.1.post3", "0.5.2", "0.5.20"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_new_is_found(version: str, seed: int) -> None:
    """Goal: every difference is attributed. Method: walks with the known divergences that come with the adapter."""
    outlook = checked(version, Budget(steps=4_000), seed=seed, known=known_of(version), keep=True)
    assert [] == [each.finding for each in new(outlook)]
    assert outlook.steps >= 4_000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_new_is_found_of_prefetches_one_page_at_a_time(seed: int) -> None:
    """Goal: what 0.5.1 does to larger batches does not hide the rest. Method: as above, a host with room."""
    adapter, description = child(version="0.5.1.post3")
    roomy = Sizes(device_pages=6, host_pages=20, storage_batch=1)
    profile = profile_named(description.profile).model_copy(update={"sizes": roomy})
    campaign = Campaign(
        adapter, profile, seed=seed, known=known_of("0.5.1.post3"), keep_going=True, fixed_sizes=True
    )  # fmt: skip
    outlook = campaign.run(Budget(steps=4_000))
    assert [] == [each.finding for each in new(outlook)]
    assert outlook.tally["HC-PREF-06"] >= 200
    assert outlook.tally["HC-STORE-12"] >= 10


def test_a_prefetch_without_room_leaves_its_anchor_as_old_as_it_was() -> None:
    """Goal: the adapter uses no node for a prefetch that is refused. Method: the run in which it did, on 0.5.15."""
    trace = read_trace(Path(__file__).parent / "traces" / "refused-prefetch-uses-nothing.jsonl")
    profile, steps = trace.header.profile, tuple(Recorded(step.op) for step in trace.steps)
    adapter, description = child(version="0.5.15")
    replayed = replay(steps, lambda: Lockstep(adapter, description, profile, "bytes", Checker(profile)))
    assert (None, len(steps)) == (replayed.finding, len(replayed.steps))


@pytest.mark.parametrize("version", ALL_RELEASES)
def test_each_known_divergence_still_fails(version: str) -> None:
    """Goal: no entry outlives its fault. Method: its own trace, and that it is recognised."""
    outlook = checked(version, Budget(walks=1), known=known_of(version), keep=True)
    assert {each.id: True for each in known_of(version)} == outlook.replayed


def test_reuse_of_a_request_id_is_known_three_times() -> None:
    """Goal: the crash, the leak and the lost prefetch each have a trace. Method: look them up."""
    entries = {each.id: each for each in known_of("0.5.20") if each.id in REUSE}
    assert REUSE == entries.keys()
    assert all(each.trigger == "request_comes_back" for each in entries.values())
    assert "TypeError in _handle_prefetch_result" in (entries["id-reuse-crash"].raised or "")
