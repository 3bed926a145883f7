"""Storage workers: every job is reported once, with what was done of it, and nothing a store does harms a thread."""

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from hicache_ref.engine.pages import PageMemory
from hicache_ref.engine.workers import End, Job, StorageWorkers, Task, WorkerSettings
from hicache_ref.storage.base import Buffer, StorageError
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.vocabulary.effects import StorageQuery, StorageRead, StorageWrite
from hicache_ref.vocabulary.ids import KV_HOST, PageHash
from hicache_ref.vocabulary.operations import QueryDone, ReadDone, WriteDone
from hicache_ref.vocabulary.profile import Profile, Sizes
from tests.engine.stores import PATIENCE_SECONDS, HeldBackend, RefusesOne

PAGES = 8
PAGE_BYTES = 16


def hashes(count: int, start: int = 0) -> tuple[PageHash, ...]:
    """The hashes of so many pages."""
    return tuple(f"{number:064x}" for number in range(start, start + count))


def naming(hashes: Sequence[PageHash], pool: str) -> list[str]:
    """The keys of pages, which show what they are."""
    return [f"{pool}{int(digest, 16)}" for digest in hashes]


def query(count: int = 1, name: str = "p:q") -> StorageQuery:
    """A query for so many pages."""
    return StorageQuery(id=name, hashes=hashes(count))


def read(count: int = 1, name: str = "p:r", start: int = 0) -> StorageRead:
    """A batch read into the first host pages."""
    return StorageRead(id=name, hashes=hashes(count, start), pages=tuple(range(count)))


def write(count: int = 1, name: str = "b:w", start: int = 0) -> StorageWrite:
    """A batch written from the first host pages."""
    return StorageWrite(id=name, hashes=hashes(count, start), pages=tuple(range(count)))


