"""What an implementation applies in polls: never more than it was let, in order, in the end all; else as it likes.

Ranks agree on the least that any of them is ready to apply, and the implementation is one of them. So the numbers of a
poll are the most that it may apply; the model applies as many as the implementation tells.
"""

from collections import Counter
from collections.abc import Sequence

from hicache_ref.model import Model
from hicache_ref.oracle.differing import Difference
from hicache_ref.search.finding import Differs, Direction
from hicache_ref.vocabulary.operations import POLLS_IN_VAIN_MAX, Poll
from hicache_ref.vocabulary.outcomes import Polled

NEVER_APPLIED = "HC-CONF-15"

_ORDER = {
    "backups": ("HC-XFER-02", "copies to host"),
    "loads": ("HC-XFER-02", "copies to device"),
    "answers": ("HC-PREF-18", "answers of queries"),
    "reads": ("HC-PREF-18", "batches read"),
    "writes": ("HC-PREF-18", "ends of writes"),
}
"""What has names -> the requirement that says in which order it is applied, and what it is called."""


class Polls:
    """Follows the polls of one implementation."""

    def __init__(self) -> None:
        self._in_vain: Counter[str] = Counter()
        """Polls in a row that let it apply all that waited of a kind, and in which it applied none."""

    def agreed(self, op: Poll, told: Polled, model: Model) -> tuple[Poll, Difference | None]:
        """The poll with the numbers that were agreed on, the implementation's being told; and what is wrong with them.

        The model has not made the step yet.
        """
        waiting = _waiting(model)
        wrong: list[Difference] = []
        numbers: dict[str, int] = {}
        for kind, (requirement, called) in _ORDER.items():
            names, most = getattr(told, kind), getattr(op, kind)
            numbers[kind] = min(len(names), most)
            if tuple(names) != tuple(waiting[kind][:most][: len(names)]):
                expected = _listed(waiting[kind][:most])
                text = f"applied {called}: {_listed(names)}; expected all or the first of {expected}"
                differs = _polled(kind, "not expected" if set(names) - set(waiting[kind][:most]) else "instead")
                wrong.append(Difference(requirement, text, differs))
        numbers["releases"] = min(told.releases, op.releases)
        if told.releases > min(op.releases, len(waiting["releases"])):
            text = f"{told.releases} pages were released, {len(waiting['releases'])} waited, {op.releases} were let go"
            wrong.append(Difference("HC-PREF-16", text, _polled("releases", "not expected")))
        for kind, ends in waiting.items():
            self._count(kind, len(ends), getattr(op, kind), numbers[kind])
            if self._in_vain[kind] >= POLLS_IN_VAIN_MAX:
                text = f"{self._in_vain[kind]} polls in a row could have applied {kind}, and applied none"
                wrong.append(Difference(NEVER_APPLIED, text, _polled(kind, "missing")))
        return op.model_copy(update=numbers), next(iter(wrong), None)

    def _count(self, kind: str, waiting: int, let: int, applied: int) -> None:
        """One more poll was in vain, or those before count no more."""
        in_vain = waiting and let >= waiting and not applied
        self._in_vain[kind] = self._in_vain[kind] + 1 if in_vain else 0


def _waiting(model: Model) -> dict[str, Sequence[object]]:
    """What the next poll may apply, by kind and in order."""
    count, storage = len(model.state.tickets), model.storage
    return {
        "backups": [ticket.id for ticket in model.leading("host", count)],
        "loads": [ticket.id for ticket in model.leading("device", count)],
        "answers": storage.answers,
        "reads": [name for name, _ in storage.reads],
        "writes": storage.writes,
        "releases": storage.release,
    }


def _polled(kind: str, direction: Direction) -> Differs:
    return Differs(kind="field", what=f"polled.{kind}", direction=direction)


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(str, names)) or "none"
