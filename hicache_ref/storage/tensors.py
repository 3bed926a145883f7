"""Whether a class works with torch, wherever it imports it: so a foreign store gets the values that it expects."""

import dis
import importlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hicache_ref.storage.base import Misuse

_TORCH = "torch"


def torch_of(made: type) -> ModuleType | None:
    """The module torch where the class, or one that it inherits from, works with it; None where none does.

    It does if its module has torch among its names, if a method imports it, or if an annotation names it. Raises Misuse
    where torch is meant and not installed.
    """
    if not any(_has_torch(each) or any(map(_names_torch, _functions(each))) for each in made.__mro__):
        return None
    try:
        return importlib.import_module(_TORCH)
    except ImportError as error:
        raise Misuse(f"{made.__name__} works with torch: {error}, expected it to be installed") from error


def _has_torch(made: type) -> bool:
    """Whether the class's module has the module torch, or something of it, among its names."""
    names = vars(sys.modules.get(made.__module__, ModuleType("gone")))
    return any(_is_torch(value.__name__ if isinstance(value, ModuleType) else _home(value)) for value in names.values())


def _home(value: Any) -> str:
    """The module in which a class or a function was made; nothing for other values."""
    return str(getattr(value, "__module__", "")) if isinstance(value, type | FunctionType) else ""


def _functions(made: type) -> Iterator[FunctionType]:
    """The functions that the class defines, in whatever wrapping."""
    for value in vars(made).values():
        for part in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
            if isinstance(part, FunctionType):
                yield part


def _names_torch(function: FunctionType) -> bool:
    """Whether the function imports torch, or an annotation of it names it."""
    said = [str(each) for each in function.__annotations__.values()]
    return any(f"{_TORCH}." in each for each in said) or any(map(_is_torch, _imports(function.__code__)))


def _imports(code: CodeType) -> Iterator[str]:
    """The modules that the code imports, also in functions within it."""
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            yield str(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _imports(inner)


def _is_torch(module: str) -> bool:
    return module.split(".")[0] == _TORCH
