"""A process that records: `python -m tests.adapters.recorder_child JSON` drives a real cache by its own calls.

The calls are those of a scheduler, drawn at random; nothing here knows our operations. JSON has the fields of `Wanted`.
"""

import atexit
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from hicache_ref.adapters.sglang import VARIABLE, Recorder, RecordError, record, record_if_asked
from hicache_ref.adapters.sglang_hiradix.child import SglangHiRadix
from hicache_ref.adapters.sglang_hiradix.engine import Clock, Engine
from hicache_ref.adapters.sglang_hiradix.fitting import set_batch
from hicache_ref.adapters.sglang_hiradix.setup import Setup
from hicache_ref.adapters.sglang_hiradix.stepper import Answer, StepThread
from hicache_ref.adapters.sglang_hiradix.wheels import root_of
from hicache_ref.adapters.sglang_hiradix.workers import SYNCS
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings


class Wanted(NamedTuple):
    """What is to be recorded, and where to."""

    version: str
    path: str = ""
    seed: int = 0
    rounds: int = 200
    page_size: int = 1
    device: int = 24
    host: int = 40
    letters: int = 3
    longest: int = 6
    policy: str = "write_through"
    storage: str | None = None
    """The prefetch policy where there is storage."""

    short: float = 0.2
    """How many reads of storage are cut short."""

    terminates: float = 0.0
    """How often a request's prefetch is told to stop, where it would ask whether it may go on."""

    prompt: bool = False
    """Whether copies end, and are known to have, as soon as a request has."""

    look_every: int = 20
    looking_share: float = 0.03
    fault: str | None = None
    """What goes wrong half-way: `foreign-unlock` or `raises`."""

    by_variable: bool = False
    late: bool = False
    """Whether a second recording is asked for at the end."""


class Request(NamedTuple):
    """A request that runs: what it has, as a scheduler knows it."""

    tokens: tuple[int, ...]
    node: Any
    matched: int
    slots: torch.Tensor


