"""Prefetch: storage to host, for a request that waits (upstream: prefetch_from_storage, check_prefetch_progress).

The worker's steps (`query_done`, `read_done`) change what it holds and nothing of the tree; the scheduler's steps
(`prefetch`, `progress`, `abort`, `poll`) do the rest. Only the scheduler frees a page.
"""

from hicache_ref.model.pages import ModelFault
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
from hicache_ref.vocabulary.effects import StorageCancel, StorageQuery, StorageRead
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, PageHash, Pages
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.outcomes import Done, Invalid, Prefetching, Progressed, Refused


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
        found = self.look(pages, op.key.extra)
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
        self._anchor(record, self.walk(pages, op.key.extra).node)
        # tell
        self.effects.append(StorageQuery(id=name, hashes=record.hashes, prefix=self.told_prefix(record, 0)))
        return Prefetching(id=name, pages=len(record.hashes))

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
        """Why nothing is asked for, if so (HC-PREF-08, HC-PREF-09)."""
        if wanted < self.prefetch_threshold():
            return Refused(why="below threshold")
        if op.key.extra is not None and not self.rules.hash_namespace:
            return Refused(why="namespace without storage")
        if self.storage.occupied >= self.prefetch_capacity():
            return Refused(why="rate limited")
        if anchor.id != ROOT and anchor.host is None:
            return Refused(why="anchor without host copy")
        return None

    def prefetch_threshold(self) -> int:
        """The fewest pages worth a prefetch: the threshold in tokens, rounded up, at least one."""
        page_size = self.profile.sizes.page_size
        return max(1, -(-self.storage.settings.prefetch_threshold // page_size))

    def prefetch_capacity(self) -> float:
        """The number of pages asked for from which a prefetch is refused (semantics 8.5)."""
        sizes = self.profile.sizes
        if self.rules.prefetch_capacity == "half_host":
            return 0.5 * sizes.host_pages
        more = 0.8 * (sizes.host_pages - sizes.device_pages)
        return max(0.0, more) if self.rules.prefetch_capacity == "host_minus_device_clamped" else more

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
        del self.storage.open[record.rid]
        del self.storage.records[record.id]
        self.storage.occupied -= record.asked
        self.update_leaf(record.anchor)

    def _take_for(self, record: PrefetchQueued, count: int) -> PrefetchQueued | None:
        """The record has host pages: for all it asks for, or for as much as there is; None if that is too little."""
        if not self.host_room(count):
            count = self.free_count(KV_HOST)
            if count < self.prefetch_threshold():
                return None
            self.facts.append("prefetch_truncated")
        pages = self.take(KV_HOST, count, ("prefetch", record.id))
        record = record.model_copy(update={"pages": pages, "hashes": record.hashes[:count], "key": record.key[:count]})
        self.storage.records[record.id] = record
        return record

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

    def _as_reading(self, record: Prefetch, pages: Pages) -> PrefetchReading:
        """The record at the stage of reading into `pages`."""
        count = len(pages)
        cut = {"pages": pages, "hashes": record.hashes[:count], "key": record.key[:count]}
        return at_stage(PrefetchReading, record, **cut)

    def _read(self, record: PrefetchReading) -> None:
        """The record reads, and its next batch is asked of the world."""
        self.storage.records[record.id] = record
        start, end = record.done, record.done + self.profile.sizes.storage_batch
        prefix = self.told_prefix(record, start)
        self.effects.append(
            StorageRead(id=record.id, hashes=record.hashes[start:end], pages=record.pages[start:end], prefix=prefix)
        )

    def requires_read_done(self, op: ops.ReadDone) -> Invalid | None:
        """The prefetch reads, and no more is in place than the batch has."""
        record = self.storage.records.get(op.id)
        if not isinstance(record, PrefetchReading):
            return Invalid(why=f"no running read {op.id}")
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        if not 0 <= op.draft <= op.pages <= batch:
            return Invalid(why=f"the batch of {op.id} has {batch} pages")
        return self.requires_no_draft(op.draft)

    def on_read_done(self, op: ops.ReadDone) -> Done:
        """The pages hold their part; the last batch, a short one, and one that is cancelled end the I/O (HC-PREF-06)."""
        # change
        record = self.storage.records[op.id]
        assert isinstance(record, PrefetchReading)
        pool = self.state.pools[KV_HOST]
        for index in range(record.done, record.done + op.pages):
            pool.stamp[record.pages[index]] = record.hashes[index]
            pool.draft[record.pages[index]] = record.hashes[index] if index < record.done + op.draft else None
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        done = record.done + op.pages
        known = done if self.rules.prefetch_progress == "live" and record.rid is not None else record.known
        self.storage.reads.append((op.id, done))
        ends = op.raised or op.pages < batch or done == len(record.pages) or record.cancelled
        if ends:
            self.storage.records[op.id] = at_stage(PrefetchEnded, record, done=done, known=known)
        else:
            self._read(record.model_copy(update={"done": done, "known": known}))
        # tell
        if self.profile.draft and op.draft < op.pages:
            self.facts.append("draft_missing")
        if record.rid is None:
            self.facts.append("read_after_close")
        if op.raised:
            self.facts.append("read_raised")
        elif op.pages < batch:
            self.facts.append("read_short")
        return Done()

    # -- the scheduler's steps --------------------------------------------------------------------------------------

    def requires_progress(self, op: ops.Progress) -> Invalid | None:
        """Any request may ask."""
        return None

    def on_progress(self, op: ops.Progress) -> Progressed:
        """Whether the request may go on; what the scheduler knows to be read is then in the tree (HC-PREF-10)."""
        # change
        storage = self.storage
        name = storage.open.get(op.rid)
        if name is not None:
            record = self._prefetch(name)
            if record.since < 0:
                record = record.model_copy(update={"since": op.now})
                storage.records[name] = record
            if not self._may_stop(record, op.now):
                return Progressed(done=False)
            self._commit(record)
            self._retire(name)
        # tell
        return Progressed(done=True, loaded=storage.loaded.pop(op.rid, 0))

    def _may_stop(self, record: Prefetch, now: int) -> bool:
        """Whether the policy lets the request go on now (semantics 5: stop test)."""
        complete = isinstance(record, PrefetchEnded) and record.known == record.done
        if complete and self.rules.prefetch_commit == "progress":
            return True
        policy = self.storage.settings.prefetch_policy
        if policy == "best_effort":
            return True
        if policy == "wait_complete":
            return False
        known_tokens = (
            len(record.hashes) * self.profile.sizes.page_size if not isinstance(record, PrefetchQueued) else 0
        )
        return now - record.since > self.storage.settings.timeout_ms(known_tokens)

    def requires_abort(self, op: ops.Abort) -> Invalid | None:
        """Any request may go."""
        return None

    def on_abort(self, op: ops.Abort) -> Done:
        """The request waits no more; what is read goes back, the rest when the I/O's end is applied (HC-PREF-11)."""
        # change
        storage = self.storage
        storage.loaded.pop(op.rid, None)
        name = storage.open.get(op.rid)
        if name is not None:
            self.facts.append(f"aborted_while_{self._prefetch(name).stage}")
            self._give_up(self._close(name))
            self._retire(name)
        # tell
        return Done()

    def _close(self, name: str) -> Pages:
        """No request waits for the prefetch; returns the pages that the scheduler knows to be read.

        The rest stays with the I/O, which is told to stop, and goes when its end is applied.
        """
        storage = self.storage
        record = self._prefetch(name)
        assert record.rid is not None
        del storage.open[record.rid]
        storage.occupied -= record.asked
        known = record.known if isinstance(record, PrefetchReading | PrefetchEnded) else 0
        taken, rest = record.pages[:known], record.pages[known:]
        cut: dict[str, object] = {"rid": None, "cancelled": True}
        if isinstance(record, PrefetchReading | PrefetchEnded):
            cut |= {"pages": rest, "hashes": record.hashes[known:], "key": record.key[known:]}
            cut |= {"done": record.done - known, "known": 0}
        storage.records[name] = record.model_copy(update=cut)
        for index, (each, done) in enumerate(storage.reads):
            if each == name:
                storage.reads[index] = (each, max(0, done - known))
        self.release(KV_HOST, rest)
        if isinstance(record, PrefetchQueued | PrefetchReading):
            self.effects.append(StorageCancel(id=name))
        self.update_leaf(record.anchor)
        return taken

    def give_up_queued(self, name: str) -> None:
        """A closed prefetch whose query was not answered is over: its worker has nothing of it any more."""
        record = self.storage.records.pop(name)
        assert isinstance(record, PrefetchQueued)
        self.let_go(name, record.writes)

    def _give_up(self, pages: Pages) -> None:
        """Pages that no operation touches are given up: free at once, or with a later poll."""
        if self.rules.give_back == "queued":
            self._queue(pages)
        else:
            self.release(KV_HOST, pages)

    def _queue(self, pages: Pages) -> None:
        """The pages wait in the release queue."""
        owner = self.state.pools[KV_HOST].owner
        for page in pages:
            owner[page] = ("queue", "")
        self.storage.release.extend(pages)

    def _commit(self, record: Prefetch) -> None:
        """What is known to be read hangs below the anchor; what was there already is given back (HC-PREF-07).

        If the anchor left the tree or lost its host copy, all of it is given back: never a gap.
        """
        assert record.rid is not None
        rid, hashes = record.rid, record.hashes
        pages = self._close(record.id)
        self.storage.loaded.pop(rid, None)
        anchor = self.state.nodes.get(record.anchor)
        if not pages:
            self.facts.append("stopped_with_nothing")
        elif anchor is None or (anchor.id != ROOT and anchor.host is None):
            self.facts.append("anchor_lost")
            self.release(KV_HOST, pages)
        else:
            loaded = self._hang(anchor, record, pages)
            if loaded:
                self.storage.loaded[rid] = loaded
            if not record.cleared:
                self.storage.believed.update(hashes[: len(pages)])

    def _hang(self, anchor: Node, record: Prefetch, pages: Pages) -> int:
        """The fetched pages are in the tree; returns how many were new."""
        key = record.key[: len(pages)]
        node, at, new = anchor, 0, 0
        while at < len(key):
            number = node.children.get((record.extra, key[at]))
            if number is None:
                break
            child = self.state.nodes[number]
            common = self.common(child.key, key, at)
            node = self.split(child, common) if common < len(child.key) else child
            self.stamp(node)
            fetched = pages[at : at + common]
            if node.host is not None or not self.rules.commit_adopts:
                self.release(KV_HOST, fetched)
            else:
                self.facts.append("adopted")
                self._place_fetched(node, fetched, record)
                new += common
            at += common
        if node.id != ROOT and node.host is None and self.needs_backed_parent():
            self.release(KV_HOST, pages[at:])
        elif at < len(key):
            leaf = self.attach(node, key[at:], record.extra, 0)
            self._place_fetched(leaf, pages[at:], record)
            new += len(key) - at
        return new

    def _place_fetched(self, node: Node, pages: Pages, record: Prefetch) -> None:
        self.place(node, KV_HOST, pages)
        self.publish_stored(node, "CPU_PINNED", node.hashes)
        if record.cleared and self.rules.attach_offers:
            self.storage.owed.update(dict.fromkeys(node.hashes, 0))

    # -- what a poll applies ----------------------------------------------------------------------------------------

    def apply_answer(self, name: str) -> bool:
        """An answered query begins to read, or the prefetch is over; true if it was revoked (HC-PREF-08)."""
        record = self.storage.records[name]
        assert isinstance(record, PrefetchAnswered)
        count = len(record.hashes)
        if record.rid is not None and count >= self.prefetch_threshold():
            if not self.host_room(count):
                count = self.free_count(KV_HOST)
                self.facts.append("prefetch_truncated")
            if count >= self.prefetch_threshold():
                self._read(self._as_reading(record, self.take(KV_HOST, count, ("prefetch", name))))
                return False
        if record.rid is not None:
            self.facts.append("revoked")
            self._close(name)
        del self.storage.records[name]
        return record.rid is not None

    def apply_read(self, name: str, done: int) -> bool:
        """The scheduler knows of the batch; of the last one also that the I/O has ended; true if that committed it."""
        record = self.storage.records[name]
        if not isinstance(record, PrefetchReading | PrefetchEnded):
            raise ModelFault(f"batch of {name}, which does not read")
        if record.rid is not None:
            record = record.model_copy(update={"known": max(record.known, done)})
            self.storage.records[name] = record
        commits = isinstance(record, PrefetchEnded) and record.rid is not None and not self._is_awaited(name)
        if commits and self.rules.prefetch_commit == "poll":
            self._commit(record)
        self._retire(name)
        return commits and self.rules.prefetch_commit == "poll"

    def _is_awaited(self, name: str) -> bool:
        """Whether a poll has to apply a batch of this prefetch."""
        return any(each == name for each, _ in self.storage.reads)

    def _retire(self, name: str) -> None:
        """A closed prefetch whose last end was applied is off the books, with every page that it still touched."""
        record = self._prefetch(name)
        if record.rid is None and isinstance(record, PrefetchEnded) and not self._is_awaited(name):
            del self.storage.records[name]
            self.let_go(name, record.writes)
