"""`explore`: every state of a small world is looked at, breadth first."""

from typing import Annotated

import typer

from hicache_ref.cli.common import (
    Format,
    FormatOption,
    NoColorOption,
    Problem,
    emphasised,
    progress,
    stopping,
    write_json,
)
from hicache_ref.oracle.verdict import EXIT_CODES, Word
from hicache_ref.report.words import operation_words
from hicache_ref.search.exhaustive import Exploration, ExploreReport, Violation
from hicache_ref.search.scopes import SCOPES

COLOURS = {"conforms": "green", "oracle-fault": "magenta", "inconclusive": "yellow"}


def explore(
    scope: Annotated[
        str, typer.Option("--scope", metavar="NAME", help=f"The world: {', '.join(SCOPES)}.", show_default=False)
    ],
    limit: Annotated[int | None, typer.Option("--states", min=1, metavar="N", help="End after so many states.")] = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Judge every state and step of a small world: who is in it and what may fail is the scope's.

    Exit code: 0 all states keep every rule, 3 one does not, 4 not all states were looked at.

    Example: hicache-ref explore --scope upper-small
    """
    if scope not in SCOPES:
        raise Problem(f"unknown scope {scope!r}, expected one of {', '.join(SCOPES)}")
    with progress(color=not no_color) as show:
        search = Exploration(
            SCOPES[scope],
            limit=limit,
            progress=lambda search: show(
                f"{search.states:,} states, {search.transitions:,} steps, {search.depth} deep"
            ),
        )

        def stop() -> None:
            search.stop = True

        with stopping(stop):
            report = search.run()
    word: Word = "oracle-fault" if report.violations else "conforms" if report.complete else "inconclusive"
    if format is Format.json:
        write_json(report)
    else:
        print(_text(report, emphasised(word, COLOURS[word], color=not no_color)))
    raise typer.Exit(EXIT_CODES[word])


def _text(report: ExploreReport, verdict: str) -> str:
    lines = [
        f"scope    {report.scope}: {SCOPES[report.scope].text}",
        f"states   {report.states:,}, {'all that there are' if report.complete else 'not all that there are'}",
        f"steps    {report.transitions:,}, up to {report.depth} from the first state, {report.seconds:.1f} s",
        *(line for violation in report.violations for line in _violation(violation)),
        f"verdict  {verdict}",
    ]
    return "\n".join(lines)


def _violation(violation: Violation) -> list[str]:
    """What is broken, and the steps that lead there."""
    steps = [f"  {step.i:>4}  {operation_words(step.op)}" for step in violation.trace]
    falls = [f"falls with it: {', '.join(violation.falls)}"] if violation.falls else []
    return [f"broken   {violation.requirement} at {violation.operation}: {violation.text}", *steps, *falls]
