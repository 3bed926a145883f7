"""Who compares: an implementation in lockstep with the model, step by step."""
