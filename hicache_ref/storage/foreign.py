"""An object with the methods of SGLang's HiCacheStorage, as a backend: what the conformance kit drives.

Only the generic level is used (exists, get, set and their batches): it needs no pool of SGLang's. Values are tensors
where the object's class works with torch (`torch_of`); else they are memoryviews. `ForeignBackend.values` says which.
"""

import inspect
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from hicache_ref.storage.base import (
    Buffer,
    Handle,
    Malformed,
    Misuse,
    Stats,
    StorageError,
    Unsupported,
    expect_pairs,
    flat,
)
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.measured import Measured
from hicache_ref.storage.tensors import torch_of

Values = Literal["memoryviews", "tensors"]
"""What pages are handed over as."""

METHODS = ("exists", "batch_exists", "get", "batch_get", "set", "batch_set")
"""What an object needs to be driven."""


@dataclass
class SglangConfig:
    """`StorageConfig` under the names that SGLang 0.5.23 gives to a backend (HiCacheStorageConfig)."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    is_page_first_layout: bool
    model_name: str | None
    tp_lcm_size: int | None
    should_split_heads: bool
    dp_rank: int
    extra_config: dict[str, Any] = field(default_factory=dict)
    enable_storage_metrics: bool = False
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None
    is_storage_writer: bool = True
    dtype: str = ""
    """SGLang's has no such field, nor the next: without them a name cannot say all that it should."""

    layout: str = ""


@dataclass
class SglangExtraInfo:
    """What SGLang tells a store beside the keys of a call (HiCacheStorageExtraInfo)."""

    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


def sglang_config(config: StorageConfig) -> SglangConfig:
    """The configuration as SGLang would hand it over."""
    return SglangConfig(
        tp_rank=config.tp_rank,
        tp_size=config.tp_size,
        pp_rank=config.pp_rank,
        pp_size=config.pp_size,
        attn_cp_rank=config.cp_rank,
        attn_cp_size=config.cp_size,
        is_mla_model=config.replicated,
        is_page_first_layout=config.layout == "page_first",
        model_name=config.model_name,
        tp_lcm_size=config.tp_lcm_size,
        should_split_heads=config.split_heads,
        dp_rank=config.dp_rank,
        extra_config=dict(config.extra),
        enable_storage_metrics=config.metrics,
        is_storage_writer=not config.replicated or config.tp_rank == 0,
        dtype=config.dtype,
        layout=config.layout,
    )


class ForeignBackend(Handle):
    """`made` as a backend; it says no more than the object's generic calls do. Raises Misuse where one is missing."""

    names_by_config = True
    """The object makes its own names from its configuration, as SGLang's stores do: keys are page hashes."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        missing = [name for name in METHODS if not callable(getattr(made, name, None))]
        if missing:
            raise Misuse(f"{type(made).__name__} has no {missing[0]}, expected the methods of HiCacheStorage")
        self._made = made
        torch = torch_of(type(made))
        self._pages: _BytesLike | _Tensors = _BytesLike() if torch is None else _Tensors(torch)
        self.values: Values = "memoryviews" if torch is None else "tensors"
        self._asked_with: tuple[SglangExtraInfo, ...] = ()
        """What a presence query is told beside its keys."""

    def after(self, prefix: Sequence[str]) -> "ForeignBackend":
        """The same object; its presence queries are told `prefix`, if they take it. No other generic call does."""
        told = copy(self)
        if len(inspect.signature(self._made.batch_exists).parameters) > 1:
            told._asked_with = (SglangExtraInfo(prefix_keys=list(prefix)),)
        return told

    def exists(self, keys: Sequence[str]) -> int:
        """What `batch_exists` answers. Raises Malformed."""
        self.expect_open()
        return _count(self._made.batch_exists(list(keys), *self._asked_with), len(keys), "batch_exists")

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each answer of `batch_get` whether it is a page; that lies in its buffer then. Raises Malformed."""
        self.expect_open()
        expect_pairs(keys, into)
        if not keys:
            return []
        targets = [self._pages.of(view) for view in into]
        answers = _pages(self._made.batch_get(list(keys), targets), targets)
        found = [answer is not None for answer in answers]
        for number, answer in enumerate(answers):
            if answer is not None and answer is not targets[number]:
                found[number] = self._pages.is_taken(answer, into[number])
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """What `batch_set` says: of each key, or of all; where it says no of all, what `exists` says of each.

        Raises Malformed for anything but truth values, and for more or fewer than there are keys.
        """
        self.expect_open()
        expect_pairs(keys, pages)
        if not keys:
            return []
        answer = self._made.batch_set(list(keys), [self._pages.of(page) for page in pages])
        if isinstance(answer, list | tuple):
            _expect_as_many(answer, len(keys), "batch_set")
            return [_truth(each, "batch_set") for each in answer]
        if _truth(answer, "batch_set"):
            return [True] * len(keys)
        return [_truth(self._made.exists(key), "exists") for key in keys]

    def clear(self) -> None:
        """`clear` was called. Raises StorageError where it says that it failed."""
        self.expect_open()
        if self._made.clear() is False:
            raise StorageError("clear answers False, expected an empty store")

    def stats(self) -> Stats:
        """Raises Unsupported: every store of SGLang's counts in its own way."""
        self.expect_open()
        raise Unsupported("SGLang's interface says nothing of what is counted")

    def measured(self) -> Measured:
        """What `get_stats` tells. Raises Unsupported where it tells nothing, and Malformed for no StorageMetrics."""
        self.expect_open()
        told = self._made.get_stats() if callable(getattr(self._made, "get_stats", None)) else None
        if told is None:
            raise Unsupported("it has no get_stats, or that answers None")
        try:
            return Measured.model_validate({name: getattr(told, name) for name in Measured.model_fields})
        except (AttributeError, ValidationError) as error:
            what = "lists prefetch_pgs, backup_pgs, prefetch_bandwidth and backup_bandwidth of numbers, none below 0"
            raise Malformed(f"get_stats answers {told!r}, expected {what}") from error

    def _let_go(self) -> None:
        if callable(close := getattr(self._made, "close", None)):
            close()


