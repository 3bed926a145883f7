"""Imports from an SGLang source tree: a few modules execute as they are, every other one is a stub.

A server's modules want a GPU, kernels and a model. The cache's own classes want none of them, only names: a stub
module has every name it is asked for. What a name of weight stands for is said in `substitutes`.
"""

import abc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGE = "sglang"
CONTROLLER = f"{PACKAGE}.srt.managers.cache_controller"

REAL = frozenset(
    f"{PACKAGE}.srt.{name}"
    for name in (
        "disaggregation.kv_events",
        "environ",
        "managers.cache_controller",
        "mem_cache.allocator",
        "mem_cache.allocator.base",
        "mem_cache.allocator.paged",
        "mem_cache.allocator.token",
        "mem_cache.base_prefix_cache",
        "mem_cache.cache_init_params",
        "mem_cache.cpp_utils.native_hash",
        "mem_cache.events",
        "mem_cache.evict_policy",
        "mem_cache.hicache_storage",
        "mem_cache.hiradix_cache",
        "mem_cache.l2_transfer",
        "mem_cache.memory_pool",
        "mem_cache.memory_pool_host",
        "mem_cache.pool_host",
        "mem_cache.pool_host.base",
        "mem_cache.pool_host.common",
        "mem_cache.pool_host.mha",
        "mem_cache.radix_cache",
        "mem_cache.session_radix_cache",
        "mem_cache.storage",
        "mem_cache.storage.backend_factory",
        "mem_cache.storage.file",
        "mem_cache.storage.file.lru_file_evictor",
        "mem_cache.utils",
    )
)
"""The modules that execute, as far as a release has them."""

# Packages of which no release's `__init__` may run: they import half of a server. `mem_cache.allocator` and
# `mem_cache.pool_host` are filled by name instead, see `_FILLED`.
_BARE = frozenset(
    f"{PACKAGE}{name}"
    for name in ("", ".srt", ".srt.managers", ".srt.disaggregation", ".srt.mem_cache", ".srt.mem_cache.cpp_utils")
)

_FILLED: Mapping[str, Mapping[str, str]] = {
    f"{PACKAGE}.srt.mem_cache.allocator": {
        "BaseTokenToKVPoolAllocator": "base",
        "TokenToKVPoolAllocator": "token",
        "PagedTokenToKVPoolAllocator": "paged",
        "MambaSlotAllocator": "mamba",
    },
    f"{PACKAGE}.srt.mem_cache.pool_host": {"HostKVCache": "base"},
}

THIRD_PARTY = (
    "flashinfer", "msgspec", "numpy", "orjson", "prometheus_client", "psutil", "sgl_kernel", "sgl_kernel_npu",
    "torch_memory_saver", "torch_npu", "transformers", "triton", "xxhash", "zmq",
)  # fmt: skip
"""Packages of others that the modules import, and that are stubs where they are not installed."""

_ASKS = ("is_", "_is_", "has_", "can_use", "support", "cpu_has")


class _AnyName(abc.ABCMeta):
    """The type of permissive classes: any attribute that it lacks is its own name; and it can be part of a union."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


class Permissive(metaclass=_AnyName):
    """A class that anything may be called on and nothing happens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Function(name)


class _Function:
    """A function, decorator or submodule that does nothing: a bare decorator gives its function back."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 1 if name.isupper() else _Function(name)

    def __getitem__(self, item: Any) -> Any:
        return self


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _invented(module: str, name: str) -> Any:
    """What a stub module has under a name that nobody gave: by its spelling a question, constant, class or function."""
    if name.startswith(_ASKS):
        return _no
    if name.isupper():
        return name
    if name[:1].isupper():
        return _AnyName(name, (Permissive,), {"__module__": module})
    return _Function(name)


class Stub(types.ModuleType):
    """A module that has every name: those of `given` as they are, the others invented."""

    given: Mapping[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.given[name] if name in self.given else _invented(self.__name__, name)
        setattr(self, name, made)
        return made


class _Bare(types.ModuleType):
    """A package whose `__init__` did not run."""

    def __getattr__(self, name: str) -> Any:
        inner = _FILLED.get(self.__name__, {}).get(name)
        if inner is None:
            raise AttributeError(name)
        return getattr(importlib.import_module(f"{self.__name__}.{inner}"), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds SGLang's modules below `root` where they are real, makes bare packages, and stubs of all others."""

    def __init__(self, root: Path, real: Collection[str], files: Mapping[str, Path]) -> None:
        self.root = root
        self.real = real
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for whatever is below the package; None for all else."""
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        if name in self.files:
            return importlib.util.spec_from_loader(name, _GivenFile(self.files[name]))
        folder = self.root.joinpath(*name.split("."))
        if name in self.real and folder.with_suffix(".py").is_file():
            return importlib.machinery.PathFinder.find_spec(name, [str(folder.parent)])
        if name in self.real and name not in _FILLED and (folder / "__init__.py").is_file():
            return importlib.machinery.PathFinder.find_spec(name, [str(folder.parent)])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A bare package or a stub."""
        is_package = (self.root.joinpath(*spec.name.split("."))).is_dir()
        bare = spec.name in _BARE or (spec.name in _FILLED and is_package)
        return _Bare(spec.name) if bare else Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """The module can have modules below it."""
        bare = isinstance(module, _Bare)
        module.__path__ = [str(self.root.joinpath(*module.__name__.split(".")))] if bare else []


class _GivenFile(importlib.abc.SourceLoader):
    """Executes a file, whatever its suffix, in the place of a module; nothing is written beside it.

    A first line that is a path, as listings have it, is blank to Python; the lines after it keep their numbers.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def get_filename(self, fullname: str) -> str:
        """The file, so that tracebacks name it."""
        return str(self.file)

    def get_data(self, path: str) -> bytes:
        """The source, its head blanked if it is a path."""
        data = Path(path).read_bytes()
        head, end, rest = data.partition(b"\n")
        return end + rest if head.rstrip().endswith(b".py") else data


class _ThirdParty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes stubs of packages of others that nobody else found."""

    def __init__(self, made: Mapping[str, Callable[[str], types.ModuleType]]) -> None:
        self.made = made

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the packages that may be missing, and what is below them."""
        if name.split(".")[0] not in THIRD_PARTY:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module as given, or a stub."""
        return self.made.get(spec.name, Stub)(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """The module can have modules below it."""
        module.__path__ = []


def import_from(
    root: Path,
    given: Mapping[str, Any],
    third_party: Mapping[str, Callable[[str], types.ModuleType]],
    *,
    real: Collection[str],
    files: Mapping[str, Path],
) -> None:
    """From now on `import sglang...` finds `real` modules below `root`, or stubs; `given` are names in all stubs.

    `files` take the places of the modules that they are given for.
    """
    Stub.given = given
    sys.meta_path.insert(0, _Finder(root, real, files))
    sys.meta_path.append(_ThirdParty(third_party))
