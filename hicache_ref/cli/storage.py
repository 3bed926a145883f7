"""`storage check`: what every store has to keep, tried on one."""

import os
import shlex
import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import Annotated

import typer

from hicache_ref.cli.common import (
    STEP_TIMEOUT,
    Format,
    FormatOption,
    NoColorOption,
    Problem,
    SeedOption,
    StepTimeoutOption,
    emphasised,
    finite,
    help_if_alone,
    progress,
    requirements_of,
    write_json,
)
from hicache_ref.oracle.verdict import EXIT_CODES, CheckReport, DivergenceLine, Exercised, Reached, Word
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.storage.base import Misuse, StorageError
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.conformance import CONFIG, RULES, Finding, Report, Terms, check, subject_of
from hicache_ref.storage.foreign import Values
from hicache_ref.storage.settings import parse_config, parse_settings

COLOURS = {"conforms": "green", "divergence": "red", "inconclusive": "yellow"}
WIDTH = 80
VALUES: dict[Values, str] = {
    "memoryviews": "memoryviews, for the class works without torch",
    "tensors": "tensors of bytes, for the class works with torch",
}
"""What a foreign object was handed pages as, and why."""

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


class BrokenRule(DivergenceLine):
    """A rule that the store does not keep."""

    what: str
    """What was seen, and what was expected."""

    story: tuple[str, ...]
    """The last calls before, with their answers."""

    through: str
    """The handle, or the other process, that made the call."""

    judging: str
    """The rule that was being tried."""

    also: tuple[str, ...]
    """Rules that could not be tried to the end for the same fault."""


class StorageReport(CheckReport):
    """The result of a check of a store; its JSON is that of `check`, and what was seen."""

    divergences: tuple[BrokenRule, ...]
    not_judged: dict[str, str]
    """Rules that do not apply to this store or run, each with the reason."""

    passed_on: tuple[str, ...]
    """Settings that are not ours and went to the store."""

    values: Values | None
    """What a foreign object was handed pages as."""

    again: tuple[str, ...]
    """The command that shows what was found once more."""


@app.callback()
def storage(context: typer.Context) -> None:
    """Stores for the third tier: check one.

    Example: hicache-ref storage check "files://$PWD/pages"
    """
    help_if_alone(context)


