"""What a check says in the end: its verdict, the reports of what is new, and the run in a few lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hicache_ref.cli.common import emphasised
from hicache_ref.cli.filing import Filing
from hicache_ref.oracle.campaign import Outlook
from hicache_ref.oracle.known import Known
from hicache_ref.oracle.verdict import CheckReport, DivergenceLine, check_report
from hicache_ref.report.text import summary_text
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.observation import Level

COLOURS = {"conforms": "green", "divergence": "red", "oracle-fault": "magenta", "inconclusive": "yellow"}


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
    filing: Filing
    walks: int | None = None
    blind: bool = False
    remarks: list[str] = field(default_factory=list)

    def report(self, *, strict: bool) -> tuple[CheckReport, list[str]]:
        """The verdict, and the text of the report of each new finding, which is in its file too.

        Raises TraceError where the folder cannot be written to.
        """
        lines, texts, paths = [], [], set()
        for divergence in self.outlook.divergences:
            path = None
            if divergence.known is None:
                path, text = self.filing.filed(divergence)
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
            path, text = self.filing.filed(self.outlook.oracle_fault)
            paths.add(path)
            texts.append(text)
        self.filing.leave_only(paths)
        verdict = check_report(
            self.description, self.outlook, lines, profile=self.profile, level=self.level, seed=self.seed,
            wanted=self.wanted, strict=strict,
        )  # fmt: skip
        return verdict, texts

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
