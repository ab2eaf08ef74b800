"""How far a server is in the update log, and which keys had updates up to there: whether a row that comes from
elsewhere is as new as what the server knows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hebe.embeddings.store import UNKNOWN_POSITION, KeyArray
from hebe.kernels.hash_tables import key_positions, xxh64

_NOTHING = -1
_SLOTS_BITS, _LEAST_BITS = 20, 4
"""8 MiB of slots, taken with the first update; so many at least for each partition."""
_BEGUN, _STORED, _WRITING = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class KeyPositions:
    """Of the keys of a batch, int64 `[n]` each: `stored` is the position that the server's own stores have in the key's
    partition of the log; a row with an earlier position than `required` lacks an update that the server knows of, or
    may.
    """

    stored: KeyArray
    required: KeyArray


@dataclass(frozen=True, slots=True, eq=False)
class _Partitions:
    """Of all tables: how many each has, and the number of its first one among all; `values` int64 `[3, all]` are where
    each was begun, what stores have, and what they are being given; `slots` int64 `[all << bits]`, none before the
    first update.
    """

    counts: Mapping[str, int]
    firsts: Mapping[str, int]
    bits: int
    values: KeyArray
    slots: KeyArray = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> _Partitions:
        """So many of each table, with no positions."""
        firsts, total = {}, 0
        for table, count in counts.items():
            firsts[table] = total
            total += count
        bits = max(_LEAST_BITS, _SLOTS_BITS - max(total - 1, 0).bit_length())
        return cls(dict(counts), firsts, bits, np.full((3, total), _NOTHING))

    def own(self, table: str) -> KeyArray:
        """The `values` of one table's partitions."""
        first = self.firsts[table]
        return self.values[:, first : first + self.counts[table]]


class UpdatePositions:
    """Of the updates of `tables`, which one thread notes in order while any number of others ask.

    `begin` says from where on a partition is read, `writing` that stores are being given what comes next, `written`
    that they have it.
    """

    def __init__(self, tables: Iterable[str]) -> None:
        self._all = _Partitions.of(dict.fromkeys(tables, 0))
        self._changing = threading.Lock()
        self.changes = 0
        """Grows with each `written`: who compares before and after knows whether anything came between."""

    @property
    def active(self) -> bool:
        """Whether there is any partition."""
        return bool(self._all.values.size)

    def count(self, table: str) -> int:
        """How many partitions of a table there are."""
        return self._all.counts[table]

    def begin(self, table: str, partition: int, position: int) -> None:
        """A partition is read from behind `position` on, and stores have all up to there; what came before of it, of
        this log or another one, is forgotten.
        """
        with self._changing:
            if partition >= self._all.counts[table]:
                self._grow(table, partition + 1)
            known = self._all
            number = known.firsts[table] + partition
            known.values[:, number] = position
            if known.slots.size:
                known.slots[number << known.bits : (number + 1) << known.bits] = _NOTHING
            self.changes += 1

    def writing(self, table: str, partition: int, offset: int) -> None:
        """Stores are about to be given updates up to this offset."""
        own = self._all.own(table)
        own[_WRITING, partition] = max(own[_WRITING, partition], offset)

    def written(self, table: str, partition: int, keys: KeyArray, offsets: KeyArray, position: int | None) -> None:
        """Stores have the updates of `keys`, those at `offsets`, both int64 `[n]`, and with them all up to `position`;
        None: more of the same message follows.
        """
        if not self._all.slots.size:
            with self._changing:
                slots = np.full(self._all.values.shape[1] << self._all.bits, _NOTHING)
                self._all = replace(self._all, slots=slots)
        known = self._all
        if keys.size:
            number = known.firsts[table] + partition
            key_positions.note_positions(keys, offsets, number, known.bits, known.slots)
        if position is not None:
            own = known.own(table)
            own[_STORED, partition] = position
            own[_WRITING, partition] = max(own[_WRITING, partition], position)
        self.changes += 1

    def of_keys(self, tables: Sequence[str], keys: KeyArray, starts: KeyArray) -> KeyPositions:
        """Of `keys[starts[i] : starts[i + 1]]`, those of `tables[i]`; -1 for a table without partitions."""
        known = self._all
        counts = np.array([known.counts[table] for table in tables], np.int64)
        firsts = np.array([known.firsts[table] for table in tables], np.int64)
        stored, required = np.empty((2, len(keys)), np.int64)
        begun, reached = known.values[_BEGUN], known.values[_STORED]
        key_positions.read_positions(
            keys, starts, counts, firsts, known.bits, begun, reached, known.slots, required, stored
        )
        return KeyPositions(stored, required)

    def settled(self, table: str) -> KeyArray:
        """By partition of a table, the position that stores have, and `UNKNOWN_POSITION` where they are being given
        more.
        """
        own = self._all.own(table).copy()
        stored: KeyArray = own[_STORED]
        stored[own[_WRITING] > stored] = UNKNOWN_POSITION
        return stored

    def partitions_of(self, table: str, keys: KeyArray) -> KeyArray:
        """The partition of the log that each key belongs to, int64 `[n]`; 0 for a table without any."""
        count = self._all.counts[table]
        return xxh64.key_partitions(keys, count) if count else np.zeros(len(keys), np.int64)

    def _grow(self, table: str, count: int) -> None:
        """A table comes to have more partitions. Its keys are others' then, and what was noted of any is forgotten: all
        up to where stores are, or are being given more, may have had updates.
        """
        before = self._all
        grown = _Partitions.of({**before.counts, table: count})
        for name, own in before.counts.items():
            values = before.own(name)
            grown.own(name)[:, :own] = values
            if before.slots.size:
                grown.own(name)[_BEGUN, :own] = values[_STORED:].max(axis=0)
        self._all = grown
