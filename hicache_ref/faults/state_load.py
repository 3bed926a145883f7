"""Faults of loading states: into the wrong slot, from the wrong node, at the cost of what was to be loaded."""

from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, WRITE_BACK, plant_in_hybrid
from hicache_ref.model import Model
from hicache_ref.model.locks import Pins
from hicache_ref.model.state import Node, Part, Request
from hicache_ref.vocabulary.ids import STATE, STATE_DEVICE, STATE_HOST, NodeId, RequestId
from hicache_ref.vocabulary.operations import LoadBack
from hicache_ref.vocabulary.outcomes import Refused, Submitted


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


@plant_in_hybrid(
    "load-refused-under-any", "K11", OWN, expected=("HC-LOAD-04", "HC-EVICT-11"),
    rules={**WRITE_BACK, "load_under_load": "refused"},
)  # fmt: skip
class LoadRefusedUnderAny(Model):
    """No state is loaded while any load runs, also to a node that this load does not touch."""

    def _is_being_loaded(self, node: Node) -> bool:
        """Whether any copy to device is on the books."""
        return any(ticket.to == "device" for ticket in self.state.tickets.values())


@plant_in_hybrid(
    "load-joins-another", "K6", OWN, expected="HC-LOAD-04", rules={**WRITE_BACK, "load_under_load": "refused"},
)  # fmt: skip
class LoadJoinsAnother(Model):
    """A second load takes a node whose KV another one still brings, where its caller keeps one mark for both."""

    def _is_being_loaded(self, node: Node) -> bool:
        """Never."""
        return False


@plant_in_hybrid("load-wants-free-slots", "K11", OWN, expected=("HC-LOAD-04", "HC-EVICT-11"))
class LoadWantsFreeSlots(Model):
    """A load is refused where too few state slots are free, although states could be evicted for it."""

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """Nothing is evicted for slots."""
        if self.free_count(STATE_DEVICE) < 1 + (op.rid is not None):
            return Refused(why="no state slot")
        return super().on_load_back(op)
