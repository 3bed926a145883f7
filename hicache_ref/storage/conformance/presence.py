"""Presence and bytes: what is there, what is told of it, and what a read gives. One handle, nobody else about."""

from hicache_ref.storage.conformance.kit import PAGE, Broken, Kit
from hicache_ref.storage.conformance.rules import rule

_LARGE = (8 << 20) + 1
"""Bytes: larger than buffers of usual size, and no multiple of anything."""


@rule("HC-STORE-21")
def a_call_without_keys_answers_nothing(kit: Kit) -> int:
    """A call without keys gives no answers and is no error."""
    handle = kit.main
    if (run := handle.exists([])) != 0:
        raise Broken(f"exists of no keys answers {run}")
    handle.read([], [])
    handle.write([], [])
    return 3


@rule("HC-STORE-23")
def what_is_stored_is_found(kit: Kit) -> int:
    """On a quiet store, what a put reports as stored is present at once and is read, by this handle and by others."""
    handle, other = kit.main, kit.open()
    keys = kit.keys("k", 8)
    pages = [kit.page(key) for key in keys]
    for reader in (handle, other):
        # What was seen to be absent must not stay so.
        kit.expect_absent(reader, keys)
    kit.stored(handle, keys, pages)
    for reader in (handle, other):
        if (run := reader.exists(keys)) != len(keys):
            raise Broken(f"{len(keys)} pages were stored, exists answers {run}")
        kit.expect(reader, keys, pages)
    return 2 * len(keys)


@rule("HC-STORE-20")
def exists_is_the_leading_run(kit: Kit) -> int:
    """`exists` answers how many of the keys, from the first on, are present without a gap."""
    handle = kit.main
    keys = kit.keys("k", 12)
    there = [number for number in range(12) if number not in (5, 9)]
    kit.stored(handle, [keys[number] for number in there], [kit.page(keys[number]) for number in there])
    absent = kit.key("absent")
    cases = {
        "all present": (keys[:5], 5),
        "a gap": (keys, 5),
        "two gaps": (keys[4:], 1),
        "from behind a gap": (keys[6:], 3),
        "the first one absent": ([absent, *keys[:3]], 0),
        "the last one absent": ([*keys[:3], absent], 3),
        "backwards": (keys[4::-1], 5),
        "one key twice": ([keys[0], keys[0], absent, keys[1]], 2),
        "one present": ([keys[11]], 1),
    }
    for what, (asked, expected) in cases.items():
        if (run := handle.exists(asked)) != expected:
            raise Broken(f"{what}: exists of {len(asked)} keys answers {run}, expected {expected}")
    return len(cases)


@rule("HC-STORE-24")
def a_read_gives_the_bytes_or_a_miss(kit: Kit) -> int:
    """A read that answers true has filled its buffer with the bytes that were stored; what never was is a miss."""
    handle = kit.main
    keys = kit.keys("k", 16)
    sizes = [1, 7, 512, 4095, 4096, 4097, 65536, 100_003] * 2
    pages = [kit.page(key, size) for key, size in zip(keys, sizes, strict=True)]
    # Pages of zeros are what a buffer that nobody filled looks like.
    pages[4] = bytes(4096)
    kit.stored(handle, keys, pages)
    judged = kit.expect(handle, keys, pages)
    order = kit.random.sample(range(16), 16)
    judged += kit.expect(handle, [keys[number] for number in order], [pages[number] for number in order])
    judged += kit.expect(handle, [keys[3]] * 3, [pages[3]] * 3)
    return judged + kit.expect_absent(handle, kit.keys("absent", 4))


@rule("HC-STORE-22")
def one_answer_a_key_in_their_order(kit: Kit) -> int:
    """Each call gives one answer a key, true or false, whatever is present."""
    handle = kit.main
    keys = kit.keys("k", 6)
    judged = 0
    for size in (1, 2, 6):
        part = keys[:size]
        kit.get(handle, part, [PAGE] * size)
        kit.put(handle, part, [kit.page(key) for key in part])
        kit.put(handle, part, [kit.page(key) for key in part])
        kit.get(handle, [*part, kit.key("absent")], [PAGE] * (size + 1))
        handle.exists([kit.key("absent"), *part])
        judged += 5
    return judged


