"""The copies and passes that a model asks for, on the streams of a device: what has to wait for what, and who is told.

Nothing is decided here. Each copy carries the id of its effect, and waits for what its effect comes after. A load goes
layer by layer, so that a pass may begin behind its first layer; a backup takes all layers at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from hicache_ref.engine.calls import Location
from hicache_ref.engine.device import Device, Event, Indices, Move, Stream, Work
from hicache_ref.engine.plan import Layers
from hicache_ref.engine.pools import PoolPair
from hicache_ref.engine.transfers import Direction
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyToDevice, CopyToHost, RunForward
from hicache_ref.vocabulary.ids import Component

DeviceEffect = RunForward | CopyToHost | CopyToDevice | CopyOnDevice
RING = 3
"""Loads whose layers can be waited for at once (upstream: LayerDoneCounter)."""


class Passes(Protocol):
    """What a forward pass does on the device."""

    def layer(self, effect: RunForward, layer: int) -> tuple[Sequence[Work], Sequence[Location], Sequence[Location]]:
        """The work of one layer, and what it reads and writes."""
        ...


@dataclass(eq=False)
class _Slot:
    """A slot of the ring: an event a layer, which the next load in the slot records anew."""

    layers: list[Event]
    end: Event
    """That of its last load alone: whoever asks late is not told of the next one."""


@dataclass(eq=False)
class _Running:
    """An effect that was launched, and whose end nobody was told."""

    effect: DeviceEffect
    end: Event
    load: _Slot | None = None


@dataclass
class Copied:
    """What one launch copies."""

    moves: list[Move] = field(default_factory=list)
    reads: list[Location] = field(default_factory=list)
    writes: list[Location] = field(default_factory=list)


class Controller:
    """Effects become work of three streams: `forward`, `write` and `load`; the thread itself has `scheduler`.

    `pairs` has, by component, the pools that its pages are in: the target's and, with the same indices, the draft's. It
    is shared with whoever made it: after a draft model was added, `deepen` is called.
    """

    def __init__(self, device: Device, pairs: Mapping[Component, list[PoolPair]], passes: Passes) -> None:
        self._device = device
        self._pairs = pairs
        self._passes = passes
        self.depth = 0
        """Layers of the deepest model: a draft model may have more than its target."""

        self.scheduler, self.forward, self.write, self.load = map(
            device.stream, ("scheduler", "forward", "write", "load")
        )
        self._ring = [_Slot([], device.event()) for _ in range(RING)]
        self._producer = -1
        self._queued: dict[str, CopyToDevice] = {}
        """Loads that wait for the next `start_loading`."""

        self._running: dict[str, _Running] = {}
        self.deepen()

    def deepen(self) -> None:
        """There is an event for each layer of all pools, in each slot of the ring."""
        self.depth = 1 + max(layer for some in self._pairs.values() for pair in some for layer in pair.layers)
        for slot in self._ring:
            slot.layers += [self._device.event() for _ in range(self.depth - len(slot.layers))]

    # -- effects ------------------------------------------------------------------------------------------------------

    def submit(self, effect: DeviceEffect) -> None:
        """The effect is under way, or is one of the loads that are started together. Never waits for the device."""
        if isinstance(effect, CopyToDevice):
            if self._must_be_apart(effect):
                self.start_loading()
            self._queued[effect.id] = effect
            return
        if not self._queued.keys().isdisjoint(effect.after):
            self.start_loading()
        if isinstance(effect, RunForward):
            self._run_pass(effect)
        elif isinstance(effect, CopyToHost):
            self._write_back(effect)
        else:
            self._copy_state(effect)

    def start_loading(self) -> None:
        """The queued loads run as one, layer by layer. A fourth at once waits until the first of the ring is over."""
        if not self._queued:
            return
        loads, self._queued = list(self._queued.values()), {}
        self._producer = (self._producer + 1) % RING
        slot = self._ring[self._producer]
        slot.end.synchronize()
        lists = self._index_lists(loads)
        self._fence(self.load, loads)
        for layer in range(self.depth):
            self._load_layer(loads, slot, layer, lists)
        self._drop(lists, self.load)
        slot.end = self._end_of(slot)
        for effect in loads:
            self._running[effect.id] = _Running(effect, slot.end, slot)

    def _load_layer(self, loads: Sequence[CopyToDevice], slot: _Slot, layer: int, lists: Sequence[Indices]) -> None:
        """The layer of all pools is on its way, drafts too, and its event is recorded behind it."""
        self._launch(self.load, loads, self._copied(loads, layer), lists, f" layer {layer}")
        slot.layers[layer].record(self.load)

    def _end_of(self, slot: _Slot) -> Event:
        """What stands for all of the load in the slot: its last layer, be it the target's or the draft's."""
        end = self._device.event()
        end.record(self.load)
        return end

    def _must_be_apart(self, effect: CopyToDevice) -> bool:
        """Whether it comes after a load that is queued: within one launch nothing is in order."""
        return not self._queued.keys().isdisjoint(effect.after)

    def _write_back(self, effect: CopyToHost) -> None:
        lists = self._index_lists([effect])
        self._fence(self.write, [effect])
        self._launch(self.write, [effect], self._copied([effect], None), lists)
        self._drop(lists, self.write)
        self._ends_with(effect, self.write)

    def _copy_state(self, effect: CopyOnDevice) -> None:
        self._fence(self.forward, [effect])
        copied = Copied()
        for pair in self._pairs[effect.component]:
            copied.moves += pair.device.moves_within(effect.source, effect.target)
            copied.reads += pair.device.locations(effect.source)
            copied.writes += pair.device.locations(effect.target)
        self._launch(self.forward, [effect], copied, [])
        self._ends_with(effect, self.forward)

    def _run_pass(self, effect: RunForward) -> None:
        """Each layer waits for that layer of the loads that the pass comes after."""
        loads = [self._running[name] for name in effect.after if name in self._running]
        layered = [each.load for each in loads if each.load is not None]
        self._fence(self.forward, [effect], but=[each.effect.id for each in loads if each.load is not None])
        for layer in range(self.depth):
            for load in layered:
                self._wait_for_layer(self.forward, load, layer)
            work, reads, writes = self._passes.layer(effect, layer)
            self.forward.launch(f"{effect.id} layer {layer}", work, reads, writes)
        self._ends_with(effect, self.forward)

    def _wait_for_layer(self, stream: Stream, load: _Slot, layer: int) -> None:
        """What the stream is given next comes after this layer of the load."""
        stream.wait(load.layers[layer])

    # -- order --------------------------------------------------------------------------------------------------------

    def _fence(self, stream: Stream, effects: Sequence[DeviceEffect], but: Sequence[str] = ()) -> None:
        """What the stream is given next comes after what the effects come after, and after the index lists."""
        start = self._device.event()
        start.record(self.scheduler)
        stream.wait(start)
        for name in dict.fromkeys(chain.from_iterable(effect.after for effect in effects)):
            if name not in but and name in self._running:
                stream.wait(self._running[name].end)

    def _ends_with(self, effect: DeviceEffect, stream: Stream) -> None:
        end = self._device.event()
        end.record(stream)
        self._running[effect.id] = _Running(effect, end)

    # -- copies -------------------------------------------------------------------------------------------------------

    def _copied(self, effects: Sequence[CopyToHost | CopyToDevice], layer: int | None) -> Copied:
        """What is copied for the effects, in this layer or in all; some io backends copy all with the first."""
        copied = Copied()
        for effect in effects:
            direction = _direction(effect)
            for part in effect.parts:
                for pair in self._pairs[part.component]:
                    layers: Layers = None if layer is None else (layer,)
                    if layer is not None and pair.way(direction).calls == "all_with_first":
                        layers = () if layer else None
                    copied.moves += pair.moves(direction, part.device, part.host, layers)
                    device, host = pair.device.locations(part.device, layers), pair.host.locations(part.host, layers)
                    copied.reads += device if direction == "backup" else host
                    copied.writes += host if direction == "backup" else device
        return copied

    def _launch(self, stream: Stream, effects: Sequence[DeviceEffect], copied: Copied, lists: Sequence[Indices],
                what: str = "") -> None:  # fmt: skip
        name = "+".join(effect.id for effect in effects) + what
        stream.copy(name, copied.moves, [*copied.reads, *(each.location for each in lists)], copied.writes)

    def _index_lists(self, effects: Sequence[CopyToHost | CopyToDevice]) -> list[Indices]:
        """The pages of each side that a copy reads on device; lists that it reads on host cost nothing there."""
        parts = [part for effect in effects for part in effect.parts]
        direction = _direction(effects[0])
        ways = [pair.way(direction) for part in parts for pair in self._pairs[part.component]]
        sides = [[part.device for part in parts]] * any(each.device_indices == "device" for each in ways)
        sides += [[part.host for part in parts]] * any(each.host_indices == "device" for each in ways)
        return [self._device.indices(chain.from_iterable(pages), self.scheduler) for pages in sides]

    def _drop(self, lists: Sequence[Indices], stream: Stream) -> None:
        """The lists live until the stream has read them, and no longer."""
        for each in lists:
            each.record_stream(stream)
            each.drop()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def ended(self) -> Iterator[str]:
        """The ids of effects that are over and were not told, in the order in which they were launched.

        An effect that is not over does not keep later ones of other streams from being told.
        """
        for name, running in list(self._running.items()):
            if self._is_over(running):
                del self._running[name]
                yield name

    def _is_over(self, running: _Running) -> bool:
        """Whether the device has come to its end."""
        return running.end.query()

    def finish(self, names: Sequence[str]) -> None:
        """These effects are over; each is told later."""
        if not self._queued.keys().isdisjoint(names):
            self.start_loading()
        for name in names:
            if name in self._running:
                self._running[name].end.synchronize()

    @property
    def in_flight(self) -> tuple[str, ...]:
        """The ids of what is queued or not over yet, as far as anybody was told."""
        return (*self._running, *self._queued)


def _direction(effect: CopyToHost | CopyToDevice) -> Direction:
    return "backup" if isinstance(effect, CopyToHost) else "load"
