"""Faults of the slot of a request: what is copied into it, when a pass may begin, and what becomes of it."""

from collections.abc import Iterable
from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.copies import Refs
from hicache_ref.model.evict import EvictRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import FREE, Direction, Node, Part, Request, Ticket
from hicache_ref.vocabulary.ids import STATE, STATE_DEVICE, PageHash
from hicache_ref.vocabulary.operations import ForwardDone, GiveBack, TakePages
from hicache_ref.vocabulary.outcomes import Done, Invalid, Refused, Took


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


@plant_in_hybrid(
    "failed-copy-fills-request", "K12", OWN, expected=("HC-XFER-10", "HC-STATE-14"), rules={"state_copy": "submitted"}
)
class FailedCopyFillsRequest(Model):
    """A request goes on from a state whose copy into its slot has failed."""

    def land(self, ticket: Ticket, good: int) -> None:
        """For a request all is well."""
        well = ticket.to == "request" and not ticket.doomed and not self.waits_for(ticket)
        super().land(ticket, len(ticket.parts) if well else good)


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

    def _no_slot(self, keepers: Iterable[str] = ()) -> Refused:
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


@plant_in_hybrid("request-wants-a-free-slot", "K11", OWN, expected=("HC-EVICT-08", "HC-EVICT-11"))
class RequestWantsAFreeSlot(Model):
    """A request is refused where no state slot is free, although a state could be evicted for it."""

    def on_take_pages(self, op: TakePages) -> Took | Refused:
        """Nothing is evicted for a slot."""
        if op.rid not in self.state.requests and not self.free_count(STATE_DEVICE):
            return Refused(why="no state slot")
        return super().on_take_pages(op)
