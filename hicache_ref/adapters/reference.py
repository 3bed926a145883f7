"""The model as an implementation: a self-check of the oracle, a carrier for planted faults, and a fake for tests."""

from typing import Any

from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import PolicyChooser
from hicache_ref.model.records import PrefetchQueued, PrefetchReading
from hicache_ref.model.state import Node, State
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyToDevice, CopyToHost, Effect, StorageCancel
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    ROOT,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    Component,
    Pages,
    PoolName,
    TicketId,
)
from hicache_ref.vocabulary.keys import tokens_of
from hicache_ref.vocabulary.observation import Counts, IssuedCopy, Level, Observation, Segment
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import Profile
from hicache_ref.vocabulary.storage import ATTACH_FAILURES


class _Witness(PolicyChooser):
    """Lets copies that end inside a step succeed, and remembers which did."""

    def __init__(self) -> None:
        self.ended_well: set[TicketId] = set()

    def copy_result(self, ticket: TicketId) -> bool:
        """It succeeded."""
        self.ended_well.add(ticket)
        return True


class ReferenceAdapter:
    """A model, or a faulty subclass of it, behind the four verbs."""

    def __init__(self, kind: type[Model] = Model, name: str = "reference") -> None:
        self.kind = kind
        self.name = name
        self.model = kind(Profile())
        self.told_to_stop: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self.events: list[Event] = []
        self.copies: list[IssuedCopy] = []

    def describe(self) -> Description:
        """Everything can be seen, every operation is there, and invalid calls are refused."""
        return Description(
            name=self.name,
            version="model",
            level="tree",
            invalid="refuses",
            events=True,
            page_sizes=(1, 2, 4),
            draft=True,
            hybrid="drawn",
            peers=True,
            attach_failures=ATTACH_FAILURES,
            attach_policies="any",
            forces=True,
            disabled=True,
            silent=True,
        )

    def reset(self, profile: Profile) -> None:
        """The model is new."""
        self.model = self.kind(profile)
        self.told_to_stop.clear()
        self._forget()

    def apply(self, operation: Operation) -> Outcome:
        """As the model tells it."""
        chooser = _Witness()
        step: Step = self.model.step(operation, chooser)
        self.events.extend(step.events)
        for effect in step.effects:
            self._note_copy(effect, chooser)
        self._note_cancels(step.effects)
        self.perform(operation, step)
        return step.outcome

    def perform(self, operation: Operation, step: Step) -> None:
        """What the step asks of the world is under way: here there is no world, and only the tester tells of one."""

    def _note_cancels(self, effects: tuple[Effect, ...]) -> None:
        """Queries and reads that were told to stop are known until they have ended."""
        self.told_to_stop.update(effect.id for effect in effects if isinstance(effect, StorageCancel))
        records = self.model.state.storage.records
        self.told_to_stop &= {
            name for name, record in records.items() if isinstance(record, PrefetchQueued | PrefetchReading)
        }

    def _note_copy(self, effect: Effect, chooser: _Witness) -> None:
        running = effect.id in self.model.state.tickets
        if isinstance(effect, CopyOnDevice):
            ticket = effect.id if running else None
            slots = {"source_states": effect.source, "target_states": effect.target}
            self.copies.append(IssuedCopy(ticket=ticket, to="request", source=(), target=(), **slots))
        if not isinstance(effect, CopyToHost | CopyToDevice) or not (running or effect.id in chooser.ended_well):
            return
        to_host = isinstance(effect, CopyToHost)
        pages = {component: _sides(effect, component, to_host) for component in (KV, STATE)}
        self.copies.append(
            IssuedCopy(
                ticket=None if effect.id in chooser.ended_well else effect.id, to="host" if to_host else "device",
                source=pages[KV][0], target=pages[KV][1], source_states=pages[STATE][0], target_states=pages[STATE][1],
            )
        )  # fmt: skip

    def observe(self, level: Level) -> Observation:
        """What the state shows, and the copies and events since the last look."""
        state = self.model.state
        counts = Counts(
            free_device=len(state.pools[KV_DEVICE].free), free_host=len(state.pools[KV_HOST].free),
            evictable=state.evictable, protected=state.protected,
        )  # fmt: skip
        if level == "counts":
            return Observation(level=level, counts=counts)
        observation = Observation(
            level=level, counts=counts,
            free_device=tuple(state.pools[KV_DEVICE].free), free_host=tuple(state.pools[KV_HOST].free),
            segments=self._segments(state), copies=tuple(self.copies), events=tuple(self.events),
            requests={request.id: request.pages for request in state.requests.values()},
            held_device=_held(state, KV_DEVICE), held_host=_held(state, KV_HOST),
            queued_host=tuple(state.storage.release),
            told_to_stop=tuple(sorted(self.told_to_stop)), write_policy=state.policy,
            prefetch_host={name: state.storage.records[name].pages for name in state.storage.open.values()},
            **_states(state),
        )  # fmt: skip
        self._forget()
        return observation

    def _segments(self, state: State) -> tuple[Segment, ...]:
        """Every node, parents first."""
        index = {ROOT: -1}
        segments = []
        for node in self.model.subtree(state.nodes[ROOT])[1:]:
            segments.append(self._segment(node, index[node.parent]))
            index[node.id] = len(index) - 1
        return tuple(segments)

    def _segment(self, node: Node, parent: int) -> Segment:
        return Segment(
            parent=parent, tokens=tokens_of(node.key, self.model.profile.bigram), extra=node.extra,
            device=node.at.get(KV_DEVICE), host=node.at.get(KV_HOST), locked=node.locks[KV] > 0,
            device_state=node.at.get(STATE_DEVICE), host_state=node.at.get(STATE_HOST),
            state_locked=node.locks[STATE] > 0 if STATE in node.locks else None,
        )  # fmt: skip


def _sides(effect: CopyToHost | CopyToDevice, component: Component, to_host: bool) -> tuple[Pages, Pages]:
    """The copy's pages of one component: those read, and those written."""
    parts = [part for part in effect.parts if part.component == component]
    device, host = (tuple(page for part in parts for page in getattr(part, side)) for side in ("device", "host"))
    return (device, host) if to_host else (host, device)


def _states(state: State) -> dict[str, Any]:
    """The state slots by holder, of a hybrid model."""
    if STATE_DEVICE not in state.pools:
        return {}
    return {
        "free_device_state": tuple(state.pools[STATE_DEVICE].free),
        "free_host_state": tuple(state.pools[STATE_HOST].free),
        "request_states": {request.id: request.state for request in state.requests.values()},
        "prefetch_states": {name: state.storage.records[name].states for name in state.storage.open.values()},
        "held_device_state": _held(state, STATE_DEVICE),
        "held_host_state": _held(state, STATE_HOST),
    }


def _held(state: State, pool_name: PoolName) -> Pages:
    owner = state.pools[pool_name].owner
    return tuple(page for page, held in enumerate(owner) if held[0] == "op")
