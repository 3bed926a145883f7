"""What a check leaves behind: a report and a trace for each new divergence, and the summary of the run."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hicache_ref.cli.common import emphasised
from hicache_ref.oracle.campaign import Divergence, Outlook
from hicache_ref.oracle.explain import Story
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.verdict import CheckReport, DivergenceLine, check_report
from hicache_ref.report.files import stem, write_text
from hicache_ref.report.model import divergence_report
from hicache_ref.report.text import divergence_text, summary_text
from hicache_ref.trace import Trace, TraceHeader, TraceStep, write_trace
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.observation import Level
from hicache_ref.vocabulary.profile import Profile

COLOURS = {"conforms": "green", "divergence": "red", "oracle-fault": "magenta", "inconclusive": "yellow"}


class AtOnce:
    """What a campaign finds is on screen and on disk the moment it is found, whatever ends the process after that."""

    def __init__(self, folder: Path, header: Callable[[Profile], TraceHeader], say: Callable[[str], None]) -> None:
        self.written: set[Path] = set()
        """Traces that lie in the folder by now."""

        self._folder, self._header, self._say = folder, header, say

    def found(self, divergence: Divergence) -> None:
        """The steps up to it are in a file. Raises TraceError where that cannot be, and it was said all the same."""
        path, finding = self._path(divergence), divergence.finding
        self._say(
            f"{finding.requirement} at {finding.operation}: {finding.text}; "
            f"{len(divergence.steps)} steps, which are made fewer now, are in {path}"
        )
        self._write(path, divergence)

    def settled(self, found: Divergence, kept: Divergence | None) -> None:
        """The trace is that of the kept divergence, if it is new; one that is known or was met before has none."""
        before, path = self._path(found), None
        if kept is None or kept.known is not None:
            self._say(f"that was {'met before' if kept is None else f'the known divergence {kept.known}'}")
        else:
            path = self._path(kept)
            self._write(path, kept)
            self._say(f"{kept.finding.requirement} at {kept.finding.operation}: {len(kept.steps)} steps, in {path}")
        if path != before:
            self._remove(before)

    def leave_only(self, paths: Collection[Path]) -> None:
        """Of the traces that were written at once these remain, in the folder for good."""
        for path in self.written.difference(paths):
            self._remove(path)

    def _path(self, divergence: Divergence) -> Path:
        return self._folder / f"{stem(divergence.finding, divergence.profile, divergence.steps)}.jsonl"

    def _write(self, path: Path, divergence: Divergence) -> None:
        steps = (TraceStep(i=i, op=step.op, choices=step.choices) for i, step in enumerate(divergence.steps))
        write_trace(path, Trace(self._header(divergence.profile), tuple(steps)))
        self.written.add(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.written.discard(path)


@dataclass(frozen=True)
class Run:
    """A run that is over, and how its findings are told, filed and replayed."""

    description: Description
    outlook: Outlook
    profile: str
    level: Level
    seed: int | None
    wanted: frozenset[str]
    known: Sequence[Known]
    header: Callable[[Profile], TraceHeader]
    story: Callable[[Divergence], Story]
    replay: Callable[[Path], str]
    """The command that executes or judges the trace in this file again."""

    walks: int | None = None
    blind: bool = False
    remarks: list[str] = field(default_factory=list)
    at_once: AtOnce | None = None

    def report(self, folder: Path, *, strict: bool) -> tuple[CheckReport, list[str]]:
        """The verdict, and the text of the report of each new finding; both are in `folder` too.

        Raises TraceError where the folder cannot be written to.
        """
        lines, texts, paths = [], [], set()
        for divergence in self.outlook.divergences:
            path = None
            if divergence.known is None:
                path, text = self._filed(divergence, folder)
                paths.add(path)
                texts.append(text)
            lines.append(
                DivergenceLine(
                    requirement=divergence.finding.requirement,
                    operation=divergence.finding.operation,
                    trace=None if path is None else str(path),
                    length=len(divergence.steps),
                    known=divergence.known,
                    differs=divergence.finding.differs,
                )
            )
        if self.outlook.oracle_fault is not None:
            path, text = self._filed(self.outlook.oracle_fault, folder)
            paths.add(path)
            texts.append(text)
        if self.at_once is not None:
            self.at_once.leave_only(paths)
        verdict = check_report(
            self.description, self.outlook, lines, profile=self.profile, level=self.level, seed=self.seed,
            wanted=self.wanted, strict=strict,
        )  # fmt: skip
        return verdict, texts

    def _filed(self, divergence: Divergence, folder: Path) -> tuple[Path, str]:
        """The file of its trace, and its report, which lies beside it."""
        path = folder / f"{stem(divergence.finding, divergence.profile, divergence.steps)}.jsonl"
        story = self.story(divergence)
        steps = story.trace_steps()
        write_trace(path, Trace(self.header(divergence.profile), steps))
        report = divergence_report(
            divergence.finding, story, self.description, found_after=divergence.found_after, replay=self.replay(path)
        )
        text = divergence_text(report)
        write_text(path.with_suffix(".txt"), text)
        return path, text

    def summary(self, verdict: CheckReport, *, color: bool) -> str:
        """The run in a few lines, the verdict last."""
        return summary_text(
            verdict,
            self.description,
            walks=self.walks,
            stopped=self.outlook.stopped,
            remarks=[*self._about_known(verdict), *self._about_others(), *self.remarks],
            verdict=emphasised(verdict.verdict, COLOURS[verdict.verdict], color=color),
        )

    def _about_known(self, verdict: CheckReport) -> list[str]:
        """Each known divergence whose trace was replayed, and whether it is still there; blind, each that was found."""
        met: dict[str | None, int] = {}
        for each in self.outlook.divergences:
            met[each.known] = min(len(each.steps), met.get(each.known, len(each.steps)))
        again = {each.id: each for each in verdict.known}
        said = []
        for entry in self.known:
            if entry.id in again:
                state = "still fails" if again[entry.id].still_fails else "gone"
                state += ", met" if entry.id in met else ""
                state += ", ALARM: this release is pinned by hash and cannot have been repaired" * again[entry.id].alarm
            elif self.blind and entry.id in met:
                state = f"found, {met[entry.id]} operations"
            else:
                continue
            said.append(f"known {entry.id}: {state} ({entry.requirement} at {entry.operation}; {entry.reason})")
        return said

    def _about_others(self) -> list[str]:
        barred = [f"not judged here  {name}  what is known bars it: {why}" for name, why in self.outlook.barred.items()]
        return barred + [
            f"{count} walk{'s' * (count != 1)} ended at {name}, which was not asked for"
            for name, count in self.outlook.elsewhere.most_common()
        ]
