"""Tiers made of dicts, with faults to order: what tests of the hierarchy put in the place of the real ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hebe.embeddings.store import StoreDamaged, StoreError


class DictStore:
    """An `EmbeddingStore` and `VolatileStore`. While `fault` is set calls raise it; while `gate` is clear they wait.

    `positions` and `row_positions` by key are what `fill_tables` reports of rows; of others nothing, as a store does
    whose rows do not know their age.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.dims = dict(dims)
        self.tables: dict[str, dict[int, np.ndarray]] = {table: {} for table in dims}
        self.fault: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.queries: list[tuple[str, list[int]]] = []
        self.touched: list[int] = []
        self.positions: dict[int, int] = {}
        self.row_positions: dict[int, int] = {}
        self.closed = False

    def _table(self, table: str) -> dict[int, np.ndarray]:
        self.gate.wait()
        if self.closed:
            raise StoreError("the store is closed")
        if self.fault is not None:
            raise self.fault
        if table not in self.tables:
            raise StoreError(f"no table {table}")
        return self.tables[table]

    def query(self, table: str, keys: np.ndarray, rows: np.ndarray, found: np.ndarray) -> int:
        stored = self._table(table)
        self.queries.append((table, keys.tolist()))
        for place, key in enumerate(keys.tolist()):
            found[place] = key in stored
            if found[place]:
                rows[place] = stored[key]
        return int(np.count_nonzero(found))

    def insert(self, table: str, keys: np.ndarray, rows: np.ndarray) -> None:
        self._table(table).update(zip(keys.tolist(), rows.copy(), strict=True))

    def update(self, table: str, keys: np.ndarray, rows: np.ndarray) -> int:
        stored = self._table(table)
        there = {key: row for key, row in zip(keys.tolist(), rows.copy(), strict=True) if key in stored}
        stored.update(there)
        return len(there)

    def delete(self, table: str, keys: np.ndarray) -> int:
        stored = self._table(table)
        return sum(stored.pop(key, None) is not None for key in keys.tolist())

    def dump_keys(self, table: str, batch_size: int) -> Iterator[np.ndarray]:
        keys = np.array(list(self._table(table)), np.int64)
        for first in range(0, len(keys), batch_size):
            yield keys[first : first + batch_size]

    def size(self, table: str) -> int:
        return len(self._table(table))

    def _parts(
        self, tables: Sequence[str], starts: np.ndarray, rows: np.ndarray, bases: np.ndarray
    ) -> Iterator[tuple[str, slice, np.ndarray]]:
        """Of a call for several tables: each table, where its keys lie, and its rows, to read or to fill."""
        for number, table in enumerate(tables):
            own = rows[bases[number] : bases[number + 1]].reshape(-1, self.dims[table])
            yield table, slice(starts[number], starts[number + 1]), own

    def fill_tables(
        self,
        tables: Sequence[str],
        keys: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray,
        bases: np.ndarray,
        wanted: np.ndarray,
        found: np.ndarray,
        positions: np.ndarray | None = None,
        row_positions: np.ndarray | None = None,
    ) -> int:
        count = 0
        for table, mine, own in self._parts(tables, starts, rows, bases):
            places = np.flatnonzero(wanted[mine])
            got, there = np.empty((places.size, self.dims[table]), np.float32), np.zeros(places.size, np.bool_)
            count += self.query(table, keys[mine][places], got, there)
            own[places[there]] = got[there]
            found[mine][places] = there
        for reported, known in ((positions, self.positions), (row_positions, self.row_positions)):
            if reported is not None and known:
                reported[:] = [known.get(key, before) for key, before in zip(keys.tolist(), reported, strict=True)]
        return count

    def insert_tables(
        self,
        tables: Sequence[str],
        keys: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray,
        bases: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        for table, mine, own in self._parts(tables, starts, rows, bases):
            self.insert(table, keys[mine][chosen[mine]], own[chosen[mine]])

    def touch(self, parts: Sequence[tuple[str, np.ndarray]]) -> None:
        for table, keys in parts:
            self._table(table)
            self.touched += keys.tolist()

    def close(self) -> None:
        self.closed = True


class OneTableStore:
    """Of a `DictStore` what one has that answers for one table at a time only."""

    def __init__(self, store: DictStore) -> None:
        self.query, self.close = store.query, store.close


class DamagedStore(OneTableStore):
    """One that cannot read the rows of some keys, nor of those asked for with them: as RocksDB with a damaged block."""

    def __init__(self, store: DictStore, *damaged: int) -> None:
        super().__init__(store)
        self.damaged = set(damaged)
        self.asked: list[list[int]] = []
        self.query, self._query = self._query_if_whole, store.query

    def _query_if_whole(self, table: str, keys: np.ndarray, rows: np.ndarray, found: np.ndarray) -> int:
        self.asked.append(keys.tolist())
        rows[:], found[:] = np.nan, True  # what it has read before it meets the damage is not to be relied upon
        if bad := self.damaged & set(keys.tolist()):
            raise StoreDamaged(f"the block of {min(bad)} is damaged", "a row is damaged")
        found[:] = False
        return self._query(table, keys, rows, found)


class DictCache(DictStore):
    """An `EmbeddingCache` of at most `capacity` rows a table, least recently used out first."""

    def __init__(self, dims: Mapping[str, int], capacity: int) -> None:
        super().__init__(dims)
        self.capacity = capacity
        self._lock = threading.RLock()
        self.stale: dict[str, set[int]] = {table: set() for table in dims}

    def query(
        self,
        table: str,
        keys: np.ndarray,
        rows: np.ndarray,
        found: np.ndarray,
        stale: np.ndarray | None = None,
        *,
        use: bool = True,
    ) -> int:
        with self._lock:
            count = super().query(table, keys, rows, found)
            stored = self.tables[table]
            for place, key in enumerate(keys.tolist()):
                if stale is not None:
                    stale[place] = found[place] and key in self.stale[table]
                if found[place] and use:
                    stored[key] = stored.pop(key)
            return count

    def query_tables(
        self,
        tables: Sequence[str],
        keys: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray,
        bases: np.ndarray,
        missing: np.ndarray,
        stale: np.ndarray,
        *,
        use: bool = True,
    ) -> np.ndarray:
        told = []
        for table, mine, own in self._parts(tables, starts, rows, bases):
            hits = self.query(table, keys[mine], own, missing[mine], stale[mine], use=use)
            np.logical_not(missing[mine], out=missing[mine])
            told.append((hits, np.count_nonzero(stale[mine])))
        return np.array(told, np.int64).T

    def replace_tables(
        self,
        tables: Sequence[str],
        keys: np.ndarray,
        starts: np.ndarray,
        rows: np.ndarray,
        bases: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        for table, mine, own in self._parts(tables, starts, rows, bases):
            self.replace(table, keys[mine][chosen[mine]], own[chosen[mine]])

    def keys_by_use(self, table: str) -> np.ndarray:
        with self._lock:
            return np.array([*self._table(table)][::-1], np.int64)

    def _shrink(self, table: str) -> None:
        stored = self._table(table)
        while len(stored) > self.capacity:
            oldest = next(iter(stored))
            del stored[oldest]
            self.stale[table].discard(oldest)

    def insert(self, table: str, keys: np.ndarray, rows: np.ndarray) -> None:
        with self._lock:
            super().insert(table, keys, rows)
            self.stale[table] -= set(keys.tolist())
            self._shrink(table)

    def update(self, table: str, keys: np.ndarray, rows: np.ndarray) -> int:
        with self._lock:
            self.stale[table] -= set(keys.tolist())
            return super().update(table, keys, rows)

    def replace(self, table: str, keys: np.ndarray, rows: np.ndarray) -> None:
        with self._lock:
            stored = self._table(table)
            for key, row in zip(keys.tolist(), rows.copy(), strict=True):
                stored[key] = stored.pop(key, row)
            self._shrink(table)

    def mark_stale(self, table: str, keys: np.ndarray) -> int:
        with self._lock:
            present = set(keys.tolist()) & set(self._table(table))
            self.stale[table] |= present
            return len(present)
