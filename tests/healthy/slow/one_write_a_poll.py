"""A poll acknowledges one finished copy to host, however many there are."""

from tests.healthy.slow.engines import caches, one_ack_a_poll, wrap

for cache in caches():
    wrap(cache, "writing_check", one_ack_a_poll("ack_write_queue"))
