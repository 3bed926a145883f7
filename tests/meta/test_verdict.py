"""The verdict: green needs everything that could have been met, and says what could not be."""

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from hicache_ref.adapters import registry
from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.oracle.campaign import Campaign, Divergence, Outlook
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.verdict import EXIT_CODES, CheckReport, DivergenceLine, check_report
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.requirements.catalogue import COMMON
from hicache_ref.requirements.reach import reach_of
from hicache_ref.search.finding import Differs, Finding
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.observation import Level
from hicache_ref.vocabulary.profile import RULES, Profile, profile_named

ALL = ReferenceAdapter().describe()
NEW = DivergenceLine(requirement="HC-PAGE-01", operation="insert", trace="x.jsonl", length=3, known=None)
KNOWN = NEW.model_copy(update={"trace": None, "known": "K-1"})


LONG = max(each.within for each in REQUIREMENTS.values())
"""Steps that promise everything."""

PROFILES = [Profile(rules=rules, state=state, draft=True) for rules in RULES.values() for state in (True, False)]


def outlook(profiles: Sequence[Profile] = PROFILES, described: Description = ALL, **changes: Any) -> Outlook:
    """A long run in which everything was met, under all presets of rules, but for the changes."""
    everything = Counter(dict.fromkeys(REQUIREMENTS, 1))
    reaches = {reach_of(profile, described) for profile in profiles}
    return Outlook(**{"steps": LONG, "tally": everything, "reached": everything, "reaches": reaches, **changes})


def verdict(
    description: Description = ALL, seen: Outlook | None = None, *lines: DivergenceLine,
    wanted: frozenset[str] = frozenset(), level: Level = "tree", strict: bool = False,
) -> CheckReport:  # fmt: skip
    """The verdict on a run, by default on one in which everything was met."""
    return check_report(
        description, seen or outlook(), lines, profile="p", level=level, seed=0, wanted=wanted, strict=strict
    )


def without(*names: str) -> Counter[str]:
    """Counts of a run in which these were not met."""
    return Counter({name: 1 for name in REQUIREMENTS if name not in names})


def test_the_words() -> None:
    """Goal: one word a run, the worst that is true. Method: each of them, and the exit codes that scripts rely on."""
    fault = Divergence(Finding("HC-PAGE-01", "", "insert", "oracle"), Profile(), (), 1)

    assert "conforms" == verdict().verdict
    assert "conforms" == verdict(ALL, outlook(), KNOWN).verdict
    assert "divergence" == verdict(ALL, outlook(tally=without("HC-LOCK-01")), KNOWN, NEW).verdict
    assert "inconclusive" == verdict(ALL, outlook(stopped=True)).verdict
    assert "inconclusive" == verdict(ALL, Outlook()).verdict
    assert "oracle-fault" == verdict(ALL, outlook(oracle_fault=fault), NEW).verdict
    assert {"conforms": 0, "divergence": 1, "oracle-fault": 3, "inconclusive": 4} == EXIT_CODES


@pytest.mark.parametrize(("pinned", "word"), [(True, "divergence"), (False, "conforms")])
def test_a_known_divergence_cannot_leave_a_pinned_release(pinned: bool, word: str) -> None:
    """Goal: an adapter or oracle that sees less than it did is noticed. Method: one entry gone, one still there."""
    description = ALL.model_copy(update={"pinned": pinned})
    report = verdict(description, outlook(replayed={"K-1": True, "K-2": False}), KNOWN)

    assert word == report.verdict
    assert [("K-1", True, False), ("K-2", False, pinned)] == [(k.id, k.still_fails, k.alarm) for k in report.known]
    assert "conforms" == verdict(description, outlook(replayed={"K-1": True}), KNOWN).verdict


