"""`check`: one implementation beside the model until the budget is spent, or a recorded trace."""

import shlex
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hicache_ref.cli.common import (
    STEP_TIMEOUT,
    AdapterCommandOption,
    AdapterOption,
    Chosen,
    FetchOption,
    Format,
    FormatOption,
    NoColorOption,
    OptionOption,
    Problem,
    Progress,
    ReportFolder,
    SeedOption,
    StepTimeoutOption,
    finite,
    profile_of,
    progress,
    requirements_of,
    say,
    stopping,
    write_json,
)
from hicache_ref.cli.filing import AtOnce, Filing
from hicache_ref.cli.known import KnownOption, known_of
from hicache_ref.cli.reports import Run
from hicache_ref.model import fresh
from hicache_ref.oracle.campaign import Budget, Campaign, Divergence, Outlook
from hicache_ref.oracle.explain import Story, retell
from hicache_ref.oracle.judge import RecordedAdapter, breaks_off, expect_judgeable, judge
from hicache_ref.oracle.known import read_known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.oracle.verdict import EXIT_CODES
from hicache_ref.requirements import Checker, catalogue_digest
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.profile import SIZES

TIME_BUDGET = 10.0
"""Seconds, where the user gives no budget."""

REPORTS = Path("divergences")

TimeBudgetOption = Annotated[
    float | None,
    typer.Option(
        "--time-budget", min=0.001, callback=finite, metavar="S",
        help="End after so many seconds  [default: 10 if no other]",
    ),
]  # fmt: skip
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Conforms only if all was met that can be, promised in this budget or not.")
]


