"""The engine as an implementation: a model decides, and every byte of its pages is on a device that it drives.

The tester's facts come true on the device first: a copy that is told to have ended has ended there, one that failed has
spoilt its pages. What pages hold is read from memory, so nothing but the bytes themselves can say that they are right.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from pydantic import ValidationError

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.engine.contents import PatternPasses, Reader, held, pools_of
from hicache_ref.engine.controller import Controller
from hicache_ref.engine.happens_before import Ordering
from hicache_ref.engine.hosts import POISON, Watch
from hicache_ref.engine.layout import LayoutError
from hicache_ref.engine.pools import Pool
from hicache_ref.engine.simulated import SimulatedDevice
from hicache_ref.engine.small import SmallModel
from hicache_ref.engine.threaded import ThreadedDevice
from hicache_ref.model import Step
from hicache_ref.model.state import Ticket
from hicache_ref.storage.base import Backend
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyToDevice, CopyToHost, RunForward, StorageRead, StorageWrite
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, STATE, Component, Page, PageHash
from hicache_ref.vocabulary.observation import LEVELS, Level, Observation
from hicache_ref.vocabulary.operations import (
    ClearStorage,
    CopyDone,
    CopyFailed,
    Forward,
    ForwardDone,
    Operation,
    ReadDone,
    RegisterDraft,
    WriteDone,
)
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile

DeviceName = Literal["simulated", "cpu"]
IO_THREAD = "storage"
START_SHARE = 0.5
"""How often queued loads are started after a step; a pass starts those that it needs in any case."""


class EngineAdapter(ReferenceAdapter):
    """A model whose effects a controller carries out on a device, with a store behind it.

    `seed` draws what a simulated device does when; `kind` may be a faulty controller.
    """

    def __init__(self, small: SmallModel, seed: int = 0, kind: type[Controller] = Controller, *,
                 device: DeviceName = "simulated", opener: Callable[[], Backend] = MemoryBackend) -> None:  # fmt: skip
        self._small = small
        self._seed = seed
        self._device_name = device
        self._rng = random.Random(seed)
        self.device = self._new_device(Ordering().take)
        self._controller_kind = kind
        self._opener = opener
        super().__init__(name="engine")
        self.reset(Profile())

    def describe(self) -> Description:
        """As the model, and every byte can be seen."""
        return super().describe().model_copy(update={"level": "bytes", "version": self._device_name})

    def _new_device(self, watch: Watch) -> SimulatedDevice | ThreadedDevice:
        return ThreadedDevice(watch) if self._device_name == "cpu" else SimulatedDevice(self._rng.randrange, watch)

    def reset(self, profile: Profile) -> None:
        """The device is new, with it all memory; so is the store."""
        super().reset(profile)
        self.device.close()
        self._rng = random.Random(self._seed)
        self.device = self._new_device(Ordering().take)
        self.pairs = self._small.pairs(profile, self.device)
        self.passes = PatternPasses(self.pairs)
        self.controller = self._controller_kind(self.device, self.pairs, self.passes)
        self._reader = Reader(pools_of(self.pairs))
        self._learnt: set[PageHash] = set()
        self._store = self._opener()
        self._jobs: dict[str, tuple[StorageRead | StorageWrite, int]] = {}
        """Batches that storage works on, and the message that each was handed over with."""

    # -- the four verbs -----------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> Outcome:
        """As the model tells it. A fact of the world is true before the model hears of it."""
        if self.model.requires(operation) is None:
            self._come_true(operation)
        return super().apply(operation)

    def observe(self, level: Level) -> Observation:
        """As the model shows it, and what every page was found to hold."""
        if level != "bytes":
            return super().observe(level)
        return (
            super()
            .observe(LEVELS[LEVELS.index(level) - 1])
            .model_copy(update={"level": level, "contents": self._contents(), "self_check": self._wrong_draft()})
        )

    # -- facts --------------------------------------------------------------------------------------------------------

    def _come_true(self, fact: Operation) -> None:
        """The device or the store has done what the tester says that it has."""
        if isinstance(fact, ForwardDone):
            self._finish(f"f:{fact.rid}")
        elif isinstance(fact, CopyDone | CopyFailed):
            self._finish(fact.ticket)
            if isinstance(fact, CopyFailed):
                self._spoil(self.model.state.tickets[fact.ticket], fact.first_failed)
        elif isinstance(fact, ReadDone | WriteDone) and fact.id in self._jobs:
            self._move(fact)

    def _finish(self, *names: str) -> None:
        self.controller.finish(names)
        for _ in self.controller.ended():
            pass

    def _spoil(self, ticket: Ticket, first: int) -> None:
        """The copy has failed from this part on: its pages hold nothing, whatever it had written."""
        for part in ticket.parts[first:]:
            to_host = ticket.to == "host"
            for pair in self.pairs[part.component]:
                pool = pair.host if to_host else pair.device
                for page in part.host if to_host else part.device:
                    pool.write(page, bytes([POISON]) * pool.spec.page_bytes)

    def _move(self, fact: ReadDone | WriteDone) -> None:
        """The storage thread has moved what the fact says; it began after all that its batch comes after."""
        task, begun = self._jobs.pop(fact.id)
        moves = list(_moved(task, fact))
        pools = {component: [pair.host for pair in pairs] for component, pairs in self.pairs.items()}
        touched = [place for component, draft, page, _ in moves for place in pools[component][draft].locations([page])]
        with self.device.on(IO_THREAD):
            self.device.take(begun)
            is_read = isinstance(fact, ReadDone)
            self.device.touch(fact.id, *((), tuple(touched)) if is_read else (tuple(touched), ()))
            for component, draft, page, digest in moves:
                (self._fetch if is_read else self._store_page)(pools[component][draft], page, digest)
            ended = self.device.put()
        self.device.take(ended)

    def _fetch(self, pool: Pool, page: Page, digest: PageHash) -> None:
        """The host page holds the object; one that the store has not, somebody else has put there."""
        name, data = f"{digest}.{pool.name}", bytearray(pool.spec.page_bytes)
        if not self._store.exists([name]):
            self._store.write([name], [memoryview(held(pool, digest))])
        self._store.read([name], [memoryview(data)])
        pool.write(page, bytes(data))

    def _store_page(self, pool: Pool, page: Page, digest: PageHash) -> None:
        """The store has what the host page holds."""
        self._store.write([f"{digest}.{pool.name}"], [memoryview(pool.read(page))])

    # -- effects ------------------------------------------------------------------------------------------------------

    def perform(self, operation: Operation, step: Step) -> None:
        """Each effect is under way, on the device or on the storage thread."""
        if isinstance(operation, Forward) and operation.rid in self.model.state.passes:
            hashes = self.model.hashes(self.model.pages(operation.key), operation.key.extra)
            self._learn(hashes)
            doomed = self.model.state.passes[operation.rid].doomed
            self.passes.expect(f"f:{operation.rid}", hashes, doomed=doomed)
        if isinstance(operation, ClearStorage):
            self._store.clear()
        if isinstance(operation, RegisterDraft) and len(self.pairs[KV]) == 1:
            self.pairs[KV].append(self._small.draft_pair(self.model.profile, self.device))
            self.controller.deepen()
        for effect in step.effects:
            if isinstance(effect, StorageRead | StorageWrite):
                self._learn(effect.hashes)
                self._finish(*effect.after)
                self._jobs[effect.id] = (effect, self.device.put())
            elif isinstance(effect, RunForward | CopyToHost | CopyToDevice | CopyOnDevice):
                self.controller.submit(effect)
                if not isinstance(effect, RunForward) and effect.id not in self.model.state.tickets:
                    # A copy that ends inside the step: whoever asked for it waits.
                    self._finish(effect.id)
        if self._rng.random() < START_SHARE:
            self.controller.start_loading()

    def _learn(self, hashes: Iterable[PageHash]) -> None:
        for digest in hashes:
            if digest not in self._learnt:
                self._learnt.add(digest)
                self._reader.learn(digest)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _contents(self) -> dict[str, PageHash]:
        """What was found in each page of the target's pools."""
        found = {}
        for component, pairs in self.pairs.items():
            for tier, pool in (("device", pairs[0].device), ("host", pairs[0].host)):
                for page in range(pool.place.pages):
                    digest = self._reader.read(pool, page)
                    if digest is not None:
                        found[f"{tier}{'_state' * (component == STATE)}:{page}"] = digest
        return found

    def _wrong_draft(self) -> str | None:
        """The first draft page that counts as valid and does not hold what its page holds (HC-DRAFT-01)."""
        for pair in self.pairs[KV][1:]:
            for pool, name in ((pair.device, KV_DEVICE), (pair.host, KV_HOST)):
                for page, digest in enumerate(self.model.state.pools[name].draft):
                    if digest is not None and pool.read(page) != held(pool, digest):
                        return f"draft page {page} of {pool.name} counts as valid, and does not hold its page"
        return None


