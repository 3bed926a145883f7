"""Several writers: threads, processes, and processes that are killed."""

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from hicache_ref.storage.conformance.kit import Broken, Kit, NotJudged, Watched
from hicache_ref.storage.conformance.peer import Peer
from hicache_ref.storage.conformance.rules import rule

_WRITERS = 3
_KEYS = 12
_SIZE = 100_003
_LARGE = 4 << 20
_KILLS = 3
_KILL_TRIES = 10
_POLL_SECONDS = 0.2

Candidates = Mapping[str, Sequence[bytes]]
"""For each key what one or another of its writers puts."""


@rule("HC-STORE-32")
def of_several_threads_one_leaves_its_bytes(kit: Kit) -> int:
    """Of several threads that put other bytes under one key, one leaves its own, whole; readers see these or a miss."""
    handle = kit.main
    candidates = _candidates(kit)
    start = threading.Barrier(_WRITERS)
    failed: list[BaseException] = []

    def put(number: int) -> None:
        try:
            start.wait()
            for key, pages in candidates.items():
                handle.write([key], [memoryview(bytearray(pages[number]))])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=put, args=(number,), daemon=True) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    reads = 0
    while any(thread.is_alive() for thread in threads):
        reads += _expect_one_of(kit, handle, candidates, all_there=False)
    if failed:
        raise failed[0]
    return reads + _expect_one_of(kit, handle, candidates, all_there=True)


@rule("HC-STORE-33")
def of_several_processes_one_leaves_its_bytes(kit: Kit) -> int:
    """Of several processes that put other bytes under one key, one leaves its own, whole, for all of them."""
    handle = kit.main
    peers = _peers_that_see_us(kit, handle, 2)
    candidates = _candidates(kit)
    for number, peer in enumerate(peers):
        peer.write(list(candidates), [kit.recipe(f"{number}/{key}", _SIZE) for key in candidates])
    reads = 0
    for peer in peers:
        while "done" not in peer.heard():
            reads += _expect_one_of(kit, handle, candidates, all_there=False)
    reads += _expect_one_of(kit, handle, candidates, all_there=True)
    seen = [_digest(page) for page in kit.get(handle, list(candidates), [_SIZE] * _KEYS)]
    for peer in peers:
        if peer.read(list(candidates), [_SIZE] * _KEYS) != seen:
            raise Broken("two processes read other bytes under one key")
    return reads + len(peers) * _KEYS


@rule("HC-STORE-34")
def a_killed_writer_leaves_all_or_nothing(kit: Kit) -> int:
    """A writer that is killed within a put leaves its key absent or whole, and the key can be written again."""
    handle = kit.main
    _peers_that_see_us(kit, handle, 1)
    judged = 0
    for key in _cut_short(kit):
        _expect_all_or_nothing(kit, handle, key)
        judged += 1
        if judged == _KILLS:
            break
    if not judged:
        raise NotJudged(f"none of {_KILL_TRIES} kills fell within a put")
    return judged


def _candidates(kit: Kit) -> Candidates:
    return {key: [kit.page(f"{n}/{key}", _SIZE) for n in range(_WRITERS)] for key in kit.keys("k", _KEYS)}


def _digest(page: bytes | None) -> str | None:
    return None if page is None else hashlib.sha256(page).hexdigest()


def _peers_that_see_us(kit: Kit, handle: Watched, count: int) -> list[Peer]:
    """So many processes that find what this one stores. Raises NotJudged where the store does not promise that."""
    key, page = kit.key("seen by others"), kit.page("seen by others")
    kit.stored(handle, [key], [page])
    peers = [kit.peer() for _ in range(count)]
    for peer in peers:
        if peer.read([key], [len(page)]) != [_digest(page)]:
            if kit.subject.shared:
                raise Broken("another process does not find what this one stored", "HC-STORE-23")
            raise NotJudged("no other process sees the pages of this store")
    return peers


def _expect_one_of(kit: Kit, handle: Watched, candidates: Candidates, *, all_there: bool) -> int:
    """Each key gives what one of its writers put; a miss only while they are at it. Raises Broken."""
    found = kit.get(handle, list(candidates), [_SIZE] * _KEYS)
    for page, lawful in zip(found, candidates.values(), strict=True):
        if page is None:
            if all_there:
                raise Broken("every writer has ended, and a key that all wrote to is a miss")
        elif page not in lawful:
            raise Broken("a key that several wrote to gives bytes that none of them put")
    return _KEYS


def _cut_short(kit: Kit) -> Iterator[str]:
    """Keys, the put of each of which was begun by a process that was killed before it was answered."""
    for attempt in range(_KILL_TRIES):
        peer = kit.peer()
        keys = kit.keys(f"try {attempt} ", 40)
        peer.write(keys, [kit.recipe(key, _LARGE) for key in keys])
        last = peer.heard()
        time.sleep(kit.random.uniform(0, 0.03))
        last = (peer.kill() or [last])[-1]
        if "begin" in last:
            yield last["begin"]


def _expect_all_or_nothing(kit: Kit, handle: Watched, key: str) -> None:
    """The key gives its page, or nothing and then, put again within the time that a store may take, its page."""
    page = kit.page(key, _LARGE)
    found = kit.get(handle, [key], [_LARGE])[0]
    give_up = time.monotonic() + kit.patience
    while found is None:
        answer = kit.put(handle, [key], [page])[0]
        found = kit.get(handle, [key], [_LARGE])[0]
        if found is None:
            if time.monotonic() > give_up:
                told = "stored" if answer else "refused"
                raise Broken(f"{kit.patience:g} s after its writer was killed a key is {told} when put, and a miss")
            time.sleep(_POLL_SECONDS)
    if found != page:
        raise Broken("a put that was cut short left other bytes than those that were put")
