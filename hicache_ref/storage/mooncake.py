"""The Mooncake store: pages in the memory of its clients, found by a master.

Memory that is registered is read and written in place; other pages go through a staging buffer. What a store of this
kind may do, and does: evict by itself when it is full, in any order, and say that a page is there whose owner is gone.
"""

import ctypes
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from hicache_ref.storage.base import Buffer, Handle, StorageError, expect_pairs, flat, leading, required
from hicache_ref.vocabulary.base import Frozen

_MIB = 1 << 20
_CONNECT_SECONDS = 5.0
_AT_ONCE = 128
"""Objects a call: upstream's batch."""


class MooncakeOptions(Frozen):
    """How this client takes part."""

    hostname: str = "127.0.0.1"
    """Under which the other clients reach this one."""

    metadata: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    devices: str = ""
    segment_mib: Annotated[int, Field(ge=0)] = 256
    """Memory that this client gives to the store; what lies there goes when the client does."""

    buffer_mib: PositiveInt = 16
    """The client's own buffers."""

    staging_mib: PositiveInt = 32
    """Memory through which pages go that are not registered; larger ones are refused."""

    tenant: str = "default"


@dataclass(frozen=True)
class _Batch:
    """Pages that go in one call, by number, each at an address: its own, or within the staging buffer."""

    numbers: list[int]
    addresses: list[int]
    staged_at: list[int] | None
    guard: AbstractContextManager[object]


