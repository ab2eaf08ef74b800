"""What updates have changed, and when: for rows that may be outdated by the time that they are served.

`UpdateTimes` has when keys were last updated, for a server whose Redis other servers may not have brought up to date
yet; `UpdateLag` how far behind they are. `RecentUpdates` has what updates have changed lately, for rows that are on
their way from one tier to another meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import FoundMask, KeyArray

_SLOTS = 1 << 21
"""8 MiB; a tenth of it is taken when 3,500 distinct keys a second are updated for a minute."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""2^64 by the golden ratio: its multiples' upper bits are spread evenly (Knuth, TAOCP 6.4)."""
_SHORTEST_OUTAGE_S = 10.0
"""What lasts less is made good well before an update counts as written."""


class UpdateTimes:
    """Times by key of `tables`, in a table without chains: a key may have the time of another one that was noted
    later, never an earlier time than its own. Memory is taken by the first note. Any number of threads may ask while
    others note.
    """

    def __init__(self, tables: Iterable[str], clock: Callable[[], float] = time.monotonic, slots: int = _SLOTS) -> None:
        self._salts = {table: np.uint64((number * int(_MIX)) % 2**64) for number, table in enumerate(tables, 1)}
        self._clock, self._began_s = clock, clock()
        self._shift = np.uint64(65 - slots.bit_length())
        self._slots = slots
        self._seconds: npt.NDArray[np.float32] | None = None
        self._last_s = -math.inf
        self._beginning = threading.Lock()

    def note(self, table: str, keys: KeyArray) -> None:
        """These have been updated now."""
        with self._beginning:
            if self._seconds is None:
                self._seconds = np.full(self._slots, -np.inf, np.float32)
        now_s = self._clock() - self._began_s
        self._seconds[self._places(keys, self._salts[table])] = now_s
        self._last_s = now_s

    def since(self, since_s: float, tables: Sequence[str], keys: KeyArray, starts: KeyArray) -> FoundMask | None:
        """Which of `keys`, those of `tables` as in a `BatchLookup`, may have had an update at or after `since_s`, a
        time of the clock; None if none had. All may have had one in an infinite past.
        """
        if since_s == -math.inf:
            return np.ones(len(keys), np.bool_)
        since_s -= self._began_s
        if self._seconds is None or self._last_s < since_s:
            return None
        salts = np.repeat(np.array([self._salts[table] for table in tables]), np.diff(starts))
        return self._seconds[self._places(keys, salts)] >= np.float32(since_s)

    def _places(self, keys: KeyArray, salts: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
        mixed = (keys.view(np.uint64) ^ salts) * _MIX
        return mixed >> self._shift


class UpdateLag:
    """How far back level 2 may lack updates that level 3 has, since other servers have yet to write them there.

    An update counts as written `usual_s` after it. Where level 2 is watched (`watch`), that is so only while it is
    known to take writes (`taking`, again and again): after an outage, what came in it and `usual_s`
    before counts as written once as much time has passed again, `usual_s` at least, or with `caught_up`. Before the
    watch may have been one. Where the log tells (`written`), nothing counts as written that it does not have as such:
    those who write may be slow, or stuck.
    """

    def __init__(self, usual_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._usual_s, self._clock = usual_s, clock
        self._since_s: float | None = None
        self._taking_s = -math.inf
        self._caught_up_s = -math.inf
        self._written_s = math.inf

    @property
    def since_s(self) -> float:
        """Level 2 has all updates that level 3 had before this time of the clock."""
        since_s = self._since_s
        return min(self._clock() - self._usual_s if since_s is None else since_s, self._written_s)

    def written(self, until_s: float) -> None:
        """What the log had at that time of the clock has been written to level 2; of what came since nothing is known
        until this is told again.
        """
        self._written_s = until_s

    def watch(self) -> None:
        """From now on `taking` tells; nobody knows what level 2 lacks."""
        self._since_s = -math.inf

    @property
    def waits(self) -> bool:
        """Whether level 2 takes writes, and others may have yet to write there what came while it did not."""
        return self._clock() < self._caught_up_s

    def caught_up(self) -> None:
        """All updates that there are have been written to level 2, a moment ago."""
        self._caught_up_s = now_s = self._clock()
        if now_s - self._taking_s <= _SHORTEST_OUTAGE_S:
            self._since_s = now_s - self._usual_s

    def taking(self) -> None:
        """Level 2 takes writes now."""
        now_s = self._clock()
        outage_s = now_s - self._taking_s
        if outage_s > _SHORTEST_OUTAGE_S:
            lasts_s = max(outage_s, self._usual_s) if math.isfinite(outage_s) else self._usual_s
            self._caught_up_s = max(self._caught_up_s, now_s + lasts_s)
        self._taking_s = now_s
        if now_s >= self._caught_up_s:
            self._since_s = now_s - self._usual_s


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
