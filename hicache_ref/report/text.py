"""The report of a divergence as plain text, at most `WIDTH` columns wide but for what must not be cut."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from textwrap import wrap

from jinja2 import Environment, PackageLoader, StrictUndefined

from hicache_ref.oracle.seen import CALLED
from hicache_ref.oracle.verdict import CheckReport
from hicache_ref.report.model import DivergenceReport
from hicache_ref.report.pagemap import PageMap
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.vocabulary.adapter import Description

WIDTH = 80
_LABEL = 13
"""Width of the labels on the left of the page map."""

_TOGETHER = re.compile(r"\[[^]]*\]|\{[^}]*\}|(?:from|freed) \d+|\d+ pages?")
_GLUE = "\N{NO-BREAK SPACE}"
_OPERATION = 30
"""Width that operations get in the step table where answers are long; the answers share what is left."""


@lru_cache(maxsize=1)
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("hicache_ref", "report/templates"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def divergence_text(report: DivergenceReport) -> str:
    """The report, ending in the command that replays it and a newline."""
    return _templates().get_template("divergence.txt.j2").render(
        report=report,
        title=_title(report),
        table=_table(report),
        head=_head(report),
        story=[line for text in report.story for line in _hanging(text)],
        names=_paragraph("names", [";  ".join(each.replace(" ", _GLUE) for each in report.names)], 12),
        falls=_paragraph("Falls with it", [f"{each.id} ({each.text})" for each in report.falls], 15),
        maps=_maps(report),
    )  # fmt: skip


def summary_text(report: CheckReport, description: Description, *, walks: int | None, stopped: bool,
                 remarks: Sequence[str], verdict: str) -> str:  # fmt: skip
    """A check in a few lines and its verdict, shown as `verdict`; ends with a newline."""
    asked, met = report.requirements, report.witnesses
    lines = [f"not exercised  {name}  {REQUIREMENTS[name].text}" for name in asked.owed]
    lines += [f"not reached  {name}  {REQUIREMENTS[name].text}" for name in met.owed]
    beyond = [name for name in (*asked.not_exercised, *met.missing) if name not in {*asked.owed, *met.owed}]
    lines += [f"not reached in this budget  {', '.join(beyond)}"] if beyond else []
    lines += _not_judged(description)
    return _templates().get_template("check.txt.j2").render(
        report=report,
        version=description.release,
        walks=walks,
        stopped=stopped,
        fresh=sum(each.known is None for each in report.divergences),
        remarks=[part for line in [*lines, *remarks] for part in _remark(line)],
        verdict=verdict,
    )  # fmt: skip


def _not_judged(description: Description) -> list[str]:
    """A line for each reason why requirements are not judged, with all that it is the reason for."""
    reasons = dict.fromkeys(sorted(description.ours), "kept by the adapter, not by the engine")
    by_reason: dict[str, list[str]] = {}
    for name, why in (dict(description.unobservable) | reasons).items():
        by_reason.setdefault(why, []).append(name)
    return [f"not judged here  {', '.join(names)}: {why}" for why, names in by_reason.items()]


def _remark(line: str) -> list[str]:
    return wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _head(report: DivergenceReport) -> str:
    """Who was checked, how, and with how many steps."""
    steps = f"{len(report.steps)} step{'s' if len(report.steps) != 1 else ''} (from {report.found_after})"
    first = f"   first difference at step {report.steps[-1].index}" if report.steps else ""
    rows = (
        ("adapter", f"{report.adapter}   level {report.level}, {report.completion}"),
        ("profile", report.profile),
        ("trace", f"{steps}{first}"),
    )
    return "\n".join(_paragraph(label, [text], 12) for label, text in rows)


def _title(report: DivergenceReport) -> str:
    word = "ORACLE FAULT" if report.source == "oracle" else "DIVERGENCE"
    kind = report.kind if report.since is None else f"{report.kind}, since {report.since}"
    head = f"{word}  {report.requirement}  "
    lines = wrap(f"{report.text} ({kind})", WIDTH - len(head))
    return f"\n{' ' * len(head)}".join([head + lines[0], *lines[1:]])


def _paragraph(label: str, texts: Sequence[str], indent: int = 6) -> str:
    """The label and then the texts, each from a new line on and wrapped."""
    lines = [line for text in texts for line in _wrapped(text, WIDTH - indent)]
    return "\n".join(f"{label if i == 0 else '':<{indent}}{line}" for i, line in enumerate(lines))


def _hanging(text: str) -> list[str]:
    """The text in lines, those after the first indented."""
    first, *rest = _wrapped(text, WIDTH - 4)
    return [first, *(f"    {line}" for line in rest)]


def _table(report: DivergenceReport) -> list[str]:
    """The steps in aligned columns, the failing one marked with `>`; a long cell goes on in the next row."""
    rows = [("step", "operation", "adapter", "oracle")]
    rows += [(str(step.index), step.operation, step.adapter, step.oracle) for step in report.steps]
    answer = max(len(cell) for row in rows for cell in row[2:])
    operation = min(max(_OPERATION, WIDTH - 14 - 2 * answer), max(len(row[1]) for row in rows))
    answer = min((WIDTH - 12 - operation) // 2, answer)
    lines = []
    for number, row in enumerate(rows):
        mark = ">" if report.steps and number == len(rows) - 1 else " "
        widths = (operation, answer, answer)
        cells = [_wrapped(cell, width) or [""] for cell, width in zip(row[1:], widths, strict=True)]
        for at, (first, second, third) in enumerate(zip_longest(*cells, fillvalue="")):
            head = f"{mark} {row[0]:>4}" if at == 0 else ""
            lines.append(f"{head:<6}  {first:<{operation}}  {second:<{answer}}  {third}".rstrip())
    return lines


def _maps(report: DivergenceReport) -> list[str]:
    """Two rows of marks a pool below a row of page names, and the legend."""
    lines: list[str] = []
    for each in report.maps:
        lines += [*_map(each), ""]
    when = f"after step {report.map_step}" if report.map_step >= 0 else "before the first step"
    owners = ";  ".join(entry.replace(" ", _GLUE) for entry in report.legend)
    return [*lines, *_wrapped(f"Owners {when}: {owners}.", WIDTH)]


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`; a key or list of pages is broken only if it is longer than that."""
    glued = _TOGETHER.sub(lambda match: match[0].replace(" ", _GLUE), text)
    return [line.replace(_GLUE, " ") for line in wrap(glued, width, break_on_hyphens=False)]


def _map(each: PageMap) -> list[str]:
    rows: list[Sequence[str]] = [
        [str(page) for page in each.pages],
        each.oracle,
        *([each.adapter] if each.adapter is not None else []),
    ]
    if differing := each.differing():
        rows.append(["^" if at in differing else "" for at in range(len(each.pages))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    labels = (CALLED[each.pool].removesuffix(" slot"), "  oracle", "  adapter", "")
    lines = []
    for first, end in _blocks(widths):
        lines += [_aligned(label, row[first:end], widths[first:end]) for label, row in zip(labels, rows, strict=False)]
    if each.left_out:
        lines.append(f"  and {each.left_out} more, on which both agree")
    return lines


def _blocks(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The columns in stretches that fit the width of the report, each from its first to before its end."""
    first, used = 0, _LABEL
    for at, width in enumerate(widths):
        if used + width > WIDTH:
            yield first, at
            first, used = at, _LABEL
        used += width + 1
    yield first, len(widths)


def _aligned(label: str, cells: Iterable[str], widths: Sequence[int]) -> str:
    marks = " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{label:<{_LABEL}}{marks}".rstrip()
