"""What a forked process does with what its parent had opened: it leaves that alone.

A forked process has one thread, the one that forked. The threads that ask tiers, apply updates and refresh the cache do
not exist there, and sockets and locks of files are those of the parent. So a child neither uses such an object, which
would wait for ever or answer with default vectors, nor closes it, which would end what the parent goes on with.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

from hebe.embeddings.store import StoreError


class UsedAfterFork(StoreError):
    """An object was used in a process forked from the one that opened it, whose id is `opened_by`."""

    def __init__(self, message: str, opened_by: int = 0) -> None:
        super().__init__(message)
        self.opened_by = opened_by


class OpeningProcess:
    """The process that opened `owner`, which has threads, connections or files that others cannot use."""

    def __init__(self, owner: object) -> None:
        self._id = _process
        _owners.add(owner)

    @property
    def is_this(self) -> bool:
        """Whether it is this process, rather than one that this one was forked from."""
        return self._id == _process

    def check(self, what: str) -> None:
        """Raise `UsedAfterFork` about `what` in a process that was forked since."""
        if self._id != _process:
            raise UsedAfterFork(
                f"{what} was opened by process {self._id} and cannot be used in process {_process}, which was forked "
                "from it: open it after the fork, or start processes by spawn (multiprocessing.get_context('spawn'), "
                "DataLoader(multiprocessing_context='spawn'))",
                self._id,
            )


class Closable(Protocol):
    """A file or socket."""

    def close(self) -> None:
        """Close this process's descriptor."""


def close_in_children(file: Closable) -> None:
    """Have forked processes close their copies of `file`. A lock or connection would else outlive the parent."""
    _files.add(file)


_process = os.getpid()
_owners: weakref.WeakSet[object] = weakref.WeakSet()
_files: weakref.WeakSet[Closable] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a child, right after the fork."""
    global _process
    _process = os.getpid()
    for owner in list(_owners):
        # Never destroyed, with all that it refers to: destructors of RocksDB and Kafka wait for threads.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    for file in list(_files):
        file.close()


os.register_at_fork(after_in_child=_leave_to_parent)
