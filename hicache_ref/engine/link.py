"""A store that is attached: its open handle and the workers on it, which come and go together."""

from collections.abc import Callable
from contextlib import suppress

from hicache_ref.engine.pages import PageMemory
from hicache_ref.engine.workers import Naming, StorageWorkers, WorkerSettings
from hicache_ref.storage.base import Backend

Opener = Callable[[], Backend]
"""Opens the store; may raise StorageError or Misuse."""


class Link:
    """The store that `opener` opens, with workers that run. All or nothing: whatever is raised, nothing is left open.

    Raises what `opener` raises, and RuntimeError where a thread cannot be started.
    """

    def __init__(self, opener: Opener, memory: PageMemory, naming: Naming, settings: WorkerSettings,
                 kind: type[StorageWorkers]) -> None:  # fmt: skip
        self.backend = opener()
        try:
            self.workers = kind(self.backend, memory, naming, settings)
        except BaseException:
            self._close_backend()
            raise

    def stop(self, timeout_s: float) -> tuple[str, ...]:
        """The workers are stopped and the store is closed; or the names of what hangs, and both are as before."""
        hanging = self.workers.stop(timeout_s)
        if not hanging:
            self._close_backend()
        return hanging

    def give_up(self, timeout_s: float) -> tuple[str, ...]:
        """As `stop`, but what hangs is left behind: its thread ends with its call, and the store stays open for it."""
        hanging = self.stop(timeout_s)
        if hanging:
            self.workers.abandon()
        return hanging

    def _close_backend(self) -> None:
        # What it stored stays stored, so that an error at this point costs nothing.
        with suppress(Exception):
            self.backend.close()
