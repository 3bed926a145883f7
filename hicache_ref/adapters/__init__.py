"""Adapters: by what an implementation is driven and seen, one file or folder each."""
