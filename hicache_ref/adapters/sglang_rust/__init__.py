"""SGLang's compiled tree core (wheel sglang 0.5.23), in a process of its own, with a caller written here.

Upstream's cache is two halves: a core that decides, in Rust or Python, and a caller that allocates, evicts when room
is short, submits copies and acknowledges them. Only the Rust core is upstream's here; no other part of the package
is imported. `caller` and `moving` play the other half, in the order of calls of upstream's UnifiedRadixCache. The core
only names pages; what they hold is in `memory`, written by passes and moved by copies as the core named them.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import hicache_ref
from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.adapters.sglang_rust.following import VERSION
from hicache_ref.adapters.wheels import fetched_wheel
from hicache_ref.vocabulary.adapter import AdapterError

SHA256S = frozenset({"00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"})
"""The wheel for CPython 3.11 on Linux x86_64."""

CORE = "sglang/srt/mem_cache/rust_tree_core/mem_cache.cpython-311-x86_64-linux-gnu.so"
_LICENSE = f"sglang-{VERSION}.dist-info/licenses/LICENSE"

_PLATFORM = ("CPython", (3, 11), "linux", "x86_64")

PLANT_NAMES = (
    "commit-dropped",
    "ack-never-sent",
    "lock-leaked",
    "slots-swapped-load",
    "slots-swapped-backup",
    "wrong-page-copied",
    "wrong-medium",
    "freed-page-kept",
    "freed-twice-under-pass",
    "resplit-ignored",
)

_OPTIONS = ("core", "plant")


def make(options: Mapping[str, str], fetch: bool) -> ProcessAdapter:
    """An adapter whose child process holds the core; the wheel is in the cache.

    Option `plant` names a fault planted in how the core is called, to try the oracle; `core` is a file mem_cache*.so
    of one's own build, instead of that in the pinned wheel. Raises AdapterError for an unknown option or plant, or
    where the core cannot be had.
    """
    for name in options:
        if name not in _OPTIONS:
            raise AdapterError(f"unknown option {name!r} of sglang-rust, expected one of {', '.join(_OPTIONS)}")
    plant = options.get("plant")
    if plant is not None and plant not in PLANT_NAMES:
        raise AdapterError(f"unknown plant {plant!r}, expected one of {', '.join(PLANT_NAMES)}")
    core = Path(options["core"]) if "core" in options else core_file(fetch=fetch)
    if not core.is_file():
        raise AdapterError(f"no file {core}, expected SGLang's compiled tree core")
    return in_process("sglang-rust", f"{__name__}.child", str(core), *([plant] if plant else []))


def in_process(name: str, module: str, *arguments: str) -> ProcessAdapter:
    """An adapter of that name whose child process runs the module."""
    # The child imports this very package, also where that is not installed.
    path = os.pathsep.join(filter(None, (str(Path(hicache_ref.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    return ProcessAdapter([sys.executable, "-m", module, *arguments], name=name, env={"PYTHONPATH": path})


def core_file(*, fetch: bool) -> Path:
    """The core of the pinned wheel, in the cache. Raises AdapterError where it is absent or cannot run here."""
    found = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]} on {sys.platform}"
    machine = platform.machine()
    if (platform.python_implementation(), sys.version_info[:2], sys.platform, machine) != _PLATFORM:
        raise AdapterError(
            f"the core of sglang {VERSION} runs on CPython 3.11 on linux x86_64, this is {found} {machine}"
        )
    return fetched_wheel("sglang", VERSION, SHA256S, [CORE, _LICENSE], fetch=fetch) / CORE
