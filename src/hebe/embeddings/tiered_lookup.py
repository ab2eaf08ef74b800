"""How a batch of distinct keys of one table is answered from the tiers: HPS Algorithm 1, and what it leaves out.

Level 1 is asked first. If its hit rate is below the threshold, the missing rows are fetched from level 2, then level 3,
while the batch waits; otherwise they get the table's default vector, and are fetched in the background for later ones.
(Algorithm 1 divides the missing keys by the size of the cache; by the number of keys asked for, which the text means,
the threshold is a hit rate.) Beyond the paper, each key's answer says how it came about, a caller may
bound the time that it takes, and a key that no tier has is unknown rather than missing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hebe.embeddings.background import BackgroundWork
from hebe.embeddings.store import (
    EmbeddingCache,
    KeyArray,
    RowArray,
    StoreError,
    StoreUnavailable,
    VolatileStore,
)
from hebe.embeddings.tier_guard import Question, TierGuard

StateArray = npt.NDArray[np.uint8]
PlaceArray = npt.NDArray[np.intp]

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


_FOUND, _DEFAULTED, _UNKNOWN = (int(state) for state in (RowState.FOUND, RowState.DEFAULTED, RowState.UNKNOWN))
"""Plain numbers, which are found sooner than an enumeration's members."""


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

    def close(self) -> None:
        """Close the store, and its guard."""
        (self.guard or self.store).close()


