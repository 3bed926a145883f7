"""What stands for CUDA, for compiled kernels, and for packages that the modules import but hardly use.

A copy is an index copy, made when its event ends and not before: what upstream gives up too early is then another's.
"""

import contextlib
import ctypes
import importlib.util
import inspect
import os
import types
from collections.abc import Callable, Sequence
from copy import copy
from hashlib import sha256
from math import lcm
from typing import Any

import torch

from hicache_ref.adapters.sglang_hiradix.importing import Stub
from hicache_ref.adapters.sglang_hiradix.metrics import StorageCollector

_AMPLE_BYTES = 1 << 50


class Event:
    """Stands for torch.cuda.Event: once recorded it is pending until its work is done, as late as anybody can tell."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.is_pending = False
        self.work: list[Callable[[], object]] = []
        """What is under way: done when the event ends, and not before."""

    def record(self, *args: Any) -> None:
        """All that was asked for before is under way."""
        self.is_pending = True

    def query(self) -> bool:
        """Whether the scheduler may know that it has ended."""
        return not self.is_pending

    def do_work(self) -> None:
        """What was under way is done; nobody was told."""
        work, self.work = self.work, []
        for each in work:
            each()

    def synchronize(self) -> None:
        """It has ended: whoever waits for a copy here has it."""
        self.do_work()
        self.is_pending = False

    def wait(self, *args: Any) -> None:
        """Later work comes after; it does anyway."""

    def elapsed_time(self, other: "Event") -> float:
        """No time has passed."""
        return 0.0


class Stream:
    """Stands for torch.cuda.Stream: everything is in order on any of them."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def synchronize(self) -> None:
        """All is done."""

    def wait_stream(self, other: "Stream") -> None:
        """Later work comes after; it does anyway."""

    def wait_event(self, event: Event) -> None:
        """Later work comes after; it does anyway."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event recorded here."""
        event = event or Event()
        event.record()
        return event


def _device_module() -> types.ModuleType:
    module = types.ModuleType("device_module")
    module.__dict__.update(
        Event=Event, Stream=Stream, StreamContext=Stream,
        stream=lambda stream=None: stream or Stream(), current_stream=lambda *_: Stream(),
        synchronize=lambda *_: None, current_device=lambda: "cpu", empty_cache=lambda: None,
        set_stream=lambda _: None,
    )  # fmt: skip
    return module


DEVICE_MODULE = _device_module()


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Slot `src_indices[i]` of each source layer is in slot `dst_indices[i]` of its target layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Slots of one layer come from host buffers that have all layers of a page together."""
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[src_indices // page_size, layer_id, src_indices % page_size]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Slots of all layers go to such host buffers; the sources are all layers of the first buffer, then of the next."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        target = dst_ptrs[number // layers]
        target[dst_indices // page_size, number % layers, dst_indices % page_size] = source[src_indices]


TRANSFERS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf)
}
"""Copy functions by upstream's names."""


