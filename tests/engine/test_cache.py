"""The cache with real bytes: what the model decides happens to pages, and a store that fails or hangs is survived."""

import threading
import time
from pathlib import Path

import pytest

from hicache_ref.engine.cache import StoredCache
from hicache_ref.engine.cpu import SPOILT
from hicache_ref.engine.settings import naming
from hicache_ref.engine.speed import storage_rows
from hicache_ref.engine.verify import WrongBytes, pattern
from hicache_ref.storage.base import StorageError
from hicache_ref.storage.config import StorageConfig, object_keys
from hicache_ref.storage.files import FilesBackend
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Audited, Done, Invalid, Progressed, Refused, Submitted
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes
from tests.engine.stores import (
    ATTACH,
    KEY,
    PATIENCE_SECONDS,
    SETTINGS,
    SMALL,
    HeldBackend,
    attached,
    fetch,
    insert,
    storage_threads,
    store,
)


class TestRoundTrip:
    """Pages go down to storage and come back as they were."""

    @pytest.mark.parametrize(
        "profile",
        [
            Profile(),
            Profile(draft=True),
            Profile(bigram=True),
            Profile(rules=Rules(write_policy="write_back")),
            Profile(rules=Rules(write_policy="write_back", write_back_copy="blocking")),
            Profile(rules=Rules(prefetch_allocation="before", prefetch_progress="live", prefetch_commit="progress")),
            Profile(sizes=Sizes(page_size=2, storage_batch=1)),
        ],
        ids=["plain", "draft", "bigram", "write-back", "blocking", "progress", "page-size-2"],
    )
    @pytest.mark.parametrize("extra", [None, "tenant"])
    def test_comes_back_unchanged(self, tmp_path: Path, profile: Profile, extra: str | None) -> None:
        """Goal: every way down and up keeps bytes. Method: computed, stored, dropped, fetched, loaded, computed on."""
        key, longer = Key(tokens=(1, 2, 3, 4), extra=extra), Key(tokens=(1, 2, 3, 4, 5, 6), extra=extra)
        with StoredCache(profile, lambda: FilesBackend(tmp_path), SMALL) as cache:
            cache.step(ATTACH)
            store(cache, key)
            pages = len(cache.model.pages(key))
            assert Progressed(done=True, loaded=pages) == fetch(cache, key)
            assert isinstance(cache.step(ops.LoadBack(key=key_of_pages(cache, key))), Submitted)
            assert () == cache.settle()
            start = len(cache.model.resident_pages(cache.model.pages(longer), extra))
            cache.step(ops.TakePages(rid="r", n=len(cache.model.pages(longer)) - start))
            assert Done() == cache.step(ops.Forward(rid="r", key=longer, start=start))
            assert () == cache.settle()
            assert Audited() == cache.step(ops.Audit())
            assert pages == start
            assert 0 == cache.verifier.wrong
            assert cache.verifier.checked >= 3 * pages

    def test_a_copy_that_ends_inside_the_step_waits_for_the_pass(self) -> None:
        """Goal: write_back_copy=blocking takes what the pass writes. Method: evicted while the pass is put off."""
        rules = Rules(write_policy="write_back", write_back_copy="blocking")
        settings = SMALL.model_copy(update={"seed": 1})
        cache = StoredCache(Profile(rules=rules), HeldBackend, settings)
        insert(cache, KEY)
        cache.step(ops.Evict(n=3))
        assert () == cache.settle()
        cache.step(ops.LoadBack(key=KEY))

        assert () == cache.settle()
        assert (0, 3) == (cache.verifier.wrong, cache.verifier.checked)
        cache.close()

    def test_a_wrong_page_on_host_is_seen(self) -> None:
        """Goal: the comparison is one. Method: a byte of a host page is turned before it is loaded."""
        cache = attached(HeldBackend())
        insert(cache, KEY)
        cache.settle()
        cache.step(ops.Evict(n=3))
        (node,) = [node for node in cache.model.state.nodes.values() if node.host]
        assert node.host is not None
        cache.memory.pools[KV_HOST].view(node.host[1])[5] ^= 1
        cache.step(ops.LoadBack(key=KEY))

        with pytest.raises(WrongBytes, match=f"source of copy d:1.2.3: kv.host:{node.host[1]}"):
            cache.settle()
        cache.close()

    def test_a_wrong_object_in_the_store_is_seen(self) -> None:
        """Goal: what storage gives is compared. Method: the store exchanges two pages; counted, not raised."""
        backend = HeldBackend()
        cache = attached(backend, settings=SMALL.model_copy(update={"strict": False}))
        store(cache, KEY)
        objects = backend._shelf.objects
        first, second = sorted(objects)[:2]
        objects[first], objects[second] = objects[second], objects[first]
        fetch(cache, KEY)

        assert 2 == cache.verifier.wrong
        assert all("read from storage by p:1.2.3" in text for text in cache.verifier.examples)
        cache.close()

    def test_a_draft_page_that_never_came_is_not_stored(self) -> None:
        """Goal: an invalid draft page goes nowhere. Method: fetched without drafts, computed on, stored anew."""
        backend = HeldBackend()
        cache = attached(backend, Profile(draft=True))
        store(cache, KEY)
        for name in [name for name in backend._shelf.objects if ".draft" in name]:
            del backend._shelf.objects[name]
        fetch(cache, KEY)
        cache.step(ops.LoadBack(key=KEY))
        cache.settle()
        cache.step(ops.ClearStorage())
        longer = Key(tokens=(*KEY.tokens, 4))
        cache.step(ops.TakePages(rid="r", n=1))
        cache.step(ops.Forward(rid="r", key=longer, start=3))
        cache.step(ops.Insert(rid="r", key=longer, start=3))

        assert () == cache.settle()
        assert [4, 1] == [
            sum((".draft" in name) == draft for name in backend._shelf.objects) for draft in (False, True)
        ]
        cache.close()

    def test_a_failed_copy_leaves_nothing_that_counts(self) -> None:
        """Goal: parts that failed are never used. Method: all copies fail; the backup is gone, nothing was stored."""
        backend = HeldBackend()
        cache = attached(backend, settings=SMALL.model_copy(update={"seed": 1, "copy_failures": 1.0}))
        insert(cache, KEY)

        assert () == cache.settle()
        assert {None} == {node.host for node in cache.model.state.nodes.values() if node.id}
        assert [] == backend.calls
        assert 3 == sum({SPOILT} == set(cache.memory.pools[KV_HOST].view(page)) for page in range(6))
        cache.close()


