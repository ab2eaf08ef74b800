"""What a batch wants of several tables, those of its keys that are on their way through the lower tiers, and what
became of the keys that were looked up, for metrics.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import FoundMask, KeyArray, RowArray, StoreUnavailable, TablesStore
from hebe.embeddings.tiers.tier_client import TierGuard
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
    `in_vain_s`: seconds for which tiers were waited for that did not answer.
    """

    tables: Sequence[str]
    keys: KeyArray
    starts: KeyArray
    rows: RowArray
    bases: KeyArray
    states: StateArray | None = None
    counted: bool = True
    in_vain_s: float = 0.0

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

    def spans(self, places: PlaceArray) -> tuple[KeyArray, KeyArray]:
        """`starts` and `bases` of a batch of the keys at ascending `places` alone."""
        starts = np.searchsorted(places, self.starts)
        dims = np.diff(self.bases) // np.maximum(np.diff(self.starts), 1)
        return starts, np.concatenate([[0], np.cumsum(np.diff(starts) * dims)])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tier had of the keys that it was asked for: a batch in buffers of its own, with rows of those `found`."""

    batch: BatchLookup
    found: FoundMask

    @property
    def held_bytes(self) -> int:
        """What it takes of memory."""
        return self.batch.keys.nbytes + self.batch.rows.nbytes + self.found.nbytes


class BatchFetch:
    """Those keys of a batch that are `missing`, `count` in all, on their way through the lower tiers.

    `seen`: by table, the updates that were known when it began. `found`: which have their rows by now; `left`: how many
    have not.
    """

    def __init__(self, wanted: BatchLookup, missing: FoundMask, count: int, seen: Sequence[int]) -> None:
        self.wanted, self.seen, self.left = wanted, seen, count
        self.found = np.zeros(len(wanted.keys), np.bool_)
        self.doubted: FoundMask | None = None
        """Which of them may be older than they should be: a tier that has newer ones could not be asked, or this one
        has yet to be given them."""
        self.damaged: FoundMask | None = None
        """Which of them have rows that are damaged in the tier that has them: they are defaulted, not unknown."""
        self._missing = missing
        self._answered = False
        """The last tier that was asked has said which it has."""

    @property
    def state(self) -> int:
        """How keys were answered that are left, but for those that are `damaged`."""
        return UNKNOWN if self._answered else DEFAULTED

    @property
    def rest(self) -> FoundMask:
        """Which keys are left."""
        return self._missing & ~self.found

    @property
    def to_keep(self) -> FoundMask:
        """Which rows level 1 may keep."""
        return self.found if self.doubted is None else self.found & ~self.doubted

    def found_parts(self) -> list[tuple[str, KeyArray]]:
        """A copy of the keys that were found, with their tables."""
        return self.wanted.parts(np.flatnonzero(self.found))

    def fill_from(self, store: TablesStore) -> int:
        """Take what a tier in this process has of all that is missing; returns how many rows it had."""
        wanted = self.wanted
        hits = store.fill_tables(
            wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, self._missing, self.found
        )
        self._answered = True
        self.left -= hits
        return hits

    def ask(self, tier: TierGuard, timeout_s: float, but: FoundMask | None = None) -> Answer | None:
        """Take what a guarded tier has of all that is left, `but` for these keys; None if that is nothing, or it has
        not answered in time.
        """
        wanted, places = self.wanted, np.flatnonzero(self.rest if but is None else self.rest & ~but)
        if not places.size:
            return None
        keys, (starts, bases) = wanted.keys[places], wanted.spans(places)
        self._answered = False
        asked_s = time.perf_counter()
        try:
            rows, found, damaged = tier.query_tables(wanted.tables, keys, starts, bases, timeout_s)
        except StoreUnavailable:
            wanted.in_vain_s += time.perf_counter() - asked_s
            return None
        take_rows(rows, places, found, wanted.starts, wanted.bases, wanted.rows)
        self.found[places] = found
        self._answered = True
        if damaged is not None:
            self.damaged = np.zeros(len(wanted.keys), np.bool_)
            self.damaged[places] = damaged
        hits = int(np.count_nonzero(found))
        self.left -= hits
        return Answer(BatchLookup(wanted.tables, keys, starts, rows, bases), found) if hits else None


@dataclass(slots=True)
class LookupCounts:
    """What lookups came to since the model was loaded, in distinct keys of a batch; warm-ups are left out."""

    cache_hits: int = 0
    cache_misses: int = 0
    volatile_hits: int = 0
    persistent_hits: int = 0
    stale: int = 0
    defaulted: int = 0
    unknown: int = 0

    def add(self, more: LookupCounts) -> None:
        """Those of one more batch."""
        self.cache_hits += more.cache_hits
        self.cache_misses += more.cache_misses
        self.volatile_hits += more.volatile_hits
        self.persistent_hits += more.persistent_hits
        self.stale += more.stale
        self.defaulted += more.defaulted
        self.unknown += more.unknown
