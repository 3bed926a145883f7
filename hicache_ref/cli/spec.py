"""`spec list`, `spec show`, `spec coverage`: what the rules are, and whether each is judged."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import Annotated

import typer

from hicache_ref.cli.common import (
    Format,
    FormatOption,
    NoColorOption,
    Problem,
    help_if_alone,
    requirements_of,
    write_json,
)
from hicache_ref.requirements import REQUIREMENTS, Requirement, catalogue_digest
from hicache_ref.requirements.registry import ALWAYS, EVENTUALLY, FACT, STEP, WITNESS
from hicache_ref.storage.conformance import RULES
from hicache_ref.vocabulary.base import Frozen

WIDTH = 112

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


class Coverage(Frozen):
    """How many requirements there are, and which have no judge."""

    total: int
    by_kind: dict[str, int]
    by_area: dict[str, int]
    missing: tuple[str, ...]


@app.callback()
def spec(context: typer.Context) -> None:
    """The rules: list them, read one, see whether each is judged.

    Example: hicache-ref spec show HC-PAGE-01
    """
    help_if_alone(context)


@app.command("list")
def list_them(
    area: Annotated[str | None, typer.Option("--area", metavar="AREA", help="Only this area: PAGE, TREE ...")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind: always, step ...")] = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """List the requirements, each by id, kind and text.

    Example: hicache-ref spec list --area LOCK
    """
    found = [each for each in REQUIREMENTS.values() if area in (None, each.area) and kind in (None, each.kind)]
    if not found:
        areas = ", ".join(dict.fromkeys(each.area for each in REQUIREMENTS.values()))
        kinds = ", ".join(dict.fromkeys(each.kind for each in REQUIREMENTS.values()))
        raise Problem(f"no requirement of area {area} and kind {kind}, expected one of {areas} and of {kinds}")
    if format is Format.json:
        write_json([_fields(each) for each in found])
        return
    for each in found:
        head = f"{each.id:<13} {each.kind:<10} "
        print(head + f"\n{' ' * len(head)}".join(wrap(each.text, WIDTH - len(head))))


@app.command("show")
def show(
    requirement: Annotated[str, typer.Argument(metavar="ID", help="The id, as HC-PAGE-01.")],
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Show one requirement: its text, why it is one, where it comes from, and what falls with it.

    Example: hicache-ref spec show HC-PAGE-01
    """
    requirements_of([requirement])
    found = REQUIREMENTS[requirement]
    if format is Format.json:
        write_json(_fields(found))
        return
    for label, text in _rows(found):
        print(f"{label:<12}" + f"\n{' ' * 12}".join(wrap(text, WIDTH - 12)))


def _rows(each: Requirement) -> list[tuple[str, str]]:
    """What `show` says, a label and a text a row."""
    versions = " ".join(
        f"{word} {version}" for word, version in (("since", each.since), ("until", each.until)) if version
    )
    rows = [
        (each.id, each.text),
        ("why", each.why),
        ("kind", f"{each.kind}, judged from level {each.level} on, by {_judged_by(each)}"),
        ("versions", versions),
        ("origin", ", ".join(each.origin)),
        ("implies", ", ".join(each.implies)),
        ("implied by", ", ".join(other.id for other in REQUIREMENTS.values() if each.id in other.implies)),
        ("when", " or ".join(_when(condition) for condition in each.when)),
        ("within", f"{each.within:,} steps of walks"),
        ("digest", each.digest),
    ]
    return [(label, text) for label, text in rows if text]


def _when(condition: Mapping[str, Sequence[object]]) -> str:
    return ", ".join(
        f"with {' and '.join(map(str, values))}"
        if name in ("operations", "traits")
        else f"{name} is {' or '.join(map(str, values))}"
        for name, values in condition.items()
    )


def _judged_by(each: Requirement) -> str:
    if each.by == "oracle":
        return "the oracle's comparison"
    if each.by == "storage":
        return "hicache-ref storage check" if each.id in RULES else "the tests of hicache_ref.storage"
    judges: dict[str, Callable[..., object]] = {
        **{name: each.judge for name, each in ALWAYS.items()},
        **{name: judge for name, (_, judge) in STEP.items()},
        **EVENTUALLY,
        **{name: witness for name, (_, witness) in WITNESS.items()},
    }
    judge = judges.get(each.id)
    if judge is None:
        fact = next((fact for fact, name in FACT.items() if name == each.id), None)
        return "nothing" if fact is None else f"the model's fact {fact}"
    return f"{judge.__module__}.{judge.__name__}"


@app.command("coverage")
def coverage(format: FormatOption = Format.text, no_color: NoColorOption = False) -> None:
    """Count the requirements by kind and area, and name those that nothing judges.

    Example: hicache-ref spec coverage --format json
    """
    result = measured()
    if format is Format.json:
        write_json(result)
        return
    print(f"{result.total} requirements, digest {catalogue_digest()}")
    for name, counts in (("kind", result.by_kind), ("area", result.by_area)):
        print(f"by {name:<8} " + "  ".join(f"{word} {count}" for word, count in counts.items()))
    print(f"missing     {', '.join(result.missing) or 'none'}")


def measured() -> Coverage:
    """The coverage of the catalogue by judges."""
    judged = {*ALWAYS, *STEP, *EVENTUALLY, *WITNESS, *FACT.values(), *RULES}
    return Coverage(
        total=len(REQUIREMENTS),
        by_kind=dict(Counter(each.kind for each in REQUIREMENTS.values())),
        by_area=dict(Counter(each.area for each in REQUIREMENTS.values())),
        missing=tuple(
            each.id for each in REQUIREMENTS.values() if each.by not in ("oracle", "storage") and each.id not in judged
        ),
    )


def _fields(each: Requirement) -> dict[str, object]:
    return each.model_dump(mode="json") | {"area": each.area, "digest": each.digest}
