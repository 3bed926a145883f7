"""What may be expected of a source tree, and which profiles its caches can follow."""

from hicache_ref.adapters.sglang_hiradix.traits import Traits
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.operations import OPERATION_TYPES, STATE_OPERATIONS, STORAGE_OPERATIONS
from hicache_ref.vocabulary.profile import RULES, Profile, Rules
from hicache_ref.vocabulary.storage import ATTACH_FAILURES

NAME = "sglang-hiradix"

KEPT_BY_CALLER: frozenset[str] = frozenset()
"""Requirements that the caller keeps (allocation, forward passes): a pass says nothing about upstream."""

UNOBSERVABLE: dict[str, str] = {}
"""Requirements that cannot be seen in any release, each with its reason."""

NATIVE_HASH_UNSEEN = {"HC-HASH-01": "page hashes come from a compiled extension, which is replaced here"}

CHOSEN_BY_PROFILE = frozenset({"write_policy", "write_through_threshold", "eviction", "slru_protected_threshold"})
"""Rules that upstream can be set to; every other one is as the release has it."""

PAGE_SIZES = (1, 2, 4)


def describe(traits: Traits, version: str, *, storage: bool, events: bool, pinned: bool) -> Description:
    """What the tree's caches are and have."""
    # The write policy has no call of its own: from 0.5.9 an attach may bring it.
    missing = {"copy_failed", "register_draft", "set_write_policy"} | STATE_OPERATIONS
    if not storage:
        missing |= STORAGE_OPERATIONS
    if not traits.attaches:
        missing |= {"detach"}
    if not hasattr(traits.cache, "release_aborted_request"):
        missing |= {"abort"}
    if not hasattr(traits.cache, "terminate_prefetch"):
        missing |= {"terminate"}
    if not hasattr(traits.cache, "clear_storage_backend"):
        missing |= {"clear_storage"}
    return Description(
        name=NAME,
        version=version,
        level="bytes",
        profile=traits.preset,
        operations=frozenset(OPERATION_TYPES) - missing,
        invalid="undefined",
        ours=KEPT_BY_CALLER,
        unobservable=UNOBSERVABLE | (NATIVE_HASH_UNSEEN if traits.hashes_natively else {}),
        evictions=traits.evictions,
        page_sizes=PAGE_SIZES,
        bigram=traits.has_bigrams,
        namespaces=traits.has_bigrams,
        storage_from_start=storage and not traits.attaches,
        storage_order="first",
        matches_first=traits.allocates_before,
        one_backend=True,
        # 0.5.1 asks no other rank under wait_complete, and 0.5.20 at polls.
        peers=not (traits.copies_in_threads or traits.acknowledges_batches),
        attach_failures=ATTACH_FAILURES if storage and traits.attaches else (),
        # Upstream's scheduler attaches only while it is idle.
        attach_policies="idle" if storage and traits.attaches_policies else "never",
        # The detach of 0.5.20 commits what has been read first, which the model gives up.
        forces=storage and traits.attaches and not traits.acknowledges_batches,
        events=events,
        pinned=pinned,
    )


def expect_followable(profile: Profile, traits: Traits) -> None:
    """The profile asks for nothing but what the release does. Raises AdapterError naming the first that it lacks.

    No draft pool is ever made: it would have the pages of the KV pool, and of those alone anything is shown.
    """
    name = f"profile {profile.name}"
    if not profile.enabled:
        raise AdapterError(f"{name}: enabled is False, expected True: a disabled cache is never made")
    if not profile.events:
        raise AdapterError(f"{name}: events is False, expected True: events are switched by the option `events`")
    if profile.bigram and not traits.has_bigrams:
        raise AdapterError(f"{name}: bigram is True, expected False: this release has no bigram keys")
    if profile.rules.eviction not in traits.evictions:
        offered = ", ".join(sorted(traits.evictions))
        raise AdapterError(f"{name}: eviction is {profile.rules.eviction}, expected one of {offered}")
    fixed = RULES.get(traits.preset)
    if fixed is None:
        return
    for rule in Rules.model_fields:
        asked, theirs = getattr(profile.rules, rule), getattr(fixed, rule)
        if rule not in CHOSEN_BY_PROFILE and asked != theirs:
            raise AdapterError(f"{name}: rule {rule} is {asked!r}, expected {theirs!r} as in {traits.preset}")
