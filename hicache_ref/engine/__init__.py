"""The model driving real bytes: page memory, passes and copies on the CPU, and worker threads over a store."""
