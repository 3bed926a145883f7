"""From a name on the command line to an adapter: built-in ones, those of installed packages, and `pkg:factory`.

What is not ours runs in a process of its own, so that it may hang or die without taking the oracle with it.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import hicache_ref
from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.faults import FAULTS
from hicache_ref.vocabulary.adapter import Adapter, AdapterError

GROUP = "hicache_ref.adapters"
"""The entry-point group by which a package offers its adapter: NAME = "pkg:factory"."""

Options = Mapping[str, str]


def open_adapter(name: str, options: Options, *, fetch: bool, step_timeout: float) -> Adapter:
    """The adapter called `name`, made with `options`; an answer of it may take `step_timeout` seconds.

    `name` is built in, an entry point, or `pkg:factory`; `fetch` allows the download of a pinned wheel. Raises
    AdapterError for an unknown name, and for an unknown option or a failed import as far as that shows already.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name](options, fetch, step_timeout)
    target = name if ":" in name else _offered().get(name)
    if target is None:
        raise AdapterError(f"unknown adapter {name!r}, expected one of {', '.join(known_names())}, or pkg:factory")
    return _in_child(name, target, options, step_timeout)


def open_command(command: str, *, step_timeout: float) -> ProcessAdapter:
    """The adapter that `command`, words as in a shell, is when it runs. Raises AdapterError where it has no words."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise AdapterError(f"command {command!r}: {error}, expected words as in a shell") from error
    if not words:
        raise AdapterError("empty command, expected one that answers the four verbs")
    return ProcessAdapter(words, step_timeout=step_timeout)


def known_names() -> tuple[str, ...]:
    """Every name that `open_adapter` knows, built-in ones first."""
    return (*_BUILT_IN, *sorted(_offered().keys() - _BUILT_IN.keys()))


def _offered() -> dict[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def _reference(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    for option in options:
        if option != "fault":
            raise AdapterError(f"unknown option {option!r} of reference, expected fault=ID")
    if "fault" not in options:
        return ReferenceAdapter()
    fault = FAULTS.get(options["fault"])
    if fault is None:
        raise AdapterError(f"unknown fault {options['fault']!r}, expected one that `hicache-ref faults list` names")
    return ReferenceAdapter(fault.model)


def _engine(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    from hicache_ref.adapters import engine

    return engine.make(options)


def _sglang_rust(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    from hicache_ref.adapters import sglang_rust

    adapter = sglang_rust.make(options, fetch)
    adapter.step_timeout = step_timeout
    return adapter


def _sglang_hiradix(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    from hicache_ref.adapters import sglang_hiradix

    return sglang_hiradix.make(options, fetch, step_timeout)


def _sglang_himamba(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    from hicache_ref.adapters import sglang_himamba

    return sglang_himamba.make(options, fetch, step_timeout)


def _sglang_unified(options: Options, fetch: bool, step_timeout: float) -> Adapter:
    from hicache_ref.adapters import sglang_unified

    return sglang_unified.make(options, fetch, step_timeout)


_BUILT_IN: dict[str, Callable[[Options, bool, float], Adapter]] = {
    "reference": _reference,
    "engine": _engine,
    "sglang-rust": _sglang_rust,
    "sglang-hiradix": _sglang_hiradix,
    "sglang-himamba": _sglang_himamba,
    "sglang-unified": _sglang_unified,
}


def _in_child(name: str, target: str, options: Options, step_timeout: float) -> ProcessAdapter:
    """The adapter that `pkg:factory` makes, in a process that finds this package and the current folder."""
    ours = str(Path(hicache_ref.__file__).parents[1])
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"{hicache_ref.__name__}.adapters.factory", target, json.dumps(dict(options))]
    return ProcessAdapter(command, name=name, step_timeout=step_timeout, env={"PYTHONPATH": path})
