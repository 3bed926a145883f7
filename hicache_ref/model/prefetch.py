"""Prefetch: what storage is asked for, and what its answers mean (upstream: prefetch_from_storage).

The worker's steps (`query_done`, `read_done`) change what it holds and nothing of the tree; the scheduler's steps
(`prefetch` here, `progress`, `terminate`, `abort` and `poll` in `commit`) do the rest. Only the scheduler frees a page.
"""

from hicache_ref.model.records import (
    Prefetch,
    PrefetchAnswered,
    PrefetchEnded,
    PrefetchQueued,
    PrefetchReading,
    at_stage,
)
from hicache_ref.model.state import Node
from hicache_ref.model.store import StoreRules
from hicache_ref.model.tree import Found
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.effects import StorageQuery, StorageRead
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, STATE_HOST, PageHash, Pages
from hicache_ref.vocabulary.keys import PageKeys, handle
from hicache_ref.vocabulary.outcomes import Done, Invalid, Prefetching, Refused


class PrefetchRules(StoreRules):
    """The way up: storage to host pages below an anchor."""

    def requires_prefetch(self, op: ops.Prefetch) -> Invalid | None:
        """Any key may be asked for."""
        return None

    def on_prefetch(self, op: ops.Prefetch) -> Prefetching | Refused:
        """Storage is asked for what of the key is on no tier, for a request that has no other prefetch (HC-PREF-04)."""
        storage = self.storage
        if not storage.attached:
            return Refused(why="no storage")
        if op.rid in storage.open:
            return Refused(why="a prefetch of this request is open")
        pages = self.pages(op.key)
        found = self._from_where(pages, op.key.extra)
        refused = self._refuses(op, len(pages) - found.length, found.node)
        if refused is not None:
            return refused
        # change
        name = handle("p", op.key, storage.records)
        wanted = pages[found.length :]
        prior = self._last_hash(found) or self.storage_seed(op.key.extra)
        record = PrefetchQueued(
            id=name, rid=op.rid, anchor=found.node.id, extra=op.key.extra, key=wanted, asked=len(wanted),
            hashes=chain(wanted, prior, self.profile.bigram), prefix=self._path_hashes(found),
            since=op.now if self.rules.prefetch_clock == "submission" else -1,
        )  # fmt: skip
        self._open(record)
        if self.rules.prefetch_allocation == "before":
            taken = self._take_for(record, len(wanted))
            if taken is None:
                self._forget(record)
                return Refused(why="host full")
            record = taken
        elif self.profile.state and self.rules.prefetch_state == "submission":
            if not self.host_room(0, 1):
                self._forget(record)
                return Refused(why="no state slot")
            record = record.model_copy(update={"states": self._slot(record)})
            self.storage.records[record.id] = record
        self._anchor(record, self.walk(pages[: found.length], op.key.extra).node)
        # tell
        prefix = self.told_prefix(record, 0)
        query = StorageQuery(id=name, hashes=record.hashes, prefix=prefix, trailing_state=self.profile.state)
        self.effects.append(query)
        return Prefetching(id=name, pages=len(record.hashes))

    def _from_where(self, pages: PageKeys, extra: str | None) -> Found:
        """Where what is asked for begins: where KV ends; of a hybrid model at the best end, which has a state."""
        found = self.look(pages, extra)
        if not self.profile.state:
            return found
        best = self.best_end(self.state.nodes[found.node.parent] if found.inside else found.node)
        return Found(best, self.depth(best), False)

    def _last_hash(self, found: Found) -> PageHash | None:
        """The hash of the last page found, which may lie inside its node."""
        above = found.length - (self.depth(found.node) - len(found.node.key))
        return found.node.hashes[above - 1] if above else None

    def _anchor(self, record: PrefetchQueued, anchor: Node) -> None:
        """The prefetch hangs on the node where the match ends, which is used now."""
        self.touch(anchor.id)
        self.storage.records[record.id] = record.model_copy(update={"anchor": anchor.id})
        self.update_leaf(record.anchor)
        self.update_leaf(anchor.id)

    def _refuses(self, op: ops.Prefetch, wanted: int, anchor: Node) -> Refused | None:
        """Why nothing is asked for, if so (HC-PREF-15)."""
        if wanted < self.prefetch_threshold():
            return Refused(why="below threshold")
        if op.key.extra is not None and not self.rules.hash_namespace:
            return Refused(why="namespace without storage")
        if self.rules.prefetch_limit == "submission" and self.is_over_limit():
            return Refused(why="rate limited")
        if anchor.id != ROOT and anchor.host is None:
            return Refused(why="anchor without host copy")
        return None

    def is_over_limit(self) -> bool:
        """Whether the open prefetches ask for as much as they may (upstream: prefetch_rate_limited)."""
        return self.storage.occupied * self.profile.sizes.page_size >= self.prefetch_capacity()

    def prefetch_threshold(self) -> int:
        """The fewest pages worth a prefetch: the threshold in tokens, rounded up, at least one."""
        page_size = self.profile.sizes.page_size
        return max(1, -(-self.storage.settings.prefetch_threshold // page_size))

    def prefetch_capacity(self) -> int:
        """The number of tokens asked for from which no prefetch goes on (upstream: prefetch_capacity_limit)."""
        return self.profile.prefetch_capacity

    def _path_hashes(self, found: Found) -> tuple[PageHash, ...]:
        """The hashes of the pages found."""
        path = [h for number in reversed(self.path(found.node.id)) for h in self.state.nodes[number].hashes]
        return tuple(path[: found.length])

    def _open(self, record: PrefetchQueued) -> None:
        """The prefetch is on the books, and its anchor pinned: making room for it must not take the anchor."""
        assert record.rid is not None
        self.storage.records[record.id] = record
        self.storage.open[record.rid] = record.id
        self.storage.occupied += record.asked
        self.update_leaf(record.anchor)

    def _forget(self, record: Prefetch) -> None:
        """The prefetch never was; storage has not heard of it yet."""
        assert record.rid is not None
        if STATE_HOST in self.state.nodes[record.anchor].at:
            self.facts.append("anchor_keeps_its_state")
        del self.storage.open[record.rid]
        del self.storage.records[record.id]
        self.storage.occupied -= record.asked
        self.update_leaf(record.anchor)

    def _take_for(self, record: PrefetchQueued, count: int) -> PrefetchQueued | None:
        """The record has host pages: for all it asks for, or for as much as there is; None if that is too little."""
        if not self.host_room(count, int(self.profile.state)):
            count = self.free_count(KV_HOST)
            fits = count >= self.prefetch_threshold() and self.rules.prefetch_truncates
            if not fits or not self.host_room(count, int(self.profile.state)):
                return None
            self.facts.append("prefetch_truncated")
            if self.rules.truncation_counts_less:
                self.storage.occupied -= record.asked - count
                record = record.model_copy(update={"asked": count})
        pages = self.take(KV_HOST, count, ("prefetch", record.id))
        cut = {"pages": pages, "hashes": record.hashes[:count], "key": record.key[:count], "states": self._slot(record)}
        record = record.model_copy(update=cut)
        self.storage.records[record.id] = record
        return record

    def _slot(self, record: Prefetch) -> Pages:
        """The prefetch has the state slot that a hybrid model needs for its last page."""
        if record.states or not self.profile.state:
            return record.states
        return self.take(STATE_HOST, 1, ("prefetch", record.id))

    # -- the worker's steps -----------------------------------------------------------------------------------------

    def requires_query_done(self, op: ops.QueryDone) -> Invalid | None:
        """The query is open, and no more is found than was asked for."""
        record = self.storage.records.get(op.id)
        if not isinstance(record, PrefetchQueued):
            return Invalid(why=f"no open query {op.id}")
        if not 0 <= op.hits <= len(record.hashes):
            return Invalid(why=f"the query of {op.id} asks for {len(record.hashes)} pages")
        return None

    def on_query_done(self, op: ops.QueryDone) -> Done:
        """The hits are known; with pages taken before, reading begins and the rest is given up (HC-PREF-05)."""
        # change
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchQueued)
        hits = 0 if op.raised else op.hits
        if record.cancelled and self.rules.cancelled_query == "answers_0":
            hits = 0
            self.facts.append("cancelled_during_query")
        if self.rules.prefetch_limit == "query" and self.is_over_limit():
            hits = 0
            self.facts.append("limited_in_query")
        enough = hits >= self.prefetch_threshold()
        if record.pages and enough:
            self._queue(record.pages[hits:])
            self._read(self._as_reading(record, record.pages[:hits]))
        else:
            self._queue(record.pages)
            kept = 0 if record.pages else hits
            cut = {"pages": (), "hashes": record.hashes[:kept], "key": record.key[:kept]}
            self.storage.records[op.id] = at_stage(PrefetchAnswered, record, **cut)
            self.storage.answers.append(op.id)
        # tell
        if op.raised:
            self.facts.append("query_raised")
        return Done()

    def _queue(self, pages: Pages) -> None:
        """The pages wait in the release queue."""
        owner = self.state.pools[KV_HOST].owner
        for page in pages:
            owner[page] = ("queue", "")
        self.storage.release.extend(pages)

    def _as_reading(self, record: Prefetch, pages: Pages) -> PrefetchReading:
        """The record at the stage of reading into `pages`."""
        count = len(pages)
        cut = {"pages": pages, "hashes": record.hashes[:count], "key": record.key[:count]}
        return at_stage(PrefetchReading, record, **cut)

    def _read(self, record: PrefetchReading) -> None:
        """The record reads, and its next batch is asked of the world."""
        self.storage.records[record.id] = record
        start, end = record.done, record.done + self.profile.sizes.storage_batch
        self.effects.append(
            StorageRead(
                id=record.id, hashes=record.hashes[start:end], pages=record.pages[start:end],
                state=record.states if end >= len(record.pages) else (), prefix=self.told_prefix(record, start),
            )
        )  # fmt: skip

    def _counts_no_more(self, record: PrefetchReading) -> bool:
        """Whether the count of an open prefetch stands still since it was told to stop (upstream: increment)."""
        return record.cancelled and record.rid is not None and self.rules.prefetch_progress == "live"

    def _without_tail(self, record: PrefetchEnded) -> PrefetchEnded:
        """By the rule `io_end` what was not read, or for nobody, waits for release as soon as the I/O has ended."""
        if self.rules.read_tail == "end_applied":
            return record
        kept = record.done if record.rid is not None else 0
        self._queue(record.pages[kept:])
        cut = {"pages": record.pages[:kept], "hashes": record.hashes[:kept], "key": record.key[:kept], "done": kept}
        return record.model_copy(update=cut)

    def requires_read_done(self, op: ops.ReadDone) -> Invalid | None:
        """The prefetch reads, and no more is in place than the batch has."""
        record = self.storage.records.get(op.id)
        if not isinstance(record, PrefetchReading):
            return Invalid(why=f"no running read {op.id}")
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        if not 0 <= op.draft <= op.pages <= batch:
            return Invalid(why=f"the batch of {op.id} has {batch} pages")
        if op.state and (not record.states or record.done + op.pages < len(record.pages)):
            return Invalid(why=f"the state of {op.id} comes behind its last page, if at all")
        return self.requires_no_draft(op.draft)

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """The pages hold their part; the I/O ends with its last batch, a short one, or when cancelled (HC-PREF-06)."""
        # change
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        pool = self.state.pools[KV_HOST]
        for slot in record.states if op.state else ():
            self.state.pools[STATE_HOST].stamp[slot] = record.hashes[-1]
        end = record.done + op.pages
        come = zip(record.pages[record.done : end], record.hashes[record.done : end], strict=True)
        for index, (page, digest) in enumerate(come):
            pool.stamp[page] = digest
            pool.draft[page] = digest if index < op.draft else None
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        done = record.done if self._counts_no_more(record) else end
        known = done if self.rules.prefetch_progress == "live" and record.rid is not None else record.known
        ends = op.raised or op.pages < batch or done == len(record.pages) or record.cancelled
        if ends:
            ended = at_stage(PrefetchEnded, record, done=done, known=known, has_state=op.state and done == end)
            self.storage.records[op.id] = ended = self._without_tail(ended)
            self.storage.reads.append((op.id, ended.done))
        else:
            self.storage.reads.append((op.id, done))
            self._read(record.model_copy(update={"done": done, "known": known}))
        # tell
        if self.state.draft and op.draft < op.pages:
            self.facts.append("draft_missing")
        if record.states and not op.state and end == len(record.pages):
            self.facts.append("state_not_read")
        if record.rid is None:
            self.facts.append("read_after_close")
        if op.raised:
            self.facts.append("read_raised")
        elif op.pages < batch:
            self.facts.append("read_short")
        return Done()
