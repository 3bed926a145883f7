"""The house rules that a program can check: a file's name and text go in, what breaks a rule comes out."""

import ast
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

PACKAGE = "hicache_ref"
ALL = {""}

# What each part may import of ours, as prefixes below the package; its own modules are always allowed.
MAY_IMPORT = {
    "vocabulary": set[str](),
    "jsonlines": set[str](),
    "model": {"vocabulary"},
    "requirements": {"vocabulary", "model.state", "model.records"},
    "trace": {"vocabulary", "jsonlines"},
    "search": {"vocabulary", "jsonlines", "trace", "model", "requirements"},
    "oracle": {"vocabulary", "jsonlines", "trace", "model", "requirements", "search"},
    "storage": {"vocabulary"},
    "engine": {"vocabulary", "model", "storage"},
    "soak": {"vocabulary", "model", "requirements", "search", "storage", "engine"},
    "adapters": ALL,
    "faults": ALL,
    "bench": ALL,
    "report": ALL,
    "cli": ALL,
    "__init__": ALL,
    "__main__": ALL,
}
PURE = {"vocabulary", "model", "requirements", "storage"}
NOT_IN_PURE = {"hypothesis", "torch"}

MAY_PRINT = {"cli", "report", "__main__"}

# The project speaks of itself alone: no place where it was made, no way in which it was made.
UNWANTED = {
    "a path of one machine": r"(?<![\w.)}])/(work|tmp)\b",
    "a folder outside the project": r"\b(shared|seeds|probes)/",
    "the host of a registry": r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|npmjs\.(org|com)|crates\.io",
    "a word about how the project was made": r"\b(spikes?|issues?|slices?(?!\()|helpers?|seed (files?|documents?))\b",
    "a note to oneself": r"\b(TODO|FIXME|XXX)\b",
}
MAY_USE_THEM = {"LICENSE", "tests/meta/tidy.py", "tests/meta/test_tidy.py"}

JUDGES = re.compile(r"assert|check|expect|verify|judge|run_(state_)?machine(_as_test)?$", re.IGNORECASE)
"""How a call is named that can fail a test; one that only runs something cannot."""

Finding = tuple[int, str]
"""Line, and what is wrong there."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(name: str, text: str) -> list[str]:
    """`NAME:LINE: what` for each rule that the file `name` (path below the root, with slashes) breaks."""
    found = [*_text_rules(name, text)]
    if name.endswith(".py"):
        tree = ast.parse(text)
        found += chain.from_iterable(rule(name, tree) for rule in PYTHON_RULES)
    return [f"{name}:{line}: {what}" for line, what in sorted(found)]


def part_of(name: str) -> str | None:
    """The part of the package that a file belongs to: the first word below the package; None outside of it."""
    folder, _, rest = name.partition("/")
    return rest.split("/")[0].removesuffix(".py") if folder == PACKAGE else None


def _text_rules(name: str, text: str) -> Iterator[Finding]:
    rows = text.splitlines()
    if text and not text.endswith("\n"):
        yield len(rows), "no newline at the end"
    if name.endswith(".py") and len(rows) > FILE_LINES_MAX:
        yield len(rows), f"{len(rows)} lines in a file, at most {FILE_LINES_MAX}"
    if name in MAY_USE_THEM:
        return
    for number, row in enumerate(rows, 1):
        for what, pattern in UNWANTED.items():
            if match := re.search(pattern, row, re.IGNORECASE):
                yield number, f"{match[0]!r} is {what}"


def _imports(name: str, tree: ast.Module) -> Iterator[Finding]:
    part = part_of(name)
    if part is None:
        return
    if part not in MAY_IMPORT:
        yield 1, f"part {part!r} has no place among the layers"
        return
    for line, module in _imported(tree):
        outermost, _, inner = module.partition(".")
        if outermost == PACKAGE and not _is_below(inner, MAY_IMPORT[part] | {part}):
            yield line, f"{part} imports {module}"
        if part in PURE and outermost in NOT_IN_PURE:
            yield line, f"{part} imports {module}"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def _is_below(module: str, prefixes: set[str]) -> bool:
    return any(not prefix or module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _no_relative_imports(_: str, tree: ast.Module) -> Iterator[Finding]:
    yield from ((line, "relative import") for line, module in _imported(tree) if module.startswith("."))


def _short_functions(_: str, tree: ast.Module) -> Iterator[Finding]:
    for function in _functions(tree):
        size = (function.end_lineno or function.lineno) - function.lineno + 1
        if size > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name} has {size} lines, at most {FUNCTION_LINES_MAX}"


def _module_docstring(_: str, tree: ast.Module) -> Iterator[Finding]:
    if tree.body and not ast.get_docstring(tree):
        yield 1, "no docstring for the module"


def _no_print(name: str, tree: ast.Module) -> Iterator[Finding]:
    if part_of(name) in MAY_PRINT | {None}:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "print outside cli and report"


def _public_names(name: str, tree: ast.Module) -> Iterator[Finding]:
    if part_of(name) is None:
        return
    for node in _public(tree):
        if not ast.get_docstring(node):
            yield node.lineno, f"no docstring for {node.name}"
        if isinstance(node, Function) and not _is_annotated(node):
            yield node.lineno, f"{node.name} is not annotated throughout"


def _public(scope: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for node in scope.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _is_annotated(function: Function) -> bool:
    spec = function.args
    arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
    return function.returns is not None and all(
        argument.annotation or argument.arg in ("self", "cls") for argument in arguments
    )


def _tests_can_fail(name: str, tree: ast.Module) -> Iterator[Finding]:
    if not name.startswith("tests/"):
        return
    for function in _functions(tree):
        if function.name.startswith("test_"):
            if not ast.get_docstring(function):
                yield function.lineno, f"{function.name} does not open with goal and method"
            if not any(map(_can_fail, ast.walk(function))):
                yield function.lineno, f"nothing in {function.name} can fail"


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        return called.endswith("raises") or bool(JUDGES.match(called.rpartition(".")[2].lstrip("_")))
    return isinstance(node, ast.Assert | ast.Raise)


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


PYTHON_RULES: tuple[Callable[[str, ast.Module], Iterator[Finding]], ...] = (
    _imports,
    _no_relative_imports,
    _short_functions,
    _module_docstring,
    _no_print,
    _public_names,
    _tests_can_fail,
)

MADE = {"__pycache__", "dist", "divergences"}
SPOKEN = {".ci", ".gitignore", ".pre-commit-config.yaml"}


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """The name and text of each text file below `root`, what the targets of the Makefile make left out."""
    for path in sorted(root.iterdir()):
        if (path.name.startswith(".") and path.name not in SPOKEN) or path.name in MADE:
            continue
        if path.is_dir():
            yield from ((f"{path.name}/{name}", text) for name, text in texts(path))
        elif (text := _text_of(path)) is not None:
            yield path.name, text


def _text_of(path: Path) -> str | None:
    data = path.read_bytes()
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None