def key_of_pages(cache: StoredCache, key: Key) -> Key:
    """The part of the key that is whole pages."""
    matched = cache.step(ops.MatchPrefix(key=key))
    assert matched.kind == "matched"
    return matched.best


def test_names_are_those_of_the_storage_package() -> None:
    """Goal: one way to name an object. Method: against `object_keys` of an equal configuration."""
    config = StorageConfig(model_name="reference", page_size=1, dtype="bytes", tag="32+8")
    names, hashes = naming(Profile(), SMALL), ("ab" * 32, "cd" * 32)

    for pool in ("kv", "draft"):
        assert [object_keys(config, digest, pool)[0] for digest in hashes] == names(hashes, pool)


def test_patterns_tell_pages_and_drafts_apart() -> None:
    """Goal: no wrong page looks right. Method: two hashes, and page and draft of one."""
    first, second = "00" * 32, "01" * 32

    assert 4 == len({pattern(digest, 32, draft) for digest in (first, second) for draft in (False, True)})
    assert 64 * 1024 == len(pattern(first, 64 * 1024))


def test_facts_of_the_world_are_not_the_callers() -> None:
    """Goal: nobody tells of bytes that are not there. Method: the end of a copy, stepped by the caller."""
    cache = attached(HeldBackend(), settings=SMALL.model_copy(update={"seed": 1}))
    insert(cache, KEY)

    assert isinstance(cache.step(ops.CopyDone(ticket="h:1.2.3")), Invalid)
    assert () == cache.settle()
    cache.close()


def test_what_the_store_tells_is_not_the_callers() -> None:
    """Goal: no page is free under a call of a store. Method: force, and a failure told by the caller."""
    with attached(HeldBackend()) as cache:
        for op in (ops.Detach(force=True), ops.Reset(force=True), ops.Attach(fails="store")):
            assert isinstance(cache.step(op), Invalid)
        assert cache.model.state.storage.attached


