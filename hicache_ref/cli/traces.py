"""`replay`, `minimize`, `explain`: what is done with a trace that somebody kept."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from hicache_ref.adapters.registry import known_names
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
    StepTimeoutOption,
    emphasised,
    say,
    stopping,
    write_json,
)
from hicache_ref.cli.known import KnownOption, known_of
from hicache_ref.faults import FAULTS
from hicache_ref.jsonlines import FileError
from hicache_ref.model import Model
from hicache_ref.oracle.explain import retell
from hicache_ref.oracle.heeding import covering, go_on_after, keep_out_of
from hicache_ref.oracle.judge import RecordedAdapter
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.oracle.verdict import EXIT_CODES
from hicache_ref.report.model import divergence_report
from hicache_ref.report.text import divergence_text
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Finding, Recorded
from hicache_ref.search.minimise import Replay, Replayable, minimise
from hicache_ref.search.minimise import replay as replayed
from hicache_ref.search.stepping import ModelStepper
from hicache_ref.trace import Trace, read_trace, write_trace
from hicache_ref.vocabulary.adapter import Adapter, AdapterError, Description
from hicache_ref.vocabulary.base import Frozen

TraceArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A trace.")]

Result = Literal["still fails", "known", "passes", "error"]
"""A known divergence that still fails is not red, as in `check`."""


class Again(Frozen):
    """What became of one trace."""

    trace: str
    result: Result
    steps: int = 0
    requirement: str | None = None
    operation: str | None = None
    known: str | None = None
    """Which known divergence it is."""

    text: str | None = None
    """What differs, or why the trace could not be executed."""


class ReplayReport(Frozen):
    """What became of all of them."""

    traces: tuple[Again, ...]
    still_fails: int
    known: int
    passes: int
    errors: int


@dataclass(frozen=True)
class Subject:
    """A trace and the implementation on which it is executed."""

    path: Path
    trace: Trace
    adapter: Adapter
    description: Description
    chosen: Chosen | None
    """None: the trace itself answers, and nothing is executed."""

    alone: type[Model] | None = None
    """A faulty model, whose trace may end where it breaks a requirement and does not differ from a healthy one."""

    known: tuple[Known, ...] = ()
    """What is no news: an execution goes on after those that say so, and names the others."""

    @property
    def steps(self) -> tuple[Recorded, ...]:
        """Operations and choices of the trace."""
        return tuple(Recorded(step.op, step.choices) for step in self.trace.steps)

    def lockstep(self, *, searching: bool = False) -> Lockstep:
        """The implementation, reset, beside a new model. Raises AdapterError.

        A search for a smaller trace makes no step that walks leave out.
        """
        profile = self.trace.header.profile
        lockstep = Lockstep(self.adapter, self.description, profile, self.description.level, Checker(profile))
        go_on_after(self.known, lockstep)
        if searching:
            keep_out_of(self.known, lockstep)
        return lockstep

    def named(self, again: Replay) -> str | None:
        """Which known divergence was found, if it is one: the steps are executed once more, to see what they meet."""
        if again.finding is None or not self.known:
            return None
        made: list[Lockstep] = []

        def make() -> Lockstep:
            made.append(self.lockstep())
            return made[-1]

        finding = replayed(again.steps, make).finding
        return next((each.id for each in covering(self.known, finding, made[-1])), None) if finding else None

    def again(self) -> tuple[Replay, Callable[[], Replayable]]:
        """The trace executed to its first finding, if there is one, and what smaller ones are tried on."""
        if self.alone is not None:
            alone = partial(ModelStepper, self.trace.header.profile, self.alone)
            again = replayed(self.steps, alone)
            if again.finding is not None:
                return again, alone
        searching = partial(self.lockstep, searching=True)
        if self.chosen is not None:
            return replayed(self.steps, self.lockstep), searching
        story = retell(self.lockstep(), self.steps)
        return Replay(self.steps[: len(story.steps)], story.finding), searching

    def command(self, path: Path) -> str:
        """The command line that does it once more."""
        if self.chosen is None:
            return shlex.join(["hicache-ref", "check", "--trace", str(path)])
        words = [] if self.alone is not None else self.chosen.words()
        return shlex.join(["hicache-ref", "replay", str(path), *words])


@contextmanager
def _subject(
    path: Path,
    chosen: Chosen,
    *,
    may_judge: bool = False,
    known: Callable[[Description], tuple[Known, ...]] = lambda description: (),
) -> Iterator[Subject]:
    """The trace, and the adapter that was chosen or that it names. Raises FileError, Problem, AdapterError."""
    trace = read_trace(path)
    name = trace.header.implementation.name
    alone: type[Model] | None = None
    if chosen.adapter is None and chosen.command is None:
        if name in known_names():
            chosen = chosen.model_copy(update={"adapter": name})
        elif name in FAULTS:
            alone = FAULTS[name].model
            chosen = chosen.model_copy(update={"adapter": "reference", "options": [f"fault={name}"]})
        elif may_judge:
            recorded = RecordedAdapter(trace)
            yield Subject(path, trace, recorded, recorded.describe(), None)
            return
        else:
            raise Problem(f"{path}: of the adapter {name!r}, expected --adapter or --adapter-cmd to say how to make it")
    adapter = chosen.opened()
    try:
        description = adapter.describe()
        yield Subject(path, trace, adapter, description, chosen, alone, known(description))
    finally:
        if hasattr(adapter, "close"):
            adapter.close()


def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Traces.")],
    adapter: AdapterOption = None,
    adapter_cmd: AdapterCommandOption = None,
    option: OptionOption = None,
    fetch: FetchOption = False,
    step_timeout: StepTimeoutOption = STEP_TIMEOUT,
    known: KnownOption = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Execute traces again, on the adapter that each names or on another one.

    Exit code: 0 all pass or fail as is known, 1 one still fails, 2 one cannot be executed.

    Example, with a trace to begin with:

    hicache-ref faults run hit-counts-twice --healthy-steps 99 --store traces

    hicache-ref replay traces/hit-counts-twice.jsonl
    """
    chosen = Chosen(adapter=adapter, command=adapter_cmd, options=option or [], fetch=fetch, step_timeout=step_timeout)
    found: list[Again] = []
    stopped: list[bool] = []
    sources: set[str] = set()
    with stopping(lambda: stopped.append(True)):
        for path in traces:
            if stopped:
                break
            again, finding = _again(path, chosen, known)
            found.append(again)
            sources |= {finding.source} if finding else set()
            if format is Format.text and again.result != "error":
                print(_line(again, color=not no_color))
    if format is Format.json:
        count = Counter(each.result for each in found)
        write_json(ReplayReport(traces=tuple(found), still_fails=count["still fails"], known=count["known"],
                                passes=count["passes"], errors=count["error"]))  # fmt: skip
    raise typer.Exit(_exit_code({each.result for each in found}, sources, stopped=bool(stopped)))


