"""Polls: what a cache is let know, and what it made of that, read off its own queues and books after the call."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from hicache_ref.adapters.sglang_hiradix.books import Copy, Fetch
from hicache_ref.adapters.sglang_hiradix.caller import Caller
from hicache_ref.adapters.sglang_hiradix.metrics import TALLY
from hicache_ref.adapters.sglang_hiradix.stepper import StepQueue
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.outcomes import Polled

_ALL = 10**9

_HITS, _REVOKED, _READ, _WRITTEN, _RELEASED = (
    "prefetch_hit_queue",
    "prefetch_revoke_queue",
    "ack_prefetch_queue",
    "ack_backup_queue",
    "host_mem_release_queue",
)
"""The queues of upstream's controller from which its scheduler takes."""

_ACKS = ("ack_write_queue", "ack_load_queue")
"""Likewise of copies; these are queues where threads copy, and lists beside events elsewhere."""


class PollingCaller(Caller):
    """A caller that also polls. What was applied is what is gone from the cache's own records, never what was let."""

    def is_open(self, fetch: Fetch) -> bool:
        """Whether the scheduler still waits for this very operation."""
        entry = self.engine.cache.ongoing_prefetch.get(fetch.rid)
        return entry is not None and entry[-1] is fetch.operation

    def forget_closed(self) -> None:
        """Fetches whose I/O is over are off the books, if nothing of them waits for a poll and nobody for them."""
        waiting = {id(fetch) for fetch, _ in self.books.reads}
        for name, fetch in list(self.books.fetches.items()):
            if fetch.stage in ("ended", "dead") and id(fetch) not in waiting and not self.is_open(fetch):
                del self.books.fetches[name]

    def on_poll(self, op: ops.Poll) -> Polled:
        """The cache has looked for events, and knows of as many as it chose, up to what it was let."""
        books = self.books
        open_before = {fetch.name for fetch in books.fetches.values() if self.is_open(fetch)}
        before = {name: tuple(queue.queue) for name, queue in self._queues(_HITS, _REVOKED, _READ, _RELEASED)}
        TALLY.take()
        with self._letting(op):
            self.engine.cache.check_hicache_events()
        prefetched, backed_up = self.counted()
        gone = {name: items[: self._count_gone(name, items)] for name, items in before.items()}
        backups, loads = self._acknowledged("host"), self._acknowledged("device")
        answered = self._answered(before, gone)
        reads = self._reads_known(len(gone[_READ]) if _READ in gone else None, op.reads)
        written = [each for each in books.written if each.operation.id not in self.engine.cache.ongoing_backup]
        revoked = self._apply_answers(answered, open_before)
        committed = [each.name for each in reads if each.name in open_before and not self.is_open(each)]
        for backup in written:
            books.written.remove(backup)
            del books.backups[backup.name]
        self.forget_closed()
        self.workers.go_on()
        return Polled(
            backups=backups, loads=loads, answers=tuple(fetch.name for fetch in answered), revoked=revoked,
            reads=tuple(fetch.name for fetch in reads), committed=tuple(dict.fromkeys(committed)),
            writes=tuple(backup.name for backup in written), releases=self._pages_in(gone.get(_RELEASED, ())),
            prefetched=prefetched, backed_up=backed_up,
        )  # fmt: skip

    def counted(self) -> tuple[int | None, int | None]:
        """Pages that the cache reported as prefetched and as backed up since the last look; None where none counts."""
        tokens = TALLY.take()
        if not getattr(self.engine.cache, "enable_storage_metrics", False):
            return None, None
        prefetched, backed_up = (count // self.engine.page_size for count in tokens)
        return prefetched, backed_up

    def poll_storage_to_the_end(self) -> None:
        """All that has ended in storage is applied, unless the cache applies nothing in many polls (HC-CONF-15)."""
        in_vain = 0
        while in_vain < ops.POLLS_IN_VAIN_MAX:
            told = self.on_poll(ops.Poll(answers=_ALL, reads=_ALL, writes=_ALL, releases=_ALL))
            nothing = Polled(prefetched=told.prefetched, backed_up=told.backed_up)
            in_vain = in_vain + 1 if told == nothing else 0
            unreleased = any(queue.queue for _, queue in self._queues(_RELEASED))
            if not (unreleased or self.books.answered or self.books.reads or self.books.written):
                return

    # -- what the cache is let know ---------------------------------------------------------------------------------

    def _queues(self, *names: str) -> Iterator[tuple[str, Any]]:
        """The controller's queues of these names, as far as there are any."""
        for name in names:
            queue = getattr(self.engine.controller, name, None)
            if isinstance(queue, StepQueue):
                yield name, queue

    @contextmanager
    def _letting(self, op: ops.Poll) -> Iterator[None]:
        """Within, the cache can see as many ends as were agreed on, of each kind that it counts apart."""
        copies = [*self._leading("host", op.backups), *self._leading("device", op.loads)]
        answered = self.books.answered[: op.answers]
        hits = dict(self._queues(_HITS)).get(_HITS)
        with_hits = sum(hits is not None and fetch.operation in hits.queue for fetch in answered)
        shown = {
            _ACKS[0]: sum(copy.to == "host" for copy in copies),
            _ACKS[1]: sum(copy.to == "device" for copy in copies),
            _HITS: with_hits,
            _REVOKED: len(answered) - with_hits,
            _READ: sum(count for _, count in self.books.reads[: op.reads]),
            _WRITTEN: len(self.books.written[: op.writes]),
            _RELEASED: self._items_of(op.releases),
        }
        queues = dict(self._queues(*shown))
        events = [copy.event for copy in copies if copy.event is not None]
        for name, queue in queues.items():
            queue.shown = shown[name]
        for event in events:
            event.is_pending = False
        try:
            yield
        finally:
            for queue in queues.values():
                queue.shown = None
            for event in events:
                event.is_pending = True

    def _leading(self, to: Literal["host", "device"], agreed: int) -> list[Copy]:
        """The ended copies in this direction that no running one precedes, as many as were agreed on."""
        found: list[Copy] = []
        for copy in self.books.copies.values():
            if copy.to != to:
                continue
            if not copy.ended or len(found) == agreed:
                break
            found.append(copy)
        return found

    def _items_of(self, pages: int) -> int:
        """How many items at the head of the release queue are at most `pages` pages."""
        items = dict(self._queues(_RELEASED)).get(_RELEASED)
        count = 0
        for item in items.queue if items is not None else ():
            pages -= self._pages_in((item,))
            if pages < 0:
                break
            count += 1
        return count

    def _pages_in(self, items: Sequence[Any]) -> int:
        return sum(int(item.numel()) for item in items) // self.engine.page_size

    # -- what the cache made of it ----------------------------------------------------------------------------------

    def _count_gone(self, name: str, before: Sequence[Any]) -> int:
        """How many of the items that were in the queue have been taken from its head."""
        left = tuple(getattr(self.engine.controller, name).queue)
        for count in range(len(before)):
            rest = before[count:]
            if len(rest) <= len(left) and all(a is b for a, b in zip(rest, left, strict=False)):
                return count
        return len(before)

    def _acknowledged(self, to: Literal["host", "device"]) -> tuple[str, ...]:
        """The copies in this direction that the cache has finished with; they are off the books."""
        ongoing = self.engine.cache.ongoing_write_through if to == "host" else self.engine.cache.ongoing_load_back
        waiting = self.watch.acks(_ACKS[0] if to == "host" else _ACKS[1])
        found = tuple(
            name
            for name, copy in self.books.copies.items()
            if copy.to == to and id(copy.ack) not in waiting and not any(node in ongoing for node in copy.node_ids)
        )
        for name in found:
            del self.books.copies[name]
        return found

    def _answered(self, before: Mapping[str, Sequence[Any]], gone: Mapping[str, Sequence[Any]]) -> list[Fetch]:
        """The fetches whose answer the cache has taken from its queue; they wait for none any more.

        A revocation may be told by the name of its request alone, so that only its place in the queue says which it is.
        """
        hits, taken = before.get(_HITS, ()), gone.get(_HITS, ())
        revocations = len(gone.get(_REVOKED, ()))
        found: list[Fetch] = []
        for fetch in self.books.answered:
            if any(fetch.operation is each for each in hits):
                applied = any(fetch.operation is each for each in taken)
            else:
                applied, revocations = revocations > 0, revocations - 1
            if applied:
                found.append(fetch)
        self.books.answered = [fetch for fetch in self.books.answered if fetch not in found]
        return found

    def _reads_known(self, acks: int | None, agreed: int) -> list[Fetch]:
        """The fetches of batches that the cache knows to be read; where it is not told of batches, those agreed on.

        A batch is known once the cache has taken all acknowledgements of it.
        """
        reads = self.books.reads
        found: list[Fetch] = []
        if acks is None:
            found = [fetch for fetch, _ in reads[:agreed]]
            del reads[:agreed]
            return found
        while reads and reads[0][1] <= acks and (reads[0][1] or len(found) < agreed):
            fetch, count = reads.pop(0)
            acks -= count
            found.append(fetch)
        if reads:
            reads[0] = reads[0][0], reads[0][1] - acks
        return found

    def _apply_answers(self, answered: Sequence[Fetch], open_before: set[str]) -> tuple[str, ...]:
        """Fetches whose answer was applied read now, or are off the books; returns those that lost their request."""
        revoked = []
        buffered = getattr(self.engine.controller, "prefetch_buffer", None)
        for fetch in answered:
            if buffered is not None and fetch.operation in buffered.queue:
                fetch.stage = "reading"
            elif not self.is_open(fetch):
                del self.books.fetches[fetch.name]
                if fetch.name in open_before:
                    revoked.append(fetch.name)
        return tuple(revoked)
