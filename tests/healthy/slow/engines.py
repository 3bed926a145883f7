"""What makes a real cache slow in a lawful way: its own methods, wrapped in the process that holds it.

The files beside this one are run there once the modules are imported (`--option preload=FILE`).
"""

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

MEMORY = "sglang.srt.mem_cache"
CACHES = {f"{MEMORY}.hiradix_cache": "HiRadixCache", f"{MEMORY}.hi_mamba_radix_cache": "HiMambaRadixCache"}
HOST_POOLS = (f"{MEMORY}.pool_host.base", f"{MEMORY}.memory_pool_host")

Wrapper = Callable[..., Any]
"""Takes the method, then what that takes."""


def caches() -> Iterator[Any]:
    """The classes of caches that the release has."""
    return (getattr(sys.modules[module], name) for module, name in CACHES.items() if module in sys.modules)


def host_pools() -> Iterator[Any]:
    """The classes of pools on host that hand out pages themselves."""
    for module in HOST_POOLS:
        for kind in vars(sys.modules.get(module, object())).values() if module in sys.modules else ():
            if isinstance(kind, type) and kind.__module__ == module and "alloc" in vars(kind):
                yield kind


def wrap(kind: Any, name: str, wrapper: Wrapper) -> None:
    """The method is called by the wrapper alone."""
    method = getattr(kind, name)

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(method, *args, **kwargs)

    setattr(kind, name, wrapped)


def one_ack_a_poll(queue: str) -> Wrapper:
    """A check for finished copies that sees one acknowledgement of this queue, and leaves all others in it."""

    def check(method: Any, cache: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("write_back") or (args and args[0] is True):
            return method(cache, *args, **kwargs)
        if kwargs.get("finish_count"):
            kwargs["finish_count"] = 1
        acks = getattr(cache.cache_controller, queue)
        rest = acks[1:]
        del acks[1:]
        try:
            return method(cache, *args, **kwargs)
        finally:
            acks.extend(rest)

    return check


def every_other_poll(*counts: str) -> Wrapper:
    """A look at the queues of storage that takes nothing of these kinds every other time."""
    seen = f"polls_seen_{counts[0]}"

    def drain(method: Any, cache: Any, *args: Any, **kwargs: Any) -> Any:
        if all(kwargs.get(name) is None for name in counts):
            return method(cache, *args, **kwargs)
        setattr(cache, seen, getattr(cache, seen, 0) + 1)
        if getattr(cache, seen) % 2:
            kwargs |= {name: 0 for name in counts if name in kwargs}
        return method(cache, *args, **kwargs)

    return drain
