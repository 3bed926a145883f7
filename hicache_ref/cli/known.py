"""Which known divergences a command heeds: those of a file, or those that come with the adapter."""

import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from hicache_ref.oracle.known import Known, read_known
from hicache_ref.vocabulary.adapter import Description

KnownOption = Annotated[
    Path | None,
    typer.Option("--known", metavar="FILE", help="Known divergences  [default: those that come with the adapter]"),
]


def known_of(path: Path | None, description: Description) -> tuple[Known, ...]:
    """The entries of the file, or of the one that comes with the adapter; without states none of those with them.

    Raises KnownError.
    """
    if path is not None:
        return read_known(path)
    for name in (f"{description.name}-{description.version}", description.name):
        packaged = files("hicache_ref.adapters") / "known" / f"{name}.jsonl"
        if re.fullmatch(r"[\w.-]+", name) and packaged.is_file():
            with as_file(packaged) as file:
                return tuple(
                    each for each in read_known(file) if description.hybrid != "never" or not each.profile.state
                )
    return ()
