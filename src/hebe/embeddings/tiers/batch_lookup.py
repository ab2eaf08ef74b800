"""What a batch wants of several tables, those of its keys that are on their way through the lower tiers, and what
became of the keys that were looked up, for metrics.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import UNKNOWN_POSITION, FoundMask, KeyArray, RowArray, TablesStore
from hebe.kernels.lookup.table_batch import take_rows

StateArray = npt.NDArray[np.uint8]
PlaceArray = npt.NDArray[np.intp]


class RowState(IntEnum):
    """How a key was answered."""

    FOUND = 0
    STALE = 1
    """With a row of which a lower tier has a newer version, or may have, as it could not be asked."""
    DEFAULTED = 2
    """With the default vector, since its row was not there in time."""
    UNKNOWN = 3
    """With the default vector, since no tier has the key."""


FOUND, STALE, DEFAULTED, UNKNOWN = map(int, RowState)
"""Plain numbers, which are found sooner than an enumeration's members."""


@dataclass(slots=True)
class BatchLookup:
    """What is wanted of several tables, and the answer.

    `keys[starts[i] : starts[i + 1]]`, int64, are of `tables[i]`, and distinct; their rows go to
    `[bases[i], bases[i + 1])` of the flat float32 `rows`, one after the other. `states` uint8, one for each key, is how
    each was answered; None if all were found. `starts` and `bases` int64 `[tables + 1]`. `counted`: it shows in
    `LookupCounts`, and tiers keep what it was lacking; else all of them hold afterwards what they held before.
    `in_vain_s`: seconds for which tiers were waited for that did not answer, or not all of it. `cut`: how many of the
    keys that got a default vector the caller's deadline has cut off, as against tiers that failed.
    """

    tables: Sequence[str]
    keys: KeyArray
    starts: KeyArray
    rows: RowArray
    bases: KeyArray
    states: StateArray | None = None
    counted: bool = True
    in_vain_s: float = 0.0
    cut: int = 0

    @classmethod
    def of(cls, parts: Sequence[tuple[str, KeyArray]], dims: Mapping[str, int]) -> BatchLookup:
        """What is wanted of `parts`, (table, keys), with room for the rows."""
        tables, keys = [table for table, _ in parts], [own for _, own in parts]
        starts = np.cumsum([0, *(own.size for own in keys)])
        bases = np.cumsum([0, *(own.size * dims[table] for table, own in parts)])
        return cls(tables, np.concatenate(keys), starts, np.empty(bases[-1], np.float32), bases)

    def parts(self, places: PlaceArray) -> list[tuple[str, KeyArray]]:
        """Tables, each with a copy of its keys among `places`, ascending places of keys."""
        keys, cuts = self.keys[places], np.searchsorted(places, self.starts).tolist()
        bounds = zip(self.tables, itertools.pairwise(cuts), strict=True)
        return [(table, keys[first:last]) for table, (first, last) in bounds if first < last]

    def set_states(self, places: PlaceArray, state: int) -> None:
        """Of `keys[places]`."""
        if self.states is None:
            self.states = np.zeros(len(self.keys), np.uint8)
        self.states[places] = state

    def rows_of(self, number: int, dim: int) -> RowArray:
        """Of table `number`: a view `[keys, dim]`."""
        return self.rows[self.bases[number] : self.bases[number + 1]].reshape(-1, dim)

    def rows_at(self, places: PlaceArray) -> RowArray:
        """Rows of `keys[places]`, ascending: a copy, one after the other."""
        chosen = np.zeros(len(self.keys), np.bool_)
        chosen[places] = True
        parts = [
            self.rows[base:stop].reshape(last - first, -1)[chosen[first:last]].reshape(-1)
            for (first, last), (base, stop) in zip(
                itertools.pairwise(self.starts.tolist()), itertools.pairwise(self.bases.tolist()), strict=True
            )
            if last > first
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def spans(self, places: PlaceArray) -> tuple[KeyArray, KeyArray]:
        """`starts` and `bases` of a batch of the keys at ascending `places` alone."""
        starts = np.searchsorted(places, self.starts)
        dims = np.diff(self.bases) // np.maximum(np.diff(self.starts), 1)
        return starts, np.concatenate([[0], np.cumsum(np.diff(starts) * dims)])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tier had of the keys that it was asked for: a batch in buffers of its own, with rows of those `found`, and
    up to which position these have all updates, int64 `[n]`; None where nobody follows any.
    """

    batch: BatchLookup
    found: FoundMask
    positions: KeyArray | None = None

    def spans(self) -> Iterator[tuple[str, slice]]:
        """Tables, each with the span of its keys."""
        for table, (first, last) in zip(self.batch.tables, itertools.pairwise(self.batch.starts.tolist()), strict=True):
            if first < last:
                yield table, slice(first, last)

    def rows_of(self, table: str) -> RowArray:
        """All rows of a table that it has keys of: a view `[keys, dim]`."""
        batch, number = self.batch, list(self.batch.tables).index(table)
        count = int(batch.starts[number + 1] - batch.starts[number])
        return batch.rows[batch.bases[number] : batch.bases[number + 1]].reshape(count, -1)

    @property
    def held_bytes(self) -> int:
        """What it takes of memory."""
        return self.batch.keys.nbytes + self.batch.rows.nbytes + self.found.nbytes


class BatchFetch:
    """Those keys of a batch that are `missing`, `count` in all, on their way through the lower tiers.

    `stored`: the position in the update log that this server's stores have, by key; None where nobody follows any.
    `changes`: how many updates were known when it began. `found`: which have their rows by now; `left`: how many have
    not, of which the deadline has `cut` off so many.
    """

    def __init__(
        self, wanted: BatchLookup, missing: FoundMask, count: int, stored: KeyArray | None, changes: int
    ) -> None:
        self.wanted, self.changes, self.left, self.cut = wanted, changes, count, 0
        self._stored = stored
        self.positions = np.full(len(wanted.keys), UNKNOWN_POSITION) if stored is None else stored.copy()
        """Up to which position rows that were found have all updates."""
        self._ahead: FoundMask | None = None
        """Which of them have later updates than this server's stores."""
        self.found = np.zeros(len(wanted.keys), np.bool_)
        self.unknown = np.zeros(len(wanted.keys), np.bool_)
        """Which of the keys that are left no tier has, as the last one says that could."""
        self.doubted: FoundMask | None = None
        """Which of those found lack an update, or may: level 3 may have newer ones, and has not answered."""
        self._missing = missing

    @property
    def rest(self) -> FoundMask:
        """Which keys are left."""
        return self._missing & ~self.found

    @property
    def to_keep(self) -> FoundMask:
        """Which rows level 1 may keep: those that have all updates, and none that level 1 has yet to follow."""
        kept = self.found if self.doubted is None else self.found & ~self.doubted
        return kept if self._ahead is None else kept & ~self._ahead

    def fill_from(self, store: TablesStore) -> int:
        """Take what a tier in this process has of all that is missing; returns how many rows it had."""
        wanted = self.wanted
        hits = store.fill_tables(
            wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, self._missing, self.found
        )
        self.unknown = self.rest
        self.left -= hits
        return hits

    def take(self, places: PlaceArray, rows: RowArray, found: FoundMask) -> None:
        """Take the rows that a tier has `found` of the keys at ascending `places`, one after the other in `rows`."""
        wanted = self.wanted
        take_rows(rows, places, found, wanted.starts, wanted.bases, wanted.rows)
        self.left -= int(np.count_nonzero(found & ~self.found[places]))
        self.found[places] |= found
        if self._stored is not None:
            self.positions[places] = self._stored[places]
        if self._ahead is not None:
            self._ahead[places] = False

    def place(self, places: PlaceArray, found: FoundMask, positions: KeyArray, row_positions: KeyArray) -> None:
        """Of those rows just taken that were `found`: up to where they have all updates, and their own last one."""
        at = places[found]
        self.positions[at] = positions[found]
        if self._stored is not None and (row_positions[found] > self._stored[at]).any():
            self._ahead = np.zeros(len(self.found), np.bool_)
            self._ahead[at] = row_positions[found] > self._stored[at]

    def stored(self, places: PlaceArray) -> KeyArray | None:
        """The positions that this server's stores have of the keys at `places`."""
        return None if self._stored is None else self._stored[places]


@dataclass(slots=True)
class LookupCounts:
    """What lookups came to since the model was loaded, in distinct keys of a batch; warm-ups are left out. Of those
    `defaulted`, deadlines have `cut` off so many.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    volatile_hits: int = 0
    persistent_hits: int = 0
    stale: int = 0
    defaulted: int = 0
    unknown: int = 0
    cut: int = 0

    def add(self, more: LookupCounts) -> None:
        """Those of one more batch."""
        self.cache_hits += more.cache_hits
        self.cache_misses += more.cache_misses
        self.volatile_hits += more.volatile_hits
        self.persistent_hits += more.persistent_hits
        self.stale += more.stale
        self.defaulted += more.defaulted
        self.unknown += more.unknown
        self.cut += more.cut
