"""Faults of states on their way to host: backups that leave them out, failures that cost too much or too little."""

from hicache_ref.faults.catalogue import OWN, WRITE_BACK, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.state import FREE, Direction, Node, Part, Ticket
from hicache_ref.vocabulary.ids import (
    DEVICE,
    HOST,
    KV,
    KV_POOLS,
    ROOT,
    STATE,
    STATE_HOST,
    Component,
    Pages,
    PoolName,
)

# -- backup ---------------------------------------------------------------------------------------------------------


@plant_in_hybrid("backup-leaves-state", "K4", OWN, expected=("HC-STATE-19", "HC-BACKUP-05", "HC-STATE-08"))
class BackupLeavesState(Model):
    """A backup copies the node's KV, and its state stays on device alone."""

    def take_on_host(self, node: Node) -> tuple[Part, ...]:
        """The state gets no slot."""
        parts = super().take_on_host(node)
        if len(parts) > 1:
            slots = node.at[STATE_HOST]
            self.place(node, STATE_HOST, None)
            self.release(STATE_HOST, slots)
        return parts[:1]


@plant_in_hybrid("late-state-not-backed-up", "K4", "D16", expected=("HC-BACKUP-05", "HC-STATE-19", "HC-STATE-08"))
class LateStateNotBackedUp(Model):
    """A state that is attached to a node whose KV is on host already never gets there.

    SGLang's hybrid cache: a node that is backed up lacks nothing, whatever came since.
    """

    def lacking(self, node: Node) -> list[Component]:
        """Nothing, once the KV is there."""
        return super().lacking(node) if node.host is None else []


@plant_in_hybrid("state-part-not-copied", "K12", OWN, expected=("HC-XFER-08", "HC-BACKUP-04", "HC-STATE-19"))
class StatePartNotCopied(Model):
    """A node has a slot for its state on host, and the copy that should fill it has no part for it."""

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """A backup of KV and state is one of KV."""
        kv = tuple(part for part in parts if part.component == KV)
        return super().submit(to, anchor, kv if kv and to == "host" else parts, pinned=pinned)


@plant_in_hybrid("backup-source-cascades", "K2", "D14", expected=("HC-STATE-10", "HC-CONF-01"), rules=WRITE_BACK)
class BackupSourceCascades(Model):
    """Room for a backup is made by evicting what hangs below the victim, and the cascade takes the victim itself.

    SGLang's hybrid cache under write_back: its device pages are freed, copied from, and freed again.
    """

    def take_on_host(self, node: Node) -> tuple[Part, ...]:
        """The node is not pinned while room is made."""
        missing = self.lacking(node)
        held = dict(node.at)
        if not self.host_room(len(node.key) if KV in missing else 0, int(STATE in missing)):
            return ()
        for each in missing:
            self.place(node, HOST[each], self.take(HOST[each], len(held[DEVICE[each]]), ("node", node.id)))
        return tuple(Part(component=each, device=held[DEVICE[each]], host=node.at[HOST[each]]) for each in missing)


@plant_in_hybrid("failed-state-costs-kv", "K4", OWN, expected=("HC-STATE-11", "HC-XFER-12"))
class FailedStateCostsKv(Model):
    """A copy whose state part alone failed loses the KV too, which is in place."""

    def _lose(self, to: Direction, part: Part) -> set[str]:
        """As if the KV had failed."""
        pool = (HOST if to == "host" else DEVICE)[part.component]
        owners = self.owners(pool, part.host if to == "host" else part.device)
        told = super()._lose(to, part)
        for node in owners if part.component == STATE and to != "request" else ():
            told |= self.lose_host(node) if to == "host" else self.lose_device(node)
        return told


@plant_in_hybrid("failed-kv-leaves-state", "K4", OWN, expected=("HC-STATE-01", "HC-XFER-06"))
class FailedKvLeavesState(Model):
    """A node whose backup failed has no KV on host, and keeps its state there."""

    def lose_host(self, node: Node) -> set[str]:
        """The KV alone."""
        slots = node.at.pop(STATE_HOST, None) if node.device is not None else None
        told = super().lose_host(node)
        if slots is not None:
            node.at[STATE_HOST] = slots
        return told


@plant_in_hybrid("failed-state-stays", "K12", OWN, expected=("HC-XFER-06", "HC-XFER-07"))
class FailedStateStays(Model):
    """A node keeps the slot into which its state should have been copied, and nothing is there."""

    def _lose(self, to: Direction, part: Part) -> set[str]:
        """A failed state is nobody's loss."""
        return set() if part.component == STATE else super()._lose(to, part)


@plant_in_hybrid("host-state-evicted-under-copy", "K6", "OR-2", expected=("HC-EVICT-04", "HC-EVICT-01"))
class HostStateEvictedUnderCopy(Model):
    """A state on host may be evicted from the moment when its backup is submitted, and while it is loaded.

    SGLang's hybrid cache puts the slot into the list of those that may go before the copy has ended.
    """

    def may_lose_state(self, node: Node, pool_name: PoolName) -> bool:
        """On host always."""
        on_host = pool_name == STATE_HOST and pool_name in node.at and node.id != ROOT
        return on_host or super().may_lose_state(node, pool_name)


@plant_in_hybrid("state-freed-under-copy", "K6", OWN, expected="HC-XFER-01")
class StateFreedUnderCopy(Model):
    """A state slot that is given up is free at once, also while a copy reads or writes it."""

    def release(self, pool_name: PoolName, pages: Pages) -> None:
        """States wait for nothing."""
        super().release(pool_name, pages)
        pool = self.state.pools[pool_name]
        for slot in pages if pool_name not in KV_POOLS else ():
            if pool.owner[slot] != FREE:
                pool.owner[slot], pool.stamp[slot] = FREE, None
                pool.free.append(slot)
