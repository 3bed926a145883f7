"""The specification as one function: `Model.step(operation, choose) -> Step`.

Read `Model.step` below, then one file per family of operations, lowest first: pages, leaves, locks, tree, match,
copies, evict, backup, load, insert, hybrid, store, prefetch, commit, lifecycle. Each operation is two methods:
`requires_<op>`, pure, which says why it may not happen now, and `on_<op>`, with the headings `# change` and `# tell`.
"""

from typing import NamedTuple

from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.lifecycle import LifecycleRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.state import State, clone, dump, fresh, load
from hicache_ref.vocabulary.effects import Effect
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.ids import PageHash, PoolName
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import (
    Done,
    Evicted,
    Inserted,
    Invalid,
    Matched,
    Outcome,
    Polled,
    Progressed,
    Refused,
)


class Step(NamedTuple):
    """What one step told, asked of the world, published, and did that is worth having been reached."""

    outcome: Outcome
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    facts: tuple[str, ...] = ()
    victims: tuple[tuple[PoolName, PageHash], ...] = ()
    """Evicted nodes in order, each by the hash of its last page."""


class Model(LifecycleRules):
    """The cache. Deterministic: no clock, thread, random source or I/O; what is open is asked of the chooser."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """The operation has happened, or the outcome says why not and the state is as before."""
        invalid = self.requires(op)
        if invalid is not None:
            return Step(invalid)
        if not self.profile.enabled and op.op in _ANSWERS_OF_A_DISABLED_CACHE:
            return Step(_ANSWERS_OF_A_DISABLED_CACHE[op.op])
        self.choose = choose
        self.effects, self.events, self.facts, self.victims, self.given_up = [], [], [], [], []
        self.counted = {}
        outcome: Outcome = getattr(self, f"on_{op.op}")(op)
        events = tuple(self.events) if self.profile.events else ()
        return Step(outcome, tuple(self.effects), events, tuple(self.facts), tuple(self.victims))

    def requires(self, op: Operation) -> Invalid | None:
        """Why the operation may not happen now, or None. Changes nothing."""
        if not self.profile.enabled and op.op in _ANSWERS_OF_A_DISABLED_CACHE:
            return None
        answer: Invalid | None = getattr(self, f"requires_{op.op}")(op)
        return answer


_NOWHERE = Key(tokens=())
_ANSWERS_OF_A_DISABLED_CACHE: dict[str, Outcome] = {
    "match_prefix": Matched(device=(), host_hit=0, last_device_node=_NOWHERE, last_host_node=_NOWHERE, best=_NOWHERE),
    "insert": Inserted(prefix=0, given_back=()),
    "lock": Done(),
    "unlock": Done(),
    "evict": Evicted(freed=0),
    "evict_host": Evicted(freed=0),
    "evict_state": Evicted(freed=0),
    "evict_host_state": Evicted(freed=0),
    "write_backup": Refused(why="disabled"),
    "load_back": Refused(why="disabled"),
    "poll": Polled(),
    "prefetch": Refused(why="disabled"),
    "progress": Progressed(done=True),
    "terminate": Done(),
    "abort": Done(),
    "attach": Refused(why="disabled"),
    "register_draft": Done(),
    "set_write_policy": Done(),
}

__all__ = ["Model", "ModelFault", "State", "Step", "clone", "dump", "fresh", "load"]
