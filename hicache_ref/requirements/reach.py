"""What the walks of a run can lead to: a requirement that lies beyond it is not missed."""

from collections.abc import Callable
from typing import NamedTuple

from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.operations import STATE_OPERATIONS
from hicache_ref.vocabulary.profile import Profile, Rules


class Reach(NamedTuple):
    """What walks under one profile have to go by."""

    rules: Rules
    operations: frozenset[str]
    """Those that can be asked for."""

    traits: frozenset[str]
    """Names of `TRAITS` that hold."""


CROWDED = 8
"""Device pages up to which a walk, of a hundred steps, meets full pools and storage batches shorter than its keys."""

TRAITS: dict[str, Callable[[Profile, Description], bool]] = {
    "attach_failures": lambda profile, described: bool(described.attach_failures),
    "crowded": lambda profile, described: profile.sizes.device_pages <= CROWDED,
    "disabled": lambda profile, described: not profile.enabled,
    "draft": lambda profile, described: profile.draft,
    "events": lambda profile, described: profile.events,
    "forces": lambda profile, described: described.forces,
    "late_draft": lambda profile, described: not profile.draft,
    "namespaces": lambda profile, described: described.namespaces,
    "peers": lambda profile, described: described.peers,
    "silent": lambda profile, described: not profile.events,
}
"""What a requirement can ask for beside rules and operations, of the profile or the adapter."""

_OF_PREFETCHES = frozenset({"prefetch", "query_done", "read_done"})
"""Operations that need a prefetch which is not refused."""


def reach_of(profile: Profile, described: Description) -> Reach:
    """What a walk under the profile can reach on such an implementation.

    A model without states has no operation of theirs, where the sizes leave no room for a prefetch none begins, and a
    cache that is switched off does nothing.
    """
    operations = described.operations
    if not profile.state:
        operations -= STATE_OPERATIONS
    if profile.prefetch_capacity <= 0:
        operations -= _OF_PREFETCHES
    if not profile.enabled:
        operations = frozenset()
    traits = frozenset(name for name, holds in TRAITS.items() if holds(profile, described))
    return Reach(profile.rules, operations, traits)
