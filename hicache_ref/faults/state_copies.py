"""Faults of recurrent state on its way: backups and loads that leave it out, requests that get the wrong one."""

from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, WRITE_BACK, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.copies import Refs
from hicache_ref.model.evict import EvictRules
from hicache_ref.model.locks import Pins
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import FREE, Direction, Node, Part, Request, Ticket
from hicache_ref.vocabulary.ids import (
    DEVICE,
    HOST,
    KV,
    KV_POOLS,
    ROOT,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    Component,
    NodeId,
    PageHash,
    Pages,
    PoolName,
    RequestId,
)
from hicache_ref.vocabulary.operations import ForwardDone, GiveBack, LoadBack, TakePages
from hicache_ref.vocabulary.outcomes import Done, Invalid, Refused, Submitted, Took

# -- backup ---------------------------------------------------------------------------------------------------------


@plant_in_hybrid("backup-leaves-state", "K4", OWN, expected=("HC-STATE-19", "HC-BACKUP-05"))
class BackupLeavesState(Model):
    """A backup copies the node's KV, and its state stays on device alone."""

    def take_on_host(self, node: Node) -> tuple[Part, ...]:
        """The state gets no slot."""
        if KV not in self.lacking(node):
            return super().take_on_host(node)
        slots = node.at.pop(STATE_DEVICE, None)
        parts = super().take_on_host(node)
        if slots is not None:
            node.at[STATE_DEVICE] = slots
        return parts


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


@plant_in_hybrid("failed-state-costs-kv", "K4", OWN, expected="HC-STATE-11")
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


# -- load -----------------------------------------------------------------------------------------------------------


@plant_in_hybrid(
    "load-evicts-its-state", "K6", "N4", "D25", expected=("HC-EVICT-04", "HC-STATE-18", "HC-CONF-01"), rules=WRITE_BACK,
)  # fmt: skip
class LoadEvictsItsState(Model):
    """Room for a load is made by a write-back that takes the host state which is about to be loaded.

    SGLang's hybrid cache under write_back pins no source of a load, neither KV nor state.
    """

    def pin(self, anchor: NodeId, *, evicted_too: bool) -> Pins:
        """No state that is on host only."""
        pins = super().pin(anchor, evicted_too=evicted_too)
        if STATE_DEVICE not in self.state.nodes[anchor].at and (STATE, anchor) in pins:
            self._change_lock(self.state.nodes[anchor], STATE, -1)
            return pins[:-1]
        return pins


@plant_in_hybrid("load-leaves-request-empty", "K12", "D13", expected="HC-STATE-18")
class LoadLeavesRequestEmpty(Model):
    """A load gives the request a state slot and fills that of the node alone.

    SGLang's hybrid cache: the slot was allocated, never filled, and not marked for clearing.
    """

    def _take_for_load(self, chain: list[Node], node: Node, rid: RequestId | None) -> tuple[Part, ...]:
        """The request's part is left out."""
        parts = super()._take_for_load(chain, node, rid)
        return parts if rid is None else parts[:-1]


@plant_in_hybrid("load-leaves-node-empty", "K12", OWN, expected=("HC-STATE-18", "HC-XFER-08"))
class LoadLeavesNodeEmpty(Model):
    """A load for a request fills the request's slot, and gives the node one that nothing fills."""

    def _take_for_load(self, chain: list[Node], node: Node, rid: RequestId | None) -> tuple[Part, ...]:
        """The node's part is left out."""
        parts = super()._take_for_load(chain, node, rid)
        return parts if rid is None else (*parts[:-2], parts[-1])


@plant_in_hybrid("load-of-shallower-state", "K14", "D22", expected=("HC-STATE-18", "HC-XFER-10", "HC-STATE-17"))
class LoadOfShallowerState(Model):
    """A request for which KV is loaded gets the state of a node further up.

    SGLang's hybrid cache: where the best node was not backed up, the load began at a shallower one, whose state went
    into a request with the longer prefix.
    """

    def _take_for_load(self, chain: list[Node], node: Node, rid: RequestId | None) -> tuple[Part, ...]:
        """The first state on host from the root down."""
        parts = super()._take_for_load(chain, node, rid)
        states = [self.state.nodes[number].at.get(STATE_HOST) for number in reversed(self.path(node.id))]
        source = next(slots for slots in states if slots is not None)
        return parts if rid is None else (*parts[:-1], replace(parts[-1], host=source))


