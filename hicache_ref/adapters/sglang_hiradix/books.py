"""What the adapter keeps beside a cache: names for what upstream knows by object or number, and who asked for what.

Nothing here decides. Copies, fetches and backups are noted where the cache itself makes them, at its own calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.holding import Stage
from hicache_ref.adapters.sglang_hiradix.stepper import StepThread
from hicache_ref.vocabulary.ids import PageHash, Pages, ReceiptId, RequestId, TicketId
from hicache_ref.vocabulary.keys import Key, handle
from hicache_ref.vocabulary.observation import IssuedCopy


@dataclass(slots=True)
class Copy:
    """A copy that was submitted; `ack` is upstream's, with a finish event, or a node id where a thread copies."""

    moved: IssuedCopy
    ack: Any
    ended: bool = False

    @property
    def to(self) -> Literal["host", "device", "request"]:
        """Where it goes."""
        return self.moved.to

    @property
    def event(self) -> Any:
        """What says that it has ended; None where its acknowledgement waits in a queue."""
        return getattr(self.ack, "finish_event", None)

    @property
    def node_ids(self) -> Sequence[int]:
        """The nodes that upstream has on its books for it."""
        ids: Sequence[int] = getattr(self.ack, "node_ids", (self.ack,))
        return ids


@dataclass(slots=True)
class Fetch:
    """A prefetch until the end of its I/O was applied."""

    name: str
    rid: RequestId
    operation: Any
    asked: int
    since: int = 0
    """When it was asked for, in milliseconds; upstream's own clock stood at 0 then."""

    stage: Stage = "queued"


@dataclass(slots=True)
class Backup:
    """A write to storage until its acknowledgement was applied."""

    name: str
    operation: Any


@dataclass(slots=True)
class Request:
    """Device pages that a request holds, and the key of which they were written to hold `key[start:]`."""

    pages: Pages
    key: Key | None = None
    state: Pages = ()
    """Its state slot; in a cache without state none."""


@dataclass(slots=True)
class Pass:
    """A running forward pass, and the device pages it touches."""

    touches: frozenset[int]
    state: Pages = ()
    """The state slot that it changes."""

    end: PageHash | None = None
    """The hash of the last page, of which the state will be."""


@dataclass
class Books:
    """Everything that has a name now."""

    requests: dict[RequestId, Request] = field(default_factory=dict)
    passes: dict[RequestId, Pass] = field(default_factory=dict)
    held: dict[int, RequestId] = field(default_factory=dict)
    """Device pages given up under a running pass, and which pass; upstream's stream order is what protects them."""

    held_states: dict[int, str] = field(default_factory=dict)
    """State slots that were given up under a pass or a load into them, and its name."""

    receipts: dict[ReceiptId, Any] = field(default_factory=dict)
    copies: dict[TicketId, Copy] = field(default_factory=dict)
    issued: list[IssuedCopy] = field(default_factory=list)
    fetches: dict[str, Fetch] = field(default_factory=dict)
    backups: dict[str, Backup] = field(default_factory=dict)
    answered: list[Fetch] = field(default_factory=list)
    """Fetches whose answer waits for a poll, in order."""

    reads: list[tuple[Fetch, int]] = field(default_factory=list)
    """Batches read that wait for a poll, in order, each with the number of upstream's acknowledgements."""

    written: list[Backup] = field(default_factory=list)
    """Backups whose end waits for a poll, in order."""

    def pending(self) -> tuple[str, ...]:
        """The names of all that runs."""
        return tuple(sorted([*self.copies, *(f"f:{rid}" for rid in self.passes), *self.fetches, *self.backups]))

    def storage_pending(self) -> tuple[str, ...]:
        """The names of all work of storage that runs."""
        return tuple(sorted([*self.fetches, *self.backups]))


