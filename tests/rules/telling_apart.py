"""Finds, for two values of a rule, a short run in which they differ: what the stored traces here were made by.

`python -m tests.rules.telling_apart` writes a trace for every rule that has none.
"""

import random
from pathlib import Path

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.requirements.catalogue import catalogue_digest
from hicache_ref.search.finding import Found
from hicache_ref.search.minimise import Replay, minimise
from hicache_ref.search.walk import Plan, Walk
from hicache_ref.trace import Implementation, Trace, TraceHeader, TraceStep, write_trace
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes

FOLDER = Path(__file__).parent
WALKS_MAX = 400

# The reference value stands in the header of the trace; this is the other one, and what else it needs to matter.
OTHER: dict[str, object] = {
    "write_policy": "write_through_selective",
    "write_through_threshold": 2,
    "selective_hits": 3,
    "eviction": "fifo",
    "slru_protected_threshold": 3,
    "eviction_counts": "hits",
    "backup_scope": "node_if_parent",
    "contiguity": False,
    "lock_evicted": "count",
    "split_copies_hit_count": True,
    "split_stamps": "both",
    "revive_counts_hit": True,
    "insert_length_counts_revived": True,
    "hit_counts_again_for_same_request": True,
    "chunked_counts_hit": False,
    "write_back_copy": "blocking",
    "evict_host_for_hopeless": True,
    "last_host_node": "best",
    "event_namespace": False,
    "eviction_asks": "need",
    "commit_adopts": False,
    "prefetch_allocation": "before",
    "prefetch_clock": "first_poll",
    "prefetch_capacity": "host_minus_device",
    "prefetch_limit": "query",
    "prefetch_progress": "live",
    "prefetch_commit": "progress",
    "cancelled_query": "goes_on",
    "give_back": "queued",
    "storage_retries": 1,
    "backed_up_counts": "batches",
    "attach_offers": False,
    "hash_namespace": False,
    "write_back_protects": True,
    "evict_device_for_hopeless": True,
    "split_raises_priority": "both",
    "split_is_born": True,
    "commit_stamps_anchor": True,
    "fetched_priority": "inherited",
    "prefetch_truncates": False,
    "truncation_counts_less": True,
    "prefetch_timeout": "constant",
    "read_tail": "io_end",
    "write_back_offers": False,
    "storage_put": "hit",
    "attach_again": "policy",
    "reset_waits": 30_000,
    "match_stamps_states": "path",
    "split_stamps_state": True,
    "load_matches": True,
    "load_keeps_state_above": True,
    "load_under_load": "refused",
    "state_copy": "blocking",
    "prefetch_state": "submission",
    "unread_slot": "given_up",
    "dead_ends": "stay",
    "late_states": "insert",
    "host_states": "arrived",
    "lock_state": "to_come",
    "branching": "cached",
    "write_back_states": "lost",
}
SETTING: dict[str, dict[str, object]] = {
    "selective_hits": {"write_policy": "write_through_selective"},
    "slru_protected_threshold": {"eviction": "slru"},
    "backup_scope": {"write_through_threshold": 2},
    "contiguity": {"write_policy": "write_back"},
    "eviction_counts": {"eviction": "lfu", "write_policy": "write_back"},
    "split_copies_hit_count": {"write_through_threshold": 2},
    "revive_counts_hit": {"eviction": "lfu"},
    "hit_counts_again_for_same_request": {"write_through_threshold": 2},
    "write_back_copy": {"write_policy": "write_back"},
    "commit_adopts": {"write_through_threshold": 2},
    "cancelled_query": {"prefetch_allocation": "before"},
    "write_back_protects": {"write_policy": "write_back", "write_back_copy": "blocking"},
    "split_raises_priority": {"eviction": "priority"},
    "commit_stamps_anchor": {"prefetch_allocation": "before"},
    "split_is_born": {"eviction": "fifo"},
    "fetched_priority": {"eviction": "priority"},
    "prefetch_truncates": {"prefetch_allocation": "before"},
    "truncation_counts_less": {"prefetch_allocation": "before"},
    "write_back_offers": {"write_policy": "write_back", "write_back_copy": "blocking", "attach_offers": False},
    "evict_device_for_hopeless": {"write_policy": "write_back"},
    "match_stamps_states": {"write_through_threshold": 9},
    "split_stamps_state": {"write_through_threshold": 9, "split_stamps": "both", "match_stamps_states": "path"},
    "load_under_load": {"write_policy": "write_back", "write_back_copy": "blocking"},
    "storage_put": {"attach_offers": False},
    "unread_slot": {"prefetch_state": "submission"},
    "read_tail": {"prefetch_progress": "live"},
    "write_back_states": {"write_policy": "write_back", "write_back_copy": "blocking"},
}


OF_STATES = {
    "match_stamps_states", "split_stamps_state", "load_keeps_state_above", "prefetch_state", "state_copy", "dead_ends",
    "late_states", "host_states", "lock_state", "branching", "write_back_states",
    "load_under_load", "unread_slot",
}  # fmt: skip
"""Rules that only matter to a hybrid model."""


SLOTS = {"unread_slot": {"host_states": 1}}
"""Sizes without which walks seldom meet what the rule decides."""


class OtherRule(ReferenceAdapter):
    """The model with one rule changed, behind the four verbs."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule

    def reset(self, profile: Profile) -> None:
        """The model is new and follows the other value of the rule."""
        super().reset(other_profile(profile, self.rule))

    def observe(self, level: Level) -> Observation:
        """The policy in force does not show, for what it does has to."""
        return super().observe(level).model_copy(update={"write_policy": None})


def base_profile(rule: str) -> Profile:
    """The reference rules, with what else the rule needs to matter."""
    sizes = Sizes(device_pages=5, host_pages=4, **SLOTS.get(rule, {}))
    rules = Rules.model_validate(SETTING.get(rule, {}))
    return Profile(rules=rules, sizes=sizes, state=rule in OF_STATES, name=f"rule {rule}")


def other_profile(profile: Profile, rule: str) -> Profile:
    """The same with the other value of the rule."""
    rules = Rules.model_validate(profile.rules.model_dump() | {rule: OTHER[rule]})
    return profile.model_copy(update={"rules": rules})


def beside(rule: str, profile: Profile) -> Lockstep:
    """The model under `profile` beside the model with the other value of the rule."""
    adapter = OtherRule(rule)
    return Lockstep(adapter, adapter.describe(), profile, "tree", Checker(profile))


def find(rule: str) -> Replay | None:
    """The smallest run found in which the two values differ."""
    profile = base_profile(rule)
    for seed in range(WALKS_MAX):
        lockstep = beside(rule, profile)
        try:
            Walk(lockstep, random.Random(seed), Plan(invalid_share=0), swarm=seed % 2 == 1).run()
        except Found as found:
            return minimise(lockstep.steps, lambda: beside(rule, profile), found.finding)
    return None


def store(rule: str) -> None:
    """The trace of `rule` is in its file. Raises LookupError where no run tells its values apart."""
    small = find(rule)
    if small is None:
        raise LookupError(f"no run tells the values of {rule} apart")
    header = TraceHeader(
        requirements=catalogue_digest(),
        profile=base_profile(rule),
        implementation=Implementation(name="reference", version="model"),
        level="tree",
    )
    steps = tuple(TraceStep(i=i, op=each.op) for i, each in enumerate(small.steps))
    write_trace(FOLDER / f"{rule}.jsonl", Trace(header, steps))


if __name__ == "__main__":
    for name in OTHER:
        if not (FOLDER / f"{name}.jsonl").exists():
            store(name)
