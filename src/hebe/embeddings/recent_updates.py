"""What updates have changed of late, for rows that are on their way from one tier to another meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from hebe.embeddings.store import FoundMask, KeyArray

_RECENT_UPDATES = 256
"""Updates of a table that are remembered while rows are on their way to level 1."""
_MOST_FILLED = 1 << 16
"""Keys of a table that are remembered as put into level 2; of those that were updated since none need be."""
_LONGEST_LAG_S = 300.0
"""How far a server's own updates may be behind those of level 2 when keys are forgotten that it has put there."""


class RecentUpdates:
    """The keys of a table's last updates, each with its number; what was put into level 2 and had no update since; and
    what has to be deleted there as soon as it can be."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.number = 0
        self._keys: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._serial = 0
        self._filled: dict[int, int] = {}
        """By key the serial number of the note, oldest first."""
        self._owed: dict[int, int] = {}
        self._clock = clock
        self._forgot_until_s = -float("inf")
        self._lock = threading.Lock()

    def add(self, keys: KeyArray) -> int:
        """These have been updated: the next number is theirs. Returns the serial of the last note before."""
        with self._lock:
            self._keys.append(keys)
            self.number += 1
            return self._serial

    def overtaken(self, keys: KeyArray, number: int) -> FoundMask:
        """Which of `keys` have had an update after `number`; all of them where some of those are forgotten."""
        with self._lock:
            missed = self.number - number
            if missed == 0:
                return np.zeros(len(keys), np.bool_)
            if missed > len(self._keys):
                return np.ones(len(keys), np.bool_)
            updated = list(self._keys)[-missed:]
        return np.isin(keys, np.concatenate(updated))

    def note_filled(self, keys: KeyArray) -> int:
        """These are about to be put into level 2 as a lower tier had them a moment ago. Returns the note's serial."""
        with self._lock:
            self._serial += 1
            for key in keys.tolist():
                self._filled.pop(key, None)
                self._filled[key] = self._serial
            while len(self._filled) > _MOST_FILLED:
                del self._filled[next(iter(self._filled))]
                self._forgot_until_s = self._clock() + _LONGEST_LAG_S
            return self._serial

    def filled_among(self, keys: KeyArray) -> KeyArray:
        """Those of `keys` that were put there, ascending; all of them where some that were are forgotten."""
        with self._lock:
            if self._clock() < self._forgot_until_s:
                return np.unique(keys)
            filled = {key for key in keys.tolist() if key in self._filled} if self._filled else ()
            return np.array(sorted(filled), np.int64)

    @property
    def owes(self) -> bool:
        """Whether level 2 has rows that have to be deleted there before it is asked again."""
        return bool(self._owed)

    def owe(self, keys: KeyArray) -> None:
        """These rows have to be deleted in level 2, which could not be told."""
        with self._lock:
            self._serial += 1
            self._owed.update(dict.fromkeys(keys.tolist(), self._serial))

    def owed(self) -> KeyArray:
        """What has to be deleted there, ascending."""
        with self._lock:
            return np.array(sorted(self._owed), np.int64)

    @property
    def serial(self) -> int:
        """Of the last note of what was put there, or is owed."""
        return self._serial

    def deleted(self, keys: KeyArray, serial: int) -> None:
        """Level 2 has none of these that was put there at or before note `serial`: that is done with."""
        with self._lock:
            for notes in (self._filled, self._owed):
                for key in keys.tolist():
                    if notes.get(key, serial + 1) <= serial:
                        del notes[key]