def _count(answer: Any, most: int, call: str) -> int:
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer <= most:
        raise Malformed(f"{call} of {most} keys answers {answer!r}, expected a number of pages up to that")
    return answer


def _pages(answer: Any, targets: Sequence[Any]) -> Sequence[Any]:
    """For each target the page that was read for it, or None. Raises Malformed."""
    if answer is None:
        return [None] * len(targets)
    if isinstance(answer, int):
        # Some stores count the pages read; they are the first ones.
        count = _count(answer, len(targets), "batch_get")
        return [*targets[:count], *[None] * (len(targets) - count)]
    if not isinstance(answer, list | tuple):
        raise Malformed(f"batch_get answers {answer!r}, expected a page or None for each key")
    _expect_as_many(answer, len(targets), "batch_get")
    return answer


def _expect_as_many(answers: Sequence[Any], count: int, call: str) -> None:
    if len(answers) != count:
        raise Malformed(f"{call} of {count} keys gives {len(answers)} answers, expected one for each key")


def _truth(answer: Any, call: str) -> bool:
    """The truth value that was answered. A number is none: 0 is success in one store and failure in another."""
    # The truth values of numpy are their own type.
    if type(answer).__name__ not in ("bool", "bool_"):
        raise Malformed(f"{call} answers {answer!r}, expected true or false")
    return bool(answer)


class _BytesLike:
    """Pages as memoryviews."""

    def of(self, view: Buffer) -> Any:
        """What the object takes for the buffer."""
        return view

    def is_taken(self, answer: Any, view: Buffer) -> bool:
        """Whether the answer has the buffer's length; it is in the buffer then."""
        data = flat(memoryview(answer))
        if data.nbytes != view.nbytes:
            return False
        flat(view)[:] = data
        return True


class _Tensors:
    """Pages as tensors of bytes, that share the buffer's memory where it can be written to."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def of(self, view: Buffer) -> Any:
        """What the object takes for the buffer."""
        if not view.nbytes:
            return self._torch.empty(0, dtype=self._torch.uint8)
        # torch warns of memory that is read-only: such a page is handed over as a copy.
        return self._torch.frombuffer(bytearray(view) if view.readonly else view, dtype=self._torch.uint8)

    def is_taken(self, answer: Any, view: Buffer) -> bool:
        """Whether the answer has the buffer's length; it is in the buffer then."""
        if not isinstance(answer, self._torch.Tensor):
            return _BytesLike().is_taken(answer, view)
        data = answer.detach().reshape(-1).view(self._torch.uint8)
        if data.numel() != view.nbytes:
            return False
        self.of(view).copy_(data)
        return True
