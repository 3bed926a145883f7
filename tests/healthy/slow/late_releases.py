"""Host pages that wait to be freed, and ends of writes, are looked at in every other poll."""

from tests.healthy.slow.engines import caches, every_other_poll, wrap

for cache in caches():
    wrap(cache, "_drain_storage_control_queues_impl", every_other_poll("n_release", "n_backup"))
