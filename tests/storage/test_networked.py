"""Redis and Mooncake: round trips beside what the kit tries, and servers that are not there."""

import time
from pathlib import Path
from random import Random

import pytest

from hicache_ref.storage.base import StorageError
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.mooncake import MooncakeBackend, MooncakeOptions
from hicache_ref.storage.redis import RedisBackend, RedisOptions
from hicache_ref.storage.registry import open_backend, parse_url
from tests.storage.pages import get, put
from tests.storage.servers import mooncake_master, redis_server

CONFIG = StorageConfig(model_name="m", page_size=16)
SIZE = 65536


def test_redis_refuses_when_it_is_full(tmp_path: Path) -> None:
    """Goal: a full server is an answer. Method: memory for some pages; what was stored stays, the rest is absent."""
    pages = {f"k{number}": Random(number).randbytes(SIZE) for number in range(60)}
    with redis_server(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as url:
        store = open_backend(url, CONFIG)
        answers = put(store, pages)
        found = get(store, list(pages), SIZE)
        store.close()

    assert 0 < sum(answers) < 60
    assert [page if stored else None for page, stored in zip(pages.values(), answers, strict=True)] == found


def test_redis_keeps_to_its_prefix(tmp_path: Path) -> None:
    """Goal: a server that is shared loses nothing else. Method: two prefixes, one a pattern; one is cleared."""
    with redis_server(tmp_path) as url:
        parts = parse_url(url)
        stores = [RedisBackend("127.0.0.1", parts.port or 0, 0, RedisOptions(prefix=text)) for text in ("a*:", "ab:")]
        for store in stores:
            put(store, {"k": b"page"})
        stores[0].clear()
        found = [get(store, ["k"], 4) for store in stores]
        for store in stores:
            store.close()

    assert [[None], [b"page"]] == found


def test_a_server_that_goes_away_costs_the_call(tmp_path: Path) -> None:
    """Goal: no call hangs or dies of a lost server. Method: Redis, ended between two calls; and one never there."""
    with redis_server(tmp_path) as url:
        store = open_backend(url, CONFIG)
        put(store, {"k": b"page"})
    with pytest.raises(StorageError, match=r"redis://127\.0\.0\.1:\d+/0: .*, expected a Redis server that answers"):
        get(store, ["k"], 4)
    store.close()
    with pytest.raises(StorageError, match="expected a Redis server that answers"):
        open_backend(url, CONFIG)


def test_mooncake_moves_registered_pages_without_a_copy(tmp_path: Path) -> None:
    """Goal: host pages go in place. Method: a registered pool; pages beside it are staged, in parts."""
    with mooncake_master(tmp_path) as url:
        parts = parse_url(url)
        options = MooncakeOptions(segment_mib=64, staging_mib=1)
        store = MooncakeBackend("127.0.0.1", parts.port or 0, options)
        memory = bytearray(Random(0).randbytes(200 * SIZE))
        pool = memoryview(memory)
        store.register(pool)
        pages = [pool[start : start + SIZE] for start in range(0, len(pool), SIZE)]
        keys = [f"k{number}" for number in range(200)]
        before = bytes(pool)

        assert [True] * 200 == store.write(keys, pages)
        pool[:] = bytes(len(pool))
        assert [True] * 200 == store.read(keys, pages)
        assert before == bytes(pool)
        # 40 pages of 64 KiB do not fit into 1 MiB at once; one of 2 MiB fits never.
        assert [before[:SIZE], before[SIZE : 2 * SIZE]] == get(store, keys[:2], SIZE)
        assert 40 == sum(page is not None for page in get(store, keys[:40], SIZE))
        assert [False] == put(store, {"large": bytes(2 << 20)})
        assert [True] == store.write(["of the pool"], [pool[: 2 << 20]])
        assert (201, 1) == (store.stats().stored, store.stats().refused)
        store.close()


def test_mooncake_without_room_refuses(tmp_path: Path) -> None:
    """Goal: a full store answers, whatever it evicts. Method: more than its memory; no page that is found is wrong."""
    with mooncake_master(tmp_path) as url:
        store = MooncakeBackend("127.0.0.1", parse_url(url).port or 0, MooncakeOptions(segment_mib=16))
        pages = {f"k{number}": Random(number).randbytes(SIZE) for number in range(400)}
        answers = put(store, pages)
        found = get(store, list(pages), SIZE)
        store.close()

    assert 0 < sum(answers)
    assert 0 < found.count(None)
    assert all(got in (None, page) for got, page in zip(found, pages.values(), strict=True))


def test_mooncake_of_another_process_is_read(tmp_path: Path) -> None:
    """Goal: pages are shared over the wire. Method: one client lends memory and writes, one that lends none reads."""
    with mooncake_master(tmp_path) as url:
        port = parse_url(url).port or 0
        writer = MooncakeBackend("127.0.0.1", port, MooncakeOptions(segment_mib=32))
        reader = MooncakeBackend("127.0.0.1", port, MooncakeOptions(segment_mib=0))
        page = Random(1).randbytes(SIZE)
        put(writer, {"k": page})
        found = get(reader, ["k", "absent"], SIZE)
        reader.close()
        writer.close()

    assert [page, None] == found


def test_a_master_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Goal: one line instead of a hang. Method: the port of a master that has just ended."""
    with mooncake_master(tmp_path) as url:
        pass
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"mooncake://.*: .*refused, expected a master that answers"):
        open_backend(url, CONFIG)

    assert time.monotonic() - began < 30
