"""What a guarded tier is asked for on behalf of one batch, and what it answers: several tables, one verdict."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from hebe.embeddings.store import EmbeddingStore, FoundMask, KeyArray, RowArray, StoreDamaged, StoreError, TablesStore

_MOST_FAULTS = 256
"""After so many, keys of a piece that fails are taken for damaged as they are: a question takes no time without end."""
_NO_KEYS, _NO_ROWS = np.empty(0, np.int64), np.empty(0, np.float32)


class TierQuestion:
    """Keys of several tables for `store`, and the rows that come, in buffers of its own: who asked may have given up.

    Arrays as those of `TablesStore.fill_tables`. Such a store is asked in one piece, another one for a table at a time,
    by as many threads as `work`: they wait for its disk side by side. Where that has damage, it is asked around it.
    """

    def __init__(
        self, store: EmbeddingStore, tables: Sequence[str], keys: KeyArray, starts: KeyArray, bases: KeyArray
    ) -> None:
        self._store, self._tables = store, tuple(tables)
        self._keys, self._starts, self._bases = keys.copy(), starts.copy(), bases.copy()
        self.rows: RowArray = np.empty(bases[-1], np.float32)
        self.found: FoundMask = np.zeros(len(keys), np.bool_)
        self.fault: StoreError | None = None
        """Why it has failed."""
        self.damage: StoreDamaged | None = None
        """Why it is answered without the rows of some keys, those that are `damaged`."""
        self.damaged: FoundMask = np.zeros(len(keys), np.bool_)
        self.failure_counted = False
        self.started_s = math.inf
        """When its first thread began: what it waits in the line before says nothing about the tier."""
        tables_asked = np.flatnonzero(np.diff(starts)).tolist()
        self._waiting = deque(tables_asked[:1] if isinstance(store, TablesStore) else tables_asked)
        self.pieces = len(self._waiting)
        self._answered: list[int] = []
        self._over = threading.Event()

    def begin(self, now_s: float) -> bool:
        """Whether a thread that comes to it now finds something to do: others may have begun all, or nobody waits."""
        if not self._waiting:
            return False
        self.started_s = min(self.started_s, now_s)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over by then. If not, nobody waits any more: pieces that no thread has begun are dropped."""
        if not self.pieces or self._over.wait(timeout_s):
            return True
        dropped = 0
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft()
                dropped += 1
        if dropped == self.pieces:  # no thread has its buffers, or ever will: it may be long in the line yet
            self._keys, self.rows = _NO_KEYS, _NO_ROWS
        return False

    def work(self) -> bool:
        """Put pieces to the store while there are any. Returns whether all are answered, of which this thread put one.

        Raises what the store raises; the pieces that are left are dropped.
        """
        worked = False
        while True:
            try:
                number = self._waiting.popleft()
            except IndexError:
                return worked and len(self._answered) == self.pieces
            try:
                self._put(number)
            except Exception:
                self._waiting.clear()
                raise
            self._answered.append(number)
            worked = True

    def sample(self, dims: Mapping[str, int], most_keys: int) -> tuple[Sequence[str], KeyArray, KeyArray, KeyArray]:
        """Tables, keys, starts and bases of a smaller question: some keys of each table, from all over it. Whether that
        is answered tells whether this one would be.
        """
        keys = self._keys
        if not keys.size:  # dropped, with nobody waiting
            keys = np.zeros(self._starts[-1], np.int64)
        parts = list(pairwise(self._starts.tolist()))
        most = max(1, most_keys // max(1, sum(last > first for first, last in parts)))
        chosen = [np.linspace(first, last - 1, min(most, last - first), dtype=np.int64) for first, last in parts]
        counts = [len(places) for places in chosen]
        numbers = [count * dims[table] for count, table in zip(counts, self._tables, strict=True)]
        return self._tables, keys[np.concatenate(chosen)], np.cumsum([0, *counts]), np.cumsum([0, *numbers])

    def end(self, fault: StoreError | None = None) -> None:
        """Have who waits learn that it is answered, or has failed."""
        self.fault = self.fault or fault
        self._over.set()

    def _put(self, number: int) -> None:
        keys, starts, bases, rows, found = self._keys, self._starts, self._bases, self.rows, self.found
        if isinstance(self._store, TablesStore):
            wanted = np.ones(len(keys), np.bool_)
            self._store.fill_tables(self._tables, keys, starts, rows, bases, wanted, found)
        else:
            own = slice(starts[number], starts[number + 1])
            there = rows[bases[number] : bases[number + 1]].reshape(own.stop - own.start, -1)
            self._put_table(self._tables[number], keys[own], there, found[own], self.damaged[own])

    def _put_table(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask, damaged: FoundMask) -> None:
        """One table's keys. Where something is damaged, all others are found in smaller and smaller pieces, of
        ascending keys: what lies beside each other is damaged together.
        """
        try:
            self._store.query(table, keys, rows, found)
            return
        except StoreDamaged as fault:
            self.damage = fault
        order = np.argsort(keys)
        keys, there, had, bad = keys[order], np.empty_like(rows), np.empty_like(found), np.zeros_like(damaged)
        pieces, faults = [(0, len(keys))], 0
        while pieces:
            first, last = pieces.pop()
            part = slice(first, last)
            try:
                self._store.query(table, keys[part], there[part], had[part])
            except StoreDamaged as fault:
                self.damage, faults = fault, faults + 1
                if last - first == 1 or faults > _MOST_FAULTS:
                    had[part], bad[part] = False, True
                else:
                    middle = (first + last) // 2
                    pieces += [(middle, last), (first, middle)]
        rows[order], found[order], damaged[order] = there, had, bad
