"""Which profiles the core and its caller can follow: what upstream has fixed cannot be chosen."""

from typing import get_args

from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STORAGE_OPERATIONS
from hicache_ref.vocabulary.profile import RULES, EvictionPolicy, Profile, Rules

VERSION = "0.5.23"
PROFILE = f"sglang-{VERSION}"

KEPT_BY_CALLER: frozenset[str] = frozenset()
"""Requirements that the caller keeps (allocation, order of copies): a pass says nothing about the core."""

UNOBSERVABLE: dict[str, str] = dict.fromkeys(
    ("HC-DRAFT-01", "HC-DRAFT-02", "HC-DRAFT-03", "HC-DRAFT-07"), "no draft pool is made: it would have the pages of KV"
)
"""Requirements that cannot be seen here, each with its reason."""

_CHOSEN_BY_PROFILE = frozenset({"write_policy", "write_through_threshold", "eviction", "slru_protected_threshold"})

DESCRIPTION = Description(
    name="sglang-rust",
    version=VERSION,
    level="bytes",
    profile=PROFILE,
    operations=frozenset(OPERATION_TYPES) - STORAGE_OPERATIONS - {"copy_failed", "register_draft"},
    invalid="dies",
    ours=KEPT_BY_CALLER,
    unobservable=UNOBSERVABLE,
    evictions=frozenset(get_args(EvictionPolicy)),
    page_sizes=(1, 2, 16),
    events=True,
)


def expect_followable(profile: Profile, description: Description) -> None:
    """The profile asks for nothing but what the core does. Raises AdapterError naming the first rule that it lacks."""
    has_states = description.hybrid == "always"
    if profile.state != has_states:
        raise AdapterError(f"profile {profile.name}: state is {profile.state}, expected {has_states}")
    if not profile.enabled:
        raise AdapterError(f"profile {profile.name}: enabled is False, expected True: a disabled core is never made")
    if not profile.events:
        raise AdapterError(f"profile {profile.name}: events is False, expected True: a silent core is never made")
    for name in Rules.model_fields:
        asked, fixed = getattr(profile.rules, name), getattr(RULES[description.profile], name)
        if name not in _CHOSEN_BY_PROFILE and asked != fixed:
            raise AdapterError(
                f"profile {profile.name}: rule {name} is {asked!r}, expected {fixed!r} as in {description.profile}"
            )