class Watch:
    """Notes what a cache asks for, at the calls by which it does."""

    def __init__(self, engine: Engine, books: Books) -> None:
        self.engine = engine
        self.books = books
        self.loading: Any = None
        """The node that a load-back in progress is for."""

        self.fetching: tuple[RequestId, Key, int] | None = None
        """The request, key and number of pages that a prefetch in progress is for."""

        self.inserted: tuple[int, int] | None = None
        """Tokens of the last fetched key that went into the tree, and how many of them were there already."""

        self._writing: Any = None
        self._moved: IssuedCopy | None = None
        self._work: list[Callable[[], object]] = []
        cache, controller, copier = engine.cache, engine.controller, engine.copier
        self._wrap(cache, "write_backup", self._write_backup)
        self._wrap(cache, "write_backup_storage", self._write_backup_storage)
        self._wrap(cache, "_insert_helper_host", self._insert_host)
        self._wrap(controller, "prefetch", self._prefetch)
        if engine.traits.copies_in_threads:
            self._wrap(controller, "write", self._write_in_thread)
            self._wrap(cache, "ready_to_load_host_cache", self._load_in_thread)
        else:
            self._wrap(controller, "start_writing", self._start_writing)
            self._wrap(controller, "start_loading", self._start_loading)
            self._wrap(controller.layer_done_counter, "update_producer", self._next_in_ring)
        self._wrap(copier, "backup_from_device_all_layer", self._to_host)
        self._wrap(copier, "load_to_device_per_layer", self._to_device)
        self._wrap(engine.allocator, "free", self._free)

    @staticmethod
    def _wrap(owner: Any, name: str, watcher: Any) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, lambda *args, **kwargs: watcher(original, *args, **kwargs))

    # -- copies -----------------------------------------------------------------------------------------------------

    def _write_backup(self, original: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        before, self._writing = self._writing, node
        try:
            return original(node, *args, **kwargs)
        finally:
            self._writing = before

    def _to_host(
        self, original: Any, pool: Any, host: torch.Tensor, device: torch.Tensor, *rest: Any, **given: Any
    ) -> None:
        source, target = self.engine.device_slots.pages(device), self.engine.host_slots.pages(host)
        states, copies = self.states_moved(given)
        self._moved = IssuedCopy(to="host", source=source, target=target, source_states=states, target_states=copies)
        self._work.append(partial(original, pool, host, device, *rest, **given))

    def _to_device(
        self, original: Any, pool: Any, host: torch.Tensor, device: torch.Tensor, *rest: Any, **given: Any
    ) -> None:
        source, target = self.engine.host_slots.pages(host), self.engine.device_slots.pages(device)
        copies, states = self.states_moved(given)
        self._moved = IssuedCopy(to="device", source=source, target=target, source_states=states, target_states=copies)
        self._work.append(partial(original, pool, host, device, *rest, **given))

    def states_moved(self, given: Mapping[str, Any]) -> tuple[Pages, Pages]:
        """State slots on device and on host of what a copy was asked with: none in a cache without state."""
        return (), ()

    def _start_writing(self, original: Any) -> Any:
        done = original()
        self._note("host", self.engine.controller.ack_write_queue, self._writing)
        return done

    def _start_loading(self, original: Any) -> Any:
        done = original()
        self._note("device", self.engine.controller.ack_load_queue, self.loading)
        return done

    def _write_in_thread(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """The thread has copied at once; whether the scheduler knows is a matter of its queue."""
        done = original(*args, **kwargs)
        self._step_all("write_thread_func_direct")
        self._note("host", self.engine.controller.ack_write_queue.queue, self._writing)
        return done

    def _load_in_thread(self, original: Any) -> Any:
        done = original()
        self._step_all("load_thread_func_layer_by_layer")
        self._note("device", self.engine.controller.ack_load_queue.queue, self.loading)
        return done

    def _step_all(self, name: str) -> None:
        """Each thread of that name has done all that it was asked for: it wakes, then takes from its queue."""
        for thread in list(StepThread.living):
            if thread.name == name and thread.owner is self.engine.controller and thread.is_alive():
                thread.step()
                while thread.is_alive() and not thread.is_idle():
                    thread.step()

    def _note(self, to: Literal["host", "device"], acks: Sequence[Any], node: Any) -> None:
        """The copy that was just submitted has its name; in a step that blocks it may lose that again."""
        moved, self._moved = self._moved, None
        if moved is None:
            return
        work, self._work = self._work, []
        name = handle("h" if to == "host" else "d", self.engine.key_of_node(node), self.books.copies)
        copy = self.books.copies[name] = Copy(moved, acks[-1])
        if copy.event is not None:
            copy.event.work = work
        else:
            for each in work:
                each()
        self.books.issued.append(moved.model_copy(update={"ticket": name}))

    def settle(self) -> None:
        """Copies that a step itself waited for have ended in it: they have no ticket."""
        left = {"host": self.acks("ack_write_queue"), "device": self.acks("ack_load_queue")}
        gone = {name for name, copy in self.books.copies.items() if id(copy.ack) not in left[copy.to]}
        for name in gone:
            del self.books.copies[name]
        for index, issued in enumerate(self.books.issued):
            if issued.ticket in gone:
                self.books.issued[index] = issued.model_copy(update={"ticket": None})

    def acks(self, name: str) -> set[int]:
        """What identifies the acknowledgements that wait in this queue of the controller."""
        queue = getattr(self.engine.controller, name)
        return {id(ack) for ack in getattr(queue, "queue", queue)}

    def _next_in_ring(self, original: Any) -> Any:
        """The ring of layer events has room. Upstream's has three, and forward passes wait before a fourth is asked."""
        counter = self.engine.controller.layer_done_counter
        index = (counter.producer_index + 1) % counter.num_counters
        if not counter.events[index].finish_event.query():
            counter.events[index] = type(counter.events[index])(counter.num_layers)
        return original()

    # -- device pages given up under a pass -------------------------------------------------------------------------

    def _free(self, original: Any, slots: torch.Tensor) -> Any:
        """Pages that a pass touches are kept back until it has ended; what is freed again is free, as in the pool."""
        if not self.books.passes or not slots.numel():
            return original(slots)
        now: list[int] = []
        pages = self.engine.device_slots.pages(slots)
        # Upstream's allocator of pages takes each once from a call, that of tokens as often as it comes.
        for page in pages if self.engine.device_slots.size == 1 else dict.fromkeys(pages):
            touching = [rid for rid, each in self.books.passes.items() if page in each.touches]
            if touching and page not in self.books.held:
                self.books.held[page] = touching[-1]
            else:
                now.append(page)
        return original(self.engine.device_slots.slots(now)) if now else None

    # -- storage ----------------------------------------------------------------------------------------------------

    def _prefetch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        operation = original(*args, **kwargs)
        if self.fetching is not None:
            rid, key, asked = self.fetching
            name = handle("p", key, self.books.fetches)
            self.books.fetches[name] = Fetch(name, rid, operation, asked)
        return operation

    def _write_backup_storage(self, original: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(node, *args, **kwargs)
        name = handle("b", self.engine.key_of_node(node), self.books.backups)
        self.books.backups[name] = Backup(name, self.engine.controller.backup_queue.queue[-1])
        return done

    def _insert_host(self, original: Any, node: Any, key: Any, *rest: Any) -> Any:
        matched = original(node, key, *rest)
        self.inserted = (len(key), matched)
        return matched