@plant_in_hybrid("refused-load-keeps-slot", "K1", "D13", expected="HC-STATE-12")
class RefusedLoadKeepsSlot(Model):
    """A load that finds no room leaves the request with a state slot, which nothing fills.

    SGLang's hybrid cache: the slot was taken before the load was tried.
    """

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """A slot that is free is the request's, whatever comes."""
        told = super().on_load_back(op)
        if isinstance(told, Refused) and op.rid is not None and self.free_count(STATE_DEVICE):
            slot = self.take(STATE_DEVICE, 1, ("request", op.rid))
            self.state.requests[op.rid] = Request(id=op.rid, pages=(), state=slot)
        return told


@plant_in_hybrid("quota-ignored-for-state", "K10", "R12", expected="HC-LOAD-04")
class QuotaIgnoredForState(Model):
    """A load that restores a state for a request takes more device pages than its quota.

    SGLang's hybrid cache goes on whatever the quota says while a state is to be restored.
    """

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """No quota for a request."""
        return super().on_load_back(op if op.rid is None else op.model_copy(update={"quota": None}))


@plant_in_hybrid("threshold-ignored-for-state", "K10", "OR-10", expected="HC-LOAD-04")
class ThresholdIgnoredForState(Model):
    """A load that restores a state for a request is submitted however little it gains.

    SGLang's hybrid cache: a pending state makes the threshold no condition.
    """

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """No threshold for a request."""
        profile = self.profile
        if op.rid is not None:
            sizes = profile.sizes.model_copy(update={"load_back_threshold": 0})
            self.profile = profile.model_copy(update={"sizes": sizes})
        told = super().on_load_back(op)
        self.profile = profile
        return told


# -- the request's slot ---------------------------------------------------------------------------------------------


@plant_in_hybrid("request-on-nodes-slot", "K2", OWN, expected=("HC-STATE-13", "HC-PAGE-01", "HC-STATE-25"))
class RequestOnNodesSlot(Model):
    """A request computes on the state slot of the node that it goes on from, and changes it for everybody."""

    def _copy_state(self, source: Node, request: Request) -> None:
        """Nothing is copied; the slot is shared."""
        self.release(STATE_DEVICE, request.state)
        self.state.requests[request.id] = replace(request, state=source.at[STATE_DEVICE])


@plant_in_hybrid("request-state-not-copied", "K12", OWN, expected="HC-STATE-13")
class RequestStateNotCopied(Model):
    """A request gets a state slot, and the state where it goes on is not copied into it."""

    def _copy_state(self, source: Node, request: Request) -> None:
        """An empty slot."""


@plant_in_hybrid(
    "copied-state-unpinned", "K6", OWN, expected="HC-LOCK-01",
    lockstep_only="a slot that a copy reads is never free, pinned or not: what is lost is only the node",
)  # fmt: skip
class CopiedStateUnpinned(Model):
    """The node whose state is copied for a request may be evicted while the copy runs."""

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """No pin for a request."""
        return super().submit(to, anchor, parts, pinned=pinned and to != "request")


@plant_in_hybrid("failed-copy-fills-request", "K12", OWN, expected=("HC-XFER-10", "HC-STATE-14"))
class FailedCopyFillsRequest(Model):
    """A request goes on from a state whose copy into its slot has failed."""

    def land(self, ticket: Ticket, good: int) -> None:
        """For a request all is well."""
        super().land(ticket, len(ticket.parts) if ticket.to == "request" and not ticket.doomed else good)


@plant_in_hybrid("pass-before-its-state", "K7", OWN, expected="HC-STATE-14")
class PassBeforeItsState(Model):
    """A forward pass begins while the state is still copied into the request's slot."""

    def _requires_slot(self, request: Request, content: PageHash | None) -> Invalid | None:
        """What is on its way counts as there."""
        if self.is_being_written(STATE_DEVICE, request.state) and request.id not in self.state.passes:
            return None
        return super()._requires_slot(request, content)


@plant_in_hybrid("state-copy-overtakes-load", "K7", "SG-36743", expected=("HC-XFER-03", "HC-XFER-04"))
class StateCopyOvertakesLoad(Model):
    """A state is copied for a request while it is still loaded, and the copy does not wait for the load.

    SGLang: the whole slot is read at once, and it is restored layer by layer.
    """

    def must_follow(self, reads: Refs, writes: Refs) -> tuple[str, ...]:
        """A copy between slots on device follows nothing."""
        if {name for name, _ in reads | writes} == {STATE_DEVICE}:
            return ()
        return super().must_follow(reads, writes)


