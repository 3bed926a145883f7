"""The adapter Protocol: the four verbs by which an implementation is driven and seen."""

from collections.abc import Mapping
from typing import Literal, Protocol

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STATE_OPERATIONS, Operation
from hicache_ref.vocabulary.outcomes import Outcome
from hicache_ref.vocabulary.profile import EvictionPolicy, Profile
from hicache_ref.vocabulary.storage import AttachFailure

Hybrid = Literal["never", "drawn", "always"]

AttachPolicies = Literal["never", "idle", "any"]
"""When an attach may bring a write policy: while nothing is on the books, or at any time."""


class Description(Frozen):
    """What an adapter is and what may be expected of it."""

    name: str
    version: str
    level: Level
    """The most that `observe` can show."""

    profile: str = "reference"
    """The rules preset under which it is to be checked unless the user names another."""

    completion: Literal["controlled", "quiescent"] = "controlled"
    """Whether the tester decides when a copy ends, or only quiescent states are comparable."""

    operations: frozenset[str] = frozenset(OPERATION_TYPES)
    """Operations that it has; the others are never asked of it."""

    invalid: Literal["refuses", "dies", "undefined"] = "undefined"
    """What a call that breaks a precondition does."""

    ours: frozenset[str] = frozenset()
    """Requirements kept by the adapter, not by the engine: they do not count as checked."""

    unobservable: Mapping[str, str] = {}
    """Requirements that cannot be exercised here, each with its reason."""

    evictions: frozenset[EvictionPolicy] | None = None
    """Eviction policies that it offers; None: all."""

    hybrid: Hybrid = "never"
    """Whether its nodes own recurrent states beside KV: the profile says so never, now and then, or always."""

    page_sizes: tuple[int, ...] = (1, 2)
    bigram: bool = True
    """Whether keys of token pairs can be used; likewise namespaces and a draft pool."""

    namespaces: bool = True
    draft: bool = False
    storage_from_start: bool = False
    """Whether storage is attached before anything else happens, or never."""

    storage_order: Literal["any", "first"] = "any"
    """Which of the storage operations of one kind may end next: any, or the one submitted first."""

    matches_first: bool = False
    """Whether its caller matches before it prefetches, so that a prefetch never ends inside a node."""

    one_backend: bool = False
    """Whether only one kind of backend can be attached."""

    peers: bool = False
    """Whether its ranks agree, when a request asks to go on, on how many of the pages read they all have."""

    attach_failures: tuple[AttachFailure, ...] = ()
    """In which ways an attach can be made to fail."""

    attach_policies: AttachPolicies = "never"
    """When an attach can bring a write policy."""

    forces: bool = False
    """Whether a detach or a reset can end storage work that runs."""

    disabled: bool = False
    """Whether it can be made as a cache that is switched off."""

    events: bool = False
    silent: bool = False
    """Whether it can be made to publish nothing."""

    pinned: bool = False
    """Whether it runs a release that is pinned by hash, changed in nothing: what was wrong in it cannot be repaired."""

    changed: tuple[str, ...] = ()
    """What the user put into it, each file by its SHA-256."""

    @field_validator("operations")
    @classmethod
    def _are_operations(cls, operations: frozenset[str]) -> frozenset[str]:
        """They are ones that there are: of others nobody would ask, and a misspelt one would go untried."""
        if unknown := sorted(operations - OPERATION_TYPES.keys()):
            text = f"no {', '.join(unknown)} but some of {', '.join(OPERATION_TYPES)}"
            raise PydanticCustomError("unknown_operation", "{text}", {"text": text})
        return operations

    @property
    def release(self) -> str:
        """The version, and what was put into it."""
        return " with ".join([self.version, *[", ".join(self.changed)] * bool(self.changed)])

    @property
    def alphabet(self) -> frozenset[str]:
        """The operations that can be asked of it: without states those of states are not."""
        return self.operations - STATE_OPERATIONS if self.hybrid == "never" else self.operations


class AdapterError(Exception):
    """The adapter cannot be made, described or reset: bad option, missing wheel, failed import."""


class Adapter(Protocol):
    """An implementation under test. No base class is needed."""

    def describe(self) -> Description:
        """Says what this is; does not change it."""

    def reset(self, profile: Profile) -> None:
        """The implementation is new and follows `profile`."""

    def apply(self, operation: Operation) -> Outcome:
        """The operation has happened; the outcome is what its caller is told."""

    def observe(self, level: Level) -> Observation:
        """What can be seen now, at `level` or below; nothing changes."""
