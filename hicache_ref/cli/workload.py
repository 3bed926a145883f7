"""`workload`: recorded requests run through the model, to see what they hit and that every rule holds at scale."""

from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from hicache_ref.cli.common import Format, FormatOption, NoColorOption, progress, stopping, write_json
from hicache_ref.oracle.verdict import EXIT_CODES, Word
from hicache_ref.search.requests import BLOCK_TOKENS, read_requests
from hicache_ref.search.workload import WorkloadReport, run_workload


def workload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Requests, one a line; plain, .gz or .xz.")],
    device_pages: Annotated[int, typer.Option("--device-pages", min=1, metavar="N", help="Pages on device.")],
    host_pages: Annotated[int, typer.Option("--host-pages", min=1, metavar="N", help="Pages on host.")],
    page_tokens: Annotated[
        int, typer.Option("--page-tokens", min=1, metavar="N", help="Tokens of a page, that is of a block.")
    ] = BLOCK_TOKENS,
    format: FormatOption = Format.text,
    no_color: NoColorOption = False,
) -> None:
    """Run the requests of a file through the model, every step judged.

    Exit code: 0 all rules held, 2 the file cannot be read, 3 the model broke a rule of its own, 4 interrupted.

    Example, with a request to begin with:

    echo '{"timestamp":0,"input_length":9,"output_length":9,"hash_ids":[1]}' >r

    hicache-ref workload r --device-pages 9 --host-pages 9 --page-tokens 9
    """
    stopped: list[bool] = []
    requests = takewhile(lambda request: not stopped, read_requests(file, page_tokens))
    with progress(color=not no_color) as show, stopping(lambda: stopped.append(True)):
        report = run_workload(requests, device_pages=device_pages, host_pages=host_pages, progress=show)
    if format is Format.json:
        write_json(report)
    else:
        print(_text(report))
    word: Word = "oracle-fault" if report.violations else "inconclusive" if stopped else "conforms"
    raise typer.Exit(EXIT_CODES[word])


def _text(report: WorkloadReport) -> str:
    total = max(1, report.pages)
    hits = "  ".join(f"{tier} {count:,} ({count / total:.1%})" for tier, count in report.model_dump()["hits"].items())
    pace = f"{report.seconds:.1f} s, {report.operations_per_second:,.0f} a second"
    return "\n".join(
        (
            f"requests    {report.requests:,} of {report.pages:,} pages",
            f"hits        {hits}",
            f"operations  {report.operations:,} in {pace}",
            f"violations  {report.violations or 'none'}",
        )
    )