def check(
    adapter: AdapterOption = None,
    adapter_cmd: AdapterCommandOption = None,
    option: OptionOption = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Judge this recorded trace; nothing is executed.")
    ] = None,
    fetch: FetchOption = False,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="RULES[/SIZES]", help="Rules, sizes or both; sizes are drawn if not named."),
    ] = None,
    requirement: Annotated[
        list[str] | None, typer.Option("--requirement", metavar="ID", help="Judge only this one; repeatable.")
    ] = None,
    seed: SeedOption = 0,
    steps: Annotated[int | None, typer.Option("--steps", min=1, metavar="N", help="End after so many steps.")] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", min=1, metavar="N", help="End after so many walks.")
    ] = None,
    time_budget: TimeBudgetOption = None,
    step_timeout: StepTimeoutOption = STEP_TIMEOUT,
    known: KnownOption = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Walk as if nothing was known, and name afterwards what was found.")
    ] = False,
    report: Annotated[Path, typer.Option("--report", metavar="DIR", help="Where reports and traces go.")] = REPORTS,
    stop_at_first: Annotated[
        bool, typer.Option("--stop-at-first", help="End at the first new divergence, the budget unspent.")
    ] = False,
    strict: StrictOption = False,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Check an implementation against the model, step by step, and report every divergence met within the budget.

    Exit code: 0 conforms, 1 divergence, 2 bad input, 3 the oracle contradicts itself, 4 inconclusive.

    Example: hicache-ref check --adapter reference --steps 5000
    """
    wanted = requirements_of(requirement or [])
    chosen = Chosen(adapter=adapter, command=adapter_cmd, options=option or [], fetch=fetch, step_timeout=step_timeout)
    with ExitStack() as stack:
        if trace is not None:
            if adapter or adapter_cmd or profile:
                raise Problem("--trace with an adapter or a profile, expected neither: the trace names both")
            if blind:
                raise Problem("--trace with --blind, expected one of them: a trace has been walked")
            run = _judged(trace, wanted, known, report, stack)
        else:
            if steps is None and examples is None and time_budget is None:
                time_budget = TIME_BUDGET
            budget = Budget(steps=steps, walks=examples, seconds=time_budget)
            with progress(color=not no_color) as show:
                show(f"starting {adapter or adapter_cmd}{', once its wheel is here' if fetch else ''}")
                campaign = _campaign(chosen, profile, wanted, seed, known, blind, not stop_at_first, stack)
                run = _walked(campaign, chosen, budget, report, show, stack)
        verdict, texts = run.report(strict=strict)
        if format is Format.json:
            write_json(verdict)
        else:
            print("\n".join([run.summary(verdict, color=not no_color), *texts]), end="")
    raise typer.Exit(EXIT_CODES[verdict.verdict])


def _campaign(chosen: Chosen, profile: str | None, wanted: frozenset[str], seed: int, known: Path | None,
              blind: bool, keep_going: bool, stack: ExitStack) -> Campaign:  # fmt: skip
    """The campaign that the options describe; the adapter is closed with `stack`. Raises Problem, AdapterError."""
    made = chosen.opened()
    if hasattr(made, "close"):
        stack.callback(made.close)
    description = made.describe()
    name = profile or description.profile
    return Campaign(
        made, profile_of(name), seed=seed, known=known_of(known, description), blind=blind,
        keep_going=keep_going,
        fixed_sizes=any(part in SIZES for part in name.split("/")), wanted=wanted,
    )  # fmt: skip


def _walked(campaign: Campaign, chosen: Chosen, budget: Budget, report: Path, show: Progress,
            stack: ExitStack) -> Run:  # fmt: skip
    """The campaign has run, and its story can be told. Raises Problem, AdapterError."""
    folder = stack.enter_context(ReportFolder(report))
    campaign.write_ahead = folder.running

    def stop() -> None:
        campaign.stop = True

    filing = Filing(
        folder.path, campaign.description, campaign.header, partial(_story, campaign),
        lambda path: shlex.join(["hicache-ref", "replay", str(path), *chosen.words()]),
    )  # fmt: skip
    at_once = AtOnce(filing, show.note)
    campaign.found, campaign.settled = at_once.found, at_once.settled
    with stopping(stop):
        campaign.progress = lambda outlook: show(_so_far(outlook, budget))
        outlook = campaign.run(budget)
    remarks = []
    if outlook.stopped and outlook.unfinished:
        kept = folder.kept(f"stopped-seed{campaign.seed}-walk{outlook.walks - 1}.jsonl")
        remarks.append(f"the walk under way is in {kept}, {outlook.unfinished} steps")
    return Run(
        description=campaign.description,
        outlook=outlook,
        profile=campaign.profile.name,
        level=campaign.level,
        seed=campaign.seed,
        wanted=campaign.wanted,
        known=campaign.known,
        filing=filing,
        walks=outlook.walks,
        blind=campaign.blind,
        remarks=remarks,
    )


def _so_far(outlook: Outlook, budget: Budget) -> str:
    """What was made, of how much where that is known."""
    done = (
        (outlook.steps, budget.steps, "steps"), (outlook.walks, budget.walks, "walks"),
        (int(outlook.seconds), budget.seconds and int(budget.seconds), "s"),
    )  # fmt: skip
    parts = [f"{count:,}{f' of {total:,}' if total else ''} {unit}" for count, total, unit in done]
    return ", ".join([*parts, f"{len(outlook.divergences)} divergences"])


def _story(campaign: Campaign, divergence: Divergence) -> Story:
    """The divergence executed again; without steps where the implementation does not start any more."""
    try:
        return retell(campaign.lockstep(divergence.profile), divergence.steps)
    except AdapterError:
        return Story(divergence.profile, (), None, fresh(divergence.profile))


def _judged(path: Path, wanted: frozenset[str], known: Path | None, report: Path,
            stack: ExitStack) -> Run:  # fmt: skip
    """The trace has been judged. Raises TraceError, KnownError, Problem."""
    entries = () if known is None else read_known(known)
    trace = read_trace(path)
    expect_judgeable(path, trace)
    header = trace.header
    if header.requirements != catalogue_digest():
        say(f"{path}: written under requirements {header.requirements}, judged under {catalogue_digest()}")
    folder = stack.enter_context(ReportFolder(report))
    stopped: list[bool] = []
    began = time.monotonic()
    with stopping(lambda: stopped.append(True)):
        outlook = judge(trace, Checker(header.profile, only=wanted or None), lambda: bool(stopped), entries)
    reasons = {each.id: each.reason for each in entries}
    remarks = [
        f"known {each.known}: met at step {each.found_after - 1}, and nothing judged after it ({reasons[each.known]})"
        for each in outlook.divergences
        if each.known is not None
    ]
    if breaks_off(trace.steps[-1]):
        remarks.append(f"the recording breaks off in step {trace.steps[-1].i}, which was not judged")
    if trace.ended is not None:
        remarks.append(f"the recording ends after {len(trace.steps)} steps: {trace.ended}")
    outlook.seconds = time.monotonic() - began
    description = RecordedAdapter(trace).describe()

    def story(divergence: Divergence) -> Story:
        lockstep = Lockstep(
            RecordedAdapter(trace), description, header.profile, description.level, Checker(header.profile)
        )
        return retell(lockstep, divergence.steps)

    filing = Filing(
        folder.path, description, lambda profile: header, story,
        lambda path: shlex.join(["hicache-ref", "check", "--trace", str(path)]),
    )  # fmt: skip
    return Run(
        description=description,
        outlook=outlook,
        profile=header.profile.name,
        level=description.level,
        seed=header.seed,
        wanted=wanted,
        known=entries,
        filing=filing,
        remarks=remarks,
    )