class Bag:
    """An object with these attributes, and `default` for every other."""

    def __init__(self, default: Any = None, **given: Any) -> None:
        self.__dict__.update(given, _default=default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_default"]


class _OneRank(Bag):
    """Parallel state of a single process: sizes are 1, ranks 0."""

    def __getattr__(self, name: str) -> Any:
        return 1 if name.endswith("_size") else super().__getattr__(name)


class _MemorySaver:
    """As the real one is where it is not enabled."""

    enabled = False

    @staticmethod
    def create(enable: bool = False) -> "_MemorySaver":
        """One that saves nothing."""
        return _MemorySaver()

    def region(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
        """Memory allocated here is ordinary."""
        return contextlib.nullcontext()


class NativeHash:
    """Stands for the hash extension that newer releases compile when first used: the same chained SHA-256."""

    @staticmethod
    def get_hash(
        raw: Sequence[int],
        logical_len: int,
        unit_width: int,
        is_bigram: bool,
        prior_digest: bytes | None,
        page_size: int | None = None,
    ) -> Any:
        """The hex digest of each page of `page_size` units, or of all units as one page."""
        step = page_size or max(logical_len, 1)
        digests: list[str] = []
        for start in range(0, logical_len, step):
            running = sha256(prior_digest or b"")
            for unit in range(start, min(start + step, logical_len)):
                tokens = raw[unit : unit + 2] if is_bigram else raw[unit * unit_width : (unit + 1) * unit_width]
                for token in tokens:
                    running.update(int(token).to_bytes(4, "little"))
            prior_digest = running.digest()
            digests.append(running.hexdigest())
        return digests if page_size else digests[-1]


def _in_order(function: Any = None, **_: Any) -> Any:
    """A decorator that changes nothing, with or without arguments."""
    return function if function is not None else lambda inner: inner


SERVER_ARGS = Bag()
"""Answers every question about a server's settings; `engine` fills it before a cache is made."""


def _setting(name: str, default: str = "false") -> bool:
    return os.environ.get(name, default).lower() in ("true", "1")


GIVEN: dict[str, Any] = {
    "NetworkAddress": Bag,
    "StorageMetricsCollector": StorageCollector,
    "TorchMemorySaverAdapter": _MemorySaver,
    "alloc_mmap": lambda dims, dtype: torch.zeros(dims, dtype=dtype),
    "ceil_align": lambda a, b: -(-a // b) * b,
    "ceil_div": lambda a, b: -(-a // b),
    "create_custom_parallel_group": lambda *_, **__: None,
    "current_platform": Bag(lambda *_, **__: False, device_type="cpu", device_name="cpu"),
    "get_attention_dp_rank": lambda: 0,
    "get_attention_tp_rank": lambda: 0,
    "get_attention_tp_size": lambda: 1,
    "get_bool_env_var": _setting,
    "get_device_module": lambda *_: DEVICE_MODULE,
    "get_int_env_var": lambda name, default=0: int(os.environ.get(name, str(default))),
    "get_native_hash": lambda *_: NativeHash,
    "get_parallel": lambda: _OneRank(0),
    "get_pipeline_model_parallel_rank": lambda: 0,
    "get_pipeline_model_parallel_world_size": lambda: 1,
    "get_pp_group": lambda: Bag(0, world_size=1),
    "get_tensor_model_parallel_rank": lambda: 0,
    "get_tensor_model_parallel_world_size": lambda: 1,
    "get_world_group": lambda: Bag(0, world_size=1),
    "human_readable_int": str,
    "mamba_cache_chunk_size": lambda *_: SERVER_ARGS.mamba_cache_chunk_size,
    "mamba_checkpoint_grid": lambda page: lcm(SERVER_ARGS.mamba_cache_chunk_size, page),
    "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 1,
    "rank_consensus": _in_order,
    # Its last argument is the class that is taken unless a server names another.
    "resolve_collector_class": lambda *given: given[-1],
    **TRANSFERS,
    **{
        name: lambda *_: SERVER_ARGS
        for name in (
            "get_cache", "get_disagg", "get_exec", "get_global_server_args", "get_memory", "get_model",
            "get_observability", "get_schedule", "get_server_args", "get_serving", "get_spec",
        )
    },
}  # fmt: skip
"""Names of weight in stub modules, whichever module they are asked of."""


def _psutil(name: str) -> types.ModuleType:
    module = Stub(name)
    module.__dict__["virtual_memory"] = lambda: Bag(_AMPLE_BYTES)
    return module


def _numpy(name: str) -> types.ModuleType:
    module = Stub(name)
    module.__dict__.update(prod=lambda shape: int(torch.tensor(shape).prod()), float64=float)
    return module


def _msgspec(name: str) -> types.ModuleType:
    module = Stub(name)
    module.__dict__.update(Struct=_Struct, field=_Field)
    return module


class _Field:
    """Stands for msgspec.field: each object has a value of its own."""

    def __init__(self, default_factory: Callable[[], Any]) -> None:
        self.make = default_factory


class _Struct:
    """Stands for msgspec.Struct as far as it is used: a class with fields, made by keyword or in their order."""

    def __init_subclass__(cls, **options: Any) -> None:
        cls.__init__ = _fields_init  # type: ignore[method-assign]


def _fields_init(self: Any, *args: Any, **given: Any) -> None:
    names = [name for kind in reversed(type(self).__mro__) for name in inspect.get_annotations(kind)]
    for name in names:
        default = getattr(type(self), name, None)
        setattr(self, name, default.make() if isinstance(default, _Field) else copy(default))
    for name, value in [*zip(names, args, strict=False), *given.items()]:
        setattr(self, name, value)


THIRD_PARTY = {"msgspec": _msgspec, "numpy": _numpy, "psutil": _psutil}


class _Peer:
    """The other rank: it does what this one does, but that it has read `tokens` tokens at most, if that is a number."""

    tokens: int | None = None


PEER = _Peer()


def _all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    """Both ranks have what they agree on; all but one number they have in common anyway."""
    if PEER.tokens is not None and op == torch.distributed.ReduceOp.MIN:
        tensor.clamp_(max=PEER.tokens)


def _as_bytes(tensor: torch.Tensor) -> Any:
    """The memory of a CPU tensor of bytes, as an object with a buffer and a method `tofile`."""
    kind: Any = type("Bytes", (ctypes.c_uint8 * tensor.numel(),), {"tofile": _to_file, "tensor": None})
    view = kind.from_address(tensor.data_ptr())
    view.tensor = tensor
    return view


def _to_file(view: Any, path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(view)


def replace_cuda() -> None:
    """torch's CUDA names are those of a device that orders everything, and there is one process group of one rank.

    The caches take it for one of two; what they ask the other rank is answered here.
    """
    for name in ("Event", "Stream", "StreamContext", "stream", "current_stream", "synchronize", "current_device",
                 "empty_cache", "set_stream"):  # fmt: skip
        setattr(torch.cuda, name, getattr(DEVICE_MODULE, name))
    setattr(torch, "get_device_module", lambda device=None: DEVICE_MODULE)  # noqa: B010
    distributed: Any = torch.distributed
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.all_reduce = _all_reduce


def replace_numpy() -> None:
    """Tensors show their bytes to the file backend also where numpy is not installed. To be called before imports."""
    if importlib.util.find_spec("numpy") is None:
        torch.Tensor.numpy = _as_bytes  # type: ignore[method-assign,assignment]
