"""The caller's operations of storage, and of storage that comes and goes."""

from typing import Any

from hicache_ref.adapters.sglang_hiradix.books import Fetch
from hicache_ref.adapters.sglang_hiradix.metrics import TALLY
from hicache_ref.adapters.sglang_hiradix.polling import PollingCaller
from hicache_ref.adapters.sglang_hiradix.stepper import Answer, StepThread
from hicache_ref.adapters.sglang_hiradix.workers import QUERIES, READS, WRITES
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Audited, Done, Invalid, Prefetching, Progressed, Refused

_BACKENDS = {"files": "file"}
"""The vocabulary's names of backends -> upstream's."""

_MILLISECONDS = 1000

RELEASE_QUEUE = "release queue"
"""What is pending while pages wait to be freed."""


class StoringCaller(PollingCaller):
    """A caller that also knows storage."""

    # -- what storage pins ------------------------------------------------------------------------------------------

    def _keepers_of_leaves(self, beside: Any = None) -> set[str]:
        """What hangs on, or reads the host copy of, a node below a device leaf pins that leaf too.

        Leaves above the node `beside` do not count: what is done for it has them pinned.
        """
        above = set()
        while beside is not None:
            above.add(id(beside))
            beside = beside.parent
        hanging: dict[int, set[str]] = {}
        for fetch in self.books.fetches.values():
            if self.is_open(fetch):
                hanging.setdefault(id(self.engine.cache.ongoing_prefetch[fetch.rid][0]), set()).add(fetch.name)
        reading: dict[int, str] = {}
        for backup in self.books.backups.values():
            pages = self.engine.host_slots.pages(backup.operation.host_indices)
            reading.update(dict.fromkeys(pages, backup.name))
        found: set[str] = set()
        waiting = [(self.engine.cache.root_node, False)]
        while waiting:
            node, below_leaf = waiting.pop()
            below_leaf = below_leaf or (self._is_device_leaf(node) and id(node) not in above)
            if below_leaf:
                found |= hanging.get(id(node), set())
                found |= {reading[page] for page in self.engine.host_slots.pages(node.host_value) if page in reading}
            waiting += [(child, below_leaf) for child in node.children.values()]
        return found

    def _is_device_leaf(self, node: Any) -> bool:
        resident = node.parent is not None and node.value is not None and not self.engine.locks(node)
        return resident and all(child.value is None for child in node.children.values())

    # -- prefetch ---------------------------------------------------------------------------------------------------

    def on_prefetch(self, op: ops.Prefetch) -> Prefetching | Refused:
        """The cache has been asked as a scheduler asks: from a node on host (upstream: _prefetch_kvcache)."""
        cache, size = self.engine.cache, self.engine.page_size
        if not cache.enable_storage:
            return Refused(why="no storage")
        if op.rid in cache.ongoing_prefetch:
            return Refused(why="a prefetch of this request is open")
        matched, anchored = self.from_where(op.key)
        asked = self.engine.page_count(op.key) - matched
        if asked <= 0 or not anchored:
            return Refused(why="nothing to ask for, or the anchor has no host copy")
        limited = getattr(self.engine.controller, "prefetch_rate_limited", None)
        if asked * size < cache.prefetch_threshold or (limited is not None and limited()):
            return Refused(why="below threshold, or rate limited")
        anchor = self.anchor_of(op.key, matched)
        before = set(self.books.fetches)
        self.watch.fetching = (op.rid, op.key, asked)
        try:
            self.engine.prefetch(op.rid, anchor, op.key, matched * size)
        finally:
            self.watch.fetching = None
        for name in self.books.fetches.keys() - before:
            fetch = self.books.fetches[name]
            fetch.operation.start_time = 0.0
            fetch.since = op.now
            fetch.asked = len(fetch.operation.token_ids) // size
            # What it hangs on is used once it hangs there; a refused prefetch has used nothing.
            self.engine.match(self._cut(op.key, matched))
            self.workers.go_on()
            return Prefetching(id=name, pages=fetch.asked)
        return Refused(why="host full")

    def anchor_of(self, key: Key, matched: int) -> Any:
        """The node below which a prefetch is to hang; where the place lies inside a node, a match has split that."""
        return self.node_at(self._cut(key, matched)) or self.engine.match(key).last_host_node

    def _cut(self, key: Key, pages: int) -> Key:
        """The key of the first `pages` pages."""
        return Key(tokens=self.engine.whole_tokens(key, pages), extra=key.extra)

    def from_where(self, key: Key) -> tuple[int, bool]:
        """Behind how many pages of the key a prefetch asks for more, and whether what ends there is on host."""
        matched, node, _ = self.look(key)
        return matched, node.host_value is not None

    def on_query_done(self, op: ops.QueryDone) -> Done | Refused | Invalid:
        """The thread has its answer, and has done with it what it does."""
        fetch = self.books.fetches.get(op.id)
        if fetch is None or fetch.stage != "queued":
            return Invalid(why=f"no open query {op.id}")
        if not 0 <= op.hits <= fetch.asked:
            return Invalid(why=f"the query of {op.id} asks for {fetch.asked} pages")
        no = self.workers.obstacle(QUERIES, fetch.operation)
        if no is not None:
            return no
        self.workers.query(fetch, op.hits, op.raised)
        self.workers.go_on()
        return Done()

    def on_read_done(self, op: ops.ReadDone) -> Done | Refused | Invalid:
        """The thread has read a batch so far, and has done with it what it does."""
        fetch = self.books.fetches.get(op.id)
        if fetch is None or fetch.stage != "reading" or op.pages < 0:
            return Invalid(why=f"no running read {op.id}")
        answer = Answer(op.pages, op.raised, int(op.state))
        no = self.workers.obstacle(READS, fetch.operation) or self.workers.read(fetch, answer)
        if no is not None:
            return no
        self.workers.go_on()
        return Done()

    def on_write_done(self, op: ops.WriteDone) -> Done | Refused | Invalid:
        """The thread has stored a batch so far, and has done with it what it does."""
        backup = self.books.backups.get(op.id)
        if backup is None or backup in self.books.written or op.pages < 0:
            return Invalid(why=f"no running write {op.id}")
        answer = Answer(op.pages, op.raised, op.states)
        no = self.workers.obstacle(WRITES, backup.operation) or self.workers.write(backup, answer)
        if no is not None:
            return no
        self.workers.go_on()
        return Done()

    def on_progress(self, op: ops.Progress) -> Progressed:
        """What the cache says; and what it counted as loaded, once."""
        cache = self.engine.cache
        self.watch.inserted = None
        since = next((fetch.since for fetch in self.books.fetches.values() if self._is_its(fetch, op.rid)), op.now)
        TALLY.take()
        done = self.engine.progress(op.rid, (op.now - since) / _MILLISECONDS, op.agreed)
        prefetched, _ = self.counted()
        self.forget_closed()
        if not done:
            return Progressed(done=False, prefetched=prefetched)
        if hasattr(cache, "pop_prefetch_loaded_tokens"):
            loaded = int(cache.pop_prefetch_loaded_tokens(self.engine.handle(op.rid)))
        else:
            length, known = self.watch.inserted or (0, 0)
            loaded = length - known
        return Progressed(done=True, loaded=loaded // self.engine.page_size, prefetched=prefetched)

    def on_terminate(self, op: ops.Terminate) -> Done:
        """The worker of this request's prefetch is to stop."""
        self.engine.cache.terminate_prefetch(op.rid)
        return Done()

    def on_abort(self, op: ops.Abort) -> Done:
        """The cache waits for this request no more."""
        self.engine.cache.release_aborted_request(self.engine.handle(op.rid))
        self.forget_closed()
        return Done()

    def _is_its(self, fetch: Fetch, rid: str) -> bool:
        return fetch.rid == rid and self.is_open(fetch)

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def on_audit(self, op: ops.Audit) -> Audited:
        """What is pending, pages that wait to be freed too; upstream's HiRadixCache has no check of its own."""
        queue = getattr(self.engine.controller, "host_mem_release_queue", None)
        waiting = (RELEASE_QUEUE,) if queue is not None and any(item.numel() for item in queue.queue) else ()
        return Audited(pending=tuple(sorted([*self.books.pending(), *waiting])))

    def on_attach(self, op: ops.Attach) -> Done | Refused:
        """Storage is attached; where a release cannot at run time, the cache is new and has it from the start."""
        backend = _BACKENDS.get(op.backend, op.backend)
        if self.engine.traits.attaches:
            no = self.engine.attach(backend, op.settings, op.write_policy, op.fails)
            self.workers.go_on()
            return Done() if no is None else Refused(why=no)
        if backend != "file" or self._was_used():
            return Refused(why="this release has storage from the start or never")
        StepThread.give_up_all()
        self.engine.make(op.settings)
        self.start_afresh()
        return Done()

    def _was_used(self) -> bool:
        """Whether anything would be lost if the cache were made anew."""
        empty = not self.engine.cache.root_node.children and not self.books.requests and not self.books.receipts
        return not empty or bool(self.books.pending()) or self.engine.cache.enable_storage

    def on_detach(self, op: ops.Detach) -> Done | Refused:
        """No storage is attached. Upstream's scheduler waits until nothing of it runs; so does this, but by force."""
        if op.force:
            no = self.engine.shut_down()
            self._forget_storage()
            return Done() if no is None else Refused(why=no)
        self._close_all()
        waiting = self._reading_or_writing()
        if waiting:
            return Refused(why="work in flight", wait_for=waiting)
        no = self.engine.detach()
        if no is not None:
            return Refused(why=no)
        self._forget_storage()
        return Done()

    def _close_all(self) -> None:
        """What is closed or can be is over as far as it does not run; up to 0.5.1 no call closes a prefetch."""
        if hasattr(self.engine.cache, "release_aborted_request"):
            told = getattr(self.engine.cache, "prefetch_loaded_tokens_by_reqid", ())
            for rid in (*(fetch.rid for fetch in self._open()), *told):
                self.on_abort(ops.Abort(rid=rid))
        closed = [fetch for fetch in self.books.fetches.values() if not self.is_open(fetch)]
        for fetch in closed:
            if fetch.stage == "queued" and self.workers.obstacle(QUERIES, fetch.operation) is None:
                self.workers.query(fetch, 0, raised=False)
        # What has ended is applied, also if something else has to be waited for.
        self.poll_storage_to_the_end()

    def _open(self) -> list[Fetch]:
        return [fetch for fetch in self.books.fetches.values() if self.is_open(fetch)]

    def _reading_or_writing(self) -> tuple[str, ...]:
        reading = [name for name, fetch in self.books.fetches.items() if fetch.stage in ("reading", "dead")]
        return tuple(sorted([*reading, *self.writing()]))

    def writing(self) -> list[str]:
        """The backups of which a batch is still to be written."""
        return [name for name, backup in self.books.backups.items() if backup not in self.books.written]

    def _forget_storage(self) -> None:
        """Only what a thread still works on is known."""
        survivors = self._survivors()
        for kept in (self.books.fetches, self.books.backups):
            kept.clear()
        self.books.fetches |= survivors
        for waiting in (self.books.answered, self.books.reads, self.books.written):
            waiting.clear()

    def on_clear_storage(self, op: ops.ClearStorage) -> Done | Refused | Invalid:
        """The backend has been told to forget everything."""
        if not self.engine.cache.enable_storage:
            return Invalid(why="no storage is attached")
        return Done() if self.engine.cache.clear_storage_backend() else Refused(why="the backend cannot")

    def on_reset(self, op: ops.Reset) -> Done | Refused:
        """Cache and pools are as new, unless something runs: a scheduler flushes when it is idle and has polled.

        By force it does so although storage works.
        """
        busy = {name for name in self.books.pending() if name[0] in "hdf"}
        if busy or not self.is_forced(op):
            self._close_all()
            busy |= {*self._reading_or_writing(), *(fetch.name for fetch in self._open())}
            if busy:
                return Refused(why="work in flight", wait_for=tuple(sorted(busy)))
            self.engine.cache.check_hicache_events()
        self.engine.reset()
        survivors = self._survivors()
        self.books.__init__()  # type: ignore[misc]
        self.books.fetches |= survivors
        self.workers.go_on()
        return Done()

    def is_forced(self, op: ops.Reset) -> bool:
        """Whether the cache is emptied although storage works."""
        return op.force

    def _survivors(self) -> dict[str, Fetch]:
        """Fetches on which a living thread works, by name."""
        return {name: each for name, each in self.books.fetches.items() if self.workers.works_on(each.operation)}
