"""A store that misbehaves on purpose: each kind alone, and the same way each time."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.storage.base import StorageError
from hicache_ref.storage.faulty import Faults, FaultyBackend
from hicache_ref.storage.memory import MemoryBackend
from tests.storage.pages import get, put, view

PAGES = {f"key {number}": bytes([number]) * 32 for number in range(8)}
KEYS = list(PAGES)
ALL = list(PAGES.values())
KINDS = ["miss", "short", "error", "delay", "vanish", "refuse", "wrong_length", "evict"]


def faulty(seed: int = 0, **chances: float) -> FaultyBackend:
    """A store in memory with these faults."""
    return FaultyBackend(MemoryBackend(), Faults(**chances), seed, sleep=lambda _: None)


def story(store: FaultyBackend) -> list[object]:
    """What a consumer sees of the store."""
    seen: list[object] = []
    for call in (
        lambda: put(store, PAGES),
        lambda: store.exists(KEYS),
        lambda: get(store, KEYS, 32),
        lambda: get(store, KEYS, 32),
    ):
        try:
            seen.append(call())
        except StorageError as error:
            seen.append(str(error))
    return seen


HONEST = [[True] * 8, 8, ALL, ALL]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_alone(kind: str) -> None:
    """Goal: every kind can be planted, and only that. Method: always and never; what it does, what has struck."""
    never, always = faulty(), faulty(**{kind: 1.0})

    assert (HONEST, {}) == (story(never), never.struck)
    assert (kind == "delay") == (story(always) == HONEST)
    assert [kind] == list(always.struck)


def test_what_each_kind_does() -> None:
    """Goal: the kinds are what they are called. Method: the seen story of each, always striking."""
    nothing: list[bytes | None] = [None] * 8
    store = faulty(miss=1)
    assert [[True] * 8, 8, nothing, nothing] == story(store)
    assert [[False] * 8, 0, nothing, nothing] == story(faulty(refuse=1))
    assert [[True] * 8, 8, nothing, nothing] == story(faulty(vanish=1))
    assert [[True] * 8, 8, nothing, nothing] == story(faulty(wrong_length=1))
    assert [[True] * 8, 0, [None] * 7 + ALL[7:], [None] * 7 + ALL[7:]] == story(faulty(evict=1))
    assert ["planted: write of 8 keys fails"] == story(faulty(error=1))[:1]


def test_a_short_read_leaves_half_a_page() -> None:
    """Goal: a consumer that counts before it looks is found out. Method: the buffer after a short read and a miss."""
    short, missed = view(bytes(32)), view(bytes(32))
    for kind, buffer in (("short", short), ("miss", missed)):
        store = faulty(**{kind: 1.0})
        put(store, PAGES)
        assert [False] == store.read(["key 3"], [buffer])

    assert bytes([3]) * 16 + b"\xa5" * 16 == bytes(short)
    assert b"\xa5" * 32 == bytes(missed)


def test_what_has_vanished_can_be_put_again() -> None:
    """Goal: a loss is no lasting fault. Method: a page that vanished after `exists`, put anew."""
    store = faulty(vanish=1)
    put(store, PAGES)

    assert (8, 0) == (store.exists(KEYS), store.exists(KEYS))
    assert [None] == get(store, KEYS[:1], 32)
    put(store, {KEYS[0]: ALL[0]})
    assert ALL[:1] == get(store, KEYS[:1], 32)


def test_a_delay_is_as_long_as_it_says() -> None:
    """Goal: delays cost time and nothing else. Method: the clock is told how long to wait."""
    waited: list[float] = []
    store = FaultyBackend(MemoryBackend(), Faults(delay=1, delay_seconds=0.25), sleep=waited.append)
    story(store)

    assert [0.25] * 4 == waited


@given(st.integers(0, 2**32), st.dictionaries(st.sampled_from(KINDS), st.floats(0, 1), max_size=3))
def test_the_same_seed_tells_the_same_story(seed: int, chances: dict[str, float]) -> None:
    """Goal: what was found can be found again. Method: the same story twice; another seed may tell another."""
    assert story(faulty(seed, **chances)) == story(faulty(seed, **chances))


def test_threads_and_batches_change_nothing() -> None:
    """Goal: a fault belongs to its key, not to the moment. Method: reads of all keys in one batch, one by one, and from
    many threads."""
    stores = [faulty(7, miss=0.5) for _ in range(3)]
    for store in stores:
        put(store, PAGES)
    seen: dict[str, bytes | None] = {}
    threads = [
        threading.Thread(target=lambda key=key: seen.update({key: get(stores[2], [key], 32)[0]}))  # type: ignore[misc]
        for key in reversed(KEYS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch = get(stores[0], KEYS, 32)

    assert batch == [get(stores[1], [key], 32)[0] for key in KEYS] == [seen[key] for key in KEYS]
    assert 0 < batch.count(None) < 8


def test_chances_are_frequencies() -> None:
    """Goal: a chance of 0.2 strikes one time in five. Method: 2,000 reads of one key."""
    store = faulty(miss=0.2)
    put(store, PAGES)
    missed = sum(get(store, ["key 1"], 32) == [None] for _ in range(2000))

    assert 330 <= missed <= 470
    assert store.struck["miss"] == missed
    store.clear()
    assert 0 == store.exists(KEYS)
