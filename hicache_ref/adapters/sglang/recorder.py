"""The recorder: wraps the methods of a live cache, and writes what their calls amount to.

Methods are wrapped on the object, never on its class. Of calls within calls only the outermost is written; methods that
are nothing but calls, as `cache_finished_req`, are not wrapped. Copies and storage work end in the trace when the
scheduler learns of it. A fault of the recorder's own ends the recording and never reaches the server.
"""

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from pydantic_core import to_json

from hicache_ref.adapters.sglang import lines
from hicache_ref.adapters.sglang.calls import CannotSay
from hicache_ref.adapters.sglang.storing import StoringCalls
from hicache_ref.adapters.sglang.writing import TraceWriter
from hicache_ref.adapters.sglang_hiradix.engine import Engine
from hicache_ref.trace import TraceError

LOOKING_SHARE = 0.03
"""Of the cache's own time, so much at most is spent on looking at the whole tree, unless somebody says otherwise."""

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

Before = Callable[..., Any]
After = Callable[[Any, Any], None]


class Recorder:
    """Writes what happens to the cache of `engine`, until `close`, or until a call that the trace has no words for."""

    def __init__(self, engine: Engine, writer: TraceWriter, look_every: int, looking_share: float) -> None:
        self.ended: str | None = None
        """Why nothing is written any more; None while it is."""

        self.cache_seconds = 0.0
        """What the recorded calls took, without the recorder."""

        self.calls = StoringCalls(engine, writer)
        self._cache = engine.cache
        self._writer = writer
        self._look_every, self._looking_share = look_every, looking_share
        self._next_look, self._looks_from = look_every, 0.0
        self._inside = False
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._wrap_all()

    def _wrap_all(self) -> None:
        calls = self.calls
        self._watch(self._cache, "write_backup", calls.on_write)
        for name, before, after in (
            ("match_prefix", calls.before_match, calls.after_match),
            ("inc_lock_ref", calls.before_lock, calls.after_lock),
            ("dec_lock_ref", calls.before_lock, calls.after_unlock),
            ("insert", calls.before_insert, calls.after_insert),
            ("evict", calls.before_evict, calls.after_evict),
            ("evict_host", calls.before_evict_host, calls.after_evict_host),
            ("load_back", calls.before_load, calls.after_load),
            ("check_hicache_events", calls.before_nothing, calls.after_poll),
            ("flush_write_through_acks", calls.before_nothing, calls.after_poll),
            ("writing_check", calls.before_nothing, calls.after_poll),
            ("loading_check", calls.before_nothing, calls.after_poll),
            ("reset", calls.before_nothing, calls.after_reset),
            ("prefetch_from_storage", calls.before_prefetch, calls.after_prefetch),
            ("check_prefetch_progress", calls.before_progress, calls.after_progress),
            ("pop_prefetch_loaded_tokens", calls.before_progress, calls.after_pop),
            ("release_aborted_request", calls.before_progress, calls.after_abort),
            ("drain_storage_control_queues", calls.before_nothing, calls.after_poll),
            ("attach_storage_backend", calls.before_nothing, self._after_attach),
            ("detach_storage_backend", calls.before_nothing, calls.after_detach),
            ("clear_storage_backend", calls.before_nothing, calls.after_clear),
        ):
            self._wrap(name, before, after)
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
        if self._inside:
            self.calls.on_get(name, item)

    def _after_attach(self, noted: Any, result: Any) -> None:
        self._watch_storage()
        self.calls.after_attach(noted, result)

    def _stand_in(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is not None and not hasattr(original, _RECORDED):
            stands = partial(by, original)
            setattr(stands, _RECORDED, True)
            self._replace(owner, name, stands)

    # -- wrapping ---------------------------------------------------------------------------------------------------

    def _wrap(self, name: str, before: Before, after: After) -> None:
        original = getattr(self._cache, name, None)
        if original is None:
            return

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self.ended is not None:
                return original(*args, **kwargs)
            self._inside = True
            self.calls.number += 1
            try:
                self._guarded(self.calls.begin)
                noted = self._guarded(before, *args, **kwargs)
                began = time.perf_counter()
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    self._guarded(self._broke_off, name, noted, error)
                    raise
                self.cache_seconds += time.perf_counter() - began
                self._guarded(self._finish, after, noted, result)
                return result
            finally:
                self._inside = False

        self._replace(self._cache, name, recorded)

    def _watch(self, owner: Any, name: str, watcher: Callable[..., None]) -> None:
        """Whenever `name` of `owner` has returned, within other calls too, `watcher(result, *args)` is called."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._guarded(watcher, result, *args, **kwargs)
            return result

        self._replace(owner, name, watched)

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        self._wrapped.append((owner, name, owner.__dict__.get(name, _UNSET)))
        setattr(owner, name, by)

    def _guarded(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What `act` returns. Its failure ends the recording."""
        if self.ended is not None:
            return None
        try:
            return act(*args, **kwargs)
        except CannotSay as error:
            self._end(str(error))
        except Exception as error:
            self._end(f"the recorder failed: {type(error).__name__}: {error}")
        return None

    def _finish(self, after: After, noted: Any, result: Any) -> None:
        after(noted, result)
        self.calls.settle()
        if self._writer.steps >= self._next_look and self.cache_seconds >= self._looks_from:
            began = time.perf_counter()
            self.calls.look()
            took = time.perf_counter() - began
            self._next_look = self._writer.steps + self._look_every
            self._looks_from = self.cache_seconds + took / self._looking_share

    # -- the end ----------------------------------------------------------------------------------------------------

    def _broke_off(self, name: str, noted: Any, error: BaseException) -> None:
        """The call raised: it is the last step."""
        if isinstance(noted, tuple) and noted[0]:
            self._writer.step(noted[0], lines.raised(error))
            self._end(None)
        else:
            self._end(f"{name} raised {type(error).__name__}: {error}")

    def _end(self, why: str | None) -> None:
        """Nothing more is written; the last line says why, unless the last step does."""
        self.ended = why or "a call raised"
        try:
            if why is not None:
                self._writer.end(to_json(why))
            self._writer.close()
        except TraceError as error:
            self.ended = str(error)

    def close(self) -> None:
        """The file is complete, and the cache is as it was. Raises TraceError where there is no room for the rest."""
        for owner, name, before in reversed(self._wrapped):
            if before is _UNSET:
                owner.__dict__.pop(name, None)
            else:
                setattr(owner, name, before)
        self._wrapped.clear()
        if self.ended is None:
            self.ended = "closed"
            self._writer.close()
