"""The catalogue of planted faults: what it covers, and that each fault is caught."""

import re
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from hicache_ref.faults import FAULTS, KINDS, Fault, model
from hicache_ref.faults.hunt import alone, beside_the_model, hunt
from hicache_ref.faults.left_for_later import LEFT
from hicache_ref.faults.run import FaultsReport, run_catalogue
from hicache_ref.model import Model
from hicache_ref.model.chooser import POLICY
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.search.finding import Finding, Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import Trace, read_trace
from hicache_ref.vocabulary.profile import RULES, Profile, Rules
from tests.faults.public_reports import DEFECTS, NEW, OBSERVATIONS, READ, REPORTS, decided_against

TRACES = Path(__file__).parent / "traces"
AFRESH = sorted(FAULTS)[:: len(FAULTS) // 20][:20]
"""Faults that every run of the tests hunts anew."""

NEVER_OFF = {"PAGE", "LOCK", "XFER", "HASH"}
GUARDED = sorted(
    fault.id
    for fault in FAULTS.values()
    if not fault.lockstep_only and NEVER_OFF & {requirement.split("-")[1] for requirement in fault.expected}
)
"""Faults that requirements catch which no preset of rules may switch off."""

PRESETS = sorted(RULES)


def _is_expected(fault: Fault, finding: Finding | None) -> bool:
    return finding is not None and fault.named_by(finding) in fault.expected


def test_every_public_report_is_planted_or_left_with_its_reason() -> None:
    """Goal: no known defect is forgotten. Method: each report is an origin of a fault or left for later, not both."""
    reports = sorted(chain.from_iterable(names.split() for names in REPORTS.values()))
    left = list(chain.from_iterable(LEFT.values()))
    planted = {origin for fault in FAULTS.values() for origin in fault.origins if origin in reports}

    assert 123 == len(set(reports))
    assert reports == sorted([*planted, *left])
    assert all(chain.from_iterable(group.values() for group in LEFT.values()))


def test_what_a_rule_tells_apart_names_the_rule() -> None:
    """Goal: a report that is lawful here is so by a rule. Method: the last word of each such reason is one."""
    lawful = LEFT["a lawful difference here, told apart by a rule"]
    named = [text.rpartition(" ")[2].strip("`") for text in lawful.values()]

    assert [] == [name for name in named if name not in Rules.model_fields]


def test_the_catalogue_covers_every_kind_and_every_defect_of_released_engines() -> None:
    """Goal: breadth. Method: kinds are counted; each defect of a released engine is planted or decided against."""
    kinds = Counter(fault.kind for fault in FAULTS.values())
    origins = {origin for fault in FAULTS.values() for origin in fault.origins}

    assert set(KINDS) == set(kinds)
    assert len(FAULTS) >= 250
    assert sum(fault.storage for fault in FAULTS.values()) >= 70
    assert sum(fault.state for fault in FAULTS.values()) >= 70
    assert set() == {*DEFECTS, *READ, *OBSERVATIONS, *NEW} - origins - decided_against().keys()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_overridden_function_of_the_model(name: str) -> None:
    """Goal: faults that are small and honest. Method: entry, docstring and overrides of each are looked at."""
    fault = FAULTS[name]
    overrides = [member for member, value in vars(fault.model).items() if callable(value)]

    assert model(name) is fault.model
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
    assert fault.title.endswith(".")
    assert set(fault.expected) <= set(REQUIREMENTS)
    assert Rules.model_validate(dict(fault.rules))
    assert all(hasattr(Model, override) for override in overrides)
    assert len(overrides) == 1 or "Two methods, since" in (fault.model.__doc__ or "")


def test_an_unknown_fault_is_a_key_error() -> None:
    """Goal: a mistyped id is told. Method: one that does not exist."""
    with pytest.raises(KeyError):
        model("no-such-fault")


def _findings(trace: Trace, kind: type[Model], *, compared: bool) -> Finding | None:
    opening = beside_the_model(kind) if compared else alone(kind)
    steps = [Recorded(step.op, step.choices) for step in trace.steps]
    return replay(steps, lambda: opening(trace.header.profile, POLICY)).finding


@pytest.mark.parametrize("name", FAULTS)
def test_the_stored_trace_fails_with_the_fault_and_only_with_it(name: str) -> None:
    """Goal: each fault stays caught. Method: its smallest trace, replayed with the fault and without."""
    fault, trace = FAULTS[name], read_trace(TRACES / f"{name}.jsonl")
    compared = fault.lockstep_only is not None
    found = _findings(trace, fault.model, compared=compared)

    assert found is not None
    assert trace.steps[-1].meta["finding"] == fault.named_by(found)
    assert compared or _is_expected(fault, found)
    assert _findings(trace, Model, compared=compared) is None
    assert _findings(trace, Model, compared=not compared) is None


def test_stored_traces_are_small() -> None:
    """Goal: stories that can be read. Method: the lengths of all stored traces."""
    lengths = sorted(len(read_trace(TRACES / f"{name}.jsonl").steps) for name in FAULTS)

    assert {f"{name}.jsonl" for name in FAULTS} == {path.name for path in TRACES.iterdir()}
    assert lengths[len(lengths) // 2] <= 8
    assert lengths[-1] <= 30


@pytest.mark.parametrize("name", AFRESH)
def test_the_hunt_finds_it_afresh(name: str) -> None:
    """Goal: a search that works, not traces that replay. Method: a hunt from seed 1 within 150,000 steps."""
    fault = FAULTS[name]
    opening = beside_the_model(fault.model) if fault.lockstep_only else alone(fault.model)
    found = hunt(opening, seed=1, steps=150_000, rules=fault.rules, storage=fault.storage, state=fault.state).finding

    assert fault.lockstep_only or _is_expected(fault, found)
    assert found is not None


def _judge(report: FaultsReport) -> None:
    """Everything was caught, nearly everything by a requirement alone, and nothing where there is nothing."""
    by_requirement = [result for result in report.faults if result.caught_by in result.expected]
    lengths = sorted(result.trace_length or 0 for result in report.faults)

    assert [] == [(result.id, result.caught_by, result.note) for result in report.faults if not result.caught]
    assert () == report.alarms
    assert len(by_requirement) >= 0.9 * report.total
    assert lengths[len(lengths) // 2] <= 8


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_are_caught(seed: int) -> None:
    """Goal: the oracle finds what it is built to find. Method: the whole catalogue, with three seeds."""
    _judge(run_catalogue(seed=seed, jobs=2))


def test_a_run_reports_and_stores(tmp_path: Path) -> None:
    """Goal: the report says what happened. Method: a run of three faults, one of them for comparisons only."""
    names = ["freed-under-writing-pass", "backup-refused-beside-room", "split-loses-lock"]
    seen: list[str] = []
    report = run_catalogue(
        names, seed=1, steps=20_000, healthy_steps=500, store=tmp_path, progress=lambda result: seen.append(result.id)
    )

    assert names == seen == [result.id for result in report.faults]
    assert (3, 3, 0) == (report.caught, report.total, report.false_alarms)
    assert [True, False, True] == [result.caught_by in result.expected for result in report.faults]
    assert report.faults[1].caught_by is None
    assert "HC-CONF-02" == report.faults[1].diverged_at
    assert {f"{name}.jsonl" for name in names} == {path.name for path in tmp_path.iterdir()}


def test_what_is_not_found_is_not_called_caught() -> None:
    """Goal: a report that can say no. Method: a fault that needs thousands of steps, hunted for ten."""
    report = run_catalogue(["removed-node-stays-pinned"], seed=1, steps=10, healthy_steps=10)

    assert (0, 1) == (report.caught, report.total)
    assert (None, "not found") == (report.faults[0].caught_by, report.faults[0].note)


def test_a_fault_that_says_wrongly_why_only_a_comparison_can_notice_it_is_not_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no claim outlives its reason. Method: one that a requirement notices, entered as if none could."""
    name = "reset-refused-at-rest"
    monkeypatch.setitem(FAULTS, name, replace(FAULTS[name], lockstep_only="nobody looks"))
    report = run_catalogue([name], seed=1, steps=40_000, healthy_steps=10)

    assert (0, "HC-LIFE-06", "HC-CONF-02") == (report.caught, report.faults[0].caught_by, report.faults[0].diverged_at)
    assert "only a comparison can: nobody looks; yet HC-LIFE-06 noticed it" == report.faults[0].note


def _caught_under(preset: str, name: str, steps: int) -> bool:
    fault = FAULTS[name]
    base = Profile(rules=RULES[preset], name=preset)
    found = hunt(
        alone(fault.model), seed=1, steps=steps, base=base, rules=fault.rules, storage=fault.storage, state=fault.state
    ).finding
    return _is_expected(fault, found)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_switches_a_requirement_off(preset: str) -> None:
    """Goal: a rule is never a fault. Method: some faults of pages, locks, copies and hashes, under every preset."""
    names = ["freed-under-writing-pass", "alias-of-free-list", "split-keeps-old-owner", "load-keeps-its-pin",
             "agreed-number-ignored", "backup-overtakes-forward", "chain-restarts"]  # fmt: skip

    assert set(names) <= set(GUARDED)
    assert [] == [name for name in names if not _caught_under(preset, name, 30_000)]


@pytest.mark.long
@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_switches_any_requirement_off(preset: str) -> None:
    """Goal and method as above, with all faults of these areas."""
    assert [] == [name for name in GUARDED if not _caught_under(preset, name, 500_000)]
