"""Level 1 on the host: one slab cache a table, shared by all workers of a model (HPS 4).

There is no pool of buffers to wait for: rows go to and from the caller's own. Any number of threads call at once. No
more queries than there are cores run at once: further ones would take cores and their caches from each other, which
cost 64 threads on 2 cores a quarter of the throughput.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue

import numpy as np

from hebe.embeddings.cache.cache_table import CacheCounts, CacheTable, planned_bytes
from hebe.embeddings.memory.table_memory import HugeMapping
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreError,
    check_batch_size,
    check_keys,
    check_mask,
    check_query,
    check_rows,
)
from hebe.kernels.hash_tables import slab_cache
from hebe.kernels.hash_tables.slab_cache import SlabCache
from hebe.kernels.hash_tables.slab_caches import SlabCaches


class HostCache:
    """An `EmbeddingCache` of `tables`, by name, in `memory_bytes` bytes, which `planned_bytes(tables)` tells before.

    Rows are float32 for callers, however a table stores them. Takes seconds to make the first time on a machine, since
    kernels are compiled. Raises `StoreError` when the memory cannot be had.
    """

    def __init__(self, tables: Mapping[str, CacheTable]) -> None:
        self.tables = dict(tables)
        self.memory_bytes = planned_bytes(self.tables)
        self._memory = HugeMapping(
            self.memory_bytes, "caches of embedding rows", "free some, or set a smaller cache or a narrower row format"
        )
        self._all = SlabCaches([table.geometry for table in self.tables.values()], self._memory.bytes)
        self._caches: dict[str, SlabCache] = dict(zip(self.tables, self._all.caches, strict=True))
        self._numbers = {name: number for number, name in enumerate(self.tables)}
        self._turns: SimpleQueue[None] = SimpleQueue()  # a semaphore takes ten times as long
        for _ in range(os.cpu_count() or 1):
            self._turns.put(None)
        self._closed = False
        slab_cache.warm_up()

    def query(
        self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask, stale: FoundMask | None = None
    ) -> int:
        """See `EmbeddingCache.query`. The rows found count as used now."""
        cache = self._cache(table)
        check_query(table, keys, rows, found, cache.geometry.dim)
        if stale is not None:
            check_mask("stale", stale, keys)
        self._turns.get()
        try:
            return self._answer(cache.query(keys, rows, found, stale))
        finally:
            self._turns.put(None)

    def query_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        missing: FoundMask,
        stale: FoundMask,
        *,
        use: bool = True,
    ) -> KeyArray:
        """See `EmbeddingCache.query_tables`."""
        every = self._all
        wanted = self._wanted(tables)
        self._turns.get()
        try:
            told = every.query(wanted, keys, starts, rows, bases, missing, stale, use=use)
        except (TypeError, ValueError) as fault:
            raise StoreError(f"a query of {len(tables)} tables of the cache: {fault}") from None
        finally:
            self._turns.put(None)
        self._answer(0)
        return told

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. Where a slabset is full, the least recently used row gives way."""
        self._answer(self._checked(table, keys, rows).insert(keys, rows))

    def replace_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
    ) -> None:
        """See `EmbeddingCache.replace_tables`."""
        every = self._all
        wanted = self._wanted(tables)
        try:
            every.replace(wanted, keys, starts, rows, bases, chosen)
        except (TypeError, ValueError) as fault:
            raise StoreError(f"rows for {len(tables)} tables of the cache: {fault}") from None
        self._answer(0)

    def replace(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingCache.replace`. Rows that stay count as used by the last query."""
        self._answer(self._checked(table, keys, rows).replace(keys, rows))

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`. Updated rows do not count as used."""
        return self._answer(self._checked(table, keys, rows).update(keys, rows))

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        return self._answer(self._checked(table, keys).delete(keys))

    def mark_stale(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingCache.mark_stale`: how many distinct keys there were, marked before or not."""
        return self._answer(self._checked(table, keys).mark_stale(keys))

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`. While others write: each key that is present all along, exactly once."""
        check_batch_size(batch_size)
        cursor = 0
        while cursor < self._cache(table).geometry.slots:
            keys = np.empty(batch_size, np.int64)
            cursor, count = self._cache(table).dump(cursor, keys)
            if self._answer(count):
                yield keys[:count]

    def keys_by_use(self, table: str) -> KeyArray:
        """See `EmbeddingCache.keys_by_use`. Not while another thread closes the cache."""
        return self._cache(table).by_use()

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return self.counts(table).size

    def counts(self, table: str) -> CacheCounts:
        """Hits, misses, evictions and what else a table's cache counts."""
        totals = self._cache(table).totals.tolist()
        return CacheCounts(
            queries=totals[slab_cache.ITERATION],
            hits=totals[slab_cache.HITS],
            misses=totals[slab_cache.MISSES],
            size=totals[slab_cache.SIZE],
            evictions=totals[slab_cache.EVICTIONS],
            unheld=totals[slab_cache.UNHELD],
        )

    def close(self) -> None:
        """See `EmbeddingStore.close`. Calls that are under way raise `StoreError`."""
        self._closed = True
        self._caches = {}
        self._all = SlabCaches([], np.empty(0, np.uint8))
        self._memory.close()

    def _wanted(self, tables: Sequence[str]) -> KeyArray:
        """The numbers of tables."""
        try:
            wanted = np.array([self._numbers[table] for table in tables], np.int64)
        except KeyError as unknown:
            raise StoreError(f"no table {unknown.args[0]} in the cache; there are {', '.join(self.tables)}") from None
        if self._closed:
            raise _closed()
        return wanted

    def _cache(self, table: str) -> SlabCache:
        cache = self._caches.get(table)
        if cache is None:
            if self._closed:
                raise _closed()
            raise StoreError(f"no table {table} in the cache; there are {', '.join(self.tables)}")
        return cache

    def _checked(self, table: str, keys: KeyArray, rows: RowArray | None = None) -> SlabCache:
        """The cache of `table`, if the arrays are such as it takes."""
        cache = self._cache(table)
        if rows is None:
            check_keys(table, keys)
        else:
            check_rows(table, keys, rows, cache.geometry.dim)
        return cache

    def _answer(self, count: int) -> int:
        """`count`, unless the memory that it came from was given back meanwhile."""
        if self._closed:
            raise _closed()
        return count


def _closed() -> StoreError:
    return StoreError("the cache is closed")
