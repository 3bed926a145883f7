"""The recorder: wraps the methods of a live cache, and hands over what their calls were.

Methods are wrapped on the object, never on its class. Of calls within calls only the outermost is recorded; methods
that are nothing but calls, as `cache_finished_req`, are not wrapped. A fault of the recorder's own ends the recording
and never reaches the server, nor does the server ever wait for the process that writes.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from itertools import count
from typing import Any

from hicache_ref.adapters.sglang.calls import CannotSay
from hicache_ref.adapters.sglang.capture import Capture
from hicache_ref.adapters.sglang.storing import StoringCalls
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.adapters.sglang_teller import LOST, Teller
from hicache_ref.adapters.sglang_teller.ring import CLOSED, Behind

LOOKING_SHARE = 0.02
"""Of the cache's own time, so much at most is spent on looking at the whole tree, unless somebody says otherwise."""

RECORDS_HELD = 2048
CALLS_HELD = 256
IDLE_POLLS = 1024
"""So much is held back before it is handed over, and that for so many polls that find nothing."""

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
        self._made, self._next_hand_over, self._taken = 0, CALLS_HELD, -1
        self._pass = False
        """Whether calls pass unrecorded: they are within another, or nothing is recorded any more."""

        self._wrapped: list[tuple[Any, str, Any]] = []
        self._wrap_all()
        self._look()

    def _wrap_all(self) -> None:
        calls = self.calls
        self._watch(self._cache, "write_backup", calls.on_write)
        self._wrap_lock("inc_lock_ref", b"lock")
        self._wrap_lock("dec_lock_ref", b"unlock")
        for name in ("check_hicache_events", "flush_write_through_acks", "writing_check", "loading_check",
                     "drain_storage_control_queues"):  # fmt: skip
            self._wrap_poll(name)
        for name, kind, before, after in (
            ("match_prefix", b"match", None, calls.after_match),
            ("insert", b"insert", calls.before_insert, calls.after_insert),
            ("evict", b"evict", calls.before_evict, calls.after_evict),
            ("evict_host", b"evict_host", calls.before_evict_host, calls.after_evict_host),
            ("load_back", b"load", calls.before_load, calls.after_load),
            ("reset", b"", None, calls.after_reset),
            ("prefetch_from_storage", b"", calls.before_prefetch, calls.after_prefetch),
            ("check_prefetch_progress", b"", calls.before_progress, calls.after_progress),
            ("pop_prefetch_loaded_tokens", b"", calls.before_progress, calls.after_pop),
            ("terminate_prefetch", b"", calls.before_progress, calls.after_terminate),
            ("release_aborted_request", b"", calls.before_progress, calls.after_abort),
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
        if self._pass and self.ended is None:
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
        """Calls of the method are recorded; of one of a `kind` that raises, what it was given."""
        original = getattr(self._cache, name, None)
        if original is None:
            return
        calls, clock, finish = self.calls, time.perf_counter, self._finish
        waited, notes = calls.waited, calls.threads.notes

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
            self.cache_seconds += clock() - began
            finish(after, noted, result, args, kwargs)
            return result

        self._replace(self._cache, name, recorded)

    def _wrap_poll(self, name: str) -> None:
        """As `_wrap`. Most polls find nothing, and there are many."""
        original = getattr(self._cache, name, None)
        if original is None:
            return
        calls, finish, after = self.calls, self._finish, self.calls.after_poll
        news = (calls.to_host, calls.to_device, calls.waited, calls.threads.notes, calls.drained, calls.untold)
        records, idle = self._ring.records, count(1)

        @wraps(original)
        def polled(*args: Any, **kwargs: Any) -> Any:
            if self._pass:
                return original(*args, **kwargs)
            if (calls.waited or calls.threads.notes) and self._begin():
                return original(*args, **kwargs)
            self._pass = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._broke_off(name, b"", None, error, args, kwargs)
                raise
            if any(news) or (records and not next(idle) % IDLE_POLLS):
                finish(after, None, result, args, kwargs)
            else:
                self._pass = False
            return result

        self._replace(self._cache, name, polled)

    def _wrap_lock(self, name: str, kind: bytes) -> None:
        """As `_wrap`. Locks are short, and call nothing that is recorded."""
        original = getattr(self._cache, name)
        add, number_of = self._capture.add, self._capture.node

        @wraps(original)
        def locked(node: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(node, *args, **kwargs)
            except BaseException as error:
                if not self._pass:
                    self._broke_off(name, b"", None, error, (node,), kwargs)
                raise
            if not self._pass and node.parent is not None:
                try:
                    add((kind, number_of(node)))
                except Exception as error:
                    self._fail(error)
            return result

        self._replace(self._cache, name, locked)

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

    def _begin(self) -> bool:
        """What happened between calls is recorded; or why that cannot be."""
        try:
            self.calls.begin()
        except Exception as error:
            self._fail(error)
        return self._pass

    def _finish(self, after: After, noted: Any, result: Any, args: Any, kwargs: Any) -> None:
        """A call has returned and is recorded. A failure of the recorder's ends the recording."""
        if self.ended is not None:
            return
        calls, ring = self.calls, self._ring
        try:
            has_closed = calls.waited and calls.over()
            after(noted, result, args, kwargs)
            calls.settle()
            if has_closed:
                calls.add((b"over",))
            self._made += 1
            if self._made >= self._next_look:
                self._look_if_cheap()
            if len(ring.records) > RECORDS_HELD or ring.is_full or self._made >= self._next_hand_over:
                self._hand_over()
        except Exception as error:
            self._fail(error)
        self._pass = self.ended is not None

    def _hand_over(self) -> None:
        """What was recorded is the other process's."""
        self._next_hand_over = self._made + CALLS_HELD
        self._capture.hand_over()
        taken = self._ring.taken()
        # To ask takes longer than most calls: while it works it has not ended.
        said = self._teller.said() if taken == self._taken else None
        self._taken = taken
        if said is not None:
            self._stop(said)

    def _look_if_cheap(self) -> None:
        """The whole tree is looked at if that takes no more than its share."""
        self._next_look = self._made + self._look_every
        if self.cache_seconds >= self._looks_from:
            self._look()

    def _look_at_the_end(self) -> None:
        """What happened after the last call is recorded, and the whole tree looked at."""
        try:
            self.calls.begin()
            self.calls.settle()
            self._look()
        except Exception as error:
            self._fail(error)

    def _look(self) -> None:
        """The whole tree is looked at, if there is room for it."""
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
        try:
            if kind == b"match":
                noted = self.calls.match(args, named)
            if kind and noted is not None:
                self._capture.add((b"raised", text, kind, noted))
                self._end("a call raised", CLOSED)
            else:
                self._end(f"{name} raised {text}")
        except Exception as own:
            self._fail(own)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, CannotSay | Behind):
            self._end(str(error))
        else:
            self._end(f"the recorder failed: {type(error).__name__}: {error}")

    def _end(self, why: str, told: str | None = None) -> None:
        """Nothing more is recorded; the trace says why, or `told`."""
        if self.ended is None:
            self._stop(why)
            # Whatever that runs into, there is an end already, and the server is not to see another.
            with suppress(Exception):
                self._capture.hand_over()
            self._ring.end(told or why)

    def _stop(self, why: str) -> None:
        self.ended, self._pass = why, True
        self.calls.threads.stop()

    def is_behind(self) -> bool:
        """Whether what was handed over is not all taken up."""
        return self._ring.is_behind()

    def close(self) -> None:
        """The file is complete, and the cache is as it was."""
        if self._teller.is_finished:
            return
        for owner, name, before in reversed(self._wrapped):
            if before is _UNSET:
                owner.__dict__.pop(name, None)
            else:
                setattr(owner, name, before)
        self._wrapped.clear()
        if self.ended is None:
            self._look_at_the_end()
        self._end("closed", CLOSED)
        said = self._teller.finished()
        self.ended = said.get("ended", LOST) or self.ended
        self.teller_seconds = said.get("seconds", 0.0)
