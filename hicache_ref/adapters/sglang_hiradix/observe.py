"""What can be seen of a cache after a step: its tree, pools, queues and bytes, read from its own objects."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from hicache_ref.adapters.sglang_hiradix.books import Fetch
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.holding import pages_held
from hicache_ref.adapters.sglang_hiradix.pages import Rows, rows_of
from hicache_ref.adapters.sglang_hiradix.storing import StoringCaller
from hicache_ref.adapters.sglang_hiradix.workers import is_closed
from hicache_ref.vocabulary.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import PageKey
from hicache_ref.vocabulary.observation import LEVELS, Counts, IssuedCopy, Level, Observation, Segment


class ObservedCaller(StoringCaller):
    """A caller that shows the cache. Pages are told by identity: one with two owners is listed with both."""

    def start_afresh(self) -> None:
        """As below; that a new cache holds nothing is no news."""
        super().start_afresh()
        self._events()

    def observe(self, level: Level) -> Observation:
        """Sizes at `counts`; owners at `pages`; locks at `tree`; contents at `bytes`."""
        engine, depth = self.engine, LEVELS.index(level)
        size = engine.page_size
        free_device, free_host = tuple(engine.free_device()), tuple(engine.free_host())
        counts = Counts(
            free_device=len(free_device), free_host=len(free_host),
            evictable=engine.evictable() // size, protected=engine.protected() // size,
        )  # fmt: skip
        if not depth:
            return Observation(level=level, counts=counts, copies=self._issued(), events=self._events())
        segments = tuple(segments_of(engine, shows_locks=depth > 1))
        prefetch = {
            name: pages_of(engine, fetch, is_open=self.is_open(fetch)) for name, fetch in self.books.fetches.items()
        }
        requests = {rid: request.pages for rid, request in self.books.requests.items()}
        observation = Observation(
            level=level, counts=counts, free_device=free_device, free_host=free_host, segments=segments,
            requests=requests, copies=self._issued(), held_device=tuple(sorted(self.books.held)),
            queued_host=queued_host(engine), prefetch_host={name: pages for name, pages in prefetch.items() if pages},
            events=self._events(), told_to_stop=self._told_to_stop(),
            write_policy=engine.controller.write_policy,
        )  # fmt: skip
        return observation if depth < LEVELS.index("bytes") else self._with_contents(observation)

    def _told_to_stop(self) -> tuple[str, ...]:
        running = ((name, each) for name, each in self.books.fetches.items() if each.stage in ("queued", "reading"))
        return tuple(name for name, each in running if is_closed(each.operation))

    # -- news -------------------------------------------------------------------------------------------------------

    def _issued(self) -> tuple[IssuedCopy, ...]:
        issued = tuple(self.books.issued)
        self.books.issued.clear()
        return issued

    def _events(self) -> tuple[Event, ...] | None:
        if not self.engine.publishes:
            return None
        cache = self.engine.cache
        taken = cache.kv_events.take() if hasattr(cache, "kv_events") else cache.take_events()
        return tuple(event for each in taken for event in _one_a_page(each))

    # -- bytes ------------------------------------------------------------------------------------------------------

    def _with_contents(self, observation: Observation) -> Observation:
        """The observation and what each page that anybody holds was found to hold."""
        engine = self.engine
        device, host = rows_of(engine.device_buffers()), rows_of(engine.host_buffers())
        contents: dict[str, str] = {}
        self._read("device", device, engine.device_slots.offset, _held_device(observation), contents)
        self._read("host", host, engine.host_slots.offset, _held_host(observation), contents)
        return observation.model_copy(update={"contents": contents})

    def _read(self, tier: str, rows: Rows, offset: int, pages: Iterable[int], contents: dict[str, str]) -> None:
        """What each of these pages was found to hold is in `contents`."""
        for page in pages:
            held = self.stamps.held(rows, page + offset)
            if held is not None:
                contents[f"{tier}:{page}"] = held


def pages_of(engine: Engine, fetch: Fetch, *, is_open: bool) -> Pages:
    """The host pages that the operation has, less what was handed on; `is_open` says whether a request waits for it."""
    operation, traits = fetch.operation, engine.traits
    if operation.host_indices is None:
        return ()
    return pages_held(
        engine.host_slots.pages(operation.host_indices), operation.completed_tokens // engine.page_size, fetch.stage,
        is_open=is_open, allocates_before=traits.allocates_before, queues_rest=not traits.acknowledges_batches,
    )  # fmt: skip


def queued_host(engine: Engine) -> Pages:
    """Host pages that wait to be freed."""
    queue = getattr(engine.controller, "host_mem_release_queue", None)
    if queue is None:
        return ()
    return tuple(page for item in list(queue.queue) for page in engine.host_slots.pages(item))


def segments_of(engine: Engine, *, shows_locks: bool) -> Iterator[Segment]:
    """Every node but the root, parents first."""
    count = 0
    waiting = [(child, -1) for child in engine.cache.root_node.children.values()]
    while waiting:
        node, parent = waiting.pop()
        value, host_value = node.value, node.host_value
        yield _segment(
            parent, engine.tokens_of_node(node), engine.extra_of_node(node),
            None if value is None else engine.device_slots.pages(value),
            None if host_value is None else engine.host_slots.pages(host_value),
            engine.locks(node) > 0 if shows_locks else None, *engine.states_of(node),
        )  # fmt: skip
        waiting += [(child, count) for child in node.children.values()]
        count += 1


@lru_cache(maxsize=1 << 14)
def _segment(
    parent: int,
    tokens: tuple[int, ...],
    extra: str | None,
    device: Pages | None,
    host: Pages | None,
    locked: bool | None,
    device_state: Pages | None,
    host_state: Pages | None,
    state_locked: bool | None,
) -> Segment:
    """The node as a record. Most are as they were a step before, and making one costs more than finding it."""
    return Segment(
        parent=parent, tokens=tokens, extra=extra, device=device, host=host, locked=locked,
        device_state=device_state, host_state=host_state, state_locked=None if locked is None else state_locked,
    )  # fmt: skip


def _held_device(observation: Observation) -> set[int]:
    held = {page for segment in observation.segments for page in segment.device or ()}
    return held | {page for pages in observation.requests.values() for page in pages} | set(observation.held_device)


def _held_host(observation: Observation) -> set[int]:
    held = {page for segment in observation.segments for page in segment.host or ()}
    return held | {page for pages in observation.prefetch_host.values() for page in pages}


def _one_a_page(event: Any) -> Iterator[Event]:
    """Upstream's event, cut into its pages."""
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        yield AllBlocksCleared()
    elif kind == "BlockRemoved":
        yield from (BlockRemoved(block_hash=each, medium=event.medium) for each in event.block_hashes)
    else:
        parent, size = event.parent_block_hash, event.block_size
        for index, digest in enumerate(event.block_hashes):
            page = _page(event.token_ids[index * size : (index + 1) * size])
            yield BlockStored(block_hash=digest, parent_block_hash=parent, token_ids=page, medium=event.medium)
            parent = digest


def _page(units: list[Any]) -> PageKey:
    """The page's tokens; a unit is a token or, in bigram mode, a pair that shares one with the next."""
    if units and isinstance(units[0], tuple):
        return (*(pair[0] for pair in units), units[-1][1])
    return tuple(units)
