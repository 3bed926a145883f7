"""All lawful kinds of slowness at once, and host pages in another order."""

import tests.healthy.slow.late_answers
import tests.healthy.slow.late_releases
import tests.healthy.slow.one_load_a_poll
import tests.healthy.slow.one_write_a_poll
import tests.healthy.slow.other_host_pages  # noqa: F401
