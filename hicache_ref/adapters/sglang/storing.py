"""Calls of storage as raw records, and what a scheduler learns of storage in its other calls."""

import time
from typing import Any

from hicache_ref.adapters.sglang.calls import Args, Calls, CannotSay, Named, given
from hicache_ref.adapters.sglang.capture import Capture
from hicache_ref.adapters.sglang.shape import settings_of
from hicache_ref.adapters.sglang.threads import Asked, Note, Read, Threads

_MILLISECONDS = 1000
_FETCHES_KEPT = 1024
_BACKEND = {"file": "files"}
"""Upstream's names of backends -> the vocabulary's."""


class StoringCalls(Calls):
    """Records the calls of storage too."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        self.threads = Threads(self.engine.controller, capture.size)
        self._fetches: dict[int, tuple[str, Any]] = {}
        """Request and operation of prefetches that have pages, or may have, by upstream's number."""

        self.waited: set[int] = set()
        """Those for which requests wait."""

        self._hosted: int = 0
        self.drained: list[tuple[str, Any]] = []
        """What the scheduler took from the controller's queues in this call, each with the name of the queue."""

        self.untold: list[int] = []
        """Prefetches of which batches were read that the scheduler has not been told of."""

        if self.cache.enable_storage:
            self._attached()

    # -- who waits --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A call begins: what threads have done before is recorded, and who waits is known."""
        if self.waited:
            self._close(within=False)
        if self.threads.notes:
            self._catch_up()

    def _close(self, *, within: bool) -> bool:
        """Those are recorded for which nobody waits any more; whether there are any."""
        waiting = self.cache.ongoing_prefetch
        closed = []
        for number in self.waited:
            rid, operation = self._fetches[number]
            entry = waiting.get(rid)
            if entry is None or entry[-1] is not operation:
                closed.append(number)
        if closed:
            self.waited.difference_update(closed)
            self.add((b"closed", closed, within))
            for number in closed:
                operation = self._fetches[number][1]
                if operation.host_indices is None or operation.__dict__.get("recorded_end"):
                    del self._fetches[number]
        return bool(closed)

    def over(self) -> bool:
        """A call has returned; whether it is of interest when it is over."""
        return self._close(within=True)

    def fetched(self) -> list[tuple[Any, ...]]:
        """Of each prefetch its pages, and how many of them are read."""
        found = []
        for number, (_, operation) in self._fetches.items():
            slots = operation.host_indices
            pages = None if slots is None else self.capture.host_pages(slots)
            found.append((number, pages, operation.completed_tokens // self.capture.size))
        return found

    # -- what threads have done -------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """What threads have noted is recorded."""
        for note in self.threads.taken():
            self._record_note(note)

    def _record_note(self, note: Note) -> None:
        operation = note.operation
        if isinstance(note, Asked):
            size = self.capture.size
            enough = note.hits * size >= max(self.cache.prefetch_threshold, size)
            self.add((b"asked", operation.id, note.hits, enough, note.raised))
        elif isinstance(note, Read):
            self.untold.append(operation.id)
            self.add((b"read", operation.id, note.pages, note.ends, note.raised))
        else:
            self.add((b"written", operation.id, note.pages, note.raised))

    # -- the scheduler's calls --------------------------------------------------------------------------------------

    def before_prefetch(self, args: Args, named: Named) -> tuple[str, Args, Any]:
        """The request, the key, and the prefetch that the request has already."""
        handle = args[0] if args else named.get("handle", named.get("req_id"))
        rid = str(getattr(handle, "rid", handle))
        node, tokens = given(args, named, "last_host_node", 1), given(args, named, "new_input_tokens", 2)
        extra = named.get("extra_key") or (None if node.parent is None else self.engine.extra_of_node(node))
        noted = self.capture.node(node), self.capture.part(tokens), extra
        return rid, noted, self.cache.ongoing_prefetch.get(rid)

    def after_prefetch(self, noted: tuple[str, Args, Any], result: Any, args: Args, named: Named) -> None:
        """The prefetch, or that there is none."""
        rid, key, before = noted
        entry = self.cache.ongoing_prefetch.get(rid)
        if entry is None or entry is before:
            self.add((b"prefetch", rid, *key, self._now(), None, 0))
            return
        operation = entry[-1]
        if len(self._fetches) >= _FETCHES_KEPT:
            raise CannotSay(f"more than {_FETCHES_KEPT} prefetches at a time")
        self._fetches[operation.id] = rid, operation
        self.waited.add(operation.id)
        now = round(operation.start_time * _MILLISECONDS)
        self.add((b"prefetch", rid, *key, now, operation.id, len(operation.token_ids)))

    def _now(self) -> int:
        return round(time.monotonic() * _MILLISECONDS)

    def before_progress(self, args: Args, named: Named) -> str:
        """The request."""
        handle = args[0] if args else next(iter(named.values()))
        self._hosted = 0
        return str(getattr(handle, "rid", handle))

    def after_progress(self, rid: str, done: bool, args: Args, named: Named) -> None:
        """Whether it may go on, and what storage gave it."""
        counts = getattr(self.cache, "prefetch_loaded_tokens_by_reqid", None)
        counted = None if counts is None else counts.get(rid)
        self.add((b"progress", rid, self._now(), bool(done), counts is not None, counted, self._hosted))

    def on_host_insert(self, matched: Any, node: Any, key: Any, *rest: Any, **more: Any) -> None:
        """Fetched pages have gone into the tree."""
        self._hosted = len(key) - int(matched)

    def after_pop(self, rid: str, result: Any, args: Args, named: Named) -> None:
        """Upstream has told what storage gave."""
        self.add((b"pop", rid))

    def after_terminate(self, rid: str, result: Any, args: Args, named: Named) -> None:
        """The prefetch is to stop, and stays open."""
        self.add((b"terminate", rid))

    def after_abort(self, rid: str, result: Any, args: Args, named: Named) -> None:
        """Nobody waits."""
        self.add((b"abort", rid))

    def on_write_storage(self, result: Any, node: Any, *rest: Any, **more: Any) -> None:
        """A backup of the node was queued, within whatever call."""
        self.add((b"offer", self.capture.node(node), next(reversed(self.cache.ongoing_backup)), self._backed_up))

    def on_backup(self, operation_id: Any, host_indices: Any, *rest: Any, **more: Any) -> None:
        """So many pages go to storage."""
        self._backed_up = len(host_indices) // self.capture.size

    _backed_up = 0

    # -- polls ------------------------------------------------------------------------------------------------------

    def on_get(self, queue: str, item: Any) -> None:
        """The scheduler has taken something from a queue of the controller."""
        self.drained.append((queue, item))

    def after_poll(self, noted: None, result: Any, args: Args, named: Named) -> None:
        """The scheduler has looked: what it has learned of storage is recorded."""
        self.settle()
        if self.drained or self.untold or self.threads.notes:
            self.tell_news()

    def tell_news(self) -> None:
        """What a poll says is recorded, of copies and of storage."""
        self._catch_up()
        self.add((b"news", [(queue, self._said(queue, item)) for queue, item in self.drained]))
        self.drained.clear()
        self.untold.clear()

    def _said(self, queue: str, item: Any) -> Any:
        """What something from a queue says."""
        if queue == "host_mem_release_queue":
            return self.capture.host_pages(item)
        if queue == "ack_prefetch_queue":
            return item.operation.id, bool(item.completed_req)
        if queue == "ack_backup_queue":
            return item.id
        # An answer: an operation or, up to 0.5.15, a request.
        return getattr(item, "id", item), getattr(item, "host_indices", None) is not None

    # -- storage comes and goes -------------------------------------------------------------------------------------

    def _attached(self) -> None:
        backend = str(getattr(self.engine.controller, "storage_backend_type", None) or "file")
        settings = settings_of(self.engine).model_dump(mode="json", exclude_defaults=True)
        self.add((b"attach", _BACKEND.get(backend, backend), settings))

    def after_attach(self, noted: None, result: tuple[bool, str], args: Args, named: Named) -> None:
        """Storage is attached."""
        if result[0]:
            self._attached()

    def after_detach(self, noted: None, result: tuple[bool, str], args: Args, named: Named) -> None:
        """Storage is gone, and with it all that was under way."""
        if result[0]:
            self.add((b"detach",))

    def after_clear(self, noted: None, result: bool, args: Args, named: Named) -> None:
        """The store is empty."""
        if result:
            self.add((b"clear",))

    def after_reset(self, noted: None, result: Any, args: Args, named: Named) -> None:
        """The cache is as new."""
        self.add((b"reset", self.fetched()))
        self.capture.forget()
