"""The adapter for both tree cores of SGLang's unified cache: options, the oracle's word, and the cores side by side."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path

import pytest

from hicache_ref.adapters import sglang_rust, sglang_unified
from hicache_ref.adapters.sglang_unified.twins import both, differences
from hicache_ref.model import Model
from hicache_ref.oracle.campaign import Budget, Campaign, Outlook
from hicache_ref.oracle.known import Known, read_known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.adapter import Adapter, AdapterError
from hicache_ref.vocabulary.observation import LEVELS, Level
from hicache_ref.vocabulary.profile import Profile, profile_named

CORES = ("python", "rust")
COMPONENTS = ("full", "full+mamba")
COMBINATIONS = list(product(CORES, COMPONENTS))


def made(core: str, components: str, plant: str = "none", **more: str) -> sglang_unified.ProcessAdapter:
    """An adapter over that core; without its wheel the test is left out."""
    pytest.importorskip("torch")
    try:
        return sglang_unified.make({"core": core, "components": components, "plant": plant, **more}, False, 30.0)
    except AdapterError as error:
        pytest.skip(f"{error}; `make test-peers` does")


def known() -> tuple[Known, ...]:
    """The known divergences that come with the adapter."""
    with as_file(files("hicache_ref.adapters") / "known" / "sglang-unified-0.5.23.jsonl") as file:
        return read_known(file)


def checked(adapter: Adapter, steps: int, entries: Sequence[Known], level: Level = "bytes") -> Outlook:
    """What a campaign of so many steps has seen, under the rules that the adapter names."""
    campaign = Campaign(adapter, profile_named(adapter.describe().profile), known=entries)
    campaign.level = level
    return campaign.run(Budget(steps=steps))


def test_unknown_options_name_the_known_ones() -> None:
    """Goal: a typing slip is one line. Method: an option that is none, a value, and a plant where it has no effect."""
    with pytest.raises(
        AdapterError, match=r"unknown option 'cores' of sglang-unified, expected one of core, .*, preload"
    ):
        sglang_unified.make({"cores": "rust"}, False, 30.0)
    with pytest.raises(AdapterError, match="option core=c of sglang-unified, expected python or rust"):
        sglang_unified.make({"core": "c"}, False, 30.0)
    with pytest.raises(AdapterError, match=r"option plant of sglang-unified needs components=full\+mamba"):
        sglang_unified.make({"plant": "state-loaded-once"}, False, 30.0)
    with pytest.raises(AdapterError, match="option preload of sglang-unified needs core=python"):
        sglang_unified.make({"core": "rust", "preload": __file__}, False, 30.0)


@pytest.mark.peers
@pytest.mark.parametrize("components", COMPONENTS)
def test_a_file_is_run_once_the_python_core_is_imported(components: str, tmp_path: Path) -> None:
    """Goal: option preload plants what one likes, and a report says what by its hash. Method: a match that raises."""
    file = tmp_path / "plant.py"
    file.write_text(
        "from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore\n"
        "def match_prefix(self, params): raise RuntimeError('planted')\n"
        "UnifiedTreeCore.match_prefix = match_prefix\n"
    )
    with made("python", components, preload=str(file)) as adapter:
        described = adapter.describe()
        seen = checked(adapter, 300, known() if components == "full+mamba" else ())

    assert f"0.5.23 with preload sha256:{sha256(file.read_bytes()).hexdigest()[:16]}" == described.release
    assert not described.pinned
    assert any("planted" in each.finding.text for each in seen.divergences if each.known is None)


@pytest.mark.peers
@pytest.mark.parametrize(("core", "components"), COMBINATIONS)
def test_a_core_has_states_or_has_none(core: str, components: str) -> None:
    """Goal: no profile is followed by halves. Method: ask each for the other's profile."""
    with made(core, components) as adapter:
        description = adapter.describe()
        assert ("sglang-unified", "0.5.23", "bytes") == (description.name, description.version, description.level)
        has_states = components == "full+mamba"
        rules = profile_named(description.profile).rules
        adapter.reset(Profile(rules=rules, state=has_states, name="own"))
        with pytest.raises(AdapterError, match=f"profile other: state is {not has_states}, expected {has_states}"):
            adapter.reset(Profile(rules=rules, state=not has_states, name="other"))


@pytest.mark.peers
@pytest.mark.parametrize(("core", "components"), COMBINATIONS)
def test_nothing_new_is_found(core: str, components: str) -> None:
    """Goal: no false alarm, and no difference that nobody looked at. Method: some walks under drawn profiles."""
    entries = known() if components == "full+mamba" else ()
    with made(core, components) as adapter:
        outlook = checked(adapter, 3000, entries)
    assert outlook.oracle_fault is None
    assert [] == [each.finding for each in outlook.divergences if each.known is None]
    assert {each.id: True for each in entries} == outlook.replayed
    assert outlook.steps >= 3000


@pytest.mark.peers
@pytest.mark.parametrize("core", CORES)
def test_a_load_to_a_node_under_load_is_refused_under_write_back(core: str) -> None:
    """Goal: the rule load_under_load is what the release does. Method: a run that ends with such a load."""
    trace = read_trace(Path(__file__).parent / "traces" / "load-under-load.jsonl")
    profile, steps = trace.header.profile, tuple(Recorded(step.op) for step in trace.steps)
    granted = Model(
        profile.model_copy(update={"rules": profile.rules.model_copy(update={"load_under_load": "granted"})})
    )
    with made(core, "full+mamba") as adapter:
        beside = Lockstep(adapter, adapter.describe(), profile, "bytes", Checker(profile))
        finding = replay(steps, lambda: beside).finding

    assert finding is None
    assert "submitted" == [granted.step(each.op).outcome.kind for each in steps][-1]


@pytest.mark.peers
@pytest.mark.parametrize(("core", "plant"), list(product(CORES, sglang_unified.PLANT_NAMES)))
def test_bytes_in_the_wrong_place_are_found(core: str, plant: str) -> None:
    """Goal: a pass means that states and pages hold what they should. Method: the same walks without bytes and with."""
    with made(core, "full+mamba", plant) as adapter:
        blind, outlook = (checked(adapter, 1000, known(), level) for level in LEVELS[2:])
    assert [] == [each.finding for each in blind.divergences if each.known is None]
    assert outlook.oracle_fault is None
    found = {each.finding.requirement for each in outlook.divergences if each.known is None}
    assert found
    assert found <= {"HC-PAGE-06", "HC-PAGE-07"}


@pytest.mark.peers
@pytest.mark.parametrize("components", COMPONENTS)
def test_the_cores_are_equal(components: str) -> None:
    """Goal: upstream means both to be one. Method: the same walks on both; each answer and all that shows."""
    made("python", components), made("rust", components)
    with both(components) as twins:
        walks = list(differences(twins, 2000, seed=0))
    assert [] == [walk.difference for walk in walks if walk.difference is not None]
    assert 2000 <= sum(walk.steps for walk in walks)


@pytest.mark.peers
def test_a_core_that_is_not_equal_is_found() -> None:
    """Goal: the comparison sees. Method: plant a fault in how one of the cores is called."""
    with made("python", "full") as python, sglang_rust.make({"plant": "lock-leaked"}, False) as rust:
        found = (walk.difference for walk in differences((python, rust), 2000, seed=0))
        first = next(filter(None, found))
    assert first.finding is not None
    assert first.finding.outcomes in (("counts",), ("nodes",))
