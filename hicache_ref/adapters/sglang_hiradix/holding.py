"""Which host pages a prefetch holds, told from how far it is."""

from typing import Literal

from hicache_ref.vocabulary.ids import Pages

Stage = Literal["queued", "answered", "reading", "ended", "dead"]
"""How far a prefetch is; `dead` is one whose worker an exception has killed."""


def pages_held(
    pages: Pages, done: int, stage: Stage, *, is_open: bool, allocates_before: bool, queues_rest: bool
) -> Pages:
    """Of the `pages` that a prefetch was given those that it has now; `done` of them are read.

    `is_open` says whether a request waits for it. Its I/O over, an open one keeps what was read where the worker has
    queued the rest (up to 0.5.16). A closed one keeps what was not read until its end is applied.
    """
    if stage == "dead" and not is_open:
        return ()
    if stage == "answered" and allocates_before:
        return ()
    if stage == "ended" and queues_rest:
        return pages[:done] if is_open else ()
    return pages if is_open else pages[done:]
