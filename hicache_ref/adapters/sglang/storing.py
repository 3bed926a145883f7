"""What calls of storage amount to, in operations; and what the scheduler learns of storage in a poll."""

import time
from dataclasses import dataclass
from typing import Any

from hicache_ref.adapters.sglang import lines
from hicache_ref.adapters.sglang.calls import Calls, CannotSay, Given
from hicache_ref.adapters.sglang.shape import settings_of
from hicache_ref.adapters.sglang.threads import Asked, Read, Threads, Written
from hicache_ref.adapters.sglang.writing import TraceWriter
from hicache_ref.adapters.sglang_hiradix.books import Fetch
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_hiradix.observe import pages_of
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key, handle_of

_MILLISECONDS = 1000
_BACKEND = {"file": "files"}
"""Upstream's names of backends -> the vocabulary's."""


@dataclass(slots=True)
class _Write:
    name: str
    operation_id: int
    pages: int
    done: int = 0


class StoringCalls(Calls):
    """Writes the operations of storage too."""

    def __init__(self, engine: Engine, writer: TraceWriter) -> None:
        super().__init__(engine, writer)
        self.threads = Threads(engine.controller, engine.page_size)
        self._fetches: dict[str, Fetch] = {}
        self._answers: list[Fetch] = []
        """Prefetches whose answer the scheduler has not seen, in the order in which storage gave them."""

        self._reads: list[Fetch] = []
        """Batches read of which the trace has not told the scheduler, in order."""

        self._tails: set[int] = set()
        """Host pages that a read has not filled and its thread gives up: with the read's end, as a trace has it."""

        self._writes: dict[str, _Write] = {}
        self._hosted: tuple[int, int] | None = None
        self._told_loaded: set[str] = set()
        self._drained: list[tuple[str, Any]] = []
        """What the scheduler took from the controller's queues in this call, each with the name of the queue."""

        if self.cache.enable_storage:
            self._attached()

    # -- names ------------------------------------------------------------------------------------------------------

    def _name_of(self, kind: str, text: str, tokens: int) -> str:
        return handle_of(kind, text, tokens, {*self._fetches, *self._writes})

    def _fetch_of(self, operation: Any) -> Fetch:
        for fetch in self._fetches.values():
            if fetch.operation is operation:
                return fetch
        raise CannotSay("a prefetch goes on that was begun before the recording, or without the scheduler")

    def is_open(self, fetch: Fetch) -> bool:
        """Whether the scheduler still waits for this very operation."""
        entry = self.cache.ongoing_prefetch.get(fetch.rid)
        return entry is not None and entry[-1] is fetch.operation

    def prefetch_pages(self) -> dict[str, Pages]:
        """The host pages that prefetches have, by name."""
        held = {name: pages_of(self.engine, each, is_open=self.is_open(each)) for name, each in self._fetches.items()}
        return {name: pages for name, pages in held.items() if pages}

    # -- what threads have done -------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """What threads have noted is written."""
        for note in self.threads.notes():
            if isinstance(note, Asked):
                self._write_answer(note)
            elif isinstance(note, Read):
                self._write_read(note)
            else:
                self._write_written(note)

    def _write_answer(self, note: Asked) -> None:
        fetch = self._fetch_of(note.operation)
        enough = note.hits * self.engine.page_size >= max(self.cache.prefetch_threshold, self.engine.page_size)
        goes_on = self.engine.traits.allocates_before and enough and not note.raised
        fetch.stage = "reading" if goes_on else "answered"
        if not goes_on:
            self._answers.append(fetch)
        self.step(lines.op(b"query_done", id=fetch.name, hits=note.hits, raised=note.raised or None))

    def _write_read(self, note: Read) -> None:
        fetch = self._fetch_of(note.operation)
        if note.ends:
            fetch.stage = "ended"
            if not self.engine.traits.acknowledges_batches:
                done = fetch.operation.completed_tokens
                self._tails.update(self.engine.host_slots.pages(fetch.operation.host_indices[done:]))
        self._reads.append(fetch)
        self.step(lines.op(b"read_done", id=fetch.name, pages=note.pages, raised=note.raised or None))

    def _write_written(self, note: Written) -> None:
        write = next((each for each in self._writes.values() if each.operation_id == note.operation.id), None)
        if write is None:
            raise CannotSay("a backup goes on that was begun before the recording")
        batch, left = self.engine.profile.sizes.storage_batch, note.pages
        while left > 0:
            self.step(lines.op(b"write_done", id=write.name, pages=min(batch, left)))
            left -= batch
        if note.pages < write.pages:
            self.step(lines.op(b"write_done", id=write.name, pages=0, raised=note.raised or None))
        write.done = note.pages

    # -- the scheduler's calls --------------------------------------------------------------------------------------

    def before_prefetch(self, *args: Any, **kwargs: Any) -> tuple[bytes, str, Key, Any]:
        """The whole key, and the prefetch that the request has already."""
        handle_ = args[0] if args else kwargs.get("handle", kwargs.get("req_id"))
        rid = str(getattr(handle_, "rid", handle_))
        given = Given(args, kwargs)
        node, tokens = given("last_host_node", 1), given("new_input_tokens", 2)
        key = Key.model_construct(
            tokens=(*self.tokens_of(node), *tokens), extra=kwargs.get("extra_key") or self._extra(node)
        )
        return lines.key(key.tokens, key.extra), rid, key, self.cache.ongoing_prefetch.get(rid)

    def _extra(self, node: Any) -> str | None:
        return None if node.parent is None else self.engine.extra_of_node(node)

    def after_prefetch(self, noted: tuple[bytes, str, Key, Any], result: Any) -> None:
        """The name of the prefetch, or a no."""
        text, rid, key, before = noted
        entry = self.cache.ongoing_prefetch.get(rid)
        if entry is None or entry is before:
            op = lines.op(b"prefetch", rid=rid, key=text, now=self._now())
            self.step(op, lines.told(b"refused", why="not asked for"))
            return
        operation = entry[-1]
        name = self._name_of("p", str(key), len(key.tokens))
        asked = self.pages(len(operation.token_ids))
        self._fetches[name] = Fetch(name, rid, operation, asked)
        op = lines.op(b"prefetch", rid=rid, key=text, now=round(operation.start_time * _MILLISECONDS))
        self.step(op, lines.told(b"prefetching", id=name, pages=asked))

    def _now(self) -> int:
        return round(time.monotonic() * _MILLISECONDS)

    def before_progress(self, *args: Any, **kwargs: Any) -> str:
        """The request."""
        given = args[0] if args else next(iter(kwargs.values()))
        self._hosted = None
        rid: str = getattr(given, "rid", given)
        return rid

    def after_progress(self, rid: str, done: bool) -> None:
        """Whether it may go on, and, once, what storage gave it."""
        op = lines.op(b"progress", rid=rid, now=self._now())
        if not done:
            self.step(op, lines.told(b"progressed", done=False))
            return
        counts = getattr(self.cache, "prefetch_loaded_tokens_by_reqid", None)
        if counts is None:
            loaded = 0 if self._hosted is None else self.pages(self._hosted[0] - self._hosted[1])
        else:
            loaded = 0 if rid in self._told_loaded else self.pages(counts.get(rid, 0))
            if rid in counts:
                self._told_loaded.add(rid)
        self._forget_closed()
        self.step(op, lines.told(b"progressed", done=True, loaded=loaded))

    def on_host_insert(self, matched: Any, node: Any, key: Any, *rest: Any, **more: Any) -> None:
        """Fetched pages have gone into the tree."""
        self._hosted = (len(key), int(matched))

    def after_pop(self, rid: str, result: Any) -> None:
        """Upstream has told what storage gave, and so has the trace, at the progress before."""
        self._told_loaded.discard(rid)

    def after_abort(self, rid: str, result: Any) -> None:
        """Nobody waits."""
        self.step(lines.op(b"abort", rid=rid))
        self._told_loaded.discard(rid)
        self._forget_closed()

    def _forget_closed(self) -> None:
        """Prefetches whose I/O is over, known to be, and for which nobody waits, have no name any more."""
        for name, fetch in list(self._fetches.items()):
            if fetch.stage == "ended" and fetch not in self._reads and not self.is_open(fetch):
                del self._fetches[name]

    def on_write_storage(self, result: Any, node: Any, *rest: Any, **more: Any) -> None:
        """A backup of the node was queued, within whatever call."""
        operation_id = next(reversed(self.cache.ongoing_backup))
        name = self._name_of("b", *self.text_of(node))
        self._writes[name] = _Write(name, operation_id, self._backed_up)

    def on_backup(self, operation_id: Any, host_indices: Any, *rest: Any, **more: Any) -> None:
        """So many pages go to storage."""
        self._backed_up = self.pages(len(host_indices))

    _backed_up = 0

    # -- polls ------------------------------------------------------------------------------------------------------

    def on_get(self, queue: str, item: Any) -> None:
        """The scheduler has taken something from a queue of the controller."""
        self._drained.append((queue, item))

    def has_news(self) -> bool:
        """Whether the scheduler may have learned something of storage in this call."""
        return self.polled and bool(self._drained or self._reads or self.threads.has_notes())

    def polled_storage(self) -> dict[str, Any]:
        """What the scheduler has learned of storage in this call, as a poll tells it."""
        self.catch_up()
        drained, self._drained = self._drained, []
        took = {name: [item for queue, item in drained if queue == name] for name, _ in drained}
        answers = [*took.get("prefetch_revoke_queue", ()), *took.get("prefetch_hit_queue", ())]
        answered = sorted(map(self._answered, answers), key=self._answers.index)
        del self._answers[: len(answered)]
        revoked = [fetch.name for fetch in answered if self._is_revoked(fetch)]
        known, committed = self._known_reads(took.get("ack_prefetch_queue", []))
        written = [write for op in took.get("ack_backup_queue", ()) for write in self._written(op)]
        released = self._released(took.get("host_mem_release_queue", []))
        self._forget_closed()
        return {
            "answers": [fetch.name for fetch in answered],
            "revoked": revoked,
            "reads": known,
            "committed": committed,
            "writes": [write.name for write in written],
            "given_up": [write.name for write in written if write.done < write.pages],
            "releases": released,
        }

    def _released(self, items: list[Any]) -> int:
        """How many pages were freed that had waited for it, without the tails of reads."""
        pages = [page for item in items for page in self.engine.host_slots.pages(item)]
        count = sum(page not in self._tails for page in pages)
        self._tails.difference_update(pages)
        return count

    def _answered(self, given: Any) -> Fetch:
        """The prefetch of an answer, which is an operation or, up to 0.5.15, a request."""
        for fetch in self._fetches.values():
            if fetch.operation is given or (fetch.rid == given and fetch.stage in ("queued", "answered")):
                if fetch.stage == "queued":
                    # Told to stop before storage was asked.
                    self._write_answer(Asked(fetch.operation, 0))
                return fetch
        raise CannotSay("an answer to a prefetch that was begun before the recording")

    def _is_revoked(self, fetch: Fetch) -> bool:
        """An answered prefetch reads now, or is over; whether its request waited till then."""
        reads = fetch.operation.host_indices is not None and not self.engine.traits.allocates_before
        if reads:
            fetch.stage = "reading"
            return False
        self._fetches.pop(fetch.name)
        return fetch.name in self.open_before

    def _known_reads(self, acks: list[Any]) -> tuple[list[str], list[str]]:
        """The batches that the scheduler knows of now, and the prefetches that this has committed."""
        if not self.engine.traits.acknowledges_batches:
            known = [fetch.name for fetch in self._reads]
            self._reads.clear()
            return known, []
        known, committed = [], []
        for ack in acks:
            fetch = self._fetch_of(ack.operation)
            waiting = self._reads.count(fetch)
            ends = bool(ack.completed_req)
            if waiting and (ends or waiting > (fetch.stage == "ended")):
                known.append(fetch.name)
                self._reads.remove(fetch)
            if ends and fetch.name in self.open_before and not self.is_open(fetch):
                committed.append(fetch.name)
        return known, committed

    def _written(self, operation: Any) -> list[_Write]:
        found = [write for write in self._writes.values() if write.operation_id == operation.id]
        for write in found:
            del self._writes[write.name]
        return found

    open_before: frozenset[str] = frozenset()
    """The prefetches for which requests waited when the call began."""

    def begin(self) -> None:
        """A call begins: what threads have done before is written, and who waits is known."""
        super().begin()
        if self.threads.has_notes():
            self.catch_up()
        if self._fetches or self.open_before:
            self.open_before = frozenset(name for name, each in self._fetches.items() if self.is_open(each))

    # -- storage comes and goes -------------------------------------------------------------------------------------

    def _attached(self) -> None:
        backend = str(getattr(self.engine.controller, "storage_backend_type", None) or "file")
        settings = settings_of(self.engine).model_dump(mode="json", exclude_defaults=True)
        self.step(lines.op(b"attach", backend=_BACKEND.get(backend, backend), settings=settings))

    def after_attach(self, noted: Any, result: tuple[bool, str]) -> None:
        """Storage is attached."""
        if result[0]:
            self._attached()

    def after_detach(self, noted: Any, result: tuple[bool, str]) -> None:
        """Storage is gone, and with it all that was under way."""
        if self._fetches or self._writes:
            raise CannotSay("a detach while storage works")
        if result[0]:
            self.step(lines.op(b"detach"))

    def after_clear(self, noted: Any, result: bool) -> None:
        """The store is empty."""
        if result:
            self.step(lines.op(b"clear_storage"))
