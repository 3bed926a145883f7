"""The process that holds a core: `python -m hicache_ref.adapters.sglang_unified.child CORE COMPONENTS PLANT SOURCE`.

A fifth argument is a file that is run once the Python core is imported.
"""

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from hicache_ref.adapters.serving import serve
from hicache_ref.adapters.sglang_hiradix import importing, substitutes
from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.setup import given
from hicache_ref.adapters.sglang_rust.child import TreeCoreAdapter
from hicache_ref.adapters.sglang_rust.core import load_bindings
from hicache_ref.adapters.sglang_rust.observe import ObservedCaller
from hicache_ref.adapters.sglang_unified.face import PythonBindings
from hicache_ref.adapters.sglang_unified.following import describe
from hicache_ref.adapters.sglang_unified.plants import PLANTS
from hicache_ref.adapters.sglang_unified.states import StateCaller
from hicache_ref.adapters.sglang_unified.wheels import REAL
from hicache_ref.vocabulary.adapter import AdapterError


def python_bindings(root: Path) -> PythonBindings:
    """The Python core below `root`, in this process. Raises AdapterError where it cannot be imported."""
    substitutes.replace_cuda()
    importing.import_from(root, substitutes.GIVEN, substitutes.THIRD_PARTY, real=REAL, files={})
    try:
        native: Any = importlib.import_module(f"{PACKAGE}.srt.mem_cache.cpp_utils.native_hash")
        native._load_native_hash_module = lambda: substitutes.NativeHash
        return PythonBindings()
    except (ImportError, AttributeError, TypeError, NameError) as error:
        raise AdapterError(f"cannot import UnifiedTreeCore from {root}: {error}") from error


def adapter_of(core: str, components: str, plant: str, source: Path, preload: str | None = None) -> TreeCoreAdapter:
    """An Adapter over that core, changed by the file `preload`. Raises AdapterError."""
    bindings = load_bindings(source) if core == "rust" else python_bindings(source)
    if preload is not None:
        runpy.run_path(preload)
    changed = given({} if preload is None else {"preload": preload})
    has_states = components == "full+mamba"
    caller = PLANTS.get(plant, StateCaller) if has_states else ObservedCaller
    return TreeCoreAdapter(bindings, caller, describe(has_states=has_states, pinned=plant == "none", changed=changed))


def main(arguments: list[str]) -> None:
    """Standard input has been served to its end."""
    core, components, plant, source, *preload = arguments
    torch.set_num_threads(1)
    serve(adapter_of(core, components, plant, Path(source), *preload))


if __name__ == "__main__":
    main(sys.argv[1:])
