"""What recording costs: `python -m tests.adapters.recorder_cost VERSION PAGE_SIZE TOKENS` measures, with and without.

The calls are those that a scheduler makes for requests of TOKENS tokens each, of which most share a prefix with an
earlier one. Each run is a process of its own; runs with and without recording take turns.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from hicache_ref.adapters.sglang import record
from hicache_ref.adapters.sglang_hiradix.child import SglangHiRadix
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.setup import Setup
from hicache_ref.adapters.sglang_hiradix.wheels import root_of
from tests.adapters.recorder_child import Wanted, made

ANSWER = 32
"""Tokens that a request adds to its prompt."""

STEPS = 8
"""Steps of the scheduler for each request; in each it polls."""

VOCABULARY = 150_000


class Timed:
    """Calls a cache, and adds up the time of its thread in them."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.calls = 0

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        began = time.thread_time_ns()
        result = function(*args)
        self.nanoseconds += time.thread_time_ns() - began
        self.calls += 1
        return result

    def seconds(self) -> float:
        """In the calls, without what looking at the clock takes."""
        idle = Timed()
        for _ in range(10_000):
            idle(int)
        return (self.nanoseconds - idle.nanoseconds / idle.calls * self.calls) / 1e9


class Requests:
    """A scheduler with a few requests at a time, each as upstream's treats it."""

    def __init__(self, engine: Engine, tokens: int, seed: int) -> None:
        self.engine, self.cache = engine, engine.cache
        self.tokens = tokens
        self.rng = random.Random(seed)
        self.size = engine.page_size
        self.timed = Timed()
        self.prompts: list[list[int]] = []
        self.kinds = {name: engine._kind(name) for name in ("MatchPrefixParams", "InsertParams", "EvictParams")}

    def prompt(self) -> list[int]:
        """A new one that shares no, some, or most of an earlier one."""
        shared: list[int] = []
        if self.prompts and self.rng.random() < 0.8:
            shared = self.rng.choice(self.prompts)[: self.rng.randrange(self.tokens)]
        fresh = [self.rng.randrange(VOCABULARY) for _ in range(self.tokens - len(shared))]
        made = [int(str(token)) for token in shared] + fresh
        self.prompts = [*self.prompts[-15:], made]
        return made

    def key(self, tokens: list[int]) -> Any:
        """As upstream makes it for a call."""
        return self.engine.key(tokens, None)

    def match(self, tokens: list[int]) -> Any:
        """What match_prefix returns."""
        key, kind = self.key(tokens), self.kinds["MatchPrefixParams"]
        return self.timed(self.cache.match_prefix, key if kind is None else kind(key=key))

    def insert(self, tokens: list[int], slots: torch.Tensor, *, chunked: bool) -> int:
        """How many tokens the tree had."""
        whole = len(tokens) // self.size * self.size
        key, kind = self.key(tokens[:whole]), self.kinds["InsertParams"]
        if kind is None:
            known: int = self.timed(self.cache.insert, key, slots[:whole], chunked)
            return known
        return int(self.timed(self.cache.insert, kind(key=key, value=slots[:whole], chunked=chunked)).prefix_len)

    def room(self, tokens: int) -> torch.Tensor | None:
        """Pages for so many tokens, others evicted for them."""
        tokens = -(-tokens // self.size) * self.size
        short = tokens - self.engine.allocator.available_size()
        if short > 0:
            kind = self.kinds["EvictParams"]
            self.timed(self.cache.evict, short if kind is None else kind(num_tokens=short))
        slots: torch.Tensor | None = self.engine.allocator.alloc(tokens)
        return slots

    def poll(self) -> None:
        """All copies have ended, and the scheduler looks."""
        controller = self.engine.controller
        for queue in (controller.ack_write_queue, controller.ack_load_queue):
            for ack in queue:
                event = getattr(ack, "finish_event", None) or ack[1]
                event.is_pending = False
        self.timed(self.cache.check_hicache_events)

    def admitted(self, tokens: list[int]) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
        """Where the prompt's match ends, its slots, and its own ones."""
        found = self.match(tokens[:-1])
        node, slots = found.last_device_node, found.device_indices
        if found.host_hit_length:
            self.timed(self.cache.inc_lock_ref, node)
            loaded = self.timed(self.cache.load_back, found.last_host_node)
            self.timed(self.cache.dec_lock_ref, node)
            self.cache.ready_to_load_host_cache()
            for counted in getattr(getattr(self.engine.controller, "layer_done_counter", None), "events", ()):
                for event in getattr(counted, "load_events", ()):
                    event.is_pending = False
            if loaded is not None:
                node, slots = found.last_host_node, torch.cat([slots, loaded])
        self.timed(self.cache.inc_lock_ref, node)
        own = self.room(len(tokens) + ANSWER - len(slots))
        return node, slots, own

    def served(self) -> None:
        """One request from its first match to its last insert."""
        tokens = self.prompt()
        node, slots, own = self.admitted(tokens)
        if own is None:
            self.timed(self.cache.dec_lock_ref, node)
            return
        matched, slots = len(slots), torch.cat([slots, own])
        known = self.insert(tokens, slots, chunked=False)
        self.give_back(slots[matched:known])
        again = self.match(tokens)
        slots = torch.cat([again.device_indices, slots[len(again.device_indices) :]])
        self.timed(self.cache.dec_lock_ref, node)
        self.timed(self.cache.inc_lock_ref, again.last_device_node)
        for _ in range(STEPS):
            self.poll()
        tokens += [self.rng.randrange(VOCABULARY) for _ in range(ANSWER)]
        held = len(again.device_indices)
        known = self.insert(tokens, slots, chunked=False)
        self.give_back(slots[held:known])
        self.give_back(slots[len(tokens) // self.size * self.size :])
        self.timed(self.cache.dec_lock_ref, again.last_device_node)

    def give_back(self, slots: torch.Tensor) -> None:
        """The slots are free."""
        if len(slots):
            self.engine.allocator.free(slots)


class Cost(NamedTuple):
    """What one run says: CPU seconds in the cache's calls, without and with the recorder, and of the calling thread."""

    plain: float
    recorded: float
    plain_thread: float
    recorded_thread: float
    teller: float
    """Of the process that writes."""

    calls: int
    ended: str | None


def measured(version: str, page_size: int, tokens: int, seed: int, requests: int) -> Cost:
    """Two caches in this process are served the same requests by turns, and one of them is recorded."""
    room = 24 * (tokens + 2 * ANSWER + page_size) // page_size
    wanted = Wanted(version, page_size=page_size, device=room, host=2 * room, seed=seed)
    adapter = SglangHiRadix(Setup(root=str(root_of(version, fetch=False)), version=version))
    sides = [Requests(made(wanted, adapter), tokens, seed) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        recorder = record(sides[1].cache, Path(folder, "run.jsonl"))
        for _ in range(requests // 4):
            for side in sides:
                side.served()
        seconds = [0.0, 0.0]
        for side in sides:
            side.timed = Timed()
        for number in range(requests):
            for index in (0, 1) if number % 2 else (1, 0):
                began = time.thread_time()
                sides[index].served()
                seconds[index] += time.thread_time() - began
            # A server does not do nothing but this.
            while recorder.ended is None and recorder.is_behind():
                time.sleep(0.001)
        recorder.close()
    adapter.close()
    plain, recorded = (side.timed.seconds() for side in sides)
    # What it took for the requests before is about a fifth; its start counts as well.
    teller = recorder.teller_seconds * requests / (requests + requests // 4)
    return Cost(plain, recorded, *seconds, teller, sides[0].timed.calls, recorder.ended)


def compared(version: str, page_size: int, tokens: int, runs: int, requests: int) -> str:
    """The medians of `runs` runs, each a process of its own, in words."""
    costs = []
    for seed in range(runs):
        given = [version, page_size, tokens, seed, requests]
        command = [sys.executable, "-W", "ignore", "-m", "tests.adapters.recorder_cost", json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        costs.append(Cost(*json.loads(done.stdout.splitlines()[-1])))
    per_call = median(each.plain / each.calls for each in costs) * 1e6
    calls = median((each.recorded - each.plain) / each.plain for each in costs)
    thread = median((each.recorded_thread - each.plain_thread) / each.plain for each in costs)
    teller = median(each.teller / each.plain for each in costs)
    return (
        f"{version:7s} page size {page_size:2d}, {tokens:4d} tokens, {per_call:5.1f} us a call: {calls:5.1%} in calls, "
        f"{thread:5.1%} of the thread, {teller:5.1%} of the other process; {costs[-1].ended}"
    )


if __name__ == "__main__":
    if sys.argv[1].startswith("["):
        sys.stdout.write(json.dumps(measured(*json.loads(sys.argv[1]))) + "\n")
    else:
        sys.stdout.write(compared(sys.argv[1], *map(int, sys.argv[2:])) + "\n")
