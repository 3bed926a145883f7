"""What a check leaves behind: a trace and a report for each new divergence, from the moment it is found."""

from collections.abc import Callable, Collection
from pathlib import Path

from hicache_ref.oracle.campaign import Divergence
from hicache_ref.oracle.explain import Story
from hicache_ref.report.files import stem, write_text
from hicache_ref.report.model import divergence_report
from hicache_ref.report.text import divergence_text
from hicache_ref.trace import Trace, TraceHeader, TraceStep, write_trace
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.profile import Profile


class Filing:
    """A folder with two files for each divergence: its trace, and the report that tells it."""

    def __init__(self, folder: Path, description: Description, header: Callable[[Profile], TraceHeader],
                 story: Callable[[Divergence], Story], replay: Callable[[Path], str]) -> None:  # fmt: skip
        self._folder, self._description, self._header = folder, description, header
        self._story = story
        self._replay = replay
        """The command that executes or judges the trace in this file again."""

        self._texts: dict[Path, str] = {}
        """Traces that lie in the folder by now, with the text of the report; without report it is empty."""

    def path(self, divergence: Divergence) -> Path:
        """Where its trace is, or would be."""
        return self._folder / f"{stem(divergence.finding, divergence.profile, divergence.steps)}.jsonl"

    def keep(self, divergence: Divergence) -> None:
        """Its steps are in the file. Raises TraceError where that cannot be."""
        steps = (TraceStep(i=i, op=step.op, choices=step.choices) for i, step in enumerate(divergence.steps))
        path = self.path(divergence)
        write_trace(path, Trace(self._header(divergence.profile), tuple(steps)))
        self._texts.setdefault(path, "")

    def filed(self, divergence: Divergence) -> tuple[Path, str]:
        """The file of its trace, with what was told and shown, and its report, which lies beside it.

        Raises TraceError where they cannot be written.
        """
        path = self.path(divergence)
        if text := self._texts.get(path):
            return path, text
        self.keep(divergence)
        story = self._story(divergence)
        write_trace(path, Trace(self._header(divergence.profile), story.trace_steps()))
        report = divergence_report(
            divergence.finding, story, self._description, found_after=divergence.found_after, replay=self._replay(path)
        )
        self._texts[path] = divergence_text(report)
        write_text(path.with_suffix(".txt"), self._texts[path])
        return path, self._texts[path]

    def remove(self, path: Path) -> None:
        """The trace is not there any more, nor its report."""
        for each in (path, path.with_suffix(".txt")):
            each.unlink(missing_ok=True)
        self._texts.pop(path, None)

    def leave_only(self, paths: Collection[Path]) -> None:
        """Of the traces that this run has written these remain, in the folder for good."""
        for path in self._texts.keys() - set(paths):
            self.remove(path)


class AtOnce:
    """What a campaign finds is on screen and on disk the moment it is found, whatever ends the process after that."""

    def __init__(self, filing: Filing, say: Callable[[str], None]) -> None:
        self._filing, self._say = filing, say

    def found(self, divergence: Divergence) -> None:
        """The steps up to it are in a file. Raises TraceError where that cannot be, and it was said all the same."""
        finding = divergence.finding
        self._say(
            f"{finding.requirement} at {finding.operation}: {finding.text}; "
            f"{len(divergence.steps)} steps, which are made fewer now, are in {self._filing.path(divergence)}"
        )
        self._filing.keep(divergence)

    def settled(self, found: Divergence, kept: Divergence | None) -> None:
        """The kept divergence has its trace and its report, if it is new; what is known or was met before has none."""
        before, path = self._filing.path(found), None
        if kept is None or kept.known is not None:
            self._say(f"that was {'met before' if kept is None else f'the known divergence {kept.known}'}")
        else:
            path, _ = self._filing.filed(kept)
            self._say(f"{kept.finding.requirement} at {kept.finding.operation}: {len(kept.steps)} steps, in {path}")
        if path != before:
            self._filing.remove(before)