class Scheduler:
    """Calls a cache as SGLang's scheduler does."""

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self.engine = engine
        self.cache = engine.cache
        self.wanted = wanted
        self.rng = random.Random(wanted.seed)
        self.running: list[Request] = []
        self.past: list[tuple[int, ...]] = []
        self.waiting: list[str] = []
        self.asked = 0

    def key(self) -> tuple[int, ...]:
        """A new prompt, or one that shares a prefix with an earlier one."""
        rng, size = self.rng, self.wanted.page_size
        pages = rng.randrange(1, self.wanted.longest + 1)
        start: tuple[int, ...] = ()
        if self.past and rng.random() < 0.7:
            earlier = rng.choice(self.past)
            start = earlier[: rng.randrange(0, len(earlier) // size + 1) * size]
        fresh = [rng.randrange(1, self.wanted.letters + 1) for _ in range(max(1, pages - len(start) // size))]
        return (*start, *(number for letter in fresh for number in (letter,) * size))

    def prefill(self) -> None:
        """A request is admitted: matched, locked, loaded back, and given its pages."""
        tokens = self.key()
        if self.rng.random() < 0.3:
            self.engine.match(Key(tokens=self.key()))
        found = self.engine.match(Key(tokens=tokens))
        node, matched = found.last_device_node, len(found.device_indices)
        slots = found.device_indices
        # Upstream has room for three batches of loads on their way.
        if found.host_hit_length and len(self.engine.controller.ack_load_queue) < 2:
            loaded = self.cache.load_back(found.last_host_node, self._room())
            if loaded is not None:
                self.cache.ready_to_load_host_cache()
                self._let_pass_layers()
                node, matched = found.last_host_node, matched + len(loaded)
                slots = torch.cat([slots, loaded])
        self.cache.inc_lock_ref(node)
        need = len(tokens) - matched
        if need > self.engine.allocator.available_size():
            self.engine.evict(need - self.engine.allocator.available_size())
        own = self.engine.allocator.alloc(need) if need else torch.empty(0, dtype=torch.int64)
        if own is None:
            self.cache.dec_lock_ref(node)
            return
        self.running.append(Request(tokens, node, matched, torch.cat([slots, own])))

    def _room(self) -> int:
        """Tokens that could be had, as the scheduler counts them, or fewer."""
        room = int(self.engine.allocator.available_size() + self.cache.evictable_size())
        return room if self.rng.random() < 0.7 else self.rng.randrange(room + 1)

    def _let_pass_layers(self) -> None:
        """Nobody waits for single layers here, of which upstream keeps count too."""
        for counted in getattr(getattr(self.engine.controller, "layer_done_counter", None), "events", ()):
            for event in getattr(counted, "load_events", ()):
                event.is_pending = False

    def finish(self) -> None:
        """A request ends: what it computed goes into the tree, and what the tree had before is free."""
        if not self.running:
            return
        request = self.running.pop(self.rng.randrange(len(self.running)))
        if self.rng.random() < 0.1:
            self.engine.allocator.free(request.slots[request.matched :])
        else:
            known = self.engine.insert(
                Key(tokens=request.tokens), request.slots, chunked=self.rng.random() < 0.2, priority=0
            )
            if known > request.matched:
                self.engine.allocator.free(request.slots[request.matched : known])
            self.past.append(request.tokens)
        self.cache.dec_lock_ref(request.node)
        if self.wanted.prompt:
            self.poll()

    def poll(self) -> None:
        """Some of the copies have ended, and the scheduler looks."""
        controller = self.engine.controller
        for queue in (controller.ack_write_queue, controller.ack_load_queue):
            for ack in list(queue)[: None if self.wanted.prompt else self.rng.randrange(4)]:
                event = getattr(ack, "finish_event", None) or ack[1]
                event.do_work()
                event.is_pending = False
        self.cache.check_hicache_events()

    def evict(self) -> None:
        """Room is made before it is needed."""
        self.engine.evict(self.rng.randrange(1, 8) * self.wanted.page_size)

    # -- storage ----------------------------------------------------------------------------------------------------

    def prefetch(self) -> None:
        """A request that waits asks storage for what comes after its match, if that ends on host."""
        tokens = self.rng.choice(self.past) if self.past and self.rng.random() < 0.8 else self.key()
        found = self.engine.match(Key(tokens=tokens))
        matched = len(found.device_indices) + found.host_hit_length
        anchor = found.last_host_node
        depth = len(self.engine.key_of_node(anchor).tokens)
        self.asked += 1
        rid = f"r{self.asked}"
        if depth == matched and matched < len(tokens):
            self.engine.prefetch(rid, anchor, Key(tokens=tokens), matched)
            self.waiting.append(rid)

    def progress(self) -> None:
        """The scheduler asks whether a request may go on; now and then the request has gone."""
        if not self.waiting:
            return
        rid = self.rng.choice(self.waiting)
        handle = self.engine.handle(rid)
        if self.wanted.terminates and self.rng.random() < self.wanted.terminates:
            self.cache.terminate_prefetch(rid)
            return
        if self.rng.random() < 0.2 and hasattr(self.cache, "release_aborted_request"):
            self.cache.release_aborted_request(handle)
        elif not self.cache.check_prefetch_progress(handle):
            return
        elif hasattr(self.cache, "pop_prefetch_loaded_tokens"):
            self.cache.pop_prefetch_loaded_tokens(handle)
        self.waiting.remove(rid)

    def flush(self) -> None:
        """Device and host are given up as far as may be, so that storage is asked again."""
        self.engine.evict(self.wanted.device * self.wanted.page_size)
        self.cache.evict_host(self.wanted.host * self.wanted.page_size)

    def work(self) -> None:
        """One of the threads of storage does what it does between two looks at its queue, or one batch of that."""
        able = [each for each in StepThread.living if each.is_alive() and not each.is_idle()]
        if not able:
            return
        thread = self.rng.choice(able)
        answer = None
        if thread.at.kind == "call" and thread.at.name == "batch_get" and self.rng.random() < self.wanted.short:
            answer = Answer(self.rng.randrange(len(thread.at.keys)))
        thread.step(answer)
        while thread.is_alive() and thread.at.kind not in ("call", "get", "wait"):
            thread.step()
        for sync in list(StepThread.living):
            while sync.name == SYNCS and sync.is_alive() and not sync.is_idle():
                sync.step()

    def turn(self) -> None:
        """Something happens."""
        acts: list[tuple[Callable[[], None], float]] = [
            (self.prefill, 4), (self.finish, 4), (self.poll, 4), (self.evict, 1),
        ]  # fmt: skip
        if self.wanted.storage is not None:
            acts += [(self.prefetch, 2), (self.progress, 2), (self.work, 8), (self.flush, 0.5)]
        self.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()


def made(wanted: Wanted, adapter: SglangHiRadix) -> Engine:
    """A new cache of the release."""
    traits = adapter.traits()
    sizes = Sizes(device_pages=wanted.device, host_pages=wanted.host, page_size=wanted.page_size, storage_batch=2)
    rules = RULES[traits.preset].model_copy(update={"write_policy": wanted.policy})
    set_batch(traits, sizes.storage_batch)
    folder = tempfile.mkdtemp(prefix="hicache-ref-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    engine = Engine(traits, Profile(rules=rules, sizes=sizes), folder, Clock(), events=False)
    settings = None
    if wanted.storage is not None:
        settings = StorageSettings.model_validate({"prefetch_policy": wanted.storage, "prefetch_threshold": 1})
    engine.make(settings)
    return engine


def begun(wanted: Wanted, engine: Engine) -> Recorder | None:
    """The recording, if one is wanted."""
    if not wanted.path:
        return None
    if wanted.by_variable:
        os.environ[VARIABLE] = wanted.path
        return record_if_asked(engine.cache)
    return record(engine.cache, wanted.path, look_every=wanted.look_every, looking_share=wanted.looking_share)


def own(engine: Engine) -> list[str]:
    """The names that cache and controller have themselves, and not from their classes."""
    return sorted({*vars(engine.cache), *vars(engine.controller)})


def plant(wanted: Wanted, scheduler: Scheduler) -> None:
    """Something goes wrong."""
    engine = scheduler.engine
    if wanted.fault == "foreign-unlock":
        scheduler.prefill()
        engine.cache.dec_lock_ref(next(iter(engine.cache.root_node.children.values())))
    elif wanted.fault == "raises":
        engine.cache._make_eviction_heap = planted
        engine.evict(1)


def planted(*args: Any) -> None:
    """Raises RuntimeError."""
    raise RuntimeError("planted")


def run(wanted: Wanted) -> dict[str, Any]:
    """The calls were made, recorded if there is a path. Returns CPU seconds, and what tests ask about."""
    adapter = SglangHiRadix(Setup(root=str(root_of(wanted.version, fetch=False)), version=wanted.version))
    engine = made(wanted, adapter)
    said: dict[str, Any] = {"off_without": record_if_asked(engine.cache) is None, "own_before": own(engine)}
    recorder = begun(wanted, engine)
    scheduler = Scheduler(engine, wanted)
    began = time.process_time()
    with suppress(RuntimeError if wanted.fault else ()):
        for number in range(wanted.rounds):
            if number == wanted.rounds // 2:
                plant(wanted, scheduler)
            scheduler.turn()
    said["seconds"] = time.process_time() - began
    if recorder is not None:
        recorder.close()
        said["ended"] = None if recorder.ended == "closed" else recorder.ended
    said["own_after"] = own(engine)
    if wanted.late:
        try:
            record(engine.cache, wanted.path + ".late")
        except RecordError as error:
            said["refused"] = str(error)
    adapter.close()
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Wanted(**json.loads(sys.argv[1])))) + "\n")
