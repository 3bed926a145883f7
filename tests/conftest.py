"""Settings of every test run: Hypothesis draws the same examples each time unless told otherwise.

HYPOTHESIS_PROFILE=dev is quick, nightly draws anew and much.
"""

import os

from hypothesis import HealthCheck, settings

# How long drawing takes says how busy the machine is, not whether the code is right.
NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": False}

settings.register_profile("ci", derandomize=True, max_examples=150, stateful_step_count=100, database=None, **NO_CLOCK)
settings.register_profile("dev", max_examples=50, stateful_step_count=30, **NO_CLOCK)
settings.register_profile("nightly", max_examples=2000, stateful_step_count=100, **NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
