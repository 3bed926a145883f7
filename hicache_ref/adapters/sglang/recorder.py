"""The recorder: wraps the methods of a live cache, and hands over what their calls were.

Methods are wrapped on the object, never on its class. Of calls within calls only the outermost is recorded; methods that
are nothing but calls, as `cache_finished_req`, are not wrapped. A fault of the recorder's own ends the recording and
never reaches the server, nor does the server ever wait for the process that writes.
"""

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from hicache_ref.adapters.sglang.calls import CannotSay
from hicache_ref.adapters.sglang.capture import Capture
from hicache_ref.adapters.sglang.storing import StoringCalls
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_teller import LOST, Teller
from hicache_ref.adapters.sglang_teller.ring import CLOSED, Behind
from hicache_ref.trace import TraceError

LOOKING_SHARE = 0.02
"""Of the cache's own time, so much at most is spent on looking at the whole tree, unless somebody says otherwise."""

RECORDS_HELD = 2048
HELD_SECONDS = 0.1
"""So much is held back, and so long where calls go on, before it is handed over."""

_QUEUES = (
    "prefetch_revoke_queue",
    "prefetch_hit_queue",
    "ack_prefetch_queue",
    "ack_backup_queue",
    "host_mem_release_queue",
)
"""Queues of a controller from which its scheduler takes."""

_RECORDED = "is_recorded"
_UNSET = object()
"""Stands for what an object has from its class."""

Before = Callable[[Any, Any], Any]
After = Callable[[Any, Any, Any, Any], None]


