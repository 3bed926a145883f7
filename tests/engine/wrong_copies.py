"""Controllers that order everything right and copy something wrong."""

from collections.abc import Sequence
from dataclasses import replace

from hicache_ref.engine.controller import Controller, Copied
from hicache_ref.engine.device import Move
from hicache_ref.engine.plan import CopyPlan, Plane
from hicache_ref.vocabulary.effects import CopyOnDevice, CopyPart, CopyToDevice, CopyToHost

Copies = Sequence[CopyToHost | CopyToDevice]
Part = CopyPart


class WrongPlans(Controller):
    """Every plan is changed before it is carried out."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        copied.moves = [Move(self.spoilt(plan), source, target) for plan, source, target in copied.moves]
        return copied

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        """The plan, with what is wrong in it."""
        raise NotImplementedError


class LastPlaneForgotten(WrongPlans):
    """The last plane is not copied: V of a layer, or what lies apart of the last layer."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        return replace(plan, planes=plan.planes[:-1])


class KeysForValues(WrongPlans):
    """K goes where V belongs, and V where K does."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        targets = [plane.target for plane in plan.planes]
        half = len(targets) // 2
        turned = targets[half:] + targets[:half]
        return replace(
            plan, planes=tuple(Plane(plane.source, end) for plane, end in zip(plan.planes, turned, strict=True))
        )


class NeighbourPage(WrongPlans):
    """The first page comes from the page beside it."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        (source, target), *rest = plan.pages
        return replace(plan, pages=((source - 1 if source else 1, target), *rest))


class ShortRuns(WrongPlans):
    """The last byte of each run stays behind."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        return replace(plan, run_bytes=plan.run_bytes - 1)


class LastPageForgotten(WrongPlans):
    """The last page of a copy of several is not copied."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        return replace(plan, pages=plan.pages[:-1] or plan.pages)


class PairsTurned(WrongPlans):
    """Pages are sorted on one side only, and so lose their partners."""

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        sources = sorted(source for source, _ in plan.pages)
        return replace(plan, pages=tuple(zip(sources, (target for _, target in plan.pages), strict=True)))


class StalePlan(WrongPlans):
    """A plan for as many pages as the one before is taken to be that one."""

    last: CopyPlan | None = None

    def spoilt(self, plan: CopyPlan) -> CopyPlan:
        last, self.last = self.last, plan
        same = last is not None and (len(last.pages), last.page_strides) == (len(plan.pages), plan.page_strides)
        return replace(plan, pages=last.pages) if last is not None and same else plan


class WrongEffects(Controller):
    """Effects are changed before they are carried out."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        return super()._copied([each.model_copy(update={"parts": self.spoilt(each.parts)}) for each in effects], layer)

    def spoilt(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """The parts, with what is wrong in them."""
        raise NotImplementedError


class FirstPartOnly(WrongEffects):
    """Of a chain only the first node is copied."""

    def spoilt(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return parts[:1]


class StatesForgotten(WrongEffects):
    """States are not copied."""

    def spoilt(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part for part in parts if part.component == "kv")


class PagesTurned(WrongEffects):
    """The pages of a node go to each other's places."""

    def spoilt(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part.model_copy(update={"host": part.host[::-1]}) for part in parts)


class LayerSkipped(Controller):
    """The second layer of a load is not copied, though its event is recorded."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        return replace(copied, moves=[] if layer == 1 else copied.moves)


class LayerBeforeIt(Controller):
    """Each layer of a load is copied in place of the next one."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        return replace(copied, moves=super()._copied(effects, layer - 1).moves) if layer else copied


class FirstLayerOfBackups(Controller):
    """A backup takes the first layer only."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        return replace(copied, moves=super()._copied(effects, 0).moves) if layer is None else copied


class DraftsNotLoaded(Controller):
    """Draft pages are not loaded."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        pairs, self._pairs = self._pairs, {**self._pairs, "kv": self._pairs["kv"][: None if layer is None else 1]}
        try:
            return super()._copied(effects, layer)
        finally:
            self._pairs = pairs


class DraftsNotBackedUp(Controller):
    """Draft pages are not backed up."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        pairs, self._pairs = self._pairs, {**self._pairs, "kv": self._pairs["kv"][: 1 if layer is None else None]}
        try:
            return super()._copied(effects, layer)
        finally:
            self._pairs = pairs


class DeeperDraftForgotten(Controller):
    """Layers that only the draft model has are not loaded (R3)."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        return replace(copied, moves=[] if layer == self.depth - 1 else copied.moves)


class WrongDirection(Controller):
    """A load copies to host what is on device."""

    def _copied(self, effects: Copies, layer: int | None) -> Copied:
        copied = super()._copied(effects, layer)
        return copied if layer is None else replace(copied, moves=list(map(_turned, copied.moves)))


def _turned(move: Move) -> Move:
    plan, source, target = move
    planes = tuple(Plane(plane.target, plane.source) for plane in plan.planes)
    pages = tuple((target, source) for source, target in plan.pages)
    strides = plan.page_strides._replace(source=plan.page_strides.target, target=plan.page_strides.source)
    runs = plan.run_strides._replace(source=plan.run_strides.target, target=plan.run_strides.source)
    return Move(replace(plan, planes=planes, pages=pages, page_strides=strides, run_strides=runs), target, source)


class StateOfNobody(Controller):
    """A request's state is copied from its own slot to the node's."""

    def _copy_state(self, effect: CopyOnDevice) -> None:
        super()._copy_state(effect.model_copy(update={"source": effect.target, "target": effect.source}))


PLANTED: tuple[type[Controller], ...] = tuple(
    each for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Controller)
    and each not in (Controller, WrongPlans, WrongEffects)
)  # fmt: skip
OF_STATES: tuple[type[Controller], ...] = (StatesForgotten, StateOfNobody)
OF_DRAFTS: tuple[type[Controller], ...] = (DraftsNotLoaded, DraftsNotBackedUp, DeeperDraftForgotten)
"""Those that only show with states, or with a draft model."""