@app.command("check")
def check_store(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="files:///FOLDER, redis://HOST:PORT/DB, mooncake://HOST:PORT, memory://, or pkg.module:Class: "
            "a class with the calls of hicache_ref.storage.base.Backend or of SGLang's HiCacheStorage.",
            show_default=False,
        ),
    ],
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="JSON|@FILE", help="Fields of StorageConfig: model_name, dtype, tp_rank ..."),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option("--settings", metavar="JSON|@FILE", help="Storage settings; what is not ours goes to the store."),
    ] = None,
    requirement: Annotated[
        list[str] | None, typer.Option("--requirement", metavar="ID", help="Judge only this one; repeatable.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Allow the check to empty the store, and to leave it so.")
    ] = False,
    seed: SeedOption = 0,
    step_timeout: StepTimeoutOption = STEP_TIMEOUT,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            min=0,
            callback=finite,
            metavar="S",
            help="Seconds until the key of a killed writer is free again.",
        ),
    ] = STEP_TIMEOUT,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Check that a store keeps what every store has to: whole pages or misses, the first put wins, honest answers.

    The check writes under keys of its own; without --clear its pages stay in the store. Exit code: 0 conforms, 1 a rule
    is broken, 2 bad input or no store there, 4 nothing could be judged.

    Example: hicache-ref storage check "files://$PWD/pages"
    """
    sys.path.insert(0, os.getcwd())
    with progress(color=not no_color) as show:
        show(f"checking {url}")
        report = storage_check(
            url, config=config, settings=settings, requirements=requirement or [], clear=clear, seed=seed,
            step_timeout=step_timeout, patience=patience,
        )  # fmt: skip
    if format is Format.json:
        write_json(report)
    else:
        print(_text(report, emphasised(report.verdict, COLOURS[report.verdict], color=not no_color)))
    raise typer.Exit(EXIT_CODES[report.verdict])


def storage_check(url: str, *, config: str | None = None, settings: str | None = None, requirements: Sequence[str] = (),
                  clear: bool = False, seed: int = 0, step_timeout: float = STEP_TIMEOUT,
                  patience: float = STEP_TIMEOUT) -> StorageReport:  # fmt: skip
    """The verdict on the store of the URL. Raises Problem where it cannot be opened, or an option says nothing."""
    wanted = requirements_of(requirements)
    if unknown := sorted(wanted - RULES.keys()):
        raise Problem(f"requirement {unknown[0]} is not one of stores, expected one of {', '.join(sorted(RULES))}")
    try:
        extra = parse_settings(settings).extra if settings is not None else {}
        stated = CONFIG if config is None else parse_config(config, CONFIG)
        chosen: StorageConfig = stated.model_copy(update={"extra": stated.extra | extra})
        report = check(subject_of(url), Terms(chosen, seed, step_timeout, patience, clear), wanted)
    except Misuse as error:
        raise Problem(str(error)) from None
    except StorageError as error:
        raise Problem(f"{url}: {error}") from None
    given = [("--config", config), ("--settings", settings)]
    options = [*(word for name, value in given if value is not None for word in (name, value)), *["--clear"] * clear]
    return _verdict(report, wanted or frozenset(RULES), tuple(extra), options)


def _verdict(report: Report, wanted: frozenset[str], passed_on: tuple[str, ...],
             options: Sequence[str]) -> StorageReport:  # fmt: skip
    """The report in the words of `check`."""
    excused = {each.rule: each.not_judged for each in report.results if each.not_judged is not None}
    findings = report.findings
    judged = {each.rule for each in report.results if each.judged} | {each.result.breaks for each in findings}
    missing = tuple(sorted(wanted - judged - excused.keys()))
    word: Word = "divergence" if findings else "conforms" if judged and not missing else "inconclusive"
    return StorageReport(
        verdict=word,
        rules_only=True,
        adapter=report.url,
        profile="storage",
        level="bytes",
        completion="quiescent",
        steps=sum(each.calls for each in report.results),
        seconds=report.seconds,
        seed=report.seed,
        requirements=Exercised(
            exercised=len(set(wanted) & judged),
            observable=len(wanted) - len(excused),
            total=len(wanted),
            promised=len(wanted) - len(excused),
            not_exercised=missing,
            owed=missing,
        ),
        witnesses=Reached(reached=0, total=0, promised=0, missing=(), owed=()),
        divergences=tuple(map(_broken, findings)),
        not_judged=excused,
        passed_on=passed_on,
        values=report.values,
        again=_again(report, options),
    )


def _again(report: Report, options: Sequence[str]) -> tuple[str, ...]:
    """The command that tries once more what broke; none where nothing did."""
    rules = sorted({each.result.rule for each in report.findings})
    named = [word for name in rules for word in ("--requirement", name)]
    words = ("hicache-ref", "storage", "check", report.url, "--seed", str(report.seed), *options, *named)
    return words if named else ()


def _broken(finding: Finding) -> BrokenRule:
    result = finding.result
    return BrokenRule(
        requirement=result.breaks,
        operation=result.operation,
        trace=None,
        length=result.calls,
        known=None,
        what=result.broken or "",
        story=result.story,
        through=result.through,
        judging=result.rule,
        also=finding.also,
    )


def _text(report: StorageReport, verdict: str) -> str:
    counts = report.requirements
    lines = [
        f"store       {report.adapter}",
        f"rules       {counts.exercised} of {counts.total} judged, {report.steps:,} calls, {report.seconds:.1f} s",
    ]
    if report.passed_on:
        lines.append(f"passed on   {', '.join(report.passed_on)}: settings of the store's own")
    if report.values is not None:
        lines.append(f"values      {VALUES[report.values]}")
    lines += [f"not judged  {name}  {why}" for name, why in report.not_judged.items()]
    lines += [f"not reached {name}" for name in counts.not_exercised]
    for each in report.divergences:
        lines += ["", *_story(each)]
    if report.again:
        lines += ["", f"again       {shlex.join(report.again)}"]
    return "\n".join([*lines, f"verdict     {verdict}"])


def _story(each: BrokenRule) -> list[str]:
    """The rule, what was seen, and the calls that led there."""
    text = REQUIREMENTS[each.requirement].text
    through = f" through {each.through}" if each.through else ""
    rows = [f"broken      {each.requirement} at {each.operation}{through}, after {each.length} calls"]
    rows += wrap(text, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)
    rows += wrap(f"seen: {each.what}", WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 18)
    if each.also:
        met = f"met again, so not judged to the end: {', '.join(each.also)}"
        rows += wrap(met, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 18)
    for line in each.story:
        rows += wrap(line, WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 18)
    return rows
