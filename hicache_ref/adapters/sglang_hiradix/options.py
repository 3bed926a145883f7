"""From the options of an adapter for one of upstream's Python caches to the process that holds it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import hicache_ref
from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_hiradix.setup import Setup
from hicache_ref.vocabulary.adapter import AdapterError

Options = Mapping[str, str]


@dataclass(frozen=True)
class Offer:
    """One adapter of the family: what it is called, and what it can be told."""

    name: str
    package: str
    """Where its module `child` is."""

    cache_module: str
    """The file below `sglang/` that a source tree needs."""

    default: str
    """The release, unless another is asked for."""

    root_of: Callable[[str, bool], Path]
    """The folder of a release's modules, which may be fetched."""

    choices: Mapping[str, tuple[str, ...]]
    """Options with few values -> these, the first of them the default."""

    files: Mapping[str, str]
    """Options that name a file -> the module whose place it takes."""

    others: tuple[str, ...] = ("version", "source", "preload", "batch")

    def adapter(self, options: Options, fetch: bool, step_timeout: float) -> ProcessAdapter:
        """An adapter whose child process holds the caches; raises AdapterError for anything that does not fit."""
        setup = self.setup(options, fetch)
        command = [sys.executable, "-m", f"{self.package}.child", setup.model_dump_json()]
        # The child imports this very package, also where that is not installed.
        path = os.pathsep.join(filter(None, (str(Path(hicache_ref.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        return ProcessAdapter(command, name=self.name, step_timeout=step_timeout, env={"PYTHONPATH": path})

    def setup(self, options: Options, fetch: bool) -> Setup:
        """What the process is told. Raises AdapterError."""
        self._expect_known(options)
        if "source" in options and "version" in options:
            raise AdapterError(f"options version and source of {self.name}, expected one of them")
        version = "" if "source" in options else options.get("version", self.default)
        root = self._source(options["source"]) if "source" in options else self.root_of(version, fetch)
        chosen = {name: options.get(name, values[0]) for name, values in self.choices.items()}
        events = options.get("events")
        return Setup(
            root=str(root), version=version, storage=chosen["storage"] == "file",
            events=None if events is None else events == "on",
            files={module: source_file(options, name) for name, module in self.files.items() if name in options},
            preload=source_file(options, "preload") if "preload" in options else None,
            batch=self._batch(options),
        )  # fmt: skip

    def _expect_known(self, options: Options) -> None:
        known = (*self.others[:2], *self.choices, *self.files, *self.others[2:])
        for name, value in options.items():
            if name not in known:
                raise AdapterError(f"unknown option {name!r} of {self.name}, expected one of {', '.join(known)}")
            if name in self.choices and value not in self.choices[name]:
                expected = " or ".join(self.choices[name])
                raise AdapterError(f"option {name}={value} of {self.name}, expected {expected}")

    def _source(self, folder: str) -> Path:
        """The folder that `sglang` is in. Raises AdapterError where it has no such cache."""
        for root in (Path(folder), Path(folder) / "python"):
            if (root / "sglang" / self.cache_module).is_file():
                return root.resolve()
        raise AdapterError(
            f"no sglang/{self.cache_module} in {folder} or {folder}/python, expected a checkout or wheel with one"
        )

    def _batch(self, options: Options) -> int | None:
        text = options.get("batch")
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise AdapterError(f"option batch={text} of {self.name}, expected a positive number of pages")
        return int(text)


def source_file(options: Options, name: str) -> str:
    """The Python source that the option names. Raises AdapterError where there is none."""
    file = Path(options[name])
    if not file.is_file():
        raise AdapterError(f"no file {file}, expected a Python source for option {name}")
    return str(file.resolve())
