"""What a planted fault is, and the catalogue of all of them, filled by the files beside this one.

A fault is a subclass of the model that overrides one method, so that healthy and faulty caches live in one process.
The catalogue tests the tester: a fault that no requirement notices is a hole in the requirements.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import getdoc
from types import MappingProxyType
from typing import Literal, TypeVar

from hicache_ref.model import Model
from hicache_ref.search.finding import Finding

Kind = Literal["K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "K10", "K11", "K12", "K13", "K14", "K15"]

KINDS: dict[Kind, str] = {
    "K1": "a page owned by nobody",
    "K2": "a page owned twice",
    "K3": "locks out of balance",
    "K4": "a gap in the backed-up prefix, or data dropped that had to stay",
    "K5": "a stale set or list, a broken tree",
    "K6": "two parties on one page while a copy runs",
    "K7": "a reader that does not wait for the writer",
    "K8": "ranks that disagree",
    "K9": "a wrong hash, key or namespace",
    "K10": "sums that drift",
    "K11": "no progress",
    "K12": "a failure taken for success",
    "K13": "a wrong, missing or misleading event",
    "K14": "a wrong payload or index",
    "K15": "a crash on lawful input",
}

RuleValue = str | int | bool | None

STAGED: Mapping[str, RuleValue] = {"write_policy": "write_back", "write_back_copy": "staged"}
"""Rules under which an evicted node waits on host for its copy."""

BLOCKING: Mapping[str, RuleValue] = {"write_policy": "write_back", "write_back_copy": "blocking"}
"""Rules under which an eviction waits for its copies."""

WRITE_BACK: Mapping[str, RuleValue] = {"write_policy": "write_back"}

PAGES_FIRST: Mapping[str, RuleValue] = {"prefetch_allocation": "before"}
"""Rules under which a prefetch takes its pages before storage has answered, and queues those it does not need."""

OWN = "own"
"""Origin of a fault that no public report describes."""


@dataclass(frozen=True)
class Fault:
    """One planted fault."""

    id: str
    kind: Kind
    origins: tuple[str, ...]
    """Public reports (`SG-27631`), defects of released engines (`D2`, `R16`, `OR-11`), or `own`."""

    title: str
    """What the faulty cache does, in one sentence."""

    expected: tuple[str, ...]
    """Requirements that tell the story: one of them must be broken when the fault is found."""

    model: type[Model]
    rules: Mapping[str, RuleValue]
    """Rules without which the fault cannot show; profiles are drawn around them."""

    lockstep_only: str | None
    """Why no requirement can notice it and only a comparison can; None: a requirement must."""

    storage: bool
    """It is one of the storage tier: no walk that hunts it leaves storage out."""

    state: bool
    """It is one of recurrent state: it is hunted in hybrid models only."""

    @property
    def origin(self) -> str:
        """All origins in one text."""
        return ", ".join(self.origins)

    def named_by(self, finding: Finding) -> str:
        """The expected requirement that the finding names, first or among those that fall with it; else the first."""
        broken = (finding.requirement, *finding.falls)
        return next((requirement for requirement in self.expected if requirement in broken), finding.requirement)


FAULTS: dict[str, Fault] = {}

_M = TypeVar("_M", bound=Model)


def plant(
    fault: str,
    kind: Kind,
    *origins: str,
    expected: str | tuple[str, ...],
    rules: Mapping[str, RuleValue] | None = None,
    lockstep_only: str | None = None,
    storage: bool = False,
    state: bool = False,
) -> Callable[[type[_M]], type[_M]]:
    """The decorated model is in the catalogue as `fault`; the first line of its docstring is the title.

    Raises ValueError where the id is taken.
    """

    def enter(model: type[_M]) -> type[_M]:
        if fault in FAULTS:
            raise ValueError(f"fault {fault} is planted twice")
        FAULTS[fault] = Fault(
            id=fault, kind=kind, origins=origins, title=(getdoc(model) or "").partition("\n")[0],
            expected=(expected,) if isinstance(expected, str) else expected, model=model,
            rules=MappingProxyType(dict(rules or {})), lockstep_only=lockstep_only, storage=storage, state=state,
        )  # fmt: skip
        return model

    return enter


plant_in_storage = partial(plant, storage=True)
"""As `plant`, for a fault of the storage tier."""

plant_in_hybrid = partial(plant, state=True)
"""As `plant`, for a fault of recurrent state."""


def model(fault: str) -> type[Model]:
    """The faulty subclass with this id. Raises KeyError for an unknown one."""
    return FAULTS[fault].model
