"""Controllers with one wait too few or in the wrong place, and what each one gets wrong."""

from collections.abc import Sequence
from typing import Any

from hicache_ref.engine.controller import Controller, DeviceEffect
from hicache_ref.engine.device import Indices, Stream
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyToDevice, CopyToHost, RunForward


class LoadsWithoutStart(Controller):
    """The load stream waits for nothing."""

    def _fence(self, stream: Stream, effects: Sequence[DeviceEffect], but: Sequence[str] = ()) -> None:
        if stream is not self.load:
            super()._fence(stream, effects, but)


class WritesWithoutStart(Controller):
    """The write stream waits for nothing."""

    def _fence(self, stream: Stream, effects: Sequence[DeviceEffect], but: Sequence[str] = ()) -> None:
        if stream is not self.write:
            super()._fence(stream, effects, but)


class LoadsBehindTheCaller(Controller):
    """Loads wait for the stream of the caller, not for the passes on another one (SG-36738)."""

    def _fence(self, stream: Stream, effects: Sequence[DeviceEffect], but: Sequence[str] = ()) -> None:
        everything = [name for effect in effects for name in effect.after]
        super()._fence(stream, effects, everything if stream is self.load else but)


class WritesBehindTheCaller(Controller):
    """Backups wait for the stream of the caller, not for the passes on another one (SG-20611)."""

    def _fence(self, stream: Stream, effects: Sequence[DeviceEffect], but: Sequence[str] = ()) -> None:
        everything = [name for effect in effects for name in effect.after]
        super()._fence(stream, effects, everything if stream is self.write else but)


class PassesWithoutLayers(Controller):
    """Passes do not wait for the layers of a load."""

    def _wait_for_layer(self, stream: Stream, load: Any, layer: int) -> None:
        pass


class LayerBefore(Controller):
    """A pass waits for the layer before the one that it reads."""

    def _wait_for_layer(self, stream: Stream, load: Any, layer: int) -> None:
        if layer:
            super()._wait_for_layer(stream, load, layer - 1)


class SlotBefore(Controller):
    """A pass waits for the slot of the load before."""

    def _wait_for_layer(self, stream: Stream, load: Any, layer: int) -> None:
        super()._wait_for_layer(stream, self._ring[self._ring.index(load) - 1], layer)


class FirstLayerOnly(Controller):
    """A pass waits for the first layer, as if it were the whole load."""

    def _wait_for_layer(self, stream: Stream, load: Any, layer: int) -> None:
        super()._wait_for_layer(stream, load, 0)


class LayerTooEarly(Controller):
    """The event of a layer is recorded before its copy is launched."""

    def _load_layer(self, loads: Sequence[CopyToDevice], slot: Any, layer: int, lists: Sequence[Indices]) -> None:
        slot.layers[layer].record(self.load)
        super()._load_layer(loads, _Silent(slot), layer, lists)


class _Silent:
    """A slot whose layers cannot be recorded."""

    def __init__(self, slot: Any) -> None:
        self.layers = [_Unrecorded() for _ in slot.layers]


class _Unrecorded:
    def record(self, stream: Stream) -> None:
        """Nothing is recorded."""


class PassesBeforeTheLoad(Controller):
    """A pass waits for the slot of its load before that is recorded: the wait says nothing."""

    def _run_pass(self, effect: RunForward) -> None:
        for event in self._ring[(self._producer + 1) % len(self._ring)].layers:
            self.forward.wait(event)
        super()._run_pass(effect)

    def _wait_for_layer(self, stream: Stream, load: Any, layer: int) -> None:
        pass


class EndBeforeTheLastLayer(Controller):
    """A load is over when all layers but one are."""

    def _end_of(self, slot: Any) -> Any:
        return slot.layers[-2]


class LoadsToldEarly(Controller):
    """The end of a load is told as soon as it is launched."""

    def _is_over(self, running: Any) -> bool:
        return isinstance(running.effect, CopyToDevice) or super()._is_over(running)


class WritesToldEarly(Controller):
    """The end of a backup is told as soon as it is launched."""

    def _is_over(self, running: Any) -> bool:
        return isinstance(running.effect, CopyToHost) or super()._is_over(running)


class PassesToldEarly(Controller):
    """The end of a pass is told as soon as it is launched."""

    def _is_over(self, running: Any) -> bool:
        return isinstance(running.effect, RunForward) or super()._is_over(running)


class ListsNotKept(Controller):
    """An index list may be given away while the copy stream reads it: no record_stream."""

    def _drop(self, lists: Sequence[Indices], stream: Stream) -> None:
        for each in lists:
            each.drop()


class ListsKeptForAnother(Controller):
    """An index list is kept for the forward stream, which does not read it."""

    def _drop(self, lists: Sequence[Indices], stream: Stream) -> None:
        super()._drop(lists, self.forward)


class ListsByAnother(Controller):
    """Index lists are written by a stream for which nobody waits."""

    def _index_lists(self, effects: Sequence[CopyToHost | CopyToDevice]) -> list[Indices]:
        self.scheduler, own = self.forward, self.scheduler
        try:
            return super()._index_lists(effects)
        finally:
            self.scheduler = own


class ListsAfterTheStart(Controller):
    """Index lists are written after the event that the copy waits for."""

    def _write_back(self, effect: CopyToHost) -> None:
        self._fence(self.write, [effect])
        lists = self._index_lists([effect])
        self._launch(self.write, [effect], self._copied([effect], None), lists)
        self._drop(lists, self.write)
        self._ends_with(effect, self.write)


class DoesNotFinish(Controller):
    """Who has to wait for the end of a copy goes on at once."""

    def finish(self, names: Sequence[str]) -> None:
        self.start_loading()


class DraftsBehindTheLayer(Controller):
    """Draft pages are loaded after the event of their layer."""

    def _load_layer(self, loads: Sequence[CopyToDevice], slot: Any, layer: int, lists: Sequence[Indices]) -> None:
        pairs = self._pairs
        self._pairs = {**pairs, "kv": pairs["kv"][:1]}
        super()._load_layer(loads, slot, layer, lists)
        self._pairs = {"kv": pairs["kv"][1:], "state": []}
        if pairs["kv"][1:]:
            self._launch(self.load, loads, self._copied(loads, layer), lists, f" draft layer {layer}")
        self._pairs = pairs


class StatesWithoutOrder(Controller):
    """A state is copied for a request on a stream that waits for nothing."""

    def _copy_state(self, effect: CopyOnDevice) -> None:
        self.forward, own = self.scheduler, self.forward
        try:
            super()._copy_state(effect.model_copy(update={"after": ()}))
        finally:
            self.forward = own


PLANTED: tuple[type[Controller], ...] = tuple(
    each for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Controller) and each is not Controller
)  # fmt: skip

OF_STATES: tuple[type[Controller], ...] = (StatesWithoutOrder,)
"""Those that only show in a hybrid model."""
