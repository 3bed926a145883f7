"""What either core of the unified cache is and has."""

from hicache_ref.adapters.sglang_rust import following
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.operations import STATE_OPERATIONS


PROFILE = f"sglang-unified-{following.VERSION}"


_INSERT_WAITS = "an insert waits for the pass that changes its state, so no copy meets one"

UNOBSERVABLE = {name: _INSERT_WAITS for name in ("HC-INSERT-54", "HC-XFER-13", "HC-XFER-50")}
"""Requirements that cannot be seen with states, each with its reason."""


def describe(*, has_states: bool) -> Description:
    """As the compiled core of full attention, or with states: pages of one token, no pairs (MambaComponent)."""
    changed: dict[str, object] = {"name": "sglang-unified", "operations": _of_kv()}
    if has_states:
        changed |= {"operations": following.DESCRIPTION.operations, "hybrid": "always", "page_sizes": (1,),
                    "bigram": False, "profile": PROFILE, "unobservable": UNOBSERVABLE}  # fmt: skip
    return following.DESCRIPTION.model_copy(update=changed)


def _of_kv() -> frozenset[str]:
    return following.DESCRIPTION.operations - STATE_OPERATIONS
