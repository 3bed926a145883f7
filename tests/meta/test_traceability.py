"""Rules and code name each other: no rule without a judge, no judge without a rule, no known defect forgotten."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from hicache_ref.faults import FAULTS
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.requirements.reach import TRAITS
from hicache_ref.requirements.registry import ALWAYS, EVENTUALLY, FACT, STEP, WITNESS
from hicache_ref.storage.conformance import RULES as STORE_RULES
from hicache_ref.vocabulary.operations import OPERATION_TYPES
from hicache_ref.vocabulary.profile import Rules
from tests.faults.public_reports import DEFECTS, OBSERVATIONS, READ, decided_against
from tests.meta.tidy import texts

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\bHC-[A-Z]+-\d\d\b")
NO_RULE = "HC-" + "NONE-01"
"""What tests of mistakes ask for."""

INVARIANTS = [f"I{number}" for number in range(1, 75)]
PARTS = ["C34"]
"""Parts of SGLang's cache controller that are neither copied nor left to the engine."""

CODE = {
    "always": ALWAYS.keys(),
    "step": STEP.keys(),
    "eventually": EVENTUALLY.keys(),
    "sometimes": {*WITNESS, *FACT.values()},
}


def of_kind(kind: str) -> set[str]:
    """The requirements of this kind that states suffice to judge."""
    return {name for name, each in REQUIREMENTS.items() if each.kind == kind and each.by not in ("oracle", "storage")}


@pytest.mark.parametrize("kind", CODE)
def test_rules_and_judges_are_the_same(kind: str) -> None:
    """Goal: neither a rule without judge nor a judge without rule. Method: catalogue and registry, kind by kind."""
    assert of_kind(kind) == set(CODE[kind])


def test_what_only_an_oracle_can_judge_is_named_there() -> None:
    """Goal: no rule that nobody judges. Method: each id that is left to the oracle occurs in its code."""
    oracle = {name for name, each in REQUIREMENTS.items() if each.by == "oracle"}
    named = {name for path, text in texts(ROOT) if path.startswith("hicache_ref/oracle/") for name in ID.findall(text)}

    assert set() == oracle - named


def test_what_is_tried_on_stores_is_named_there() -> None:
    """Goal: no rule of stores that nobody tries. Method: the kit's rules, and ids in the package's other code."""
    stores = {name for name, each in REQUIREMENTS.items() if each.by == "storage"}
    named = {name for path, text in texts(ROOT) if path.startswith("hicache_ref/storage/") for name in ID.findall(text)}

    assert set() == STORE_RULES.keys() - stores
    assert set() == stores - named


def test_no_file_names_a_rule_that_is_not() -> None:
    """Goal: ids in code, tests and text lead somewhere. Method: every id in every file, looked up."""
    named = {(path, name) for path, text in texts(ROOT) for name in ID.findall(text) if name != NO_RULE}

    assert [] == sorted((path, name) for path, name in named if name not in REQUIREMENTS)
    assert len(REQUIREMENTS) == len({name for _, name in named})


def test_every_rule_is_told() -> None:
    """Goal: the text for readers is complete. Method: id and wording of each rule occur in the numbered files."""
    files = sorted((ROOT / "spec").glob("[0-9]-*.md"))
    text = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in files)
    missing = [name for name, each in REQUIREMENTS.items() if f"**{name}**" not in text or each.text not in text]

    assert [] == missing


def test_the_catalogue_is_in_order() -> None:
    """Goal: one place for each rule. Method: areas in one run each, numbers rising, known conditions only."""
    places = [(each.area, each.id) for each in REQUIREMENTS.values()]
    areas = list(dict.fromkeys(area for area, _ in places))
    conditions = {name for each in REQUIREMENTS.values() for when in each.when for name in when}
    operations, traits = (
        {word for each in REQUIREMENTS.values() for when in each.when for word in when.get(name, ())}
        for name in ("operations", "traits")
    )

    assert sorted(places, key=lambda place: (areas.index(place[0]), place[1])) == places
    assert conditions <= Rules.model_fields.keys() | {"operations", "traits"}
    assert operations <= OPERATION_TYPES.keys()
    assert TRAITS.keys() == traits


def test_implications_have_an_end() -> None:
    """Goal: the weakest broken rule is well defined. Method: what is implied exists, and nothing goes in circles."""
    graph = {name: each.implies for name, each in REQUIREMENTS.items()}

    assert set() == {weaker for implied in graph.values() for weaker in implied} - REQUIREMENTS.keys()
    assert len(REQUIREMENTS) == len(list(TopologicalSorter(graph).static_order()))


def test_nothing_known_is_forgotten() -> None:
    """Goal: each known rule and defect is covered or decided against. Method: the lists above, looked up."""
    reasons = decided_against()
    covered = {name for each in REQUIREMENTS.values() for name in each.origin}
    covered |= {name for fault in FAULTS.values() for name in fault.origins}
    known = [*INVARIANTS, *DEFECTS, *READ, *OBSERVATIONS, *PARTS]

    assert [] == [name for name in known if name not in covered and name not in reasons]
    assert [] == [name for name in reasons if name in covered or name not in known or not reasons[name]]


def test_what_is_to_come_has_not_come() -> None:
    """Goal: no reason outlives itself. Method: areas that reasons say will come later, among those that are there."""
    decided = (ROOT / "spec" / "decided-against.toml").read_text(encoding="utf-8")
    later = {area for found in re.findall(r"later, ([A-Z]+(?: and [A-Z]+)*)", decided) for area in found.split(" and ")}

    assert {"GPU", "RANK"} == later - {"AREA"}
    assert set() == later & {each.area for each in REQUIREMENTS.values()}


def test_origins_are_known() -> None:
    """Goal: no origin that leads nowhere. Method: each one is on a list above, or named like a public report."""
    known = {*INVARIANTS, *DEFECTS, *READ, *OBSERVATIONS}
    report = re.compile(r"(AT|BI|DY|JX|LD|LM|MC|OV|SG|TR|TS|VL)-\d+[a-z]?")

    assert [] == [
        (each.id, origin)
        for each in REQUIREMENTS.values()
        for origin in each.origin
        if origin not in known and not report.fullmatch(origin)
    ]


def test_every_rule_is_on_the_upstream_map() -> None:
    """Goal: readers find each rule in SGLang. Method: the ids in the first column, written out."""
    rows = (ROOT / "spec" / "upstream-map.md").read_text(encoding="utf-8").splitlines()
    cells = [re.findall(r"(HC-[A-Z]+)?(-\d\d)\b", row.split("|")[1]) for row in rows if row.startswith("| HC-")]
    mapped: list[str] = []
    for cell in cells:
        area = ""
        for named, number in cell:
            area = named or area
            mapped.append(area + number)

    judged = [name for name, each in REQUIREMENTS.items() if each.kind != "sometimes" and each.by != "storage"]

    assert sorted(judged) == sorted(mapped)
