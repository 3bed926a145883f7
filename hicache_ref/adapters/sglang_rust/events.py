"""The core's events in the vocabulary: it reports runs of pages, the vocabulary has one event a page."""

from collections.abc import Iterable, Iterator
from typing import Any

from hicache_ref.vocabulary.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from hicache_ref.vocabulary.keys import PageKey


def one_a_page(tagged: Iterable[tuple[Any, ...]]) -> Iterator[Event]:
    """The events of `take_events()`, each run cut into its pages. Raises ValueError for an unknown tag."""
    for event in tagged:
        match event:
            case ("block_stored", hashes, parent, units, size, medium, *_):
                for count, digest in enumerate(hashes):
                    page = _page(units[count * size : (count + 1) * size])
                    yield BlockStored(block_hash=digest, parent_block_hash=parent, token_ids=page, medium=medium)
                    parent = digest
            case ("block_removed", hashes, medium, *_):
                for digest in hashes:
                    yield BlockRemoved(block_hash=digest, medium=medium)
            case ("all_blocks_cleared", *_):
                yield AllBlocksCleared()
            case _:
                raise ValueError(f"event {event[0]!r}, expected one of block_stored, block_removed, all_blocks_cleared")


def _page(units: list[Any]) -> PageKey:
    """The page's tokens; a unit is a token or, in bigram mode, a pair that shares one with the next."""
    if units and isinstance(units[0], tuple):
        return (*(pair[0] for pair in units), units[-1][1])
    return tuple(units)
