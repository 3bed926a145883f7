"""What may be expected of a source tree with a hybrid cache, and which profiles its caches can follow."""

from hicache_ref.adapters.sglang_himamba.traits import HybridTraits
from hicache_ref.adapters.sglang_hiradix import following
from hicache_ref.adapters.sglang_hiradix.traits import Traits
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.operations import STATE_OPERATIONS
from hicache_ref.vocabulary.profile import Profile

NAME = "sglang-himamba"


def describe(traits: HybridTraits, version: str, *, storage: bool, events: bool, pinned: bool) -> Description:
    """What the tree's caches are and have: pages of one token, LRU, always with states."""
    said = following.describe(traits, version, storage=storage, events=events, pinned=pinned)
    return said.model_copy(
        update={
            "name": NAME, "operations": said.operations | STATE_OPERATIONS, "hybrid": "always", "page_sizes": (1,),
            "evictions": frozenset({"lru"}), "namespaces": True,
        }
    )  # fmt: skip


def expect_followable(profile: Profile, traits: Traits) -> None:
    """The profile is a hybrid one, and else as of any cache. Raises AdapterError naming the first that does not fit."""
    if not profile.state:
        raise AdapterError(f"profile {profile.name}: state is False, expected True: every cache here has states")
    if profile.sizes.page_size != 1:
        size = profile.sizes.page_size
        raise AdapterError(f"profile {profile.name}: page_size is {size}, expected 1: the class insists on it")
    following.expect_followable(profile, traits)
