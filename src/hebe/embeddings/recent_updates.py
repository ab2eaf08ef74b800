"""What updates have changed of late, for rows that are on their way from one tier to another meanwhile."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from hebe.embeddings.store import FoundMask, KeyArray

_RECENT_UPDATES = 256
"""Updates of a table that are remembered while rows are on their way to level 1."""


class RecentUpdates:
    """The keys of a table's last updates, each with its number; and what was put into level 2 last."""

    def __init__(self) -> None:
        self.number = 0
        self._filled: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._keys: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._lock = threading.Lock()

    def add(self, keys: KeyArray) -> None:
        """These have been updated: the next number is theirs."""
        with self._lock:
            self._keys.append(keys)
            self.number += 1

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

    def note_filled(self, keys: KeyArray) -> None:
        """These are about to be put into level 2 as a lower tier had them a moment ago."""
        with self._lock:
            self._filled.append(keys)

    def filled_among(self, keys: KeyArray) -> KeyArray:
        """Those of `keys` that were put there."""
        with self._lock:
            filled = list(self._filled)
        return np.intersect1d(keys, np.concatenate(filled)) if filled else np.empty(0, np.int64)
