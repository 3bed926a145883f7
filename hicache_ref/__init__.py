"""The rules of a hierarchical KV cache, executable, and an oracle that checks implementations against them."""
