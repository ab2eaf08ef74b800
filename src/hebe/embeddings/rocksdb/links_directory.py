"""A temporary directory for links to the files of a database that may not be written where it is.

It is locked as long as its process uses it. A process that is killed leaves it behind, unlocked, and whoever opens a
store next removes it. The lock is the system's, so that neither a process id that was given anew nor another container
on the same directory can mislead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "hebe-store-links-"


class LinksDirectory:
    """An empty directory at `path`, which goes with all that is in it on `close`."""

    def __init__(self) -> None:
        while True:
            self._directory = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
            self.path = Path(self._directory.name)
            self._lock = _lock(self.path)
            if self._lock is not None:
                return
            self._directory.cleanup()  # another's `remove_left_over` came before the lock

    def close(self) -> None:
        """Remove it. Does nothing if that is done."""
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_left_over() -> None:
    """Remove the directories that killed processes of this user left; what cannot be removed stays."""
    left: list[Path] = []
    with contextlib.suppress(OSError):  # of full disks none is a temporary directory
        left = list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    for path in left:
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock this user's directory at `path` until what is returned is closed; None if it is another's, or gone."""
    with contextlib.ExitStack() as opened:
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, directory)
            found = os.fstat(directory)
            if found.st_uid != os.geteuid():
                return None
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, path.lstat()):
                opened.pop_all()
                return directory
        except (BlockingIOError, FileNotFoundError):
            pass
    return None
