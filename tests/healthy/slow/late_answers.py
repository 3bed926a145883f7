"""Answers of storage queries, hits and revocations alike, are looked at in every other poll."""

from tests.healthy.slow.engines import caches, every_other_poll, wrap

for cache in caches():
    wrap(cache, "_drain_storage_control_queues_impl", every_other_poll("n_revoke", "n_storage_hit"))
