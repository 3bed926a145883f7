"""The command line. Each group of commands is a file; here they are put together, and failures become exit codes."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from typer.main import get_command

from hicache_ref.cli import bench, check, explore, faults, spec, storage, traces, workload
from hicache_ref.cli.common import Problem, help_if_alone, say
from hicache_ref.jsonlines import FileError
from hicache_ref.vocabulary.adapter import AdapterError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What is said of a full disk. Files that are written say so themselves, so that this is where results went."""

BAD_INPUT, OUR_FAULT, INTERRUPTED = 2, 3, 4
_CLICKS_CODE_FOR_CTRL_C = 130

app = typer.Typer(
    name="hicache-ref",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("check")(check.check)
app.command("replay")(traces.replay)
app.command("minimize")(traces.minimize)
app.command("explain")(traces.explain)
app.command("explore")(explore.explore)
app.command("workload")(workload.workload)
app.command("bench")(bench.bench)
app.add_typer(faults.app, name="faults")
app.add_typer(spec.app, name="spec")
app.add_typer(storage.app, name="storage")


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is, and end.")] = False,
) -> None:
    """The rules of a hierarchical KV cache, executable, and an oracle that checks implementations against them.

    Example: hicache-ref check --adapter reference --steps 5000
    """
    if version:
        print(f"hicache-ref {_installed()}")
        raise typer.Exit
    help_if_alone(context)


def _installed() -> str:
    try:
        return installed_version("hicache-ref")
    except PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command has run; returns its exit code. What goes wrong is one line on standard error."""
    try:
        code = get_command(app).main(
            args=None if arguments is None else list(arguments), prog_name="hicache-ref", standalone_mode=False
        )
        sys.stdout.flush()
    except (Problem, AdapterError, FileError) as error:
        say(str(error))
        return BAD_INPUT
    except OSError as error:
        if error.errno not in NO_ROOM:
            return _own_fault(error)
        say(f"standard output: cannot be written ({error.strerror}), expected room for it")
        return BAD_INPUT
    except Exception as error:
        if (usage := getattr(error, "format_message", None)) is not None:
            context = getattr(error, "ctx", None)
            say(f"{usage().rstrip('.')} (see `{context.command_path if context else app.info.name} --help`)")
            return BAD_INPUT
        return _own_fault(error)
    if code == _CLICKS_CODE_FOR_CTRL_C:
        say("interrupted")
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _own_fault(error: Exception) -> int:
    """An exception that nobody expected is a fault of this program."""
    if os.environ.get("HICACHE_REF_DEBUG"):
        traceback.print_exception(error)
    say(f"internal error, {type(error).__name__}: {error} (HICACHE_REF_DEBUG=1 shows where)")
    return OUR_FAULT
