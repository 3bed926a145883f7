"""What released HiMambaRadixCaches are known for: walks find it, each entry still fails, and nothing else is new."""

from functools import lru_cache
from importlib.resources import as_file, files

import pytest

from hicache_ref.oracle.campaign import Budget, Campaign, Outlook
from hicache_ref.oracle.known import Known, read_known
from hicache_ref.vocabulary.profile import profile_named

pytest.importorskip("torch")

from tests.adapters.himamba_driven import ALL_RELEASES, child

pytestmark = pytest.mark.peers

LONGEST_TRACE = 18
IDS_OF_0_5_15 = {
    "split-hides-backup", "cascade-ends-eviction", "write-back-without-room", "load-leaks-slot", "leaf-without-state",
    "late-state-not-backed-up", "double-free", "load-starts-elsewhere", "load-loses-source", "locked-leaf-is-evicted",
    "host-eviction-goes-on", "host-state-not-refreshed", "quota-ignored", "closed-prefetch-leaves-room",
    "commit-stamps-without-moving", "namespace-unhashed", "fetched-below-a-gap", "write-raises", "read-raises",
    "lock-is-stolen", "anchor-loses-state", "unhashed-prefix", "split-loses-prefix", "state-of-longer-prefix",
    "failed-attach-leaves-policy", "policy-over-gaps",
}  # fmt: skip


@lru_cache(maxsize=8)
def known_of(version: str) -> tuple[Known, ...]:
    """The known divergences that come with the adapter for this release."""
    with as_file(files("hicache_ref.adapters") / "known" / f"sglang-himamba-{version}.jsonl") as file:
        return read_known(file)


def checked(budget: Budget, known: tuple[Known, ...], *, seed: int = 0, **options: str) -> Outlook:
    """What a check with these options has seen."""
    adapter, description = child(**options)
    profile = profile_named(description.profile).model_copy(update={"state": True})
    return Campaign(adapter, profile, seed=seed, known=known, keep_going=True).run(budget)


@pytest.mark.parametrize("more", [{}, {"events": "off"}], ids=["as it comes", "without events"])
@pytest.mark.parametrize("version", ALL_RELEASES)
def test_each_known_divergence_still_fails(version: str, more: dict[str, str]) -> None:
    """Goal: no entry outlives its fault. Method: its own trace with events as it says, and that it is recognised."""
    options = {"version": version} | more
    published = child(**options)[1].events
    wanted = [each for each in known_of(version) if each.events in (None, published)]
    outlook = checked(Budget(walks=1), known_of(version), **options)
    assert {each.id: True for each in wanted} == outlook.replayed
    assert all(len(each.trace) <= LONGEST_TRACE for each in known_of(version))


def test_the_defects_of_0_5_15_are_listed() -> None:
    """Goal: what was found stays found. Method: the ids of some."""
    assert IDS_OF_0_5_15 <= {each.id for each in known_of("0.5.15")}


def test_the_order_of_states_is_broken_from_0_5_16_on() -> None:
    """Goal: the releases are told apart. Method: upstream's own check complains of states in two releases alone."""
    having = [version for version in ALL_RELEASES if any(each.id == "state-order" for each in known_of(version))]
    assert ["0.5.16", "0.5.17"] == having


@pytest.mark.parametrize("version", ["0.5.15", "0.5.17"])
@pytest.mark.parametrize("storage", ["off", "file"])
def test_nothing_new_is_found(version: str, storage: str) -> None:
    """Goal: every difference is attributed. Method: walks with the known divergences that come with the adapter."""
    outlook = checked(Budget(steps=3_000), known_of(version), seed=1, version=version, storage=storage)
    assert outlook.oracle_fault is None
    assert [] == [each.finding for each in outlook.divergences if each.known is None]
    assert outlook.steps >= 3_000


def test_walks_find_defects_without_being_told() -> None:
    """Goal: known divergences are found by walks alone. Method: check 0.5.15 knowing nothing, look at what broke."""
    outlook = checked(Budget(steps=6_000), (), version="0.5.15", storage="off")
    broken = {each.finding.requirement for each in outlook.divergences}
    assert {"HC-STATE-07", "HC-CONF-01", "HC-EVENT-06"} <= broken