def _moved(
    task: StorageRead | StorageWrite, fact: ReadDone | WriteDone
) -> Iterator[tuple[Component, int, Page, PageHash]]:
    """Of each object that was moved: component, 1 for a draft page or else 0, page, hash."""
    pairs = list(zip(task.pages, task.hashes, strict=True))
    for draft, count in ((0, fact.pages), (1, fact.draft)):
        yield from ((KV, draft, page, digest) for page, digest in pairs[:count])
    if isinstance(task, StorageRead) and isinstance(fact, ReadDone) and fact.state:
        yield from ((STATE, 0, slot, task.hashes[-1]) for slot in task.state)
    if isinstance(task, StorageWrite) and isinstance(fact, WriteDone):
        yield from ((STATE, 0, slot, end) for slot, end in zip(task.states[: fact.states], task.ends, strict=False))


class EngineOptions(SmallModel):
    """Options of the adapter: the device, the small model, and what the device does when."""

    device: DeviceName = "simulated"
    seed: int = 0


def make(options: Mapping[str, str]) -> EngineAdapter:
    """The adapter with these options. Raises AdapterError for an unknown one, and for a value that there is not."""
    try:
        chosen = EngineOptions.model_validate(dict(options), strict=False)
        return EngineAdapter(chosen, chosen.seed, device=chosen.device)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = ", ".join(f"{each}=" for each in EngineOptions.model_fields)
            raise AdapterError(f"unknown option {name!r} of engine, expected one of {known}") from None
        raise AdapterError(f"option {name}={first['input']} of engine: {first['msg']}") from None
    except LayoutError as error:
        raise AdapterError(f"option layout of engine: {error}") from None
