"""What differs between model and implementation, said of locks, holders, fields of outcomes and events."""

from collections.abc import Collection

from hicache_ref.search.finding import Differs, Direction, direction_of
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, PageHash, PoolName
from hicache_ref.vocabulary.observation import Segment


class Difference(Exception):
    """Model and implementation disagree."""

    def __init__(self, requirement: str, text: str, differs: Differs) -> None:
        super().__init__(text)
        self.requirement = requirement
        self.text = text
        self.differs = differs


def lock(pool_name: PoolName, locked: bool) -> Differs:
    """A pin that is missing, or there though nothing holds it."""
    return Differs(kind="lock", pool=pool_name, direction=direction_of(locked, not locked))


def holders(pool_name: PoolName, theirs: int, ours: int, who: str) -> Differs:
    """Differing numbers of pages that `who` holds, or of those that hold any."""
    return Differs(kind="holders", pool=pool_name, what=who, direction=direction_of(theirs > ours, theirs < ours))


def dead_end(leaf: Segment, end: PageHash, victims: Collection[tuple[PoolName, PageHash]]) -> Differs:
    """A leaf where no match can end: on which tier it has KV, and from which pool it was to be evicted, if from any."""
    victim_of = next((pool_name for pool_name, digest in victims if digest == end), None)
    what = None if victim_of is None else f"victim in {victim_of}"
    return Differs(kind="dead end", pool=KV_HOST if leaf.device is None else KV_DEVICE, what=what)


def field(name: str, expected: object, actual: object) -> Differs:
    """A field of the outcome, and how it differs where it is a collection or can be more or less."""
    direction: Direction = "instead"
    if isinstance(expected, tuple | list | set | frozenset) and isinstance(actual, tuple | list | set | frozenset):
        direction = direction_of(set(actual) - set(expected), set(expected) - set(actual))
    elif isinstance(expected, int) and isinstance(actual, int):
        direction = direction_of(actual > expected, actual < expected)
    return Differs(kind="field", what=name, direction=direction)


def kinds_of(events: Collection[Event]) -> str:
    """Each kind of event and its medium once."""
    media = ((event.kind, getattr(event, "medium", None)) for event in events)
    return ", ".join(sorted({kind if medium is None else f"{kind} on {medium}" for kind, medium in media}))
