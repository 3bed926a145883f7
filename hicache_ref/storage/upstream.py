"""What SGLang does with a store by its name: which calls it makes, how many pages go in one, which get draft pages.

A table has a row for each release in which it changed, oldest first. A release has what the row before it says.
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import JsonValue

from hicache_ref.storage.base import Misuse

_Row = TypeVar("_Row")

CallLevel = Literal["generic", "zero_copy"]
LATEST = "0.5.23"
DYNAMIC = "dynamic"

_V1 = frozenset({"hf3fs", "mooncake", "eic"})
ZERO_COPY: Mapping[str, frozenset[str]] = {
    "0.5.1": frozenset(),
    "0.5.6": _V1,
    "0.5.9": _V1 | {"nixl"},
    "0.5.15": _V1 | {"nixl", "simm", "mori"},
    "0.5.20": _V1 | {"nixl", "simm", "mori", "npu_memcache"},
    "0.5.23": _V1 | {"nixl", "simm", "mori", "npu_memcache", "tensorcast", "seaweedfs"},
}
"""Stores that are called with `batch_get_v1` and `batch_set_v1`; the others move flat pages."""

_SMALL, _LARGE = 8, 128
_LARGE_ONLY: Mapping[str, frozenset[str] | None] = {"0.5.1": frozenset({"mooncake", "hf3fs"}), "0.5.2": None}
"""Stores that get 128 pages in one call, where the others get 8; None: all get 128."""

NO_DRAFT: Mapping[str, frozenset[str] | None] = {
    "0.5.1": None,
    "0.5.15": frozenset({"hf3fs", "eic", "nixl", "simm"}),
}
"""Stores that take no draft pages; None: none does."""

_NO_DRAFT_IN_SHARES = frozenset({"mooncake"})
"""Stores that take no draft pages where the pages are cut into shares of the heads."""


def call_level(name: str, extra: Mapping[str, JsonValue] | None = None, version: str = LATEST) -> CallLevel:
    """The level at which SGLang calls the store `name`; a `dynamic` one chooses by `interface_v1` in `extra`.

    Raises Misuse for a version that is none, or older than the tables.
    """
    called = _row(ZERO_COPY, version)
    chosen = name == DYNAMIC and bool(called) and bool((extra or {}).get("interface_v1", 0))
    return "zero_copy" if chosen or name in called else "generic"


def batch_pages(name: str, version: str = LATEST) -> int:
    """The pages in one read or write of the store `name` (upstream: storage_batch_size). Raises Misuse."""
    large = _row(_LARGE_ONLY, version)
    return _LARGE if large is None or name in large else _SMALL


def takes_draft(name: str, version: str = LATEST, *, split_heads: bool = False) -> bool:
    """Whether the store `name` gets draft pages (HC-DRAFT-10; upstream: _maybe_register_draft_with_storage).

    With `split_heads` the pages are cut into shares of the heads. Raises Misuse.
    """
    without = _row(NO_DRAFT, version)
    return without is not None and name not in without and not (split_heads and name in _NO_DRAFT_IN_SHARES)


def _row(table: Mapping[str, _Row], version: str) -> _Row:
    """What the table says of the version. Raises Misuse."""
    asked = _numbers(version)
    since = [row for first, row in table.items() if _numbers(first) <= asked]
    if not since:
        raise Misuse(f"version {version!r}, expected {next(iter(table))} or later")
    return since[-1]


def _numbers(version: str) -> tuple[int, ...]:
    """The three numbers of a version, without what stands behind them. Raises Misuse."""
    parts = version.split(".")[:3]
    if len(parts) < 3 or not all(part.isdecimal() for part in parts):
        raise Misuse(f"version {version!r}, expected one like {LATEST}")
    return tuple(map(int, parts))
