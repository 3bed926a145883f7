"""What either core of the unified cache is and has."""

from hicache_ref.adapters.sglang_rust import following
from hicache_ref.vocabulary.adapter import Description

PROFILE = f"sglang-unified-{following.VERSION}"


_INSERT_WAITS = "an insert waits for the pass that changes its state, so no copy meets one"

UNOBSERVABLE = (
    following.UNOBSERVABLE
    | dict.fromkeys(("HC-INSERT-54", "HC-XFER-13", "HC-XFER-50"), _INSERT_WAITS)
    | {"HC-STATE-62": "a running copy pins the states that it reads and fills, so none of them is given up"}
)
"""Requirements that cannot be seen with states, each with its reason."""


def describe(*, has_states: bool, pinned: bool = False, changed: tuple[str, ...] = ()) -> Description:
    """As the compiled core of full attention, or with states: pages of one token, no pairs (MambaComponent)."""
    other: dict[str, object] = {"name": "sglang-unified", "pinned": pinned and not changed, "changed": changed}
    if has_states:
        other |= {"hybrid": "always", "page_sizes": (1,),
                    "bigram": False, "profile": PROFILE, "unobservable": UNOBSERVABLE}  # fmt: skip
    return following.DESCRIPTION.model_copy(update=other)
