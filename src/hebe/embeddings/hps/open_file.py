"""A file that is kept open and read where it lies, not mapped: whatever becomes of it, to read it is at worst an error.

Of a mapped file that somebody cuts short, the first number past its end ends the process (SIGBUS).
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class OpenFile:
    """The file that is at `path` now; another one that is put in its place later is not read. Raises OSError, as all
    that reads does, for a file that has become shorter too.
    """

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)

    def mark(self) -> tuple[int, ...]:
        """What the system knows it by: length, times of change of content and of anything (nanoseconds), inode and
        device.
        """
        told = os.fstat(self._number)
        return told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino, told.st_dev

    def numbers(self, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
        """`count` numbers from number `first` on."""
        found = np.empty(count, dtype)
        if count:
            self._read(found.data.cast("B"), first * found.itemsize)
        return found

    def rows(self, dtype: npt.DTypeLike, dim: int, places: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The rows, of `dim` numbers each, whose numbers are `places`: `[len(places), dim]`."""
        found = np.empty((len(places), dim), dtype)
        if not found.size:
            return found
        target, row_bytes = found.data.cast("B"), dim * found.itemsize
        begins = np.flatnonzero(np.concatenate([[True], np.diff(places) != 1]))  # of what lies in the file as here
        ends = np.append(begins[1:], len(places)) * row_bytes
        for first, end, place in zip(
            (begins * row_bytes).tolist(), ends.tolist(), (places[begins] * row_bytes).tolist(), strict=True
        ):
            self._read(target[first:end], place)
        return found

    def _read(self, target: memoryview, place: int) -> None:
        while (count := os.preadv(self._number, [target], place)) < len(target):
            if not count:
                raise OSError("it has become shorter")
            target, place = target[count:], place + count
