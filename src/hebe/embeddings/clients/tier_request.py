"""What a tier is asked for: keys of several tables, put to its store in pieces, and the rows that have come so far."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hebe.embeddings.store import (
    EmbeddingStore,
    FoundMask,
    KeyArray,
    RowArray,
    StoreDamaged,
    StoreError,
    TablesStore,
)

MAX_PIECE_KEYS = 2048
"""Of one call of the store: enough to make little of what a call costs, and few enough for some to be in time."""

_MAX_ERRORS = 256
"""After so many, keys of a piece that fails are taken for damaged as they are: a request takes no time without end."""
_NEWEST = int(np.iinfo(np.int64).max)
_NO_ROWS = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys `[first, last)`, which are of tables `[first_table, last_table)`."""

    first_table: int
    last_table: int
    first: int
    last: int


class TierRequest:
    """Keys of several tables for `store`, and the rows that come, in buffers of its own: its caller may have left.

    Arrays as those of `TablesStore.fill_tables`. A piece has at most `piece_keys`; of a store that is no `TablesStore`,
    keys of one table. Where a store has damage, it is asked around it. `on_end` is called once, on the thread that ends
    the request, when nothing of it is in work any more.

    `answered` says of which keys the tier has answered, `found` of which there is a row, `damaged` of which it is
    damaged; read them after `leave`, or when it has `ended`.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        bases: KeyArray,
        *,
        piece_keys: int = MAX_PIECE_KEYS,
        asked_s: float = 0.0,
        on_end: Callable[[TierRequest], None] | None = None,
    ) -> None:
        self._store, self._tables = store, tuple(tables)
        self._keys, self._starts, self._bases = keys.copy(), starts.copy(), bases.copy()
        self.rows: RowArray = np.empty(bases[-1], np.float32)
        self.found: FoundMask = np.zeros(len(keys), np.bool_)
        self.positions, self.row_positions = np.full(len(keys), _NEWEST), np.full(len(keys), -1)
        """Of rows found: see `TablesStore.fill_tables`. Those of a store that knows no age are as new as can be."""
        self.answered: FoundMask = np.zeros(len(keys), np.bool_)
        self.damaged: FoundMask = np.zeros(len(keys), np.bool_)
        self.damage: StoreDamaged | None = None
        """Why it is answered without the rows of some keys."""
        self.error: StoreError | None = None
        """Why a piece of it has failed; those that nobody had begun then are dropped."""
        self.failure_counted = False
        self.asked_s = self.progress_s = asked_s
        """When it was made, and when a piece of it was last begun or answered."""
        self.ended_s = math.inf
        self._on_end = on_end
        self._waiting = deque(self._pieces(piece_keys))
        self.pieces = len(self._waiting)
        self._in_work = 0
        self._taken: FoundMask | None = None
        """Which keys were answered when the caller left."""
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def tables(self) -> tuple[str, ...]:
        """What `starts` and `bases` are of."""
        return self._tables

    @property
    def keys(self) -> KeyArray:
        """Its own copy of them."""
        return self._keys

    @property
    def starts(self) -> KeyArray:
        """Where the keys of each table begin, and last how many there are."""
        return self._starts

    @property
    def bases(self) -> KeyArray:
        """Where the rows of each table begin, and last how many numbers there are."""
        return self._bases

    @property
    def waits(self) -> bool:
        """Whether there are pieces that no thread has begun."""
        return bool(self._waiting)

    @property
    def ended(self) -> bool:
        """Whether nothing of it waits or is in work."""
        return self._over.is_set()

    @property
    def late(self) -> FoundMask:
        """Of a request that has ended: which keys were answered after its caller left."""
        return np.zeros_like(self.answered) if self._taken is None else self.answered & ~self._taken

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        return not self.pieces or self._over.wait(timeout_s)

    def begin(self, now_s: float) -> Piece | None:
        """The next piece for the thread that asks; None if there is none left."""
        with self._lock:
            if not self._waiting:
                return None
            self._in_work += 1
            self.progress_s = now_s
            return self._waiting.popleft()

    def put(self, piece: Piece) -> None:
        """Have the store answer `piece`. Raises what the store raises, but for damage."""
        first, last = piece.first, piece.last
        numbers = slice(piece.first_table, piece.last_table + 1)
        starts, bases = self._starts[numbers], self._bases[numbers]
        dims = np.diff(bases) // np.maximum(np.diff(starts), 1)
        begin = int(bases[0] + (first - starts[0]) * dims[0])
        end = int(bases[-2] + (last - starts[-2]) * dims[-1])
        keys, rows, found = self._keys[first:last], self.rows[begin:end], self.found[first:last]
        if isinstance(self._store, TablesStore):
            tables, wanted = self._tables[piece.first_table : piece.last_table], np.ones(last - first, np.bool_)
            starts, bases = np.clip(starts, first, last) - first, np.clip(bases, begin, end) - begin
            ages = self.positions[first:last], self.row_positions[first:last]
            self._store.fill_tables(tables, keys, starts, rows, bases, wanted, found, *ages)
        else:
            table = self._tables[piece.first_table]
            self._put_table(table, keys, rows.reshape(last - first, -1), found, self.damaged[first:last])

    def done(self, piece: Piece, now_s: float, error: StoreError | None = None) -> bool:
        """A thread has the store's answer to `piece`, or has failed; whether that was the last one: it is for that
        thread to `end` the request.
        """
        with self._lock:
            self._in_work -= 1
            self.progress_s = now_s
            if error is None:
                self.answered[piece.first : piece.last] = True
            else:
                self.error = self.error or error
                self.found[piece.first : piece.last] = False
                self._waiting.clear()
            return not self._in_work and not self._waiting

    def end(self, now_s: float) -> None:
        """Nothing of it waits or is in work."""
        self.ended_s = now_s
        self._over.set()
        if self._on_end is not None:
            self._on_end(self)

    def leave(self) -> FoundMask:
        """The caller waits no more: pieces that no thread has begun are dropped. Returns which keys are answered."""
        with self._lock:
            if self._over.is_set():
                return self.answered
            self._waiting.clear()
            self._taken = self.answered.copy()
            if not self._in_work:  # and none ever will be
                self._over.set()
                if not self._taken.any():  # it may be long in the line yet
                    self.rows = _NO_ROWS
            return self._taken

    def sample(self, dims: Mapping[str, int], max_keys: int) -> tuple[Sequence[str], KeyArray, KeyArray, KeyArray]:
        """Tables, keys, starts and bases of a smaller request: some keys of each table, from all over it. A tier that
        answers that would answer this one too.
        """
        parts = list(pairwise(self._starts.tolist()))
        most = max(1, max_keys // max(1, sum(last > first for first, last in parts)))
        chosen = [np.linspace(first, last - 1, min(most, last - first), dtype=np.int64) for first, last in parts]
        counts = [len(places) for places in chosen]
        numbers = [count * dims[table] for count, table in zip(counts, self._tables, strict=True)]
        return self._tables, self._keys[np.concatenate(chosen)], np.cumsum([0, *counts]), np.cumsum([0, *numbers])

    def _pieces(self, piece_keys: int) -> list[Piece]:
        """Of nearly equal sizes."""
        starts, pieces = self._starts, []
        whole = isinstance(self._store, TablesStore)
        parts = [(0, int(starts[-1]))] if whole else list(pairwise(starts.tolist()))
        for start, stop in parts:
            count = -(-(stop - start) // piece_keys)
            cuts = [start + (stop - start) * number // max(count, 1) for number in range(count + 1)]
            for first, last in pairwise(cuts):
                first_table = int(np.searchsorted(starts, first, "right")) - 1
                pieces.append(Piece(first_table, int(np.searchsorted(starts, last, "left")), first, last))
        return pieces

    def _put_table(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask, damaged: FoundMask) -> None:
        """One table's keys. Where something is damaged, all others are found in smaller and smaller parts, of
        ascending keys: adjacent rows are damaged together.
        """
        try:
            self._store.query(table, keys, rows, found)
            return
        except StoreDamaged as error:
            self.damage = error
        order = np.argsort(keys)
        keys, there, had, bad = keys[order], np.empty_like(rows), np.empty_like(found), np.zeros_like(damaged)
        parts, errors = [(0, len(keys))], 0
        while parts:
            first, last = parts.pop()
            part = slice(first, last)
            try:
                self._store.query(table, keys[part], there[part], had[part])
            except StoreDamaged as error:
                self.damage, errors = error, errors + 1
                if last - first == 1 or errors > _MAX_ERRORS:
                    had[part], bad[part] = False, True
                else:
                    middle = (first + last) // 2
                    parts += [(middle, last), (first, middle)]
        rows[order], found[order], damaged[order] = there, had, bad
