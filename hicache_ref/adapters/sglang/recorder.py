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

CALLS_HELD = 128
BYTES_HELD = 1 << 20
"""So much is held back, at most, before it is handed over."""

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

        self._teller = teller
        self._capture = Capture(engine, teller.ring)
        self.calls = StoringCalls(self._capture)
        self._cache = engine.cache
        self._look_every, self._looking_share = look_every, looking_share
        self._next_look, self._looks_from = look_every, 0.0
        self._recorded = self._handed_over = 0
        self._pass = False
        """Whether calls pass unrecorded: they are within another, or nothing is recorded any more."""

        self._wrapped: list[tuple[Any, str, Any]] = []
        self._wrap_all()

    def _wrap_all(self) -> None:
        calls = self.calls
        self._watch(self._cache, "write_backup", calls.on_write)
        for name, kind, before, after in (
            ("match_prefix", "match", None, calls.after_match),
            ("inc_lock_ref", "", None, calls.after_lock),
            ("dec_lock_ref", "", None, calls.after_unlock),
            ("insert", "insert", calls.before_insert, calls.after_insert),
            ("evict", "evict", calls.before_evict, calls.after_evict),
            ("evict_host", "evict_host", calls.before_evict_host, calls.after_evict_host),
            ("load_back", "load", calls.before_load, calls.after_load),
            ("check_hicache_events", "", None, calls.after_poll),
            ("flush_write_through_acks", "", None, calls.after_poll),
            ("writing_check", "", None, calls.after_poll),
            ("loading_check", "", None, calls.after_poll),
            ("reset", "", None, calls.after_reset),
            ("prefetch_from_storage", "", calls.before_prefetch, calls.after_prefetch),
            ("check_prefetch_progress", "", calls.before_progress, calls.after_progress),
            ("pop_prefetch_loaded_tokens", "", calls.before_progress, calls.after_pop),
            ("release_aborted_request", "", calls.before_progress, calls.after_abort),
            ("drain_storage_control_queues", "", None, calls.after_poll),
            ("attach_storage_backend", "", None, self._after_attach),
            ("detach_storage_backend", "", None, calls.after_detach),
            ("clear_storage_backend", "", None, calls.after_clear),
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

    def _wrap(self, name: str, kind: str, before: Before | None, after: After) -> None:
        original = getattr(self._cache, name, None)
        if original is None:
            return
        clock, begin, finish = time.perf_counter, self._begin, self._finish

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._pass:
                return original(*args, **kwargs)
            self._pass = True
            try:
                noted = begin(before, args, kwargs)
                began = clock()
                result = original(*args, **kwargs)
                self.cache_seconds += clock() - began
                finish(after, noted, result, args, kwargs)
                return result
            except BaseException as error:
                self._broke_off(name, kind, noted, error, args, kwargs)
                raise
            finally:
                self._pass = self.ended is not None

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

    # -- a call -----------------------------------------------------------------------------------------------------

    def _begin(self, before: Before | None, args: Any, kwargs: Any) -> Any:
        """What `before` noted. Its failure, as any here, ends the recording."""
        try:
            self.calls.begin()
            return before(args, kwargs) if before is not None else None
        except Exception as error:
            self._fail(error)

    def _finish(self, after: After, noted: Any, result: Any, args: Any, kwargs: Any) -> None:
        if self.ended is not None:
            return
        try:
            calls = self.calls
            calls.over()
            after(noted, result, args, kwargs)
            calls.settle()
            self._recorded += 1
            if self._recorded - self._handed_over >= CALLS_HELD or self._capture.ring.pending_bytes() > BYTES_HELD:
                self._hand_over()
        except Exception as error:
            self._fail(error)

    def _hand_over(self) -> None:
        """What was recorded is the other process's; now and then the whole tree is looked at."""
        self._capture.forget_some()
        if self._recorded >= self._next_look and self.cache_seconds >= self._looks_from:
            began = time.perf_counter()
            nodes = self._capture.tree()
            if nodes is not None:
                self._capture.add(("look", *self._capture.look(nodes), self.calls.fetched()))
            took = time.perf_counter() - began
            self._next_look = self._recorded + self._look_every
            self._looks_from = self.cache_seconds + took / self._looking_share
        self._capture.ring.flush()
        self._handed_over = self._recorded
        said = self._teller.said()
        if said is not None:
            self.ended = said

    # -- the end ----------------------------------------------------------------------------------------------------

    def _broke_off(self, name: str, kind: str, noted: Any, error: BaseException, args: Any, named: Any) -> None:
        """The call raised: it is the last step."""
        if self.ended is not None:
            return
        text = f"{type(error).__name__}: {error}"
        if kind == "match":
            noted = self.calls.match(args, named)
        if kind and noted is not None:
            self._capture.add(("raised", text, kind, *noted))
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
                self._capture.ring.flush()
            except Behind:
                pass
            self._teller.ring.end(told or why)

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
