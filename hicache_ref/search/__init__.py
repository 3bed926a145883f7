"""Who makes the steps: walks, a Hypothesis state machine, exhaustive search, and replay; one minimiser for all."""
