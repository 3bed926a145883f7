"""Where files lie until they are whole: a folder that belongs to a living writer, and is swept when that is gone.

A writer holds a lock (flock) on its folder, which the system takes back when the process ends, however it ends. A
folder whose lock is free has no writer any more. No process id and no clock is asked: machines may share the folder.
"""

import fcntl
import itertools
import os
import threading
from contextlib import suppress
from shutil import rmtree
from uuid import uuid4

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Desk:
    """A writer's folder within `room`; it is there from the first draft on."""

    def __init__(self, room: str) -> None:
        self.room = room
        self._folder: str | None = None
        self._lock: int | None = None
        self._numbers = itertools.count()
        self._moving = threading.Lock()

    def draft(self) -> tuple[str, int]:
        """Path and descriptor of a new, empty file. Raises OSError."""
        while True:
            folder = self._folder or self._moved_in(None)
            # The process id, since a fork leaves two writers with one counter.
            path = f"{folder}/{os.getpid()}-{next(self._numbers)}"
            try:
                return path, os.open(path, _CREATE, 0o644)
            except FileNotFoundError:
                self._moved_in(folder)

    def clear_away(self) -> None:
        """The folder is gone, with what lies in it."""
        with self._moving:
            if self._folder is not None:
                rmtree(self._folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
            self._folder = self._lock = None

    def _moved_in(self, lost: str | None) -> str:
        """The folder, another one than `lost`; locked. Raises OSError."""
        with self._moving:
            while self._folder is None or self._folder == lost:
                folder = os.path.join(self.room, uuid4().hex)
                os.makedirs(folder)
                descriptor = os.open(folder, _FOLDER)
                if not _is_locked(descriptor) or not os.path.isdir(folder):
                    # Somebody sweeps, and came between.
                    os.close(descriptor)
                    continue
                if self._lock is not None:
                    os.close(self._lock)
                self._folder, self._lock = folder, descriptor
            return self._folder


def remove_abandoned(room: str) -> None:
    """No folder of a writer that is gone is left in `room`, as far as we may remove it."""
    with suppress(OSError), os.scandir(room) as entries:
        for entry in entries:
            with suppress(OSError):
                descriptor = os.open(entry.path, _FOLDER)
                try:
                    if _is_locked(descriptor):
                        rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether the folder is ours now. Raises OSError where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
