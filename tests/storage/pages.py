"""What the tests of stores share: pages, keys, and reads into fresh buffers."""

from collections.abc import Sequence

from hicache_ref.storage.base import Backend, Buffer


def view(page: bytes) -> Buffer:
    """The page in memory of its own, which can be written to."""
    return memoryview(bytearray(page))


def put(backend: Backend, pages: dict[str, bytes]) -> list[bool]:
    """The answers to a put of the pages under their keys."""
    return backend.write(list(pages), [view(page) for page in pages.values()])


def get(backend: Backend, keys: Sequence[str], size: int) -> list[bytes | None]:
    """What is under each key, as far as it has that size."""
    views = [view(bytes(size)) for _ in keys]
    found = backend.read(keys, views)
    return [bytes(each) if hit else None for hit, each in zip(found, views, strict=True)]
