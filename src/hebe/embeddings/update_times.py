"""When keys were last updated, for a server whose Redis another server may not have brought up to date yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import FoundMask, KeyArray

_SLOTS = 1 << 21
"""8 MiB; a tenth of it is taken when 3,500 distinct keys a second are updated for a minute."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 by the golden ratio: its multiples' upper bits are spread evenly (Knuth, TAOCP 6.4)."""


class UpdateTimes:
    """Times by key of `tables`, in a table without chains: a key may have the time of another one that was updated
    later, never an earlier time than its own. Memory is taken by the first note. Any number of threads may ask while
    one notes.
    """

    def __init__(self, tables: Iterable[str], clock: Callable[[], float] = time.monotonic, slots: int = _SLOTS) -> None:
        self._salts = {table: np.uint64((number * int(_MIX)) % 2**64) for number, table in enumerate(tables, 1)}
        self._clock, self._began_s = clock, clock()
        self._shift = np.uint64(65 - slots.bit_length())
        self._slots = slots
        self._seconds: npt.NDArray[np.float32] | None = None
        self._last_s = -np.inf

    def note(self, table: str, keys: KeyArray) -> None:
        """These have been updated now."""
        if self._seconds is None:
            self._seconds = np.full(self._slots, -np.inf, np.float32)
        now_s = self._clock() - self._began_s
        self._seconds[self._places(keys, self._salts[table])] = now_s
        self._last_s = now_s

    def within(self, last_s: float, tables: Sequence[str], keys: KeyArray, starts: KeyArray) -> FoundMask | None:
        """Which of `keys`, those of `tables` as in a `BatchLookup`, had an update in the last `last_s` seconds; None if
        none had.
        """
        since_s = self._clock() - self._began_s - last_s
        if self._seconds is None or self._last_s < since_s:
            return None
        salts = np.repeat(np.array([self._salts[table] for table in tables]), np.diff(starts))
        return self._seconds[self._places(keys, salts)] >= np.float32(since_s)

    def _places(self, keys: KeyArray, salts: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
        mixed = (keys.view(np.uint64) ^ salts) * _MIX
        return mixed >> self._shift