@dataclass(slots=True)
class BatchLookup:
    """What is wanted of several tables, and the answer.

    `keys[starts[i] : starts[i + 1]]`, int64, are of `tables[i]`, and distinct; their rows go to
    `[bases[i], bases[i + 1])` of the flat float32 `rows`, one after the other. `states` uint8, one for each key, is how
    each was answered; None if all were found. `starts` and `bases` int64 `[tables + 1]`.
    """

    tables: Sequence[str]
    keys: KeyArray
    starts: KeyArray
    rows: RowArray
    bases: KeyArray
    states: StateArray | None = None

    def rows_of(self, number: int, dim: int) -> RowArray:
        """Of table `number`: a view `[keys, dim]`."""
        return self.rows[self.bases[number] : self.bases[number + 1]].reshape(-1, dim)

    def parts_of(self, places: PlaceArray) -> Iterator[tuple[int, PlaceArray]]:
        """`places` of keys, ascending, by table: the number of each that has any, and the places among its keys."""
        cuts = np.searchsorted(places, self.starts).tolist()
        for number, (first, last) in enumerate(itertools.pairwise(cuts)):
            if first < last:
                yield number, places[first:last] - self.starts[number]


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
        """`look_up_tables` of one table, rows `[n, dim]`: returns the states of the keys, None if all were found."""
        if not rows.flags.c_contiguous:
            raise ValueError("rows are not C-contiguous")
        starts, bases = np.array([0, len(keys)]), np.array([0, rows.size])
        wanted = BatchLookup((table,), keys, starts, rows.reshape(-1), bases)
        self.look_up_tables(wanted, timeout_s, wait=wait)
        return wanted.states

    def look_up_tables(self, wanted: BatchLookup, timeout_s: float = math.inf, *, wait: bool = False) -> None:
        """Fill rows and states; every row is written.

        Takes at most about `timeout_s` for lower tiers, which are asked for the rows of all tables at once, and `wait`s
        for them whatever the hit rate if told so. Raises `StoreError` for an unknown table, after `close`.
        """
        count = len(wanted.keys)
        found, stale = np.zeros((2, count), np.bool_)
        hits = self.cache.query_tables(
            wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, found, stale
        )
        hit_count = int(hits.sum())
        counts = LookupCounts(hit_count, count - hit_count)
        if hit_count < count or stale.any():
            wanted.states = stale.astype(np.uint8)  # STALE is 1, FOUND 0
            self._answer_odd(wanted, wanted.states, np.flatnonzero(~found), timeout_s, wait, counts)
            _, counts.stale, counts.defaulted, counts.unknown = np.bincount(wanted.states, minlength=4).tolist()
        self._count(counts)

    def prefetch(self, table: str, keys: KeyArray) -> bool:
        """Bring the rows of `keys` into level 1 in the background; False if there was too much to do already."""
        return self._insert_later([(table, np.unique(keys))])

    def default(self, table: str) -> np.float32:
        """What the default vector of `table` is filled with."""
        return np.float32(self.options.default_values.get(table, 0.0))

    def fetch(self, table: str, keys: KeyArray, timeout_s: float, *, note: bool = True) -> tuple[RowArray, StateArray]:
        """Rows float32 `[n, dim]` and states of distinct `keys` from level 2, then level 3, within `timeout_s`.

        `note`: level 2 hears of it afterwards: what it had was used, and what it lacked is put into it.
        """
        [fetched] = self._fetch([(table, keys)], timeout_s, LookupCounts(), note=note)
        return fetched.rows, fetched.states

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
        overtaken = self._updates[table].overtaken(keys, seen)
        if overtaken.any():
            self.cache.mark_stale(table, keys[overtaken])

    def updated(self, table: str, keys: KeyArray, rows: RowArray | None) -> None:
        """Lower tiers have newer rows of `keys`, these, or have deleted them (None): level 1 follows, as far as it
        holds them. Told by one thread a table, in the order of the updates.
        """
        self._updates[table].add(keys)
        self._take_back(table, keys)
        if rows is None:
            self.cache.delete(table, keys)
        else:
            self.cache.update(table, keys, rows)

    def outdated(self, table: str, keys: KeyArray) -> None:
        """A lower tier has newer rows of `keys`, or has deleted them: level 1's are stale until they are renewed."""
        self._updates[table].add(keys)
        self._take_back(table, keys)
        self.cache.mark_stale(table, keys)

    def renew(self, table: str, keys: KeyArray) -> tuple[int, int, int]:
        """Bring those rows of level 1 up to date that have these keys. Returns how many were, how many are gone since
        no lower tier has them any more, and how many could not be asked for.
        """
        [fetched] = self._fetch([(table, keys)], math.inf, LookupCounts(), note=False)
        states = fetched.states
        gone = states == _UNKNOWN
        self.put(table, keys[fetched.found], fetched.rows[fetched.found], fetched.seen, present_only=True)
        if gone.any():
            self.cache.delete(table, keys[gone])
        return int(fetched.found.sum()), int(gone.sum()), int((states == _DEFAULTED).sum())

    def close(self) -> None:
        """Give memory and files back. Call it when no lookup runs any more, and the background work has ended."""
        self.cache.close()
        for tier in (self.volatile, self.persistent):
            if tier is not None:
                tier.close()

    def _answer_odd(
        self,
        wanted: BatchLookup,
        states: StateArray,
        missing: PlaceArray,
        timeout_s: float,
        wait: bool,
        counts: LookupCounts,
    ) -> None:
        """Answer keys that level 1 lacks, and have stale ones renewed."""
        stale = [self._part(wanted, *part) for part in wanted.parts_of(np.flatnonzero(states))]
        if stale:
            self._renew_later(stale)
        now: list[tuple[int, PlaceArray]] = []
        later: list[tuple[str, KeyArray]] = []
        for number, places in wanted.parts_of(missing):
            of_table = int(wanted.starts[number + 1] - wanted.starts[number])
            if wait or 1 - places.size / of_table < self.options.hit_rate_threshold:
                now.append((number, places))
                continue
            table = wanted.tables[number]
            wanted.rows_of(number, self.dims[table])[places] = self.default(table)
            states[wanted.starts[number] + places] = _DEFAULTED
            later.append(self._part(wanted, number, places))
        if later:
            self._insert_later(later)
        if now:
            fetched = self._fetch_into_cache([self._part(wanted, *part) for part in now], timeout_s, counts)
            for (number, places), fetch in zip(now, fetched, strict=True):
                wanted.rows_of(number, fetch.rows.shape[1])[places] = fetch.rows
                states[wanted.starts[number] + places] = fetch.states

    def _part(self, wanted: BatchLookup, number: int, places: PlaceArray) -> tuple[str, KeyArray]:
        """A table and a copy of some of its keys."""
        return wanted.tables[number], wanted.keys[wanted.starts[number] + places]

    def _fetch_into_cache(
        self, parts: Sequence[tuple[str, KeyArray]], timeout_s: float, counts: LookupCounts
    ) -> list[_Fetch]:
        fetched = self._fetch(parts, timeout_s, counts)
        for fetch in fetched:
            self.put(fetch.table, fetch.keys[fetch.found], fetch.rows[fetch.found], fetch.seen)
        return fetched

    def _fetch(
        self, parts: Sequence[tuple[str, KeyArray]], timeout_s: float, counts: LookupCounts, *, note: bool = True
    ) -> list[_Fetch]:
        """`fetch` of several (table, keys): a tier is asked for all that it has to answer before it is waited for."""
        give_up_s = self._clock() + timeout_s
        fetches = [_Fetch(table, keys, self.dims[table], self.updates_seen(table)) for table, keys in parts]
        if self.volatile is not None:
            asked = self.volatile.guard or self.volatile.store
            counts.volatile_hits += _ask(asked, fetches, give_up_s, self._clock)
            for fetch in fetches:
                if note and fetch.found.any():
                    self._touch_later(self.volatile, fetch.table, fetch.keys[fetch.found])
        if self.persistent is not None:
            lacking = [fetch for fetch in fetches if not fetch.found.all()]
            rests = [fetch.rest() for fetch in lacking]
            counts.persistent_hits += _ask(self.persistent, rests, give_up_s, self._clock)
            for fetch, rest in zip(lacking, rests, strict=True):
                where = np.flatnonzero(~fetch.found)
                fetch.rows[where], fetch.found[where], fetch.answered = rest.rows, rest.found, rest.answered
                if note and self.volatile is not None and self.options.cache_missed_embeddings and rest.found.any():
                    had = rest.found
                    self._fill_volatile_later(self.volatile, rest.table, rest.keys[had], rest.rows[had], rest.seen)
        for fetch in fetches:
            fetch.rows[~fetch.found] = self.default(fetch.table)
        return fetches

    def _insert_later(self, parts: Sequence[tuple[str, KeyArray]]) -> bool:
        """In the background, bring what level 1 then still lacks of (table, keys) into it."""

        def act() -> None:
            lacking: list[tuple[str, KeyArray]] = []
            for table, keys in parts:
                found = np.zeros(len(keys), np.bool_)
                self.cache.query(table, keys, np.empty((len(keys), self.dims[table]), np.float32), found)
                if not found.all():
                    lacking.append((table, keys[~found]))
            if lacking:
                counts = LookupCounts()
                self._fetch_into_cache(lacking, math.inf, counts)
                self._count(counts)

        return self.background.submit(act)

    def _renew_later(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """In the background, what of (table, keys) is then still stale in level 1."""

        def act() -> None:
            for table, keys in parts:
                found, stale = np.zeros((2, len(keys)), np.bool_)
                self.cache.query(table, keys, np.empty((len(keys), self.dims[table]), np.float32), found, stale)
                if stale.any():
                    self.renew(table, keys[stale])

        self.background.submit(act)

    def _touch_later(self, volatile: VolatileTier, table: str, keys: KeyArray) -> None:
        self._later(volatile, lambda store: store.touch(table, keys))

    def _fill_volatile_later(
        self, volatile: VolatileTier, table: str, keys: KeyArray, rows: RowArray, seen: int
    ) -> None:
        """Put into level 2 what it lacked, unless it has it by then, or an update has overtaken the rows since `seen`.

        The keys are noted first and looked at again last: an update that comes in between either finds them noted, and
        deletes them, or is found here.
        """
        updates = self._updates[table]

        def act(store: VolatileStore) -> None:
            updates.note_filled(keys)
            wanted = np.flatnonzero(~updates.overtaken(keys, seen))
            found = np.zeros(len(wanted), np.bool_)
            store.query(table, keys[wanted], np.empty((len(wanted), self.dims[table]), np.float32), found)
            wanted = wanted[~found]
            store.insert(table, keys[wanted], rows[wanted])
            overtaken = updates.overtaken(keys, seen)[wanted]
            if overtaken.any():
                store.delete(table, keys[wanted[overtaken]])

        self._later(volatile, act)

    def _take_back(self, table: str, keys: KeyArray) -> None:
        """Delete from level 2 what was put there of `keys` before this update of them was known."""
        filled = self._updates[table].filled_among(keys)
        if self.volatile is not None and filled.size and self.volatile.available:
            with contextlib.suppress(StoreError):  # it is said where the tier is asked
                self.volatile.store.delete(table, filled)

    def _later(self, volatile: VolatileTier, work: Callable[[VolatileStore], object]) -> None:
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


class _Fetch:
    """Keys of a table on their way through the lower tiers, begun when `seen` updates of it were known.

    `answered`: the last tier has said which it has.
    """

    def __init__(self, table: str, keys: KeyArray, dim: int, seen: int) -> None:
        self.table, self.keys, self.seen = table, keys, seen
        self.rows = np.empty((len(keys), dim), np.float32)
        self.found = np.zeros(len(keys), np.bool_)
        self.answered = False

    @property
    def states(self) -> StateArray:
        """How each key was answered, once the last tier was asked."""
        return np.where(self.found, _FOUND, _UNKNOWN if self.answered else _DEFAULTED).astype(np.uint8)

    def rest(self) -> _Fetch:
        """Those that are not found yet."""
        return _Fetch(self.table, self.keys[~self.found], self.rows.shape[1], self.seen)


def _ask(
    tier: TierGuard | VolatileStore, fetches: Sequence[_Fetch], give_up_s: float, clock: Callable[[], float]
) -> int:
    """Ask a tier for all of them, then wait for its answers; returns how many rows it had."""
    if not isinstance(tier, TierGuard):
        hits = 0
        for fetch in fetches:
            hits += tier.query(fetch.table, fetch.keys, fetch.rows, fetch.found)
            fetch.answered = True
        return hits
    questions: list[tuple[_Fetch, Question]] = []
    for fetch in fetches:
        with contextlib.suppress(StoreUnavailable):
            questions.append((fetch, tier.ask(fetch.table, fetch.keys, give_up_s - clock())))
    hits = 0
    for fetch, question in questions:
        with contextlib.suppress(StoreUnavailable):
            hits += tier.answer(question, fetch.rows, fetch.found)
            fetch.answered = True
    return hits


class _RecentUpdates:
    """The keys of a table's last updates, each with its number; and what was put into level 2 last."""

    def __init__(self) -> None:
        self.number = 0
        self._filled: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._keys: deque[KeyArray] = deque(maxlen=_RECENT_UPDATES)
        self._lock = threading.Lock()

    def add(self, keys: KeyArray) -> None:
        with self._lock:
            self._keys.append(keys)
            self.number += 1

    def overtaken(self, keys: KeyArray, number: int) -> npt.NDArray[np.bool_]:
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
