"""What becomes of a prefetch: its request goes on, goes away, or is revoked (upstream: check_prefetch_progress).

Closing takes the pages that the scheduler knows to be read; the rest stays with the I/O until its end is applied.
"""

import sys

from hicache_ref.model.pages import ModelFault
from hicache_ref.model.prefetch import PrefetchRules
from hicache_ref.model.records import Prefetch, PrefetchAnswered, PrefetchEnded, PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Node
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.effects import StorageCancel
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, STATE, STATE_HOST, PageHash, Pages
from hicache_ref.vocabulary.outcomes import Done, Invalid, Progressed

LEAST_PRIORITY = -sys.maxsize
"""That of upstream's root, which it hands down."""


class CommitRules(PrefetchRules):
    """The scheduler's side of a prefetch. Only here, and in polls, a page of one is freed."""

    def requires_progress(self, op: ops.Progress) -> Invalid | None:
        """Any request may ask; the ranks agree here where no poll has agreed on what is known."""
        agrees = op.agreed is None or (op.agreed >= 0 and self.rules.prefetch_commit == "progress")
        return None if agrees else Invalid(why="the ranks cannot have agreed on this here")

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
            if not self.may_stop(record, op.now):
                return Progressed(done=False, prefetched=0)
            self._commit(record, op.agreed)
            self._retire(name)
        # tell
        return Progressed(done=True, loaded=storage.loaded.pop(op.rid, 0), prefetched=self.counted.get("prefetched", 0))

    def may_stop(self, record: Prefetch, now: int) -> bool:
        """Whether the policy lets the request go on now (upstream: can_terminate_prefetch)."""
        if record.cancelled:
            return True
        complete = isinstance(record, PrefetchEnded) and record.known == record.done
        if complete and self.rules.prefetch_commit == "progress":
            return True
        policy = self.storage.settings.prefetch_policy
        if policy == "best_effort":
            return True
        if policy == "wait_complete":
            return False
        hits = 0 if isinstance(record, PrefetchQueued) else len(record.hashes)
        return now - record.since > self._timeout_ms(hits)

    def _timeout_ms(self, pages: int) -> int:
        """How long a request waits for so many pages."""
        tokens = pages * self.profile.sizes.page_size
        return self.storage.settings.timeout_ms(tokens, self.rules.prefetch_timeout)

    def requires_terminate(self, op: ops.Terminate) -> Invalid | None:
        """Any request may be named."""
        return None

    def on_terminate(self, op: ops.Terminate) -> Done:
        """The worker of the request's prefetch stops at its next step; the prefetch stays open (HC-PREF-23)."""
        # change
        name = self.storage.open.get(op.rid)
        if name is not None:
            self._tell_to_stop(name)
        # tell
        return Done()

    def _tell_to_stop(self, name: str) -> None:
        """The prefetch is cancelled, and its worker knows, if it has one and did not know before (HC-PREF-22)."""
        record = self._prefetch(name)
        if isinstance(record, PrefetchQueued | PrefetchReading) and not record.cancelled:
            self.effects.append(StorageCancel(id=name))
        self.storage.records[name] = record.model_copy(update={"cancelled": True})

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
            anchor = self._prefetch(name).anchor
            self.count("aborted", self._prefetch(name).asked)
            self._give_up(self._close(name))
            self._retire(name)
            self.prune(anchor)
        # tell
        return Done(aborted=self.counted.get("aborted", 0))

    def _close(self, name: str, *, with_state: bool = False) -> Pages:
        """No request waits for the prefetch; returns the pages that the scheduler knows to be read.

        The rest stays with the I/O, which is told to stop, and goes when its end is applied; so does the state slot,
        unless it is taken `with_state`, or the rule `unread_slot` gives it up.
        """
        storage = self.storage
        self._tell_to_stop(name)
        record = self._prefetch(name)
        assert record.rid is not None
        del storage.open[record.rid]
        storage.occupied -= record.asked
        known = record.known if isinstance(record, PrefetchReading | PrefetchEnded) else 0
        taken, rest = record.pages[:known], record.pages[known:]
        cut: dict[str, object] = {"rid": None}
        if isinstance(record, PrefetchReading | PrefetchEnded):
            cut |= {"pages": rest, "hashes": record.hashes[known:], "key": record.key[known:]}
            cut |= {"done": record.done - known, "known": 0}
        if with_state or self._never_gets_a_state(record):
            cut["states"] = ()
        storage.records[name] = record.model_copy(update=cut)
        for index, (each, done) in enumerate(storage.reads):
            if each == name:
                storage.reads[index] = (each, max(0, done - known))
        self.release(KV_HOST, rest)
        if record.states and not with_state:
            self.release(STATE_HOST, record.states)
        self.update_leaf(record.anchor)
        return taken

    def _never_gets_a_state(self, record: Prefetch) -> bool:
        """Whether no I/O writes the slot of this prefetch any more once it is closed (rule `unread_slot`)."""
        return self.rules.unread_slot == "given_up" and isinstance(record, PrefetchQueued | PrefetchAnswered)

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

    def _commit(self, record: Prefetch, agreed: int | None = None) -> None:
        """What is known to be read hangs below the anchor; what was there already is given back (HC-PREF-07).

        What the ranks have not agreed on is given up (HC-PREF-20). If the anchor left the tree or lost its host copy,
        all of it is given back: never a gap.
        """
        assert record.rid is not None
        rid, hashes = record.rid, record.hashes
        whole = isinstance(record, PrefetchEnded) and record.known == len(record.pages) and record.has_state
        whole = whole and (agreed is None or agreed >= len(record.pages))
        pages = self._close(record.id, with_state=whole)
        if agreed is not None and agreed < len(pages):
            self.facts.append("agreed_on_less")
            self._give_up(pages[agreed:])
            pages = pages[:agreed]
        self.storage.loaded.pop(rid, None)
        anchor = self.state.nodes.get(record.anchor)
        if anchor is not None and self.rules.commit_stamps_anchor and self._had_pages(record):
            self.stamp(anchor)
        if not pages:
            self.facts.append("stopped_with_nothing")
        elif self.profile.state and not whole:
            self.facts.append("fetched_without_state")
            self._give_up(pages)
        elif anchor is None or (anchor.id != ROOT and anchor.host is None):
            self.facts.append("anchor_lost")
            self.release(KV_HOST, pages)
            if record.states:
                self.release(STATE_HOST, record.states)
        else:
            loaded = self._hang(anchor, record, pages)
            self.count("prefetched", loaded)
            if loaded:
                self.storage.loaded[rid] = loaded
            if not record.cleared:
                self._storage_has(hashes[: len(pages)])
                self.storage.believed_states.update(hashes[-1:] if whole else ())
        self.prune(record.anchor)

    def _had_pages(self, record: Prefetch) -> bool:
        """Whether host pages were taken for it, if only to be given up again."""
        return self.rules.prefetch_allocation == "before" or isinstance(record, PrefetchReading | PrefetchEnded)

    def _storage_has(self, hashes: tuple[PageHash, ...]) -> None:
        """Storage delivered these pages, so it is believed to have them, and they are owed to it no more."""
        storage = self.storage
        storage.believed.update(hashes)
        storage.reported.difference_update(hashes)
        for digest in hashes:
            storage.owed.pop(digest, None)

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
            node = self.use(child, common)
            fetched = pages[at : at + common]
            if node.host is not None or not self.rules.commit_adopts:
                self.release(KV_HOST, fetched)
            else:
                self.facts.append("adopted")
                self._place_fetched(node, fetched, record)
                new += common
            at += common
        if node.id != ROOT and node.host is None and self.needs_backed_parent():
            if at < len(key):
                self.facts.append("fetched_below_a_gap")
            self.release(KV_HOST, pages[at:])
        elif at < len(key):
            node = self.attach(node, key[at:], record.extra, self._priority_below(node))
            self._place_fetched(node, pages[at:], record)
            new += len(key) - at
            at = len(key)
        self._hang_state(node if at == len(key) else None, record)
        return new

    def _hang_state(self, node: Node | None, record: Prefetch) -> None:
        """The fetched state is the node's, whose end it belongs to, or is given back: there is one, or no KV for it."""
        if not record.states:
            return
        if node is None or node.host is None or STATE_HOST in node.at:
            self.facts.append("fetched_state_given_back")
            self.release(STATE_HOST, record.states)
            return
        self.facts.append("state_fetched")
        self.place(node, STATE_HOST, record.states)
        node.last[STATE] = self.tick()
        if record.cleared and self.rules.attach_offers:
            self.storage.owed_states[node.hashes[-1]] = 0

    def _priority_below(self, node: Node) -> int:
        """The priority of what is fetched below the node."""
        if self.rules.fetched_priority == "none":
            return 0
        return node.priority if node.id != ROOT else LEAST_PRIORITY

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
        if not record.cancelled and count >= self.prefetch_threshold():
            if not self.host_room(count, int(self.profile.state and not record.states)):
                # The state is that of the last page asked for: with fewer pages it would be of no use.
                is_cut = self.rules.prefetch_truncates and not self.profile.state
                count = self.free_count(KV_HOST) if is_cut else 0
                if self.rules.prefetch_truncates:
                    self.facts.append("prefetch_truncated")
            if count >= self.prefetch_threshold():
                record = record.model_copy(update={"states": self._slot(record)})
                self._read(self._as_reading(record, self.take(KV_HOST, count, ("prefetch", name))))
                return False
        if record.rid is not None:
            self.facts.append("revoked")
            self.count("revoked", record.asked)
            self._close(name)
        del self.storage.records[name]
        self.let_go(name, record.writes)
        self.prune(record.anchor)
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
