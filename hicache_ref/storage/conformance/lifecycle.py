"""A handle's life: what it has taken, what it counts, clearing, closing, and what is left afterwards."""

from collections.abc import Callable

from hicache_ref.storage.base import StorageClosed, Unsupported
from hicache_ref.storage.conformance.kit import PAGE, Broken, Kit, NotJudged
from hicache_ref.storage.conformance.rules import rule


@rule("HC-STORE-31")
def a_put_has_taken_the_bytes(kit: Kit) -> int:
    """When a put returns, the caller may write over the page: what is stored does not change."""
    handle = kit.main
    keys = kit.keys("k", 4)
    pages = [kit.page(key) for key in keys]
    buffers = [bytearray(page) for page in pages]
    handle.write(keys, [memoryview(buffer) for buffer in buffers])
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))
    judged = kit.expect(handle, keys, pages, "HC-STORE-31")
    # What was read is the caller's own, too.
    views = [memoryview(bytearray(PAGE)) for _ in keys]
    handle.read(keys, views)
    for view in views:
        view[:] = bytes(PAGE)
    return judged + kit.expect(handle, keys, pages, "HC-STORE-31")


@rule("HC-STORE-40")
def stats_count_what_happened(kit: Kit) -> int:
    """A handle that counts, counts every object stored, found and missed, and asking changes nothing."""
    handle = kit.main
    keys = kit.keys("k", 5)
    pages = [kit.page(key) for key in keys]
    try:
        before = handle.stats()
    except Unsupported as error:
        raise NotJudged(f"the store does not count: {error}") from None
    kit.stored(handle, keys, pages)
    kit.get(handle, [*keys, kit.key("absent")], [PAGE] * 6)
    after = handle.stats()
    counted = {
        "stored": after.stored - before.stored,
        "hits": after.hits - before.hits,
        "misses": after.misses - before.misses,
        "bytes_read": after.bytes_read - before.bytes_read,
        "bytes_written": after.bytes_written - before.bytes_written,
    }
    expected = {"stored": 5, "hits": 5, "misses": 1, "bytes_read": 5 * PAGE, "bytes_written": 5 * PAGE}
    if counted != expected:
        raise Broken(f"5 pages stored, 5 found, 1 missed are counted as {counted}")
    if handle.stats() != after:
        raise Broken("asking for the statistics changes them")
    return len(expected)


@rule("HC-STORE-36")
def closing_twice_is_closing(kit: Kit) -> int:
    """A handle may be closed twice; what it stored stays, and other handles work on."""
    handle, other = kit.open(), kit.main
    keys = kit.keys("k", 2)
    pages = [kit.page(key) for key in keys]
    kit.stored(other, keys, pages)
    kit.expect(handle, keys, pages)
    handle.close()
    handle.close()
    return 2 + kit.expect(other, keys, pages, "HC-STORE-36")


@rule("HC-STORE-39")
def a_closed_handle_says_so(kit: Kit) -> int:
    """Every call on a closed handle raises an error that says so; none gives an answer."""
    if kit.names_by_config:
        raise NotJudged("SGLang's interface says nothing of calls after close")
    handle = kit.open()
    key = kit.key("k")
    kit.stored(handle, [key], [kit.page("k")])
    handle.close()
    view = memoryview(bytearray(PAGE))
    calls: dict[str, Callable[[], object]] = {
        "exists": lambda: handle.exists([key]),
        "read": lambda: handle.read([key], [view]),
        "write": lambda: handle.write([key], [view]),
        "stats": handle.stats,
    }
    for name, call in calls.items():
        try:
            answer = call()
        except StorageClosed:
            continue
        except Exception as error:
            if "closed" in str(error).lower():
                continue
            raise Broken(f"{name} on a closed handle raises {type(error).__name__}: {error}") from error
        raise Broken(f"{name} on a closed handle answers {answer!r}, expected an error")
    return len(calls)


@rule("HC-STORE-35")
def clear_leaves_nothing(kit: Kit) -> int:
    """After `clear` nothing of what was there is found, and the store works on."""
    if not kit.may_clear:
        raise NotJudged("clearing was not allowed, since it empties the store for everybody")
    handle, other = kit.main, kit.open()
    keys = kit.keys("k", 6)
    pages = [kit.page(key) for key in keys]
    kit.stored(handle, keys, pages)
    try:
        handle.clear()
    except Unsupported as error:
        raise NotJudged(f"the store cannot be cleared: {error}") from None
    for reader in (handle, other):
        if reader.exists(keys[:1]):
            raise Broken("a page is said to be present after clear")
        if any(page is not None for page in kit.get(reader, keys, [PAGE] * 6)):
            raise Broken("a page is found after clear")
    kit.stored(other, keys, pages[::-1])
    return 2 * len(keys) + kit.expect(handle, keys, pages[::-1], "HC-STORE-35")