class Bench:
    """Workers over one store, and the host pages they work on; page i is filled with i + 1, its draft with i + 101."""

    def __init__(self, backend: MemoryBackend | None = None, **settings: int) -> None:
        self.backend = HeldBackend() if backend is None else backend
        profile = Profile(sizes=Sizes(device_pages=1, host_pages=PAGES), draft=True)
        self.memory = PageMemory(profile, PAGE_BYTES, PAGE_BYTES)
        for page in range(PAGES):
            self.memory.pools[KV_HOST].view(page)[:] = bytes([page + 1]) * PAGE_BYTES
            self.memory.drafts[KV_HOST].view(page)[:] = bytes([page + 101]) * PAGE_BYTES
        self.workers = StorageWorkers(self.backend, self.memory, naming, WorkerSettings(**settings))

    def put(self, *names: str) -> None:
        """The store has pages of these names, each filled with 7."""
        self.backend._shelf.objects.update(dict.fromkeys(names, b"\x07" * PAGE_BYTES))

    def end_of(self, task: Task, *drafts: bool) -> End:
        """How the task ended; `drafts` says which draft pages go along."""
        job = self.workers.submit(task, drafts)
        return self.report(job)

    def report(self, job: Job) -> End:
        """The next report, which is this job's."""
        report = self.workers.next_report(PATIENCE_SECONDS)
        assert report is not None
        assert job is report.job
        return report.end

    def host(self, page: int) -> int:
        """What the page is filled with."""
        (byte,) = set(self.memory.pools[KV_HOST].view(page))
        return byte


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Workers with one page a call."""
    made = Bench(call_pages=1)
    yield made
    made.backend.release()
    assert () == made.workers.stop(PATIENCE_SECONDS)


def test_what_a_store_has_is_counted_read_and_written(bench: Bench) -> None:
    """Goal: the three tasks do what they say. Method: a store with two of three pages; contents compared."""
    bench.put("kv0", "kv1")

    assert QueryDone(id="p:q", hits=2) == bench.end_of(query(3))
    assert ReadDone(id="p:r", pages=2) == bench.end_of(read(3))
    assert [7, 7, 3] == [bench.host(page) for page in range(3)]
    assert WriteDone(id="b:w", pages=3) == bench.end_of(write(3, start=4))
    assert bytes([3]) * PAGE_BYTES == bench.backend._shelf.objects["kv6"]
    assert None is bench.workers.next_report()


def test_a_page_after_a_gap_does_not_count(bench: Bench) -> None:
    """Goal: only a prefix is of use. Method: the second of three pages is missing, in one call and in three."""
    bench.put("kv0", "kv2")
    whole = Bench(bench.backend, call_pages=8)

    assert ReadDone(id="p:r", pages=1) == bench.end_of(read(3))
    assert ReadDone(id="p:r", pages=1) == whole.end_of(read(3))
    assert () == whole.workers.stop(PATIENCE_SECONDS)


@pytest.mark.parametrize("error", [StorageError("gone"), ValueError("odd"), SystemExit(3), MemoryError()])
@pytest.mark.parametrize("task", [query(), read(), write()])
def test_an_error_costs_one_task(bench: Bench, task: Task, error: BaseException) -> None:
    """Goal: a store that fails never takes a thread with it. Method: each call raises once, then none does."""
    kind = {"storage_query": "exists", "storage_read": "read", "storage_write": "write"}[task.kind]
    bench.put("kv0")
    bench.backend.failing[kind] = lambda keys: error

    assert bench.end_of(task).raised
    assert [f"{type(error).__name__}: {error}"] == list(bench.workers.failures)
    bench.backend.failing.clear()
    after = bench.end_of(task)

    assert (False, 1) == (after.raised, after.hits if isinstance(after, QueryDone) else after.pages)


def test_an_error_in_the_middle_keeps_what_was_done(bench: Bench) -> None:
    """Goal: pages before the error count. Method: the third of four calls raises, with one thread of each kind."""
    single = Bench(bench.backend, call_pages=1, read_threads=1)
    bench.put("kv0", "kv1", "kv2", "kv3")
    bench.backend.failing["read"] = lambda keys: StorageError("here") if "kv2" in keys else None

    assert ReadDone(id="p:r", pages=2, raised=True) == single.end_of(read(4))
    assert [("read", (f"kv{page}",)) for page in range(3)] == bench.backend.calls
    assert () == single.workers.stop(PATIENCE_SECONDS)


class TestDraft:
    """Draft pages go along and never change what happens to the pages themselves (HC-DRAFT)."""

    def test_is_read_first_and_written_last(self, bench: Bench) -> None:
        """Goal: a page that counts has had its chance for a draft. Method: the calls of the store, in order."""
        bench.put("kv0", "draft0")

        assert ReadDone(id="p:r", pages=1, draft=1) == bench.end_of(read(), True)
        assert WriteDone(id="b:w", pages=1, draft=1) == bench.end_of(write(start=5), True)
        assert ["draft0", "kv0", "kv5", "draft5"] == [keys[0] for _, keys in bench.backend.calls]
        assert {7} == set(bench.memory.drafts[KV_HOST].view(0))

    def test_that_is_missing_changes_nothing_else(self, bench: Bench) -> None:
        """Goal: pages count without their drafts. Method: the first draft is missing, then drafts raise."""
        bench.put("kv0", "kv1", "draft1")

        assert ReadDone(id="p:r", pages=2, draft=0) == bench.end_of(read(2), True, True)
        bench.backend.failing["read"] = lambda keys: OSError("no") if keys[0].startswith("draft") else None
        assert ReadDone(id="p:r", pages=2, draft=0) == bench.end_of(read(2), True, True)
        bench.backend.failing["write"] = lambda keys: OSError("no") if keys[0].startswith("draft") else None
        assert WriteDone(id="b:w", pages=2, draft=0) == bench.end_of(write(2), True, True)

    def test_never_counts_beyond_the_pages(self, bench: Bench) -> None:
        """Goal: draft <= pages. Method: both drafts are there, one page is."""
        bench.put("kv0", "draft0", "draft1")

        assert ReadDone(id="p:r", pages=1, draft=1) == bench.end_of(read(2), True, True)

    @pytest.mark.parametrize("call_pages", [1, 8])
    def test_of_a_refused_page_is_not_put(self, call_pages: int) -> None:
        """Goal: no draft page without its page (HC-DRAFT-08). Method: the second of three is refused."""
        bench = Bench(RefusesOne("kv1"), call_pages=call_pages)
        drafts = (True,) * 3

        assert WriteDone(id="b:w", pages=1, draft=1) == bench.end_of(write(3), *drafts)
        assert "draft0" in bench.backend._shelf.objects
        assert not {"draft1", "draft2"} & bench.backend._shelf.objects.keys()
        assert not {"draft1", "draft2"} & {key for _, keys in bench.backend.calls for key in keys}
        assert () == bench.workers.stop(PATIENCE_SECONDS)

    def test_that_is_invalid_is_not_put(self, bench: Bench) -> None:
        """Goal: no draft page in a store holds nothing. Method: the first of two is invalid; one is put."""
        assert WriteDone(id="b:w", pages=2, draft=0) == bench.end_of(write(2), False, True)
        assert {"kv0", "kv1", "draft1"} == bench.backend._shelf.objects.keys()

    def test_stays_untouched_unless_asked_for(self, bench: Bench) -> None:
        """Goal: a store without drafts is not asked for them. Method: the calls of a read and a write."""
        bench.put("kv0")
        bench.end_of(read())
        bench.end_of(write())

        assert ["kv0", "kv0"] == [keys[0] for _, keys in bench.backend.calls]


class Liar(MemoryBackend):
    """A store that answers nonsense."""

    def exists(self, keys: Sequence[str]) -> int:
        """More than there was asked for."""
        return len(keys) + 5

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """More answers than questions."""
        return [True] * (len(keys) + 5)

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """No answer at all."""
        return None  # type: ignore[return-value]


def test_a_store_that_answers_nonsense_harms_nothing() -> None:
    """Goal: reports fit their tasks. Method: too high counts, too long lists, no list."""
    bench = Bench(Liar())

    assert QueryDone(id="p:q", hits=2) == bench.end_of(query(2))
    assert ReadDone(id="p:r", pages=2) == bench.end_of(read(2))
    assert WriteDone(id="b:w", raised=True) == bench.end_of(write(2))
    assert () == bench.workers.stop(PATIENCE_SECONDS)


class TestCancel:
    """What is cancelled is reported all the same, with what was done of it."""

    def test_before_it_begins(self, bench: Bench) -> None:
        """Goal: no call is made for it. Method: it waits behind a task that hangs; another name is left alone."""
        bench.backend.hold("exists")
        first = bench.workers.submit(query(name="p:a"))
        bench.backend.wait_for_call()
        second, third = bench.workers.submit(query(name="p:b")), bench.workers.submit(query(name="p:c"))
        bench.workers.cancel("p:b")

        assert QueryDone(id="p:b") == bench.report(second)
        assert ("p:a", "p:c") == bench.workers.busy()
        bench.backend.release()
        assert {"p:a", "p:c"} == {bench.report(job).id for job in (first, third)}
        assert 2 == len(bench.backend.calls)

    @pytest.mark.parametrize("task", [read(6), write(6)])
    def test_in_the_middle(self, task: Task) -> None:
        """Goal: it stops before its next call. Method: cancelled in the first of six calls."""
        bench = Bench(call_pages=1, read_threads=1, write_threads=1)
        bench.put(*(f"kv{page}" for page in range(6)))
        bench.backend.hold("read", "write")
        job = bench.workers.submit(task)
        bench.backend.wait_for_call()
        bench.workers.cancel(task.id)
        assert None is bench.workers.next_report()
        bench.backend.release()

        end = bench.report(job)
        assert (1, False) == (end.pages, end.raised)
        assert 1 == len(bench.backend.calls)
        assert () == bench.workers.stop(PATIENCE_SECONDS)

    def test_of_what_nobody_knows(self, bench: Bench) -> None:
        """Goal: a late cancel is harmless. Method: a name that never was, then a task of another name."""
        bench.workers.cancel("p:nobody")

        assert QueryDone(id="p:q") == bench.end_of(query())


class TestStop:
    """The end of the workers: everything is reported, or they go on as before."""

    def test_reports_every_task_once(self) -> None:
        """Goal: no end is lost. Method: many tasks of each kind, stopped while some run; reports counted by job."""
        bench = Bench(call_pages=1)
        jobs = [
            bench.workers.submit(make(4, name=f"{number}")) for number in range(40) for make in (query, read, write)
        ]

        assert () == bench.workers.stop(PATIENCE_SECONDS)
        told = [bench.workers.next_report() for _ in jobs]
        assert {id(job) for job in jobs} == {id(report.job) for report in told if report is not None}
        assert None is bench.workers.next_report()
        assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("storage_")]

    @pytest.mark.parametrize(("kind", "task"), [("exists", query()), ("read", read()), ("write", write())])
    def test_says_what_hangs_and_goes_on(self, kind: str, task: Task) -> None:
        """Goal: a stop that fails cancels what waited, no more. Method: one call of each kind hangs, others wait."""
        bench = Bench(call_pages=1, read_threads=1, write_threads=1)
        bench.backend.hold(kind)
        job = bench.workers.submit(task)
        bench.backend.wait_for_call()
        waiting = [bench.workers.submit(make(name="waits")) for make in (query, read, write) for _ in range(3)]
        before = time.monotonic()

        assert (task.id,) == bench.workers.stop(0.1)
        assert 0.1 <= time.monotonic() - before < 5
        told = [bench.workers.next_report(PATIENCE_SECONDS) for _ in waiting]
        assert {"waits"} == {report.end.id for report in told if report is not None}
        bench.backend.release()
        assert task.id == bench.report(job).id
        bench.put("kv0")
        assert ReadDone(id="p:r", pages=1) == bench.end_of(read())
        assert () == bench.workers.stop(PATIENCE_SECONDS)

    def test_is_final(self) -> None:
        """Goal: nothing is taken that would never be reported. Method: submit after stop, and stop again."""
        bench = Bench()

        assert () == bench.workers.stop(PATIENCE_SECONDS)
        with pytest.raises(RuntimeError, match="stopped"):
            bench.workers.submit(query())
        assert () == bench.workers.stop(PATIENCE_SECONDS)

    def test_abandoned_workers_end_with_their_call(self) -> None:
        """Goal: no thread stays for ever. Method: abandoned in a call that hangs, which then returns."""
        bench = Bench(HeldBackend("exists"))
        bench.workers.submit(query())
        bench.backend.wait_for_call()
        bench.workers.abandon()
        bench.backend.release()

        for thread in bench.workers._threads:
            thread.join(PATIENCE_SECONDS)
        assert [False] * 5 == [thread.is_alive() for thread in bench.workers._threads]


def test_a_full_queue_costs_the_task(bench: Bench) -> None:
    """Goal: submitting never blocks. Method: one task runs, one waits, the third finds no room."""
    small = Bench(bench.backend, queue_max=1)
    bench.backend.hold("exists")
    jobs = [small.workers.submit(query(name="p:a"))]
    bench.backend.wait_for_call()
    jobs += [small.workers.submit(query(name=name)) for name in ("p:b", "p:c")]

    assert QueryDone(id="p:c") == small.report(jobs[2])
    assert ("p:a", "p:b") == small.workers.busy()
    bench.backend.release()
    assert [jobs[0].task.id, jobs[1].task.id] == [small.report(job).id for job in jobs[:2]]
    assert () == small.workers.stop(PATIENCE_SECONDS)


def test_threads_share_the_calls_of_a_batch() -> None:
    """Goal: one batch uses all threads of its kind. Method: two calls that end only once both have begun."""
    bench = Bench(call_pages=1, read_threads=2)
    both = threading.Barrier(2)
    bench.put("kv0", "kv1")

    def wait(keys: Sequence[str]) -> None:
        both.wait(PATIENCE_SECONDS)

    bench.backend.failing["read"] = wait
    assert ReadDone(id="p:r", pages=2) == bench.end_of(read(2))
    assert () == bench.workers.stop(PATIENCE_SECONDS)


def test_a_batch_is_told_only_when_no_call_of_it_runs() -> None:
    """Goal: pages are let go of by the report. Method: the first of two calls fails while the second hangs."""
    bench = Bench(call_pages=1, read_threads=2)
    both, second = threading.Barrier(2), threading.Event()
    bench.put("kv0", "kv1")

    def fail_or_wait(keys: Sequence[str]) -> BaseException | None:
        both.wait(PATIENCE_SECONDS)
        if keys == ["kv0"]:
            return StorageError("first")
        return None if second.wait(PATIENCE_SECONDS) else TimeoutError()

    bench.backend.failing["read"] = fail_or_wait
    job = bench.workers.submit(read(2))

    assert None is bench.workers.next_report(0.1)
    second.set()
    assert ReadDone(id="p:r", raised=True) == bench.report(job)
    assert () == bench.workers.stop(PATIENCE_SECONDS)


def test_nothing_is_left_where_a_thread_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: all or nothing. Method: the system refuses the third thread."""
    start, begun = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        Bench()
    for thread in begun:
        thread.join(PATIENCE_SECONDS)
    assert [False, False] == [thread.is_alive() for thread in begun]


def test_idle_workers_use_no_time(bench: Bench) -> None:
    """Goal: nothing polls. Method: CPU time of the process while the workers wait and a report is waited for."""
    bench.end_of(query())
    before = time.process_time()

    assert None is bench.workers.next_report(0.5)
    assert time.process_time() - before < 0.1
