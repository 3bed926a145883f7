"""Released SGLang's HiRadixCache, with its controller and pools, in a process of its own on any CPU.

Nothing of upstream is rewritten. Its modules are imported as they are, among stubs of all others; copies end, storage
answers and threads go on when the tester says so; tree, pools, queues and bytes are read from upstream's own objects.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import hicache_ref
from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_hiradix.setup import Setup
from hicache_ref.adapters.sglang_hiradix.wheels import DEFAULT, root_of
from hicache_ref.vocabulary.adapter import AdapterError

_OPTIONS = ("version", "source", "storage", "events", "controller", "preload", "batch", "reset")
_CHOICES = {"storage": ("file", "off"), "events": ("on", "off"), "reset": ("idle", "anytime")}
_CACHE_MODULE = "srt/mem_cache/hiradix_cache.py"


def make(options: Mapping[str, str], fetch: bool, step_timeout: float) -> ProcessAdapter:
    """An adapter whose child process holds the caches of one release; the wheel is in the cache.

    Options: `version` of a release, or `source`, a folder that has `sglang/` or `python/sglang/`; `storage` is file
    or off; `events` is on or off (on where they name tiers); `controller` a file in place of cache_controller.py;
    `preload` a file that is run once the modules are imported; `batch` the pages in one batch of storage (as the
    profile says); `reset` is idle, or anytime: also while storage works. Raises AdapterError for anything else, and
    where the wheel cannot be had.
    """
    _expect_known(options)
    if "source" in options and "version" in options:
        raise AdapterError("options version and source of sglang-hiradix, expected one of them")
    version = "" if "source" in options else options.get("version", DEFAULT)
    root = _source(options["source"]) if "source" in options else root_of(version, fetch=fetch)
    events = options.get("events")
    setup = Setup(
        root=str(root), version=version, storage=options.get("storage", "file") == "file",
        events=None if events is None else events == "on", controller=_file(options, "controller"),
        preload=_file(options, "preload"), batch=_batch(options), reset_anytime=options.get("reset") == "anytime",
    )  # fmt: skip
    command = [sys.executable, "-m", f"{__name__}.child", setup.model_dump_json()]
    # The child imports this very package, also where that is not installed.
    path = os.pathsep.join(filter(None, (str(Path(hicache_ref.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    return ProcessAdapter(command, step_timeout=step_timeout, env={"PYTHONPATH": path})


def _expect_known(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name not in _OPTIONS:
            raise AdapterError(f"unknown option {name!r} of sglang-hiradix, expected one of {', '.join(_OPTIONS)}")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise AdapterError(f"option {name}={value} of sglang-hiradix, expected {' or '.join(_CHOICES[name])}")


def _source(folder: str) -> Path:
    """The folder that `sglang` is in. Raises AdapterError where it has no HiRadixCache."""
    for root in (Path(folder), Path(folder) / "python"):
        if (root / "sglang" / _CACHE_MODULE).is_file():
            return root.resolve()
    raise AdapterError(
        f"no sglang/{_CACHE_MODULE} in {folder} or {folder}/python, expected a checkout or wheel with one"
    )


def _file(options: Mapping[str, str], name: str) -> str | None:
    if name not in options:
        return None
    file = Path(options[name])
    if not file.is_file():
        raise AdapterError(f"no file {file}, expected a Python source for option {name}")
    return str(file.resolve())


def _batch(options: Mapping[str, str]) -> int | None:
    text = options.get("batch")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise AdapterError(f"option batch={text} of sglang-hiradix, expected a positive number of pages")
    return int(text)
