"""Planted faults in how bytes are moved for a core with states: core, books and what is told are as they should be.

They are faults of the adapter, chosen with `--option plant=NAME`; only what pages and slots hold can show them.
"""

from hicache_ref.adapters.sglang_rust import plants
from hicache_ref.adapters.sglang_unified.states import StateCaller
from hicache_ref.vocabulary.observation import IssuedCopy


class WrongPageCopied(plants.WrongPageCopied, StateCaller):
    """Of each backup the last page is read beside where it is."""


class StateToWrongSlot(StateCaller):
    """The state for a request lands in the slot beside its own."""

    def move(self, copy: IssuedCopy) -> None:
        """The bytes are somewhere."""
        if copy.to == "request":
            beside = tuple((slot + 1) % self.states.memory.count for slot in copy.target_states)
            copy = copy.model_copy(update={"target_states": beside})
        super().move(copy)


class StateNotBackedUp(StateCaller):
    """A backup copies pages and no state."""

    def move(self, copy: IssuedCopy) -> None:
        """The pages hold what they should."""
        if copy.to == "host":
            copy = copy.model_copy(update={"source_states": (), "target_states": ()})
        super().move(copy)


class StateLoadedOnce(StateCaller):
    """A load brings its state to one slot, also where the node and a request are to have one each."""

    def move(self, copy: IssuedCopy) -> None:
        """One slot holds what it should."""
        if copy.to == "device":
            first = {"source_states": copy.source_states[:1], "target_states": copy.target_states[:1]}
            copy = copy.model_copy(update=first)
        super().move(copy)


PLANTS: dict[str, type[StateCaller]] = {
    "wrong-page-copied": WrongPageCopied,
    "state-to-wrong-slot": StateToWrongSlot,
    "state-not-backed-up": StateNotBackedUp,
    "state-loaded-once": StateLoadedOnce,
}
