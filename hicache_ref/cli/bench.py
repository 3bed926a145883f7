"""`bench`: how fast the project is, beside others where there are such."""

import typer

from hicache_ref.bench import BenchReport, run_bench
from hicache_ref.cli.common import FetchOption, Format, FormatOption, NoColorOption, progress, write_json


def bench(fetch: FetchOption = False, format: FormatOption = Format.text, no_color: NoColorOption = False) -> None:
    """Measure the model, the oracle, and what they are compared with; a ratio is ours over the other's.

    Example: hicache-ref bench --format json
    """
    with progress(color=not no_color) as show:
        report = run_bench(fetch=fetch, progress=show)
    if format is Format.json:
        write_json(report)
    else:
        print(_text(report))
    raise typer.Exit(0)


def _text(report: BenchReport) -> str:
    rows = [("", "ours", "other", "unit", "ratio")]
    rows += [(row.name, _figure(row.ours), _figure(row.other), row.unit, _figure(row.ratio)) for row in report.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"left out  {what}" for what in report.left_out)])


def _figure(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