def test_a_reset_that_was_waited_for_ends_no_call_of_a_store() -> None:
    """Goal: as by force. Method: a reset, by a rule that would let it go on, waited for long enough and not."""
    profile = Profile(rules=Rules(reset_waits=100))
    with attached(HeldBackend(), profile=profile) as cache:
        assert isinstance(cache.step(ops.Reset(waited=100)), Invalid)
        assert Done() == cache.step(ops.Reset(waited=99))


class TestAttach:
    """All or nothing (HC-LIFE-07)."""

    def test_that_cannot_open_the_store(self) -> None:
        """Goal: nothing is attached, and the next attach works. Method: the opener raises once."""
        backend, first = HeldBackend(), [StorageError("nobody answers")]

        def open_it() -> HeldBackend:
            if first:
                raise first.pop()
            return backend

        cache = StoredCache(Profile(), open_it, SMALL)
        assert Refused(why="the store cannot be attached: nobody answers") == cache.step(ATTACH)
        assert (False, None) == (cache.model.state.storage.attached, cache.workers)
        assert [] == storage_threads()
        assert Done() == cache.step(ATTACH)
        assert () == cache.close()

    def test_that_cannot_start_its_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Goal: the store that was opened is closed again. Method: the system gives no thread."""
        backend = HeldBackend()

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        cache = StoredCache(Profile(), lambda: backend, SMALL)
        assert isinstance(cache.step(ATTACH), Refused)
        assert (1, None) == (backend.closed, cache.workers)

    def test_again_changes_settings_only(self) -> None:
        """Goal: one store, one set of workers. Method: a second attach, then one of another name."""
        cache = attached(HeldBackend())
        workers = cache.workers

        assert Done() == cache.step(ops.Attach(settings=SETTINGS.model_copy(update={"prefetch_policy": "best_effort"})))
        assert isinstance(cache.step(ops.Attach(backend="other", settings=SETTINGS)), Refused)
        assert workers is cache.workers
        assert "best_effort" == cache.model.state.storage.settings.prefetch_policy
        cache.close()

    def test_to_a_disabled_cache_opens_nothing(self) -> None:
        """Goal: a cache that keeps nothing stores nothing. Method: attach, and an opener that must not be called."""

        def never() -> HeldBackend:
            raise AssertionError("opened")

        cache = StoredCache(Profile(enabled=False), never, SMALL)
        assert Refused(why="disabled") == cache.step(ATTACH)
        assert () == cache.close()


class TestDetach:
    """A detach that cannot stop a worker answers no, and storage works as before (HC-LIFE-08)."""

    @pytest.mark.parametrize("kind", ["exists", "read", "write"])
    def test_under_a_call_that_hangs(self, kind: str) -> None:
        """Goal: no thread is left in a store that is closed. Method: each kind of call hangs; then it returns."""
        backend = HeldBackend()
        cache = attached(backend)
        if kind == "write":
            backend.hold("write")
            insert(cache, KEY)
        else:
            store(cache, KEY)
            backend.hold(kind)
            cache.step(ops.Prefetch(rid="r", key=KEY))
        cache.settle(0.2)
        before = time.monotonic()
        refused = cache.detach(0.2)

        assert isinstance(refused, Refused)
        assert ("b:1.2.3" if kind == "write" else "p:1.2.3",) == refused.wait_for
        assert time.monotonic() - before < 5
        assert (True, 0) == (cache.model.state.storage.attached, backend.closed)
        backend.release()
        assert () == cache.settle()
        assert (kind != "write") == (fetch(cache, KEY, "other") == Progressed(done=True, loaded=3))
        assert Done() == cache.detach()
        assert (False, 1, None) == (cache.model.state.storage.attached, backend.closed, cache.workers)
        assert [] == storage_threads()

    def test_cancels_what_waits(self) -> None:
        """Goal: a queue does not hold a detach up. Method: one query hangs, two wait; then it returns."""
        backend = HeldBackend("exists")
        cache = attached(backend)
        for rid, tokens in (("a", (1,)), ("b", (2,)), ("c", (3,))):
            cache.step(ops.Prefetch(rid=rid, key=Key(tokens=tokens)))
        backend.wait_for_call()
        refused = cache.step(ops.Detach())

        assert isinstance(refused, Refused)
        assert ("p:1",) == refused.wait_for
        backend.release()
        assert Done() == cache.detach(PATIENCE_SECONDS)
        assert 1 == len(backend.calls)

    def test_where_nothing_is_attached(self) -> None:
        """Goal: it may be asked for at any time. Method: a cache that never had a store."""
        assert Done() == StoredCache(Profile(), HeldBackend, SMALL).step(ops.Detach())


class TestLateReports:
    """An end of an operation that is over is dropped and counted; never taken for a later one of that name."""

    def test_of_a_query_from_before_a_reset(self) -> None:
        """Goal: generations are kept apart. Method: a query has found 3 and hangs over a reset; its name is used again.

        The store is empty by then: a cache that takes 3 for the answer to the second query reads pages.
        """
        backend = HeldBackend()
        cache = attached(backend)
        store(cache, KEY)
        backend.answers_first = True
        backend.hold("exists")
        cache.step(ops.Prefetch(rid="r", key=KEY))
        backend.entered = threading.Semaphore(0)
        while ("exists", 3) not in [(kind, len(keys)) for kind, keys in backend.calls]:
            backend.wait_for_call()
        assert Done() == cache.step(ops.Reset())
        again = cache.step(ops.Prefetch(rid="r", key=KEY))
        assert again.kind == "prefetching"
        backend._shelf.objects.clear()
        backend.release()

        assert () == cache.settle(PATIENCE_SECONDS)
        assert 1 == cache.late_reports
        assert "read" not in {kind for kind, _ in backend.calls}
        assert Progressed(done=True, prefetched=0) == cache.step(ops.Progress(rid="r"))
        assert () == cache.close()

    def test_draft_pages_that_are_not_stored_any_more(self) -> None:
        """Goal: a change of settings in flight loses no operation. Method: drafts switched off under a write."""
        backend = HeldBackend("write")
        cache = attached(backend, Profile(draft=True))
        insert(cache, KEY)
        cache.settle(0.1)
        cache.step(ops.Attach(settings=SETTINGS.model_copy(update={"draft": False})))
        backend.release()

        assert () == cache.settle(PATIENCE_SECONDS)
        assert (0, 0) == (cache.late_reports, len(cache.model.state.storage.believed_draft))
        assert 3 == len(cache.model.state.storage.believed)
        cache.close()


def test_nothing_is_lost_while_a_call_hangs() -> None:
    """Goal: slow and lost are told apart. Method: `lost` while a query hangs, and after its report."""
    backend = HeldBackend("exists")
    cache = attached(backend)
    cache.step(ops.Prefetch(rid="r", key=KEY))
    backend.wait_for_call()

    assert ((), ("p:1.2.3",)) == (cache.lost(), cache.workers.busy() if cache.workers else None)
    backend.release()
    cache.settle(PATIENCE_SECONDS)
    assert () == cache.lost()
    cache.close()


def test_a_store_that_cannot_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an error costs the operation. Method: clear raises, then it does not."""
    backend = HeldBackend()
    cache = attached(backend)
    store(cache, KEY)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "clear", lambda: (_ for _ in ()).throw(OSError("read-only")))
        assert Refused(why="the store cannot be cleared: read-only") == cache.step(ops.ClearStorage())
        assert 3 == len(cache.model.state.storage.believed)

    assert Done() == cache.step(ops.ClearStorage())
    assert (0, 0) == (len(cache.model.state.storage.believed), len(backend._shelf.objects))
    cache.close()


def test_pages_are_views_of_one_array() -> None:
    """Goal: no copies are made to look at a page. Method: written through one view, seen through another."""
    cache = StoredCache(Profile(draft=True), HeldBackend, SMALL)
    cache.memory.pools[KV_DEVICE].view(2)[:] = b"x" * 32

    assert b"x" * 32 == bytes(cache.memory.pools[KV_DEVICE].view(2))
    assert bytes(32) == bytes(cache.memory.pools[KV_DEVICE].view(1))
    assert 8 == len(cache.memory.drafts[KV_HOST].view(0))


def test_speeds_are_measured() -> None:
    """Goal: the rows of the benchmark are there. Method: few and small pages; ratio against its two sides."""
    rows = storage_rows(pages=20, page_bytes=512, rounds=1)

    assert ["prefetch files vs plain read", "backup files vs plain write"] == [row.name for row in rows]
    for row in rows:
        assert pytest.approx(row.ours / row.other) == row.ratio
