"""An object with the methods of SGLang's HiCacheStorage, as a backend: what the conformance kit drives.

Only the generic level is used (exists, get, set and their batches): it needs no pool of SGLang's. Values are tensors
where the module of the object's class, or of one that it inherits from, imports torch; else they are memoryviews. This
package loads no torch itself.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hicache_ref.storage.base import Buffer, Handle, Misuse, Stats, StorageError, Unsupported, expect_pairs, flat
from hicache_ref.storage.config import StorageConfig

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
        is_page_first_layout=config.layout.startswith("page_"),
        model_name=config.model_name,
        tp_lcm_size=config.tp_lcm_size,
        should_split_heads=config.split_heads,
        dp_rank=config.dp_rank,
        extra_config=dict(config.extra),
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
        modules = [sys.modules.get(each.__module__) for each in type(made).__mro__]
        torch = next((vars(each)["torch"] for each in modules if each and "torch" in vars(each)), None)
        self._values: _BytesLike | _Tensors = _BytesLike() if torch is None else _Tensors(torch)

    def exists(self, keys: Sequence[str]) -> int:
        """What `batch_exists` answers."""
        self.expect_open()
        return _count(self._made.batch_exists(list(keys)), "batch_exists")

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each answer of `batch_get` whether it is a page; that lies in its buffer then."""
        self.expect_open()
        expect_pairs(keys, into)
        if not keys:
            return []
        targets = [self._values.of(view) for view in into]
        answers = self._made.batch_get(list(keys), targets)
        if answers is None:
            answers = [None] * len(keys)
        elif isinstance(answers, int):
            # Some stores count the pages read; they are the first ones.
            answers = [*targets[:answers], *[None] * (len(keys) - answers)]
        found = [answer is not None for answer in answers]
        for number, answer in enumerate(answers[: len(into)]):
            if answer is not None and answer is not targets[number]:
                found[number] = self._values.is_taken(answer, into[number])
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """True for each if `batch_set` says so for all, else what `exists` says of each."""
        self.expect_open()
        expect_pairs(keys, pages)
        if not keys:
            return []
        if self._made.batch_set(list(keys), [self._values.of(page) for page in pages]) is True:
            return [True] * len(keys)
        return [bool(self._made.exists(key)) for key in keys]

    def clear(self) -> None:
        """`clear` was called. Raises StorageError where it says that it failed."""
        self.expect_open()
        if self._made.clear() is False:
            raise StorageError("clear answers False, expected an empty store")

    def stats(self) -> Stats:
        """Raises Unsupported: every store of SGLang's counts in its own way."""
        self.expect_open()
        raise Unsupported("SGLang's interface says nothing of what is counted")

    def _let_go(self) -> None:
        if callable(close := getattr(self._made, "close", None)):
            close()


def _count(answer: Any, call: str) -> int:
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise StorageError(f"{call} answers {answer!r}, expected a number of pages")
    return answer


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