def test_what_was_not_met_is_named() -> None:
    """Goal: a run that reached too little is not green. Method: a requirement without subjects, a witness missed."""
    seen = outlook(tally=without("HC-LOCK-01"), reached=without("HC-PAGE-50"))
    report = verdict(ALL, seen)

    assert "inconclusive" == report.verdict
    assert ("HC-LOCK-01",) == report.requirements.not_exercised == report.requirements.owed
    assert report.requirements.exercised == report.requirements.observable - 1
    assert ("HC-PAGE-50",) == report.witnesses.missing == report.witnesses.owed
    assert report.witnesses.reached == report.witnesses.total - 1


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("HC-LOCK-01", {"ours": frozenset({"HC-LOCK-01"})}),
        ("HC-LOCK-01", {"unobservable": {"HC-LOCK-01": "it has no locks"}}),
        ("HC-CONF-04", {"invalid": "dies"}),
        ("HC-EVENT-01", {"events": False}),
        ("HC-EVENT-06", {"events": False}),
        ("HC-TREE-01", {"level": "pages"}),
        ("HC-CONF-03", {"operations": ALL.operations - {"set_write_policy"}}),
    ],
)
def test_what_cannot_be_met_is_not_missed(name: str, changes: dict[str, Any]) -> None:
    """Goal: an adapter is not blamed for what it says it lacks. Method: an unmet requirement, with and without that."""
    description = ALL.model_copy(update=changes)
    steps = 0 if name == "HC-EVENT-06" else LONG
    whole = verdict(ALL, outlook(tally=without(name), steps=steps))
    part = verdict(description, outlook(described=description, tally=without(name), steps=steps))

    assert name in whole.requirements.not_exercised
    assert name not in part.requirements.not_exercised
    assert whole.requirements.observable > part.requirements.observable


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("HC-LIFE-56", {"attach_failures": ()}),
        ("HC-LIFE-57", {"forces": False}),
        ("HC-PREF-73", {"peers": False}),
        ("HC-TREE-54", {"namespaces": False}),
        ("HC-HASH-02", {"namespaces": False}),
        ("HC-HASH-50", {"namespaces": False}),
    ],
)
def test_what_it_is_not_able_to_is_not_missed(name: str, changes: dict[str, Any]) -> None:
    """Goal: to meet a thing needs more than operations. Method: one not met, with the adapter's ability and without."""
    few = ALL.model_copy(update=changes)
    whole, part = (
        verdict(each, outlook(described=each, tally=without(name), reached=without(name))) for each in (ALL, few)
    )

    assert (name,) == whole.witnesses.owed + whole.requirements.owed
    assert () == part.witnesses.owed + part.requirements.owed
    assert "conforms" == part.verdict


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("HC-STATE-50", Profile(draft=True)),
        ("HC-STATE-16", Profile(draft=True)),
        ("HC-DRAFT-50", Profile(state=True)),
        ("HC-DRAFT-05", Profile(state=True)),
        ("HC-PREF-64", Profile(rules=RULES["sglang-0.5.9"], state=True, draft=True)),
        ("HC-EVICT-53", profile_named("small").model_copy(update={"state": True, "draft": True})),
    ],
)
def test_what_the_profile_cannot_lead_to_is_not_missed(name: str, profile: Profile) -> None:
    """Goal: states, drafts, prefetches, full pools need a profile that has them. Method: one not met, with others."""
    unmet = {"tally": without(name), "reached": without(name)}
    whole, part = verdict(ALL, outlook(**unmet)), verdict(ALL, outlook([profile], **unmet))

    assert (name,) == whole.witnesses.owed + whole.requirements.owed
    assert () == part.witnesses.missing + part.requirements.not_exercised
    assert "conforms" == part.verdict


def test_what_the_rules_walked_cannot_meet_is_not_missed() -> None:
    """Goal: witnesses of rules that were not walked do not count. Method: one rule set against all."""
    few = verdict(ALL, outlook([Profile(rules=RULES["sglang-0.5.9"])]))

    assert few.witnesses.total < verdict().witnesses.total
    assert "conforms" == few.verdict


