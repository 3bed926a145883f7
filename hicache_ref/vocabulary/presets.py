"""Presets: what is known of the rules of releases of SGLang."""

from collections.abc import Mapping

_SGLANG = {
    "write_back_copy": "blocking",
    "write_back_states": "lost",
    "evict_host_for_hopeless": True,
    "event_namespace": False,
    "eviction_counts": "hits",
    "split_copies_hit_count": True,
    "split_stamps": "both",
    "storage_retries": 1,
    "backed_up_counts": "batches",
    "attach_offers": False,
}
"""What all releases of SGLang have in common."""

_HIRADIX = _SGLANG | {
    "chunked_counts_hit": False,
    "hit_counts_again_for_same_request": True,
    "eviction_asks": "need",
    "evict_device_for_hopeless": True,
    "write_back_protects": True,
    "fetched_priority": "inherited",
    "commit_stamps_anchor": True,
    "split_is_born": True,
    "split_raises_priority": "both",
    "attach_again": "policy",
    "commit_adopts": False,
    "give_back": "queued",
    "hash_namespace": False,
}
_BEFORE_QUERY = {"prefetch_allocation": "before", "cancelled_query": "goes_on"}
_IN_PROGRESS = {"prefetch_progress": "live", "prefetch_commit": "progress", "read_tail": "io_end"}
_EARLY = _BEFORE_QUERY | _IN_PROGRESS | {"backup_scope": "node", "contiguity": False, "prefetch_truncates": False}
_FIRST = _EARLY | {"prefetch_capacity": "host_minus_device", "write_back_offers": False}
_PREFIXES = {"backup_scope": "node_if_parent"}

_HIMAMBA = (
    _HIRADIX
    | _IN_PROGRESS
    | {
        "state_copy": "blocking",
        "match_stamps_states": "path",
        "load_matches": True,
        "load_keeps_state_above": True,
        "split_copies_hit_count": False,
        "write_back_protects": False,
        "reset_waits": 30_000,
    }
)
_UNIFIED = {
    "lock_evicted": "count",
    "revive_counts_hit": True,
    "prefetch_clock": "first_poll",
    "insert_length_counts_revived": True,
    "last_host_node": "best",
}
_UNIFIED_STATES = {
    "dead_ends": "stay",
    "late_states": "insert",
    "host_states": "arrived",
    "write_back_states": "copied",
    "lock_state": "to_come",
    "branching": "cached",
    "load_matches": True,
    "load_under_load": "refused",
}
_SPLIT_STATES = {"split_stamps_state": True}

PRESETS: dict[str, Mapping[str, object]] = {
    "reference": {},
    "sglang-0.5.1": _HIRADIX
    | _FIRST
    | {"write_policy": "write_through_selective", "prefetch_timeout": "constant", "chunked_counts_hit": True}
    | {"selective_hits": 3, "storage_put": "hit", "prefetch_limit": "query"},
    "sglang-0.5.2": _HIRADIX | _FIRST | {"write_policy": "write_through_selective", "prefetch_timeout": "constant"},
    "sglang-0.5.6": _HIRADIX | _FIRST | {"prefetch_timeout": "linear"},
    "sglang-0.5.9": _HIRADIX
    | _EARLY
    | {"prefetch_capacity": "host_minus_device_clamped", "prefetch_timeout": "linear"},
    "sglang-0.5.15": _HIRADIX | _PREFIXES | _BEFORE_QUERY | _IN_PROGRESS | {"truncation_counts_less": True},
    "sglang-0.5.16": _HIRADIX | _PREFIXES | _IN_PROGRESS,
    "sglang-0.5.20": _HIRADIX | _PREFIXES | {"hash_namespace": True},
    "sglang-himamba-0.5.10": _HIMAMBA
    | _SPLIT_STATES
    | _EARLY
    | {"prefetch_capacity": "host_minus_device_clamped", "prefetch_timeout": "linear"},
    "sglang-himamba-0.5.15": _HIMAMBA
    | _SPLIT_STATES
    | _PREFIXES
    | _BEFORE_QUERY
    | {"truncation_counts_less": True, "unread_slot": "given_up"},
    "sglang-himamba-0.5.16": _HIMAMBA | _PREFIXES | {"prefetch_state": "submission", "unread_slot": "given_up"},
    "sglang-0.5.23": _SGLANG | _UNIFIED,
    "sglang-unified-0.5.23": _SGLANG | _UNIFIED | _UNIFIED_STATES,
}
"""By preset, the rules that differ from those of the reference."""
