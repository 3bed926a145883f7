"""Another process that has the store open, seen from the kit: it reads and writes when told to, and may be killed."""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hicache_ref.storage.base import Malformed, StorageError
from hicache_ref.storage.config import StorageConfig

CHILD = f"{__package__}.child"


def page_bytes(seed: int, name: str, size: int) -> bytes:
    """Bytes that belong to seed and name, the same in every process."""
    return random.Random(f"{seed}/{name}").randbytes(size)


class Peer:
    """A process that runs `child`. Raises StorageError where it is gone."""

    def __init__(self, url: str, config: StorageConfig, began: Callable[[str], None]) -> None:
        """`began` is called with the name of each operation that the process is told to do."""
        self._began = began
        ours = str(Path(__file__).parents[3])
        path = os.pathsep.join([ours, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        # A file, for stores may write more there than a pipe holds.
        self._words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD, url, config.model_dump_json()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def greet(self) -> None:
        """It has the store open. Raises StorageError where that failed."""
        self.heard()

    def tell(self, **order: Any) -> None:
        """The process has the order; its answers are heard later."""
        self._began(order["do"])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise StorageError("another process that had the store open is gone") from error

    def heard(self) -> dict[str, Any]:
        """Its next answer. Raises StorageError where there is none, Malformed where its store gave none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {"error": self._last_words()}
        if answer.get("malformed"):
            raise Malformed(answer["error"])
        if "error" in answer:
            raise StorageError(f"another process: {answer['error']}")
        return answer

    def write(self, keys: Sequence[str], pages: Sequence[tuple[int, str, int]]) -> None:
        """It was told to put under each key the page of seed, name and size."""
        self.tell(do="write", keys=list(keys), pages=[list(page) for page in pages])

    def read(self, keys: Sequence[str], sizes: Sequence[int]) -> list[str | None]:
        """SHA-256 of what it finds under each key; None for a miss."""
        self.tell(do="read", keys=list(keys), sizes=list(sizes))
        found: list[str | None] = self.heard()["found"]
        return found

    def kill(self) -> list[dict[str, Any]]:
        """It is gone, at once; what it had said and nobody had heard yet."""
        assert self._process.stdout is not None
        self._process.kill()
        rest = self._process.stdout.readlines()
        self.end()
        return [json.loads(line) for line in rest if line.endswith("\n")]

    def end(self) -> None:
        """It is gone, and nothing of it is left; also a second time."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._words):
            # What was not sent cannot be sent any more.
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._words.seek(0)
        return (self._words.read().strip().splitlines() or ["it ended without a word"])[-1]
