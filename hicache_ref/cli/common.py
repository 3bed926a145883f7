"""What the commands share: options, problems of the user, progress on a terminal, and output in two formats."""

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from hicache_ref.adapters.registry import open_adapter, open_command
from hicache_ref.requirements import REQUIREMENTS
from hicache_ref.vocabulary.adapter import Adapter
from hicache_ref.vocabulary.profile import Profile, profile_named


class Problem(Exception):
    """The user asked for something that cannot be; the text says what, and what was expected."""


def finite(value: float | None) -> float | None:
    """The number. Raises typer.BadParameter for what is none or has no end, which a minimum alone lets through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


class Format(StrEnum):
    """How results are written to standard output."""

    text = "text"
    json = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", metavar="text|json", help="Results for people, or JSON alone on standard output.")
]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="Plain text on terminals too.")]
AdapterOption = Annotated[
    str | None,
    typer.Option("--adapter", metavar="NAME|PKG:FACTORY", help="What to drive: a known name, or a factory of yours."),
]
AdapterCommandOption = Annotated[
    str | None,
    typer.Option("--adapter-cmd", metavar="CMD", help="A command that answers the four verbs as JSON lines."),
]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="K=V", help="An option of the adapter; repeatable.")
]
FetchOption = Annotated[bool, typer.Option("--fetch", help="Let the adapter download its pinned wheel.")]
StepTimeoutOption = Annotated[
    float,
    typer.Option(
        "--step-timeout", min=0.001, callback=finite, metavar="S", help="Seconds for an answer of the adapter."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Where the draw begins.")]

STEP_TIMEOUT = 30.0

STILL_SECONDS = 30.0
"""How long a command is silent where it has no live line."""


class Chosen(BaseModel):
    """The adapter that the options name, and the words by which a command line names it again."""

    adapter: str | None
    command: str | None
    options: list[str]
    fetch: bool
    step_timeout: float

    def opened(self) -> Adapter:
        """The adapter. Raises Problem and AdapterError."""
        if self.adapter and self.command:
            raise Problem("both --adapter and --adapter-cmd, expected one of them")
        if self.command is not None:
            if self.options:
                raise Problem("--option with --adapter-cmd, expected options within the command")
            return open_command(self.command, step_timeout=self.step_timeout)
        if self.adapter is None:
            raise Problem("no adapter, expected --adapter NAME or --adapter-cmd CMD")
        return open_adapter(self.adapter, pairs(self.options), fetch=self.fetch, step_timeout=self.step_timeout)

    def words(self) -> list[str]:
        """The options as words of a command line."""
        if self.command is not None:
            words = ["--adapter-cmd", self.command]
        else:
            words = ["--adapter", self.adapter or ""]
            words += [word for option in self.options for word in ("--option", option)]
        return words + ([] if self.step_timeout == STEP_TIMEOUT else ["--step-timeout", f"{self.step_timeout:g}"])


def pairs(options: Sequence[str]) -> dict[str, str]:
    """The `k=v` words as a mapping. Raises Problem for one that is none, or comes twice."""
    found: dict[str, str] = {}
    for word in options:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Problem(f"--option {word!r}, expected K=V")
        if name in found:
            raise Problem(f"--option {name} twice, expected once")
        found[name] = value
    return found


def profile_of(name: str) -> Profile:
    """The profile of that name. Raises Problem."""
    try:
        return profile_named(name)
    except ValueError as error:
        raise Problem(str(error)) from None


def requirements_of(names: Sequence[str]) -> frozenset[str]:
    """The ids, all of which the catalogue has. Raises Problem."""
    for name in names:
        if name not in REQUIREMENTS:
            raise Problem(f"unknown requirement {name!r}, expected one that `hicache-ref spec list` names")
    return frozenset(names)


def help_if_alone(context: typer.Context) -> None:
    """A group of commands that was named without one of them has said what there is."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def write_json(data: BaseModel | dict[str, Any] | list[Any]) -> None:
    """The data is on standard output as JSON."""
    print(data.model_dump_json(indent=2) if isinstance(data, BaseModel) else json.dumps(data, indent=2))


def say(text: str) -> None:
    """One line is on standard error, after the name of the program; where that is full too, the exit code tells."""
    with suppress(OSError):
        print(f"hicache-ref: {' '.join(text.split())}", file=sys.stderr, flush=True)


def emphasised(text: str, style: str, *, color: bool) -> str:
    """The text in bold and the colour `style` if standard output is a terminal and `color` is wanted."""
    if not color or Console().no_color or not sys.stdout.isatty():
        return text
    return typer.style(text, fg=style, bold=True)


class Progress:
    """What a command is at: a line that changes where codes may go to a terminal, else a line now and then."""

    def __init__(self, live: Live | None, spinner: Spinner) -> None:
        self._live = live
        self._spinner = spinner
        self.text = str(spinner.text)

    def __call__(self, text: str) -> None:
        """That is what the command is at."""
        self.text = text
        self._spinner.update(text=text)

    def aside(self, text: str) -> None:
        """The text is on standard output, and the line goes on below it."""
        with self._paused():
            print(text, flush=True)

    def note(self, text: str) -> None:
        """As `aside`, one line on standard error."""
        with self._paused():
            say(text)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        if self._live is not None:
            self._live.stop()
        yield
        if self._live is not None:
            self._live.start()


@contextmanager
def progress(*, color: bool) -> Iterator[Progress]:
    """While the block runs it is told on standard error what it is at.

    On a terminal that is a live line, unless `color` is not wanted; else a plain one every `STILL_SECONDS`. Standard
    output is left alone: what is printed there meanwhile is results, which may go to a file.
    """
    console, spinner = Console(stderr=True), Spinner("dots", "starting")
    if color and sys.stderr.isatty() and not console.no_color and not console.is_dumb_terminal:
        with Live(spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as live:
            yield Progress(live, spinner)
        return
    show, over = Progress(None, spinner), threading.Event()
    teller = threading.Thread(target=_tell, args=(show, over), daemon=True)
    teller.start()
    try:
        yield show
    finally:
        over.set()
        teller.join()


def _tell(show: Progress, over: threading.Event) -> None:
    """What the command is at is said now and then until it is over; the dots say that it goes on."""
    while not over.wait(STILL_SECONDS):
        say(f"{show.text} ...")


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop`; the second does what it did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        give_back()
        stop()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        give_back()


class ReportFolder:
    """A folder that exists while something is written to it, and afterwards only if something was.

    Used as a context manager; entering raises Problem where the folder cannot be made or written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []

    def __enter__(self) -> "ReportFolder":
        try:
            for folder in [*reversed(self.path.parents), self.path]:
                if not folder.is_dir():
                    folder.mkdir()
                    self._made.append(folder)
            self.running.touch()
        except OSError as error:
            self._clear()
            raise Problem(f"{self.path}: cannot be written to ({error.strerror}), expected a writable folder") from None
        return self

    @property
    def running(self) -> Path:
        """The trace of the walk under way; it is left behind if the process is killed."""
        return self.path / f".running-{os.getpid()}.jsonl"

    def kept(self, name: str) -> Path:
        """The trace of the walk under way is kept, under this name."""
        return self.running.rename(self.path / name)

    def __exit__(self, *error: object) -> None:
        self._clear()

    def _clear(self) -> None:
        with suppress(OSError):
            self.running.unlink()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