@plant_in_hybrid("pass-leaves-state-behind", "K14", OWN, expected=("HC-STATE-17", "HC-XFER-10"))
class PassLeavesStateBehind(Model):
    """After a pass the request's slot counts as the state where the pass began."""

    def on_forward_done(self, op: ForwardDone) -> Done:
        """It holds what it held."""
        slots, stamps = self.state.passes[op.rid].state, self.state.pools[STATE_DEVICE].stamp
        held = [stamps[slot] for slot in slots]
        told = super().on_forward_done(op)
        for slot, stamp in zip(slots, held, strict=True):
            stamps[slot] = stamp if self.state.pools[STATE_DEVICE].owner[slot] != FREE else None
        return told


@plant_in_hybrid("slot-outlives-request", "K1", "SG-16067", expected="HC-PAGE-02")
class SlotOutlivesRequest(Model):
    """A request that is not admitted gives its pages back, and its state slot stays taken.

    SGLang: the slot is taken by the match, and when admission failed then nothing returned it.
    """

    def on_give_back(self, op: GiveBack) -> Done:
        """The slot is forgotten."""
        request = self.state.requests[op.rid]
        self.state.requests[op.rid] = replace(request, state=())
        return super().on_give_back(op)


@plant_in_hybrid("refused-request-keeps-slot", "K1", "SG-16067", expected=("HC-STATE-12", "HC-PAGE-02"))
class RefusedRequestKeepsSlot(Model):
    """A request for which there are no pages keeps the state slot that was taken first.

    SGLang: what a match took for a request that is then not admitted is lost.
    """

    def on_take_pages(self, op: TakePages) -> Took | Refused:
        """Half an allocation."""
        told = super().on_take_pages(op)
        free = self.free_count(STATE_DEVICE) and op.rid not in self.state.requests
        if isinstance(told, Refused) and told.why == "device full" and free:
            self.take(STATE_DEVICE, 1, ("request", op.rid))
        return told


@plant_in_hybrid("all-states-locked-crashes", "K15", "SG-36770", expected="HC-CONF-01")
class AllStatesLockedCrashes(Model):
    """A request for which no state slot can be had for a moment ends the process, although it could wait.

    SGLang: all cached states are held by running copies, and an assertion fails.
    """

    def _no_slot(self) -> Refused:
        """Nobody expected that."""
        raise ModelFault("no state slot")


@plant_in_hybrid("request-without-slot", "K12", OWN, expected=("HC-STATE-13", "HC-CONF-01"))
class RequestWithoutSlot(Model):
    """A request is given pages where there is no state slot for it."""

    def device_room(self, count: int, states: int = 0, *, for_copy: bool = False) -> Refused | None:
        """Pages are enough."""
        return EvictRules.device_room(self, count, for_copy=for_copy)


@plant_in_hybrid("duplicate-state-kept", "K1", OWN, expected=("HC-STATE-15", "HC-PAGE-02"))
class DuplicateStateKept(Model):
    """An insert that finds a state at its end does not give the request's slot back."""

    def attach_state(self, node: Node, request: Request) -> bool:
        """Told, and not done."""
        if STATE_DEVICE not in node.at:
            return super().attach_state(node, request)
        node.last[STATE] = self.tick()
        return True


@plant_in_hybrid("insert-replaces-state", "K1", OWN, expected=("HC-STATE-15", "HC-STATE-23", "HC-PAGE-02"))
class InsertReplacesState(Model):
    """An insert puts the request's state in the place of the one that was there, whose slot is lost."""

    def attach_state(self, node: Node, request: Request) -> bool:
        """The new one is as good."""
        existed = STATE_DEVICE in node.at
        self.place(node, STATE_DEVICE, request.state)
        node.last[STATE] = self.tick()
        return existed


@plant_in_hybrid("insert-before-pass-ends", "K7", OWN, expected="HC-STATE-25")
class InsertBeforePassEnds(Model):
    """A node takes the request's slot while a pass still changes it."""

    def _requires_slot(self, request: Request, content: PageHash | None) -> Invalid | None:
        """A pass that runs is no reason to wait."""
        return None if request.id in self.state.passes else super()._requires_slot(request, content)


@plant_in_hybrid("insert-drops-late-state", "K4", OWN, expected="HC-STATE-15")
class InsertDropsLateState(Model):
    """A state is attached to new nodes only: a tombstone stays one, however often it is computed again."""

    def attach_state(self, node: Node, request: Request) -> bool:
        """A node with children needs none."""
        if STATE_DEVICE in node.at or not node.children:
            return super().attach_state(node, request)
        self.release(STATE_DEVICE, request.state)
        return False