def test_a_budget_promises_what_so_many_steps_meet() -> None:
    """Goal: no run waits for what it is too short for. Method: rare and common ones unmet, few steps and many.

    A run that promises nothing conforms only if all was met; a strict one promises all.
    """
    rare = max(REQUIREMENTS.values(), key=lambda each: (each.kind == "sometimes", each.within)).id
    seen = outlook(steps=COMMON, reached=without(rare))
    short = verdict(ALL, seen)

    assert ("conforms", (rare,), ()) == (short.verdict, short.witnesses.missing, short.witnesses.owed)
    assert 0 < short.witnesses.promised < short.witnesses.total
    assert "inconclusive" == verdict(ALL, seen, strict=True).verdict
    assert "inconclusive" == verdict(ALL, outlook(steps=LONG, reached=without(rare))).verdict
    assert "inconclusive" == verdict(ALL, outlook(steps=COMMON, tally=without("HC-PAGE-01"))).verdict
    few = verdict(ALL, outlook(steps=10, reached=without(rare)))
    assert ("inconclusive", 0, 0) == (few.verdict, few.requirements.promised, few.witnesses.promised)
    assert "conforms" == verdict(ALL, outlook(steps=10)).verdict


def test_what_walks_leave_out_is_not_missed() -> None:
    """Goal: nobody waits for a step that walks do not make. Method: a witness unmet, its trigger left out or not."""
    read_raises = Known(
        id="K", requirement="HC-CONF-01", operation="poll", reason="r", trigger="read_raises", raised="poll",
        differs=(Differs(kind="crash"),), profile=Profile(), trace=(),
    )  # fmt: skip
    barred = Campaign(ReferenceAdapter(), Profile(), known=[read_raises]).outlook.barred
    blind = Campaign(ReferenceAdapter(), Profile(), known=[read_raises], blind=True).outlook.barred

    assert ({"HC-PREF-54": "read_raises"}, {}) == (barred, blind)
    assert "conforms" == verdict(ALL, outlook(reached=without("HC-PREF-54"), barred=barred)).verdict
    assert "inconclusive" == verdict(ALL, outlook(reached=without("HC-PREF-54"))).verdict


def test_only_the_wanted_count() -> None:
    """Goal: a filter makes a verdict of its own. Method: a requirement, a witness, and one that cannot be observed."""
    unmet = outlook(tally=without("HC-LOCK-01"), reached=without("HC-PAGE-50"))
    blind = ALL.model_copy(update={"unobservable": {"HC-PAGE-01": "no pages"}})

    assert "conforms" == verdict(ALL, unmet, wanted=frozenset({"HC-PAGE-01"})).verdict
    assert "conforms" == verdict(ALL, unmet, wanted=frozenset({"HC-TREE-50"})).verdict
    assert "inconclusive" == verdict(ALL, unmet, wanted=frozenset({"HC-LOCK-01"})).verdict
    assert "inconclusive" == verdict(blind, unmet, wanted=frozenset({"HC-PAGE-01"})).verdict


def test_sizes_alone_make_a_verdict_on_rules_only() -> None:
    """Goal: who sees little is told so. Method: level counts, and every rule that could have been judged there."""
    report = verdict(ALL.model_copy(update={"level": "counts"}), outlook(steps=0, tally=Counter()), level="counts")
    observable = report.requirements.not_exercised

    assert report.rules_only
    assert len(observable) == report.requirements.observable
    assert {"counts"} == {REQUIREMENTS[name].level for name in observable}
    assert {"HC-PAGE-09", "HC-CONF-01"} <= set(observable)
    assert not verdict().rules_only


def test_adapters_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a package offers its adapter by an entry point, under no name of ours. Method: two entry points."""
    offered = [EntryPoint(name, "engine:make", registry.GROUP) for name in ("mine", "reference")]
    monkeypatch.setattr(registry, "entry_points", lambda group: offered if group == registry.GROUP else [])
    mine = registry.open_adapter("mine", {"a": "b"}, fetch=False, step_timeout=3.0)

    assert (
        "reference",
        "engine",
        "sglang-rust",
        "sglang-hiradix",
        "sglang-himamba",
        "sglang-unified",
        "mine",
    ) == registry.known_names()
    assert isinstance(mine, ProcessAdapter)
    assert (3.0, ("engine:make", '{"a": "b"}')) == (mine.step_timeout, mine.command[-2:])
    assert isinstance(registry.open_adapter("reference", {}, fetch=False, step_timeout=3.0), ReferenceAdapter)
