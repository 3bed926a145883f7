"""What can be seen of the core and its caller after a step; nothing changes but that news is told only once."""

from functools import lru_cache

from hicache_ref.adapters.sglang_rust.caller import Caller
from hicache_ref.adapters.sglang_rust.events import one_a_page
from hicache_ref.adapters.sglang_rust.nodes import NodeView
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.observation import LEVELS, Counts, IssuedCopy, Level, Observation, Segment
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome

_FALSE_ALARMS = ("Full host coexistence missing", "Duplicate missing")
"""What the check of either core says of a host-only node that was split and is being loaded again: it is lawful."""


_CORE_UNTOUCHED = frozenset({"give_back", "forward", "forward_done", "copy_done"})
"""Operations in which the core is not called, or only asked: what was read of its tree stays true."""


class ObservedCaller(Caller):
    """A caller that shows the core: nodes, pages, locks and sizes are read from it, not from the books."""

    def start_afresh(self) -> None:
        """As below, and nothing has been read of the tree."""
        super().start_afresh()
        self._read: dict[bool, tuple[Segment, ...]] = {}

    def apply(self, operation: Operation) -> Outcome:
        """As below, and the tree is read again when it may have changed."""
        if operation.op not in _CORE_UNTOUCHED:
            self._read.clear()
        return super().apply(operation)

    def observe(self, level: Level) -> Observation:
        """Sizes at `counts`; pages of nodes too at `pages`; locks at `tree`; what every page holds at `bytes`."""
        depth = LEVELS.index(level)
        return Observation(
            level=level,
            counts=self._counts(),
            free_device=tuple(self.device.free) if depth else (),
            free_host=tuple(self.host.free) if depth else (),
            segments=self._segments(shows_locks=depth > 1) if depth else (),
            requests=self.requests if depth else {},
            copies=self._issued(),
            held_device=tuple(sorted(self.device.held)) if depth else (),
            events=tuple(map(self.reported, one_a_page(self.tree.take_events()))),
            self_check=self._complaint() if depth else None,
            contents=self._contents() if depth > LEVELS.index("tree") else None,
        )

    def reported(self, event: Event) -> Event:
        """The event as others are told of it."""
        return event

    def _contents(self) -> dict[str, str]:
        """What each page and each state slot that is not free was found to hold."""
        return {
            f"{name}:{page}": held
            for name, pool in self.pools().items()
            for page, held in pool.memory.read(without=pool.free)
        }

    def _issued(self) -> tuple[IssuedCopy, ...]:
        issued = tuple(self.issued)
        self.issued.clear()
        return issued

    def _counts(self) -> Counts:
        size = self.core.page_size
        return Counts(
            free_device=len(self.device.free),
            free_host=len(self.host.free),
            evictable=self.tree.evictable_size() // size,
            protected=self.tree.protected_size() // size,
        )

    def _segments(self, *, shows_locks: bool) -> tuple[Segment, ...]:
        if shows_locks not in self._read:
            unlocked: set[int] | None = None
            if shows_locks:
                unlocked = set(self.tree.walk_for_kv_canary(True, False).slot_indices.tolist())
            views = self.nodes.read()
            self._read[shows_locks] = tuple(_segment(view, self._is_locked(view, unlocked)) for view in views)
        return self._read[shows_locks]

    def _is_locked(self, view: NodeView, unlocked: set[int] | None) -> bool | None:
        """Whether the node is locked; None for one that is on host only, of which the core does not show it."""
        if unlocked is None or view.device is None:
            return None
        return view.device[0] * self.core.page_size not in unlocked

    def _complaint(self) -> str | None:
        """What the core's own check complains of, its one known false alarm left out."""
        backups = [(copy.node, copy.node) for copy in self.copies.values() if copy.to == "host"]
        loads = [(copy.node, copy.node) for copy in self.copies.values() if copy.to == "device"]
        try:
            self.tree.sanity_check(backups, loads)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]]
            rest = [line for line in lines if not (loads and line.startswith(_FALSE_ALARMS))]
            return "; ".join(rest) or None
        return None


@lru_cache(maxsize=1 << 14)
def _segment(view: NodeView, locked: bool | None) -> Segment:
    """The node as a record. Most are as they were a step before, and making one costs more than finding it."""
    return Segment(
        parent=view.parent,
        tokens=view.tokens,
        extra=view.extra,
        device=view.device,
        host=view.host,
        locked=locked,
        device_state=view.device_state,
        host_state=view.host_state,
    )
