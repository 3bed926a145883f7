"""The pools on host hand out the last free page first, and the pages of one copy in falling order."""

from typing import Any

from tests.healthy.slow.engines import host_pools, wrap


def from_the_end(method: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
    """As `method`, from a list of free pages that was turned round."""
    size = getattr(pool, "page_size", 1)
    pool.free_slots = pool.free_slots.reshape(-1, size).flip(0).reshape(-1)
    return method(pool, *args, **kwargs)


for kind in host_pools():
    if "free_slots" in kind.clear.__code__.co_names:
        wrap(kind, "alloc", from_the_end)
