"""SGLang's unified cache (wheel sglang 0.5.23): either of its two tree cores, of full attention alone or with states.

Upstream keeps a core in Rust and one in Python and means them to be equal. Both are driven here by one caller, that of
`sglang_rust`; `face` makes the Python core look like the compiled one, and `states` adds what a hybrid model asks of
the caller.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_hiradix.options import source_file
from hicache_ref.adapters.sglang_rust import core_file, in_process
from hicache_ref.adapters.sglang_unified.wheels import root_of
from hicache_ref.vocabulary.adapter import AdapterError

CoreKind = Literal["python", "rust"]
Components = Literal["full", "full+mamba"]

PLANT_NAMES = ("wrong-page-copied", "state-to-wrong-slot", "state-not-backed-up", "state-loaded-once")

_VALUES: dict[str, tuple[str, ...]] = {
    "core": get_args(CoreKind), "components": get_args(Components), "plant": ("none", *PLANT_NAMES),
}  # fmt: skip
"""Options and their values, the first of them the default."""


def make(options: Mapping[str, str], fetch: bool, step_timeout: float) -> ProcessAdapter:
    """An adapter whose child process holds the core; the wheel is in the cache.

    Option `core` is python or rust, `components` full or full+mamba; `plant` names a fault planted in how bytes are
    moved beside states, to try the oracle; `preload` is a file that is run once the Python core is imported. Raises
    AdapterError for what is none of these, and where the core cannot be had.
    """
    values = {name: value for name, value in options.items() if name != "preload"}
    for name, value in values.items():
        if name not in _VALUES:
            raise AdapterError(
                f"unknown option {name!r} of sglang-unified, expected one of {', '.join(_VALUES)}, preload"
            )
        if value not in _VALUES[name]:
            expected = " or ".join(_VALUES[name])
            raise AdapterError(f"option {name}={value} of sglang-unified, expected {expected}")
    chosen = {name: values.get(name, offered[0]) for name, offered in _VALUES.items()}
    if chosen["plant"] != "none" and chosen["components"] == "full":
        raise AdapterError("option plant of sglang-unified needs components=full+mamba; sglang-rust has plants without")
    if "preload" in options and chosen["core"] != "python":
        raise AdapterError("option preload of sglang-unified needs core=python: a file can change nothing compiled")
    preload = [source_file(options, "preload")] if "preload" in options else []
    source = str(_source(chosen["core"], fetch))
    adapter = in_process("sglang-unified", f"{__name__}.child", *chosen.values(), source, *preload)
    adapter.step_timeout = step_timeout
    return adapter


def _source(core: str, fetch: bool) -> Path:
    return core_file(fetch=fetch) if core == "rust" else root_of(fetch=fetch)
