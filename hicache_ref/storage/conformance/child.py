"""The process behind a Peer: it opens a store and obeys orders.

`python -m hicache_ref.storage.conformance.child URL CONFIG` answers JSON lines. It says `begin` before and `end` after
each put, so that whoever kills it knows what it was doing.
"""

import hashlib
import json
import os
import sys
from typing import Any, TextIO

from hicache_ref.storage.base import Backend, Malformed
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.conformance.peer import page_bytes
from hicache_ref.storage.registry import open_backend


def _main(url: str, config: str) -> None:
    """Orders are obeyed until there are no more."""
    say = os.fdopen(os.dup(1), "w", buffering=1)
    # What a store prints must not be taken for an answer.
    os.dup2(2, 1)
    try:
        backend = open_backend(url, StorageConfig.model_validate_json(config))
    except Exception as error:
        say.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        return
    say.write("{}\n")
    try:
        for line in sys.stdin:
            _obey(backend, json.loads(line), say)
    except Exception as error:
        told = str(error) if isinstance(error, Malformed) else f"{type(error).__name__}: {error}"
        say.write(json.dumps({"error": told, "malformed": isinstance(error, Malformed)}) + "\n")


def _obey(backend: Backend, order: dict[str, Any], say: TextIO) -> None:
    """The order was obeyed and answered. Raises what the store raises."""
    if order["do"] == "read":
        say.write(json.dumps({"found": _read(backend, order["keys"], order["sizes"])}) + "\n")
        return
    for key, recipe in zip(order["keys"], order["pages"], strict=True):
        page = memoryview(bytearray(page_bytes(*recipe)))
        say.write(json.dumps({"begin": key}) + "\n")
        say.write(json.dumps({"end": key, "answer": backend.write([key], [page])[0]}) + "\n")
    say.write('{"done": true}\n')


def _read(backend: Backend, keys: list[str], sizes: list[int]) -> list[str | None]:
    views = [memoryview(bytearray(size)) for size in sizes]
    found = backend.read(keys, views)
    return [hashlib.sha256(view).hexdigest() if hit else None for hit, view in zip(found, views, strict=True)]


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    _main(*sys.argv[1:])
