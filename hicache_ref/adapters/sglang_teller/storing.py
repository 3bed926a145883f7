"""What calls of storage amount to, in operations; and what the scheduler learns of storage in a poll."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hicache_ref.adapters.sglang_hiradix.holding import Stage, pages_held
from hicache_ref.adapters.sglang_teller import lines
from hicache_ref.adapters.sglang_teller.calls import Calls, Fetched
from hicache_ref.adapters.sglang_teller.nodes import CannotSay, Nodes, SentKey, Shape
from hicache_ref.adapters.sglang_teller.writing import TraceWriter
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import handle_of


@dataclass(slots=True)
class _Fetch:
    """A prefetch; `number` is that of upstream's operation."""

    name: str
    rid: str
    number: int
    stage: Stage = "queued"


@dataclass(slots=True)
class _Write:
    """A backup; `number` is that of upstream's operation."""

    name: str
    number: int
    pages: int
    done: int = 0


class StoringCalls(Calls):
    """Writes the operations of storage too."""

    def __init__(self, shape: Shape, nodes: Nodes, writer: TraceWriter) -> None:
        super().__init__(shape, nodes, writer)
        self._fetches: dict[str, _Fetch] = {}
        self._open: set[int] = set()
        """The operations for which requests wait."""

        self._closed: set[int] = set()
        """Those for which requests waited when the call that is told now began, and do not any more."""

        self._answers: list[_Fetch] = []
        """Prefetches whose answer the scheduler has not seen, in the order in which storage gave them."""

        self._reads: list[_Fetch] = []
        """Batches read of which the trace has not told the scheduler, in order."""

        self._writes: dict[str, _Write] = {}
        self._told_loaded: set[str] = set()

    # -- names ------------------------------------------------------------------------------------------------------

    def _name_of(self, kind: str, text: str, tokens: int) -> str:
        return handle_of(kind, text, tokens, {*self._fetches, *self._writes})

    def _fetch_of(self, number: int) -> _Fetch:
        for fetch in self._fetches.values():
            if fetch.number == number:
                return fetch
        raise CannotSay("a prefetch goes on that was begun before the recording, or without the scheduler")

    def on_closed(self, numbers: Sequence[int], within: bool) -> None:
        """Nobody waits for these operations any more: since a moment ago, or since before the call."""
        self._open.difference_update(numbers)
        if within:
            self._closed.update(numbers)

    def prefetch_pages(self, fetched: Sequence[Fetched]) -> dict[str, Pages]:
        """The host pages that prefetches have, by name."""
        named = {fetch.number: fetch for fetch in self._fetches.values()}
        held: dict[str, Pages] = {}
        for number, pages, done in fetched:
            fetch = named.get(number)
            if fetch is not None and pages is not None:
                held[fetch.name] = pages_held(
                    tuple(pages), done, fetch.stage, is_open=number in self._open,
                    allocates_before=self.shape.allocates_before, queues_rest=not self.shape.acknowledges_batches,
                )  # fmt: skip
        return {name: pages for name, pages in held.items() if pages}

    # -- what threads have done -------------------------------------------------------------------------------------

    def on_asked(self, number: int, hits: int, enough: bool, raised: bool) -> None:
        """Storage has so many leading pages, or asking raised."""
        fetch = self._fetch_of(number)
        goes_on = self.shape.allocates_before and enough and not raised
        fetch.stage = "reading" if goes_on else "answered"
        if not goes_on:
            self._answers.append(fetch)
        self.step(lines.op(b"query_done", id=fetch.name, hits=hits, raised=raised or None))

    def on_read(self, number: int, pages: int, ends: bool, raised: bool) -> None:
        """So many leading pages of a batch are in place; whether it was the last one."""
        fetch = self._fetch_of(number)
        if ends:
            fetch.stage = "ended"
        self._reads.append(fetch)
        self.step(lines.op(b"read_done", id=fetch.name, pages=pages, raised=raised or None))

    def on_written(self, number: int, pages: int, raised: bool) -> None:
        """So many pages in all are in storage, and no more come."""
        write = next((each for each in self._writes.values() if each.number == number), None)
        if write is None:
            raise CannotSay("a backup goes on that was begun before the recording")
        batch, left = self.shape.storage_batch, pages
        while left > 0:
            self.step(lines.op(b"write_done", id=write.name, pages=min(batch, left)))
            left -= batch
        if pages < write.pages:
            self.step(lines.op(b"write_done", id=write.name, pages=0, raised=raised or None))
        write.done = pages

    # -- the scheduler's calls --------------------------------------------------------------------------------------

    def on_prefetch(self, rid: str, above: int, own: SentKey, extra: str | None, now: int, operation: int | None,
                    asked: int) -> None:  # fmt: skip
        """The name of the prefetch, or a no."""
        tokens = self.nodes.tokens(above) + self.nodes.part(own)
        op = lines.op(b"prefetch", rid=rid, key=lines.key(tokens, extra), now=now)
        if operation is None:
            self.step(op, lines.told(b"refused", why="not asked for"))
            return
        text = ".".join(map(str, tokens))
        name = self._name_of("p", text if extra is None else f"{extra}/{text}", len(tokens))
        self._fetches[name] = _Fetch(name, rid, operation)
        self._open.add(operation)
        self.step(op, lines.told(b"prefetching", id=name, pages=asked // self.shape.page_size))

    def on_progress(self, rid: str, now: int, done: bool, keeps_count: bool, counted: int | None, hosted: int) -> None:
        """Whether it may go on, and, once, what storage gave it: `counted` or just now `hosted` tokens."""
        op = lines.op(b"progress", rid=rid, now=now)
        if not done:
            self.step(op, lines.told(b"progressed", done=False))
            return
        loaded = hosted
        if keeps_count:
            loaded = 0 if rid in self._told_loaded else counted or 0
            if counted is not None:
                self._told_loaded.add(rid)
        self._forget_closed()
        self.step(op, lines.told(b"progressed", done=True, loaded=loaded // self.shape.page_size))

    def on_pop(self, rid: str) -> None:
        """Upstream has told what storage gave, and so has the trace, at the progress before."""
        self._told_loaded.discard(rid)

    def on_terminate(self, rid: str) -> None:
        """The prefetch is to stop, and stays open."""
        self.step(lines.op(b"terminate", rid=rid))

    def on_abort(self, rid: str) -> None:
        """Nobody waits."""
        self.step(lines.op(b"abort", rid=rid))
        self._told_loaded.discard(rid)
        self._forget_closed()

    def _forget_closed(self) -> None:
        """Prefetches whose I/O is over, known to be, and for which nobody waits, have no name any more."""
        for name, fetch in list(self._fetches.items()):
            if fetch.stage == "ended" and fetch not in self._reads and fetch.number not in self._open:
                del self._fetches[name]

    def on_offer(self, number: int, operation: int, pages: int) -> None:
        """A backup of so many pages, which ends at the node, was queued, within whatever call."""
        name = self._name_of("b", *self.nodes.name_of(number))
        self._writes[name] = _Write(name, operation, pages)

    # -- polls ------------------------------------------------------------------------------------------------------

    def polled_storage(self, drained: Sequence[Any]) -> dict[str, Any]:
        """What the scheduler has learned of storage in this call, as a poll tells it."""
        took: dict[str, list[Any]] = {}
        for queue, item in drained:
            took.setdefault(queue, []).append(item)
        answers = [*took.get("prefetch_revoke_queue", ()), *took.get("prefetch_hit_queue", ())]
        answered = sorted((self._answered(*each) for each in answers), key=lambda pair: self._answers.index(pair[0]))
        del self._answers[: len(answered)]
        revoked = [fetch.name for fetch, has_pages in answered if self._is_revoked(fetch, has_pages)]
        known, committed = self._known_reads(took.get("ack_prefetch_queue", []))
        written = [write for number in took.get("ack_backup_queue", ()) for write in self._written(number)]
        released = sum(map(len, took.get("host_mem_release_queue", ())))
        self._forget_closed()
        return {
            "answers": [fetch.name for fetch, _ in answered],
            "revoked": revoked,
            "reads": known,
            "committed": committed,
            "writes": [write.name for write in written],
            "given_up": [write.name for write in written if write.done < write.pages],
            "releases": released,
        }

    def on_over(self) -> None:
        """A call is over: what closed in it has closed before the next one."""
        self._closed.clear()

    def _answered(self, given: int | str, has_pages: bool) -> tuple[_Fetch, bool]:
        """The prefetch of an answer, which is an operation or, up to 0.5.15, a request."""
        for fetch in self._fetches.values():
            if given in (fetch.number, fetch.rid) and (given == fetch.number or fetch.stage in ("queued", "answered")):
                if fetch.stage == "queued":
                    # Told to stop before storage was asked.
                    self.on_asked(fetch.number, 0, enough=False, raised=False)
                return fetch, has_pages
        raise CannotSay("an answer to a prefetch that was begun before the recording")

    def _is_revoked(self, fetch: _Fetch, has_pages: bool) -> bool:
        """An answered prefetch reads now, or is over; whether its request waited till then, and does not any more."""
        if has_pages and not self.shape.allocates_before:
            fetch.stage = "reading"
        elif fetch.number not in self._open:
            self._fetches.pop(fetch.name)
            return fetch.number in self._closed
        return False

    def _known_reads(self, acks: list[tuple[int, bool]]) -> tuple[list[str], list[str]]:
        """The batches that the scheduler knows of now, and the prefetches that this has committed."""
        if not self.shape.acknowledges_batches:
            known = [fetch.name for fetch in self._reads]
            self._reads.clear()
            return known, []
        known, committed = [], []
        for number, ends in acks:
            fetch = self._fetch_of(number)
            waiting = self._reads.count(fetch)
            if waiting and (ends or waiting > (fetch.stage == "ended")):
                known.append(fetch.name)
                self._reads.remove(fetch)
            if ends and number in self._closed:
                committed.append(fetch.name)
        return known, committed

    def _written(self, number: int) -> list[_Write]:
        found = [write for write in self._writes.values() if write.number == number]
        for write in found:
            del self._writes[write.name]
        return found

    # -- storage comes and goes -------------------------------------------------------------------------------------

    def on_attach(self, backend: str, settings: dict[str, Any]) -> None:
        """Storage is attached."""
        self.step(lines.op(b"attach", backend=backend, settings=settings))

    def on_detach(self) -> None:
        """Storage is gone, and with it all that was under way."""
        if self._fetches or self._writes:
            raise CannotSay("a detach while storage works")
        self.step(lines.op(b"detach"))

    def on_clear(self) -> None:
        """The store is empty."""
        self.step(lines.op(b"clear_storage"))