def _exit_code(results: set[str], sources: set[str], *, stopped: bool) -> int:
    if "oracle" in sources:
        return EXIT_CODES["oracle-fault"]
    if "still fails" in results:
        return EXIT_CODES["divergence"]
    if "error" in results:
        return 2
    return EXIT_CODES["inconclusive" if stopped else "conforms"]


def _again(path: Path, chosen: Chosen, known: Path | None) -> tuple[Again, Finding | None]:
    """What became of the trace; what prevented it is on standard error too."""
    try:
        with _subject(path, chosen, known=partial(known_of, known)) as subject:
            again, _ = subject.again()
            name = subject.named(again)
    except (Problem, FileError, AdapterError) as error:
        say(str(error))
        return Again(trace=str(path), result="error", text=str(error)), None
    steps, finding = again
    if finding is None:
        return Again(trace=str(path), result="passes", steps=len(steps)), None
    told = Again(
        trace=str(path), result="still fails" if name is None else "known", steps=len(steps),
        requirement=finding.requirement, operation=finding.operation, known=name, text=finding.text,
    )  # fmt: skip
    return told, finding


def _line(again: Again, *, color: bool) -> str:
    if again.result == "passes":
        return f"{emphasised('passes', 'green', color=color)}       {again.trace}   {again.steps} steps"
    where = f"{again.requirement} at step {again.steps - 1}, {again.operation}"
    if again.result == "known":
        return (
            f"{emphasised('known', 'yellow', color=color)}        {again.trace}   {again.known}, {where}: {again.text}"
        )
    return f"{emphasised('still fails', 'red', color=color)}  {again.trace}   {where}: {again.text}"


