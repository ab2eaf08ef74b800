"""What updates have changed of late, for rows that are on their way from one tier to another meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from hebe.embeddings.store import FoundMask, KeyArray
from hebe.embeddings.tiers.update_tracking import UpdateTimes

_RECENT_UPDATES = 256
"""Updates of a table that are remembered while rows are on their way to level 1."""
_FILLED_SLOTS = 1 << 18
"""1 MiB a table. Where more was put into level 2 of late, any key may be taken for one that was."""
_LONGEST_LAG_S = 300.0
"""For so long after a row was put into level 2 an update may come that others had put there before."""
_MOST_OWED = 1 << 17
"""Keys of a table; beyond, all of it is owed."""


class RecentUpdates:
    """The keys of a table's last updates, each with its number; what was put into level 2 of late; and what has to be
    deleted there as soon as it can be.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.number = 0
        self._keys: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._lock = threading.Lock()
        self._clock = clock
        self._filled = UpdateTimes([""], clock, _FILLED_SLOTS)
        self.owes = False
        """Whether level 2 has rows that have to be deleted there before it is asked again."""
        self._owed: list[KeyArray] = []
        self._owed_count = 0
        self._owes_all = False
        self._owing = threading.Lock()
        """Queries never wait for it."""

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
        self._filled.note("", keys)

    def filled_among(self, keys: KeyArray) -> KeyArray:
        """Those of `keys` that were put there of late, ascending, and perhaps some others."""
        filled = self._filled.since(self._clock() - _LONGEST_LAG_S, [""], keys, np.array([0, len(keys)]))
        return np.unique(keys[:0] if filled is None else keys[filled])

    def owe(self, keys: KeyArray) -> None:
        """These rows have to be deleted in level 2, which could not be told."""
        with self._owing:
            self._owe([keys])

    @contextlib.contextmanager
    def paying(self) -> Iterator[KeyArray | None]:
        """What has to be deleted there, ascending, None for all rows; it is done when the context ends well. One at a
        time.
        """
        with self._owing:
            taken, takes_all = self._owed, self._owes_all
            self._owed, self._owed_count, self._owes_all = [], 0, False
        try:
            yield None if takes_all else np.unique(np.concatenate([np.empty(0, np.int64), *taken]))
        except BaseException:
            with self._owing:
                self._owes_all |= takes_all
                self._owe(taken)
            raise
        with self._owing:
            self.owes = bool(self._owed) or self._owes_all

    def _owe(self, parts: list[KeyArray]) -> None:
        """With the lock held. Where it is too much it is made less: all rows, unless keys were repeated."""
        self.owes = True
        if not self._owes_all:
            self._owed += parts
            self._owed_count += sum(keys.size for keys in parts)
        if self._owed_count > _MOST_OWED:
            distinct = np.unique(np.concatenate(self._owed))
            self._owes_all = distinct.size > _MOST_OWED // 2
            self._owed = [] if self._owes_all else [distinct]
            self._owed_count = sum(keys.size for keys in self._owed)
