"""`faults list` and `faults run`: the planted faults that the oracle itself is tested with."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from hicache_ref.cli.common import (
    Format,
    FormatOption,
    NoColorOption,
    Problem,
    ReportFolder,
    SeedOption,
    emphasised,
    help_if_alone,
    progress,
    stopping,
    write_json,
)
from hicache_ref.faults import FAULTS, KINDS, Fault
from hicache_ref.faults.run import HEALTHY_STEPS, STEPS, FaultResult, FaultsReport, run_catalogue
from hicache_ref.oracle.verdict import EXIT_CODES

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def faults(context: typer.Context) -> None:
    """The planted faults: list them, or see that each is caught.

    Example: hicache-ref faults list --kind K3
    """
    help_if_alone(context)


@app.command("list")
def list_them(
    kind: Annotated[str | None, typer.Option("--kind", metavar="K", help="Only this kind: K1 to K15.")] = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """List the planted faults, each by id, kind, origin, and what must catch it.

    Example: hicache-ref faults list --kind K3
    """
    if kind is not None and kind not in KINDS:
        raise Problem(f"unknown kind {kind!r}, expected one of {', '.join(KINDS)}")
    found = [fault for fault in FAULTS.values() if kind in (None, fault.kind)]
    if format is Format.json:
        write_json([_fields(fault) for fault in found])
        return
    width = max((len(fault.id) for fault in found), default=0)
    for fault in found:
        print(f"{fault.id:<{width}}  {fault.kind:<3}  {fault.title}")
        print(f"{'':<{width}}       {fault.origin}; caught by {', '.join(fault.expected)}")


def _fields(fault: Fault) -> dict[str, object]:
    return {
        "id": fault.id, "origin": fault.origin, "kind": fault.kind, "title": fault.title,
        "expected": list(fault.expected), "lockstep_only": fault.lockstep_only,
    }  # fmt: skip


@app.command("run")
def run(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Faults  [default: all]", show_default=False)
    ] = None,
    seed: SeedOption = 1,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps to hunt a fault.")] = STEPS,
    healthy_steps: Annotated[
        int, typer.Option("--healthy-steps", min=1, metavar="N", help="Steps to hunt a false alarm, for each preset.")
    ] = HEALTHY_STEPS,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Processes that share the work.")] = 1,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Keep the smallest trace of each caught fault here.")
    ] = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Hunt the planted faults, and see which requirement catches each; then see that a healthy model raises no alarm.

    Exit code: 0 all caught and no false alarm, 1 one was not caught, 3 a false alarm, 4 interrupted.

    Example: hicache-ref faults run hit-counts-twice --healthy-steps 99
    """
    for fault in ids or ():
        if fault not in FAULTS:
            raise Problem(f"unknown fault {fault!r}, expected one that `hicache-ref faults list` names")
    done: list[FaultResult] = []
    show_rows = format is Format.text

    def note(result: FaultResult) -> None:
        done.append(result)
        show(f"{len(done)} of {len(ids or FAULTS)} faults")
        if show_rows:
            show.aside(_row(result, color=not no_color))

    with progress(color=not no_color) as show, stopping(_interrupt):
        show("hunting")
        try:
            with ReportFolder(store) if store is not None else nullcontext():
                report = run_catalogue(
                    ids or None, seed=seed, steps=steps, healthy_steps=healthy_steps, jobs=jobs, store=store,
                    progress=note,
                )  # fmt: skip
        except KeyboardInterrupt:
            _interrupted(done, seed, format)
            raise typer.Exit(EXIT_CODES["inconclusive"]) from None
    if format is Format.json:
        write_json(report)
    else:
        print(_sums(report))
    code = EXIT_CODES["oracle-fault"] if report.false_alarms else EXIT_CODES["divergence"]
    raise typer.Exit(0 if report.caught == report.total and not report.false_alarms else code)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _interrupted(done: list[FaultResult], seed: int, format: Format) -> None:
    """What was reached is told."""
    caught = sum(result.caught for result in done)
    report = FaultsReport(seed=seed, faults=tuple(done), caught=caught, total=len(done), false_alarms=0)
    if format is Format.json:
        write_json(report)
    else:
        print(f"interrupted after {report.total} faults, {report.caught} of them caught; no false alarm was looked for")


def _row(result: FaultResult, *, color: bool) -> str:
    word = emphasised("caught", "green", color=color) if result.caught else emphasised("MISSED", "red", color=color)
    length = f", {result.trace_length} steps" if result.trace_length else ""
    found = f"{result.caught_by or '-'} alone, {result.diverged_at or '-'} beside the model"
    note = f"  ({result.note})" if result.note else ""
    return f"{word}  {result.id}: {found}{length}, after {result.steps:,}{note}"


def _sums(report: FaultsReport) -> str:
    lines = [f"faults        {report.caught} caught of {report.total}", f"false alarms  {report.false_alarms}"]
    return "\n".join([*lines, *(f"  {alarm}" for alarm in report.alarms)])
