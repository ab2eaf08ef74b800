"""How a batch of distinct keys of one table is answered from the tiers: HPS Algorithm 1, and what it leaves out.

Level 1 is asked first. If its hit rate is below the threshold, the missing rows are fetched from level 2, then level 3,
while the batch waits; otherwise they get the table's default vector, and are fetched in the background for later ones.
(Algorithm 1 divides the missing keys by the size of the cache; by the number of keys asked for, which the text means,
the threshold is a hit rate.) Beyond the paper, each key's answer says how it came about, a caller may
bound the time that it takes, and a key that no tier has is unknown rather than missing.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hebe.embeddings.background import BackgroundWork
from hebe.embeddings.store import EmbeddingCache, KeyArray, RowArray, StoreUnavailable, VolatileStore
from hebe.embeddings.tier_guard import TierGuard

StateArray = npt.NDArray[np.uint8]

_RECENT_UPDATES = 256
"""Updates of a table that are remembered while rows are on their way to level 1."""


class RowState(IntEnum):
    """How a key was answered."""

    FOUND = 0
    STALE = 1
    """With a row of which a lower tier has a newer version."""
    DEFAULTED = 2
    """With the default vector, since its row was not there in time."""
    UNKNOWN = 3
    """With the default vector, since no tier has the key."""


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """`hit_rate_threshold`: below it a lookup waits for missing rows; 1 always waits, 0 never does.
    `default_values`: what the default vector of a table is filled with, 0 unless named. `cache_missed_embeddings`:
    rows that level 2 lacked and level 3 had are put into level 2.

    Raises ValueError naming a field that is out of range.
    """

    hit_rate_threshold: float = 1.0
    default_values: Mapping[str, float] = field(default_factory=dict)
    cache_missed_embeddings: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.hit_rate_threshold <= 1:
            raise ValueError(f"hit_rate_threshold is {self.hit_rate_threshold}: must lie in [0, 1]")
        for table, value in self.default_values.items():
            if not math.isfinite(value):
                raise ValueError(f"default value of table {table} is {value}: must be finite")


@dataclass(slots=True)
class LookupCounts:
    """What lookups came to since the model was loaded, in distinct keys of a batch; for metrics."""

    cache_hits: int = 0
    cache_misses: int = 0
    volatile_hits: int = 0
    persistent_hits: int = 0
    stale: int = 0
    defaulted: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class VolatileTier:
    """Level 2: the store, and its guard where it may stall; one in this process answers at once and has none."""

    store: VolatileStore
    guard: TierGuard | None = None

    @property
    def available(self) -> bool:
        """Whether questions pass."""
        return self.guard is None or self.guard.available

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: npt.NDArray[np.bool_], timeout_s: float) -> int:
        """As `TierGuard.query`."""
        if self.guard is not None:
            return self.guard.query(table, keys, rows, found, timeout_s)
        return self.store.query(table, keys, rows, found)

    def close(self) -> None:
        """Close the store, and its guard."""
        (self.guard or self.store).close()


class TieredLookup:
    """The tiers of one model, or of several that share them. Any number of threads may look up at once.

    `dims` gives the embedding dim by table. Without `persistent` level 2 is taken to hold whatever there is.
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        cache: EmbeddingCache,
        volatile: VolatileTier | None,
        persistent: TierGuard | None,
        options: LookupOptions,
        background: BackgroundWork,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dims = dict(dims)
        self.cache = cache
        self.volatile = volatile
        self.persistent = persistent
        self.options = options
        self.counts = LookupCounts()
        self.background = background
        self._clock = clock
        self._counting = threading.Lock()
        self._updates = {table: _RecentUpdates() for table in dims}

    def look_up(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray,
        timeout_s: float = math.inf,
        *,
        wait: bool = False,
    ) -> StateArray | None:
        """Fill `rows` float32 `[n, dim]` for distinct `keys` int64 `[n]`; every row is written.

        Takes at most about `timeout_s` for lower tiers, and `wait`s for them whatever the hit rate if told so. Returns
        the state of each key, uint8 `[n]`; None if all were found. Raises `StoreError` for an unknown table, after `close`.
        """
        found = np.zeros(len(keys), np.bool_)
        stale = np.zeros(len(keys), np.bool_)
        hits = self.cache.query(table, keys, rows, found, stale)
        any_stale = bool(stale.any())
        if hits == len(keys) and not any_stale:
            self._count(LookupCounts(cache_hits=hits))
            return None
        states: StateArray = np.where(stale, np.uint8(RowState.STALE), np.uint8(RowState.FOUND))
        counts = LookupCounts(hits, len(keys) - hits, stale=int(np.count_nonzero(stale)))
        if hits < len(keys):
            missing = np.flatnonzero(~found)
            if wait or hits / len(keys) < self.options.hit_rate_threshold:
                fetched, of_missing = self._fetch_into_cache(table, keys[missing], timeout_s, counts)
                rows[missing], states[missing] = fetched, of_missing
            else:
                rows[missing], states[missing] = self.default(table), RowState.DEFAULTED
                wanted = keys[missing]
                self.background.submit(lambda: self._insert_missing(table, wanted))
            counts.defaulted = int(np.count_nonzero(states == RowState.DEFAULTED))
            counts.unknown = int(np.count_nonzero(states == RowState.UNKNOWN))
        self._count(counts)
        return states

    def prefetch(self, table: str, keys: KeyArray) -> bool:
        """Bring the rows of `keys` into level 1 in the background; False if there was too much to do already."""
        wanted = np.unique(keys)
        return self.background.submit(lambda: self._insert_missing(table, wanted))

    def default(self, table: str) -> np.float32:
        """What the default vector of `table` is filled with."""
        return np.float32(self.options.default_values.get(table, 0.0))

    def fetch(
        self, table: str, keys: KeyArray, timeout_s: float, counts: LookupCounts | None = None, *, note: bool = True
    ) -> tuple[RowArray, StateArray]:
        """Rows float32 `[n, dim]` and states of distinct `keys` from level 2, then level 3, within `timeout_s`.

        `note`: level 2 hears of it afterwards: what it had was used, and what it lacked is put into it.
        """
        give_up_s = self._clock() + timeout_s
        counts = counts or LookupCounts()
        rows = np.empty((len(keys), self.dims[table]), np.float32)
        found = np.zeros(len(keys), np.bool_)
        complete = False
        if self.volatile is not None:
            try:
                counts.volatile_hits += self.volatile.query(table, keys, rows, found, timeout_s)
                complete = self.persistent is None
                if note and found.any():
                    used = keys[found]
                    self._later(self.volatile, lambda store: store.touch(table, used))
            except StoreUnavailable:
                found[:] = False
        if self.persistent is not None and not found.all():
            rest = np.flatnonzero(~found)
            wanted, got, mask = keys[rest], np.empty((len(rest), self.dims[table]), np.float32), found[rest]
            try:
                counts.persistent_hits += self.persistent.query(table, wanted, got, mask, give_up_s - self._clock())
                complete = True
                rows[rest], found[rest] = got, mask
                if note and mask.any() and self.volatile is not None and self.options.cache_missed_embeddings:
                    lacked, theirs = wanted[mask], got[mask]
                    self._later(self.volatile, lambda store: store.insert(table, lacked, theirs))
            except StoreUnavailable:
                complete = False
        states = np.full(len(keys), RowState.FOUND, np.uint8)
        states[~found] = RowState.UNKNOWN if complete else RowState.DEFAULTED
        rows[~found] = self.default(table)
        return rows, states

    def updates_seen(self, table: str) -> int:
        """Pass it to `put` with rows fetched since, so that an update which overtook them is not hidden."""
        return self._updates[table].number

    def put(self, table: str, keys: KeyArray, rows: RowArray, seen: int, *, present_only: bool = False) -> None:
        """Put fetched rows into level 1: those that it lacks, or (`present_only`) newer versions of those it has."""
        if not keys.size:
            return
        if present_only:
            self.cache.update(table, keys, rows)
        else:
            self.cache.replace(table, keys, rows)
        overtaken = self._updates[table].since(seen)
        if overtaken is None:
            self.cache.mark_stale(table, keys)
        else:
            for updated in overtaken:
                self.cache.mark_stale(table, updated)

    def updated(self, table: str, keys: KeyArray) -> None:
        """Lower tiers have newer rows of `keys`, or have deleted them: say of level 1's that they are stale."""
        self._updates[table].add(keys)
        self.cache.mark_stale(table, keys)

    def close(self) -> None:
        """Give memory and files back. Call it when no lookup runs any more, and the background work has ended."""
        self.cache.close()
        for tier in (self.volatile, self.persistent):
            if tier is not None:
                tier.close()

    def _fetch_into_cache(
        self, table: str, keys: KeyArray, timeout_s: float, counts: LookupCounts
    ) -> tuple[RowArray, StateArray]:
        seen = self.updates_seen(table)
        rows, states = self.fetch(table, keys, timeout_s, counts)
        found = states == RowState.FOUND
        self.put(table, keys[found], rows[found], seen)
        return rows, states

    def _insert_missing(self, table: str, keys: KeyArray) -> None:
        """In the background: what level 1 still lacks of `keys`."""
        found = np.zeros(len(keys), np.bool_)
        self.cache.query(table, keys, np.empty((len(keys), self.dims[table]), np.float32), found)
        if not found.all():
            counts = LookupCounts()
            self._fetch_into_cache(table, keys[~found], math.inf, counts)
            self._count(counts)

    def _later(self, volatile: VolatileTier, work: Callable[[VolatileStore], None]) -> None:
        """In the background, unless level 2 is being left alone by then."""

        def act() -> None:
            if volatile.available:
                work(volatile.store)

        self.background.submit(act)

    def _count(self, counts: LookupCounts) -> None:
        mine = self.counts
        with self._counting:
            mine.cache_hits += counts.cache_hits
            mine.cache_misses += counts.cache_misses
            mine.volatile_hits += counts.volatile_hits
            mine.persistent_hits += counts.persistent_hits
            mine.stale += counts.stale
            mine.defaulted += counts.defaulted
            mine.unknown += counts.unknown


class _RecentUpdates:
    """The keys of a table's last updates, each with its number."""

    def __init__(self) -> None:
        self.number = 0
        self._keys: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._lock = threading.Lock()

    def add(self, keys: KeyArray) -> None:
        with self._lock:
            self._keys.append(keys)
            self.number += 1

    def since(self, number: int) -> list[KeyArray] | None:
        """The keys of updates after `number`; None if some are forgotten."""
        with self._lock:
            missed = self.number - number
            if missed == 0:
                return []
            return None if missed > len(self._keys) else list(self._keys)[-missed:]
