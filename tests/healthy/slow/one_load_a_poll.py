"""A poll acknowledges one finished copy to device, however many there are."""

from tests.healthy.slow.engines import caches, one_ack_a_poll, wrap

for cache in caches():
    wrap(cache, "loading_check", one_ack_a_poll("ack_load_queue"))