class MooncakeBackend(Handle):
    """A client of the master at `host`:`port`. Raises StorageError where there is none."""

    def __init__(self, host: str, port: int, options: MooncakeOptions | None = None) -> None:
        super().__init__()
        options = options or MooncakeOptions()
        module = required("mooncake.store", extra="mooncake")
        self._where = f"mooncake://{host}:{port}"
        self._expect_master(host, port)
        self._store: Any = module.MooncakeDistributedStore()
        code = self._store.setup(
            options.hostname, options.metadata, options.segment_mib * _MIB, options.buffer_mib * _MIB,
            options.protocol, options.devices, f"{host}:{port}", tenant_id=options.tenant,
        )  # fmt: skip
        if code:
            raise StorageError(f"{self._where}: set-up answers {code}, expected a master that answers")
        self._pools: list[tuple[int, int, object]] = []
        self._staging = memoryview(bytearray(options.staging_mib * _MIB))
        self._staging_lock = threading.Lock()
        self._staging_at, self._staging_end, self._staging_kept = self._registered(self._staging)

    def register(self, pool: Buffer) -> None:
        """Pages that lie in `pool`, which stays where it is, are moved without a copy. Raises StorageError.

        Upstream: register_mem_pool_host.
        """
        self.expect_open()
        self._pools.append(self._registered(pool))

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys` the master knows, from the first on."""
        self.expect_open()
        return leading(each == 1 for each in self._store.batch_is_exist(list(keys))) if keys else 0

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each key whether its buffer holds the object. Empty objects are not to be had."""
        self.expect_open()
        expect_pairs(keys, into)
        found = [False] * len(keys)
        for batch in self._batches(keys, into):
            sizes = [into[number].nbytes for number in batch.numbers]
            with batch.guard:
                answers = self._store.batch_get_into(_picked(keys, batch), batch.addresses, sizes)
                for place, (number, size, answer) in enumerate(zip(batch.numbers, sizes, answers, strict=True)):
                    found[number] = answer == size
                    if found[number] and batch.staged_at is not None:
                        at = batch.staged_at[place]
                        flat(into[number])[:] = self._staging[at : at + size]
        self._count_reads(found, into)
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """For each key whether the store has it now; false where there is no room, for empty and for too large ones."""
        self.expect_open()
        expect_pairs(keys, pages)
        done = [False] * len(keys)
        for batch in self._batches(keys, pages):
            sizes = [pages[number].nbytes for number in batch.numbers]
            with batch.guard:
                for number, at in zip(batch.numbers, batch.staged_at or (), strict=batch.staged_at is not None):
                    self._staging[at : at + pages[number].nbytes] = flat(pages[number])
                answers = self._store.batch_put_from(_picked(keys, batch), batch.addresses, sizes)
            for number, answer in zip(batch.numbers, answers, strict=True):
                done[number] = answer == 0
        # The store says the same of a new page and of one that it had: both count as stored.
        size = sum(page.nbytes for page, ok in zip(pages, done, strict=True) if ok)
        self.tally.add(stored=sum(done), refused=len(done) - sum(done), bytes_written=size)
        return done

    def clear(self) -> None:
        """No object of the tenant is left, leased ones neither. Raises StorageError."""
        self.expect_open()
        if (code := self._store.remove_all(True)) < 0:
            raise StorageError(f"{self._where}: removing answers {code}, expected the number of objects removed")

    def _expect_master(self, host: str, port: int) -> None:
        """Somebody listens there: the client itself would try for minutes. Raises StorageError."""
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except OSError as error:
            raise StorageError(f"{self._where}: {error}, expected a master that answers") from error

    def _let_go(self) -> None:
        # A second close, and any call after the first, would end the process: `Handle` stands before them.
        self._store.close()
        self._pools.clear()

    def _registered(self, pool: Buffer) -> tuple[int, int, object]:
        """Where the memory begins and ends, and what keeps it in place. Raises StorageError."""
        array = (ctypes.c_char * pool.nbytes).from_buffer(pool)
        address = ctypes.addressof(array)
        if self._store.register_buffer(address, pool.nbytes):
            raise StorageError(f"{self._where}: {pool.nbytes} bytes are not registered, expected memory that can be")
        return address, address + pool.nbytes, array

    def _batches(self, keys: Sequence[str], buffers: Sequence[Buffer]) -> Iterator[_Batch]:
        """Every page that is not empty, nor larger than the staging buffer if it needs that."""
        addresses = [self._address(view) for view in buffers]
        for numbers in _without_repeats(keys):
            direct = [number for number in numbers if addresses[number] is not None]
            for start in range(0, len(direct), _AT_ONCE):
                part = direct[start : start + _AT_ONCE]
                yield _Batch(part, [addresses[number] or 0 for number in part], None, nullcontext())
            staged = [number for number in numbers if addresses[number] is None]
            yield from self._staged_batches(staged, [view.nbytes for view in buffers])

    def _staged_batches(self, numbers: Sequence[int], sizes: Sequence[int]) -> Iterator[_Batch]:
        """As many pages at once as the staging buffer holds."""
        batch: list[int] = []
        offsets: list[int] = []
        used = 0
        for number in numbers:
            if not 0 < sizes[number] <= len(self._staging):
                continue
            if len(batch) == _AT_ONCE or used + sizes[number] > len(self._staging):
                yield self._staged(batch, offsets)
                batch, offsets, used = [], [], 0
            batch.append(number)
            offsets.append(used)
            used += sizes[number]
        if batch:
            yield self._staged(batch, offsets)

    def _staged(self, numbers: list[int], offsets: list[int]) -> _Batch:
        return _Batch(numbers, [self._staging_at + at for at in offsets], offsets, self._staging_lock)

    def _address(self, view: Buffer) -> int | None:
        """Where the buffer begins, if it lies in registered memory."""
        if not self._pools or view.readonly or not view.nbytes:
            return None
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        inside = any(start <= address and address + view.nbytes <= end for start, end, _ in self._pools)
        return address if inside else None


def _without_repeats(keys: Sequence[str]) -> Iterator[list[int]]:
    """The numbers of the keys, in lists in which no key comes twice: of such, the store fills one buffer only."""
    rounds: list[list[int]] = []
    times: Counter[str] = Counter()
    for number, key in enumerate(keys):
        if times[key] == len(rounds):
            rounds.append([])
        rounds[times[key]].append(number)
        times[key] += 1
    yield from rounds


def _picked(keys: Sequence[str], batch: _Batch) -> list[str]:
    return [keys[number] for number in batch.numbers]
