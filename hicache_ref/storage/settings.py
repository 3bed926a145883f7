"""From what an operator writes to typed settings and configurations: JSON text, or `@file` in JSON, TOML or YAML.

What is wrong is told in one line that names the place, the key, the value and what was expected.
"""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hicache_ref.storage.base import Misuse, StorageError, checked, required
from hicache_ref.storage.config import StorageConfig
from hicache_ref.vocabulary.storage import PREFETCH_POLICIES, StorageSettings

UPSTREAM_NAMES = {
    "hicache_storage_pass_prefix_keys": "pass_prefix_keys",
    "hicache_storage_prefetch_policy": "prefetch_policy",
}
"""Names under which SGLang has the same settings."""

_SECONDS = "a finite number of seconds, 0 or more"
EXPECTED = {
    "prefetch_policy": " or ".join(PREFETCH_POLICIES),
    "prefetch_threshold": "a whole number of tokens, 0 or more",
    "prefetch_timeout_base": f"{_SECONDS} and no more than prefetch_timeout_max",
    "prefetch_timeout_per_ki_token": _SECONDS,
    "prefetch_timeout_max": f"{_SECONDS}, or null for no limit",
    "pass_prefix_keys": "true or false",
}
"""What each key takes, in words."""


UPSTREAM_TIMEOUT_MAX = 30.0
"""What `prefetch_timeout_max` is where nothing is said; null says that there is no limit."""


def parse_settings(text: str) -> StorageSettings:
    """The settings that `text` states, JSON or `@file`; keys that are not ours are in `extra`. Raises Misuse."""
    return _settings(*_parsed(text, "storage settings"))


def parse_config(text: str, default: StorageConfig) -> StorageConfig:
    """`default` with the fields that `text`, JSON or `@file`, states otherwise. Raises Misuse."""
    values, source, _ = _parsed(text, "storage configuration")
    return checked(StorageConfig, default.model_dump() | values, source)


def _parsed(text: str, what: str) -> tuple[dict[str, Any], str, str]:
    """The table that is stated, where it stands, and the text there. Raises Misuse."""
    if not text.startswith("@"):
        return _read(what, text, _json), what, text
    path = Path(text[1:])
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise Misuse(f"{path}: unknown kind of file, expected one of {', '.join(_READERS)}")
    try:
        stated = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"{path}: cannot be read ({error}), expected a text file") from None
    return _read(str(path), stated, reader), str(path), stated


def _read(source: str, text: str, reader: Callable[[str], object]) -> dict[str, Any]:
    """The table that the text states. Raises Misuse."""
    try:
        values = reader(text)
    except _Unreadable as error:
        raise Misuse(f"{source}:{error.line}: {error.what}, expected a table of settings") from None
    except StorageError as error:
        raise Misuse(f"{source}: {error}, or a .json or .toml file") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise Misuse(f"{source}:1: {values!r}, expected a table of settings")
    return values


def _settings(values: dict[str, Any], source: str, text: str) -> StorageSettings:
    """The settings, checked. Raises Misuse."""
    ours: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in values.items():
        key = UPSTREAM_NAMES.get(name, name)
        if key in ours:
            raise Misuse(f"{source}:{_line(text, name)}: {name} says {key} again, expected it once")
        (ours if key in EXPECTED else extra)[key] = value
    try:
        return StorageSettings(**({"prefetch_timeout_max": UPSTREAM_TIMEOUT_MAX} | ours), extra=extra)
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        name = str(place[0]) if place else "prefetch_timeout_base"
        if name == "extra":
            name, value, expected = str(place[1]), extra[str(place[1])], "a value that JSON has"
        else:
            value, expected = ours.get(name, getattr(StorageSettings(), name)), EXPECTED[name]
        raise Misuse(f"{source}:{_line(text, name)}: {name} is {value!r}, expected {expected}") from None


def _line(text: str, name: str) -> int:
    """The line on which the key stands, as far as that shows; 1 otherwise."""
    names = [name, *(theirs for theirs, ours in UPSTREAM_NAMES.items() if ours == name)]
    found = re.search(rf"""^.*?(?<![\w-])({"|".join(map(re.escape, names))})["']?\s*[:=]""", text, re.MULTILINE)
    return 1 if found is None else text.count("\n", 0, found.start(1)) + 1


class _Unreadable(Exception):
    """The text is not what its kind says."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


def _json(text: str) -> object:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            raise _Unreadable(_line(text, double), f"{double!r} twice")
        return table

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise _Unreadable(error.lineno, f"no JSON ({error.msg})") from None


def _toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise _Unreadable(int(line[1]) if line else 1, f"no TOML ({error})") from None


def _yaml(text: str) -> object:
    yaml = required("yaml", extra="yaml")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise _Unreadable(mark.line + 1 if mark else 1, f"no YAML ({getattr(error, 'problem', error)})") from None


_READERS: dict[str, Callable[[str], object]] = {".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