def minimize(
    trace: TraceArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The smaller trace  [default: FILE with .min.jsonl]")
    ] = None,
    adapter: AdapterOption = None,
    adapter_cmd: AdapterCommandOption = None,
    option: OptionOption = None,
    fetch: FetchOption = False,
    step_timeout: StepTimeoutOption = STEP_TIMEOUT,
    known: KnownOption = None,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Delete steps from a trace while the same requirement fails at the same operation, and alike.

    As in walks, no step is made that is known to go wrong or may do anything; a trace that needs one stays as it is.

    Example, with a trace to begin with:

    hicache-ref faults run hit-counts-twice --healthy-steps 99 --store traces

    hicache-ref minimize traces/hit-counts-twice.jsonl --out small.jsonl
    """
    chosen = Chosen(adapter=adapter, command=adapter_cmd, options=option or [], fetch=fetch, step_timeout=step_timeout)
    out = out or trace.with_suffix(".min.jsonl")
    stopped: list[bool] = []
    with (
        _subject(trace, chosen, known=partial(known_of, known)) as subject,
        stopping(lambda: stopped.append(True)),
    ):
        first, make = subject.again()
        if first.finding is None:
            raise Problem(f"{trace}: passes on {subject.description.name}, expected a trace that fails")
        small = minimise(first.steps, make, first.finding, give_up=lambda: bool(stopped))
        if small.finding is first.finding:
            say(f"{trace}: stays as it is, for it needs a step that walks leave out (--known /dev/null forgets those)")
        story = retell(subject.lockstep(), small.steps)
        write_trace(out, Trace(subject.trace.header, story.trace_steps()))
        command = subject.command(out)
    if format is Format.json:
        write_json({"trace": str(out), "length": len(small.steps), "from": len(subject.steps),
                    "requirement": first.finding.requirement, "operation": first.finding.operation})  # fmt: skip
    else:
        what = f"{first.finding.requirement} at {first.finding.operation}"
        print(f"{len(small.steps)} steps of {len(subject.steps)}: {what}")
        print(command)
    raise typer.Exit(EXIT_CODES["inconclusive"] if stopped else 0)


def explain(
    trace: TraceArgument,
    adapter: AdapterOption = None,
    adapter_cmd: AdapterCommandOption = None,
    option: OptionOption = None,
    fetch: FetchOption = False,
    step_timeout: StepTimeoutOption = STEP_TIMEOUT,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Report the divergence in a trace: executed again, or as recorded where its adapter is not known here.

    Exit code: 0 nothing differs, 1 something does, 3 the oracle contradicts itself.

    Example, with a trace to begin with:

    hicache-ref faults run hit-counts-twice --healthy-steps 99 --store traces

    hicache-ref explain traces/hit-counts-twice.jsonl
    """
    chosen = Chosen(adapter=adapter, command=adapter_cmd, options=option or [], fetch=fetch, step_timeout=step_timeout)
    with _subject(trace, chosen, may_judge=True) as subject:
        first, _ = subject.again()
        if first.finding is None:
            if format is Format.json:
                write_json({"trace": str(trace), "steps": len(first.steps), "divergence": None})
            else:
                print(f"passes: nothing differs in {len(first.steps)} steps")
            raise typer.Exit(0)
        report = divergence_report(
            first.finding, retell(subject.lockstep(), first.steps), subject.description,
            found_after=len(subject.steps), replay=subject.command(trace),
        )  # fmt: skip
    if format is Format.json:
        write_json({"trace": str(trace), "steps": len(first.steps), "divergence": report.model_dump(mode="json")})
    else:
        print(divergence_text(report), end="")
    raise typer.Exit(EXIT_CODES["oracle-fault" if first.finding.source == "oracle" else "divergence"])