@rule("HC-STORE-28")
def an_absent_key_costs_the_others_nothing(kit: Kit) -> int:
    """In a batch of present and absent, new and earlier keys, the answers say which, and each page goes to its own."""
    handle = kit.main
    keys = kit.keys("k", 10)
    pages = [kit.page(key) for key in keys]
    kit.stored(handle, keys[::2], pages[::2])
    found = kit.get(handle, keys, [PAGE] * 10)
    expected = [page if number % 2 == 0 else None for number, page in enumerate(pages)]
    _expect_equal(found, expected, "a read of every second page")
    answers = kit.put(handle, keys, pages)
    if not all(answers):
        raise Broken(f"a put of 5 new and 5 earlier pages answers {answers}, expected all stored")
    return 20 + kit.expect(handle, keys, pages, "HC-STORE-28")


def _expect_equal(found: list[bytes | None], expected: list[bytes | None], what: str) -> None:
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        if got != want:
            told = "nothing" if got is None else "the right bytes" if got == want else "other bytes"
            raise Broken(f"{what}: key {number} gives {told}, expected {'a miss' if want is None else 'its page'}")


@rule("HC-STORE-25")
def the_first_put_wins(kit: Kit) -> int:
    """A put of a key that is present leaves the earlier bytes, whatever it answers."""
    handle, other = kit.main, kit.open()
    keys = kit.keys("k", 4)
    pages = [kit.page(key) for key in keys]
    kit.stored(handle, keys, pages)
    for writer in (handle, other):
        kit.put(writer, keys, [kit.page(f"{key} again") for key in keys])
        kit.put(writer, keys[:1], [kit.page("longer", PAGE + 1)])
        kit.expect(handle, keys, pages, "HC-STORE-25")
    twice = kit.key("twice in one batch")
    first, second = kit.page("first"), kit.page("second")
    kit.put(handle, [twice, twice], [first, second])
    return 2 * len(keys) + kit.expect(handle, [twice], [first], "HC-STORE-25")


@rule("HC-STORE-26")
def a_read_stays_in_its_buffer(kit: Kit) -> int:
    """A read writes nothing beside its buffer, whatever it answers."""
    handle = kit.main
    keys = kit.keys("k", 3)
    kit.stored(handle, keys, [kit.page(key) for key in keys])
    sizes = [PAGE, PAGE - 1, PAGE + 1, PAGE // 2, 2 * PAGE, 1]
    for size in sizes:
        kit.get(handle, keys, [size] * 3)
        kit.get(handle, [keys[0], kit.key("absent"), keys[1]], [size, PAGE, size])
    return 6 * len(sizes)


@rule("HC-STORE-27")
def another_length_is_a_miss(kit: Kit) -> int:
    """An object of another length than the buffer is a miss; a buffer of its length still gets it."""
    handle = kit.main
    key, page = kit.key("k"), kit.page("k")
    kit.stored(handle, [key], [page])
    for size in (PAGE - 1, PAGE + 1, PAGE // 2, 2 * PAGE):
        if kit.get(handle, [key], [size])[0] is not None:
            raise Broken(f"an object of {PAGE} bytes fills a buffer of {size}, expected a miss")
    return 4 + kit.expect(handle, [key], [page], "HC-STORE-27")


@rule("HC-STORE-29")
def large_and_empty_objects_are_whole(kit: Kit) -> int:
    """Objects of any size are stored whole, or refused and then absent; the store works on."""
    handle = kit.main
    judged = 0
    for size in (0, _LARGE):
        key, page = kit.key(f"of {size}"), kit.page("k", size)
        judged += kit.whole_or_refused(handle, [key], [page], kit.put(handle, [key], [page]), "HC-STORE-29")
    keys = kit.keys("k", 2)
    pages = [kit.page(key) for key in keys]
    kit.stored(handle, keys, pages)
    return judged + kit.expect(handle, keys, pages)