class Recorder:
    """Records what happens to the cache of `engine`, until `close`, or until a call that the trace has no words for."""

    def __init__(self, engine: Engine, teller: Teller, look_every: int, looking_share: float) -> None:
        self.ended: str | None = None
        """Why nothing is recorded any more; None while it is."""

        self.cache_seconds = 0.0
        """What the recorded calls took, without the recorder."""

        self.teller_seconds = 0.0
        """CPU time of the process that writes, known at the end."""

        self._teller, self._ring = teller, teller.ring
        self._capture = Capture(engine, teller.ring)
        self.calls = StoringCalls(self._capture)
        self._cache = engine.cache
        self._look_every, self._looking_share = look_every, looking_share
        self._next_look, self._looks_from = look_every, 0.0
        self._made, self._due = 0, 0.0
        self._pass = False
        """Whether calls pass unrecorded: they are within another, or nothing is recorded any more."""

        self._wrapped: list[tuple[Any, str, Any]] = []
        self._wrap_all()

    def _wrap_all(self) -> None:
        calls = self.calls
        self._watch(self._cache, "write_backup", calls.on_write)
        for name, kind, before, after in (
            ("match_prefix", b"match", None, calls.after_match),
            ("inc_lock_ref", b"", None, calls.after_lock),
            ("dec_lock_ref", b"", None, calls.after_unlock),
            ("insert", b"insert", calls.before_insert, calls.after_insert),
            ("evict", b"evict", calls.before_evict, calls.after_evict),
            ("evict_host", b"evict_host", calls.before_evict_host, calls.after_evict_host),
            ("load_back", b"load", calls.before_load, calls.after_load),
            ("check_hicache_events", b"", None, calls.after_poll),
            ("flush_write_through_acks", b"", None, calls.after_poll),
            ("writing_check", b"", None, calls.after_poll),
            ("loading_check", b"", None, calls.after_poll),
            ("reset", b"", None, calls.after_reset),
            ("prefetch_from_storage", b"", calls.before_prefetch, calls.after_prefetch),
            ("check_prefetch_progress", b"", calls.before_progress, calls.after_progress),
            ("pop_prefetch_loaded_tokens", b"", calls.before_progress, calls.after_pop),
            ("release_aborted_request", b"", calls.before_progress, calls.after_abort),
            ("drain_storage_control_queues", b"", None, calls.after_poll),
            ("attach_storage_backend", b"", None, self._after_attach),
            ("detach_storage_backend", b"", None, calls.after_detach),
            ("clear_storage_backend", b"", None, calls.after_clear),
        ):
            self._wrap(name, kind, before, after)
        self._watch(self._cache, "_insert_helper_host", calls.on_host_insert)
        self._watch_storage()

    def _watch_storage(self) -> None:
        """The controller's threads and queues are watched; new ones too, after storage was attached anew."""
        controller, threads, calls = self._cache.cache_controller, self.calls.threads, self.calls
        for name, stand_in in (
            ("_storage_hit_query", threads.query),
            ("page_get_func", threads.get_pages),
            ("_page_transfer", threads.transfer),
            ("_page_backup", threads.backup),
        ):
            self._stand_in(controller, name, stand_in)
        self._watch(controller, "write_storage", calls.on_backup)
        self._watch(self._cache, "write_backup_storage", calls.on_write_storage)
        for name in _QUEUES:
            queue = getattr(controller, name, None)
            if queue is not None and "get" not in queue.__dict__:
                self._watch(queue, "get", partial(self._on_get, name))

    def _on_get(self, name: str, item: Any, *args: Any, **kwargs: Any) -> None:
        if self._pass:
            self.calls.on_get(name, item)

    def _after_attach(self, noted: Any, result: Any, args: Any, named: Any) -> None:
        self._watch_storage()
        self.calls.after_attach(noted, result, args, named)

    def _stand_in(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None and not hasattr(original, _RECORDED):
            stands = partial(by, original)
            setattr(stands, _RECORDED, True)
            self._replace(owner, name, stands)

    # -- wrapping ---------------------------------------------------------------------------------------------------

    def _wrap(self, name: str, kind: bytes, before: Before | None, after: After) -> None:
        original = getattr(self._cache, name, None)
        if original is None:
            return
        calls, ring, clock = self.calls, self._ring, time.perf_counter
        records, waited, notes, settle = ring.records, calls.waited, calls.threads.notes, calls.settle

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._pass:
                return original(*args, **kwargs)
            self._pass, noted = True, None
            try:
                if waited or notes:
                    calls.begin()
                if before is not None:
                    noted = before(args, kwargs)
            except Exception as error:
                self._fail(error)
            began = clock()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._broke_off(name, kind, noted, error, args, kwargs)
                raise
            if self.ended is not None:
                return result
            now = clock()
            self.cache_seconds += now - began
            try:
                if waited:
                    calls.over()
                after(noted, result, args, kwargs)
                settle()
                self._made += 1
                if self._made >= self._next_look:
                    self._look()
                if len(records) > RECORDS_HELD or ring.is_full or (records and now > self._due):
                    self._hand_over(now)
            except Exception as error:
                self._fail(error)
            self._pass = self.ended is not None
            return result

        self._replace(self._cache, name, recorded)

    def _watch(self, owner: Any, name: str, watcher: Callable[..., None]) -> None:
        """Whenever `name` of `owner` has returned, within other calls too, `watcher(result, *args)` is called."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.ended is None:
                try:
                    watcher(result, *args, **kwargs)
                except Exception as error:
                    self._fail(error)
            return result

        self._replace(owner, name, watched)

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        self._wrapped.append((owner, name, owner.__dict__.get(name, _UNSET)))
        setattr(owner, name, by)

    def _hand_over(self, now: float) -> None:
        """What was recorded is the other process's."""
        self._due = now + HELD_SECONDS
        self._capture.forget_some()
        self._ring.flush()
        said = self._teller.said()
        if said is not None:
            self.ended = said

    def _look(self) -> None:
        """The whole tree is looked at, if that is cheap enough and there is room for it."""
        self._next_look = self._made + self._look_every
        if self.cache_seconds < self._looks_from:
            return
        began = time.perf_counter()
        nodes = self._capture.tree()
        if nodes is not None:
            self._capture.add((b"look", *self._capture.look(nodes), self.calls.fetched()))
        self._looks_from = self.cache_seconds + (time.perf_counter() - began) / self._looking_share

    # -- the end ----------------------------------------------------------------------------------------------------

    def _broke_off(self, name: str, kind: bytes, noted: Any, error: BaseException, args: Any, named: Any) -> None:
        """The call raised: it is the last step."""
        if self.ended is not None:
            return
        text = f"{type(error).__name__}: {error}"
        if kind == b"match":
            noted = self.calls.match(args, named)
        if kind and noted is not None:
            self._capture.add((b"raised", text, kind, noted))
            self._end("a call raised", CLOSED)
        else:
            self._end(f"{name} raised {text}")

    def _fail(self, error: Exception) -> None:
        if isinstance(error, CannotSay | Behind):
            self._end(str(error))
        else:
            self._end(f"the recorder failed: {type(error).__name__}: {error}")

    def _end(self, why: str, told: str | None = None) -> None:
        """Nothing more is recorded; the trace says why, or `told`."""
        if self.ended is None:
            self.ended = why
            try:
                self._ring.flush()
            except Behind:
                pass
            self._ring.end(told or why)

    def close(self) -> None:
        """The file is complete, and the cache is as it was, but for marks on its nodes. Raises TraceError."""
        for owner, name, before in reversed(self._wrapped):
            if before is _UNSET:
                owner.__dict__.pop(name, None)
            else:
                setattr(owner, name, before)
        self._wrapped.clear()
        self._end("closed", CLOSED)
        said = self._teller.finished()
        self.ended = said.get("ended", LOST) or self.ended
        self.teller_seconds = said.get("seconds", 0.0)
