"""What can be seen of the core and its caller after a step; nothing changes but that news is told only once."""

from hicache_ref.adapters.sglang_rust.caller import Caller
from hicache_ref.adapters.sglang_rust.events import one_a_page
from hicache_ref.adapters.sglang_rust.nodes import NodeView
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.observation import LEVELS, Counts, IssuedCopy, Level, Observation, Segment

_FALSE_ALARM = "Full host coexistence missing"
"""What the core's check says of a host-only node that was split and is being loaded again: lawful, and passes."""


class ObservedCaller(Caller):
    """A caller that shows the core: nodes, pages, locks and sizes are read from it, not from the books."""

    def observe(self, level: Level) -> Observation:
        """Sizes at `counts`; pages of nodes too at `pages`; locks too at `tree` and above."""
        depth = LEVELS.index(level)
        return Observation(
            level=min(level, "tree", key=LEVELS.index),
            counts=self._counts(),
            free_device=tuple(self.device.free) if depth else (),
            free_host=tuple(self.host.free) if depth else (),
            segments=self._segments(shows_locks=depth > 1) if depth else (),
            requests=self.requests if depth else {},
            copies=self._issued(),
            held_device=tuple(sorted(self.device.held)) if depth else (),
            events=tuple(map(self.reported, one_a_page(self.tree.take_events()))),
            self_check=self._complaint() if depth else None,
        )

    def reported(self, event: Event) -> Event:
        """The event as others are told of it."""
        return event

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
        unlocked: set[int] | None = None
        if shows_locks:
            unlocked = set(self.tree.walk_for_kv_canary(True, False).slot_indices.tolist())
        return tuple(self._segment(view, unlocked) for view in self.nodes.read())

    def _segment(self, view: NodeView, unlocked: set[int] | None) -> Segment:
        """The node, and whether it is locked: of a node that is on host only the core does not show that."""
        locked = None
        if unlocked is not None and view.device is not None:
            locked = view.device[0] * self.core.page_size not in unlocked
        return Segment(
            parent=view.parent,
            tokens=view.tokens,
            extra=view.extra,
            device=view.device,
            host=view.host,
            locked=locked,
        )

    def _complaint(self) -> str | None:
        """What the core's own check complains of, its one known false alarm left out."""
        backups = [(copy.node, copy.node) for copy in self.copies.values() if copy.to == "host"]
        loads = [(copy.node, copy.node) for copy in self.copies.values() if copy.to == "device"]
        try:
            self.tree.sanity_check(backups, loads)
        except AssertionError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]]
            rest = [line for line in lines if not (loads and line.startswith(_FALSE_ALARM))]
            return "; ".join(rest) or None
        return None
