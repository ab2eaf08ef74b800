"""Level 1 on the host: one slab cache a table, shared by all workers of a model (HPS 4).

There is no pool of buffers to wait for: rows go to and from the caller's own. Any number of threads call at once. No
more queries than there are cores run at once: further ones would take cores and their caches from each other, which
cost 64 threads on 2 cores a quarter of the throughput.

`resize` builds tables of other sizes in memory of their own, carries the rows over while queries go on, and swaps. What
is updated, deleted or marked stale meanwhile is so in both: a row that is carried over is never older.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_CARRIED_ROWS = 4096
"""At most in one step of `resize`, for which an update waits."""
_STEPS = 64
"""At least so many for a table: its rows keep the order of their use to one part in so many."""


class _Tables:
    """The slab caches of `tables` in one mapping. Raises `StoreError` when the memory cannot be had."""

    def __init__(self, tables: Mapping[str, CacheTable]) -> None:
        self.sizes = dict(tables)
        self.memory_bytes = planned_bytes(self.sizes)
        self.memory = HugeMapping(
            self.memory_bytes, "caches of embedding rows", "free some, or set a smaller cache or a narrower row format"
        )
        self.all = SlabCaches([table.geometry for table in self.sizes.values()], self.memory.bytes)
        self.by_name: dict[str, SlabCache] = dict(zip(self.sizes, self.all.caches, strict=True))

    def close(self) -> None:
        """Give the memory back, whoever reads it."""
        self.by_name = {}
        self.all = SlabCaches([], np.empty(0, np.uint8))
        self.memory.close()


class HostCache:
    """An `EmbeddingCache` of `tables`, by name, in `memory_bytes` bytes, which `planned_bytes(tables)` says before.

    Rows are float32 for callers, however a table stores them. Takes seconds to make the first time on a machine, since
    kernels are compiled. Raises `StoreError` when the memory cannot be had.
    """

    def __init__(self, tables: Mapping[str, CacheTable]) -> None:
        self._now = _Tables(tables)
        self._next: _Tables | None = None
        """What `resize` carries rows over to."""
        self._resizes = 0
        self._resizing, self._carrying = threading.Lock(), threading.Lock()
        self._numbers = {name: number for number, name in enumerate(tables)}
        self._turns: SimpleQueue[None] = SimpleQueue()  # a semaphore takes ten times as long
        for _ in range(os.cpu_count() or 1):
            self._turns.put(None)
        self._closed = False
        slab_cache.warm_up()

    @property
    def tables(self) -> Mapping[str, CacheTable]:
        """The tables as they are now, by name."""
        return self._now.sizes

    @property
    def memory_bytes(self) -> int:
        """The memory taken now; while it is resized, that of the new tables comes on top."""
        return self._now.memory_bytes

    def resize(self, tables: Mapping[str, CacheTable], cancelled: threading.Event | None = None) -> None:
        """Have the same tables in other sizes. Queries go on, and find the old ones until all rows are carried over,
        the most recently used where not all fit; a row that is taken in meanwhile may be left behind.

        Both are in memory meanwhile. Half of the time is left to others. Raises `StoreError` when the memory cannot be
        had, the cache is closed, or it is `cancelled`; then all is as it was.
        """
        with self._resizing:
            if self._closed:
                raise _closed()
            old, new = self._now, _Tables(tables)
            try:
                self._next = new
                for name in old.sizes:
                    self._carry_over(name, old, new, cancelled)
                with self._carrying:
                    for name, cache in old.by_name.items():
                        for total in (slab_cache.HITS, slab_cache.MISSES, slab_cache.EVICTIONS, slab_cache.UNHELD):
                            new.by_name[name].totals[total] += cache.totals[total]
                        new.by_name[name].totals[slab_cache.ITERATION] = cache.totals[slab_cache.ITERATION]
                    self._now = new  # the old memory goes with the last query that reads it
                    self._resizes += 1
            finally:
                self._next = None

    def _carry_over(self, name: str, old: _Tables, new: _Tables, cancelled: threading.Event | None) -> None:
        """The rows of a table, the least recently used first, with their stale marks."""
        source, target, number = old.by_name[name], new.by_name[name], np.array([self._numbers[name]])
        keys = source.by_use()[::-1].copy()
        step = max(1, min(_CARRIED_ROWS, keys.size // _STEPS))
        rows = np.empty((step, source.geometry.dim), np.float32)
        missing, stale = np.empty((2, step), np.bool_)
        for first in range(0, keys.size, step):
            if self._closed:
                raise _closed()
            if cancelled is not None and cancelled.is_set():
                raise StoreError("resizing the cache was cancelled")
            began_s = time.monotonic()
            part = keys[first : first + step]
            count = part.size
            starts, bases = np.array([0, count]), np.array([0, count * source.geometry.dim])
            with self._carrying:
                old.all.query(number, part, starts, rows.reshape(-1), bases, missing[:count], stale[:count], use=False)
                found = ~missing[:count]
                # What is used later counts as used later, and all of it before the next query.
                target.totals[slab_cache.ITERATION] = source.totals[slab_cache.ITERATION] * first // keys.size
                target.replace(part[found], rows[:count][found])
                target.mark_stale(part[found & stale[:count]])
            time.sleep(time.monotonic() - began_s)

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
        every = self._now.all
        wanted = self._wanted(tables)
        self._turns.get()
        try:
            counts = every.query(wanted, keys, starts, rows, bases, missing, stale, use=use)
        except (TypeError, ValueError) as fault:
            raise StoreError(f"a query of {len(tables)} tables of the cache: {fault}") from None
        finally:
            self._turns.put(None)
        self._answer(0)
        return counts

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`. Where a slabset is full, the least recently used row gives way."""
        self._change(lambda tables: self._checked(tables, table, keys, rows).insert(keys, rows))

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
        every = self._now.all
        wanted = self._wanted(tables)
        try:
            every.replace(wanted, keys, starts, rows, bases, chosen)
        except (TypeError, ValueError) as fault:
            raise StoreError(f"rows for {len(tables)} tables of the cache: {fault}") from None
        self._answer(0)

    def replace(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingCache.replace`. Rows that stay count as used by the last query."""
        self._answer(self._checked(self._now, table, keys, rows).replace(keys, rows))

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`. Updated rows do not count as used."""
        return self._change(lambda tables: self._checked(tables, table, keys, rows).update(keys, rows))

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        return self._change(lambda tables: self._checked(tables, table, keys).delete(keys))

    def mark_stale(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingCache.mark_stale`: how many distinct keys there were, marked before or not."""
        return self._change(lambda tables: self._checked(tables, table, keys).mark_stale(keys))

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`. While others write: each key that is present all along, exactly once; where
        the cache is resized meanwhile, at least once.
        """
        check_batch_size(batch_size)
        cursor, resizes = 0, self._resizes
        while cursor < self._cache(table).geometry.slots:
            if resizes != self._resizes:
                cursor, resizes = 0, self._resizes
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
        with self._resizing:
            self._now.close()

    def _wanted(self, tables: Sequence[str]) -> KeyArray:
        """The numbers of tables."""
        try:
            wanted = np.array([self._numbers[table] for table in tables], np.int64)
        except KeyError as unknown:
            raise StoreError(f"no table {unknown.args[0]} in the cache; there are {', '.join(self.tables)}") from None
        if self._closed:
            raise _closed()
        return wanted

    def _cache(self, table: str, tables: _Tables | None = None) -> SlabCache:
        """The cache of `table` among `tables`, as they are now by default."""
        cache = (tables or self._now).by_name.get(table)
        if cache is None:
            if self._closed:
                raise _closed()
            raise StoreError(f"no table {table} in the cache; there are {', '.join(self.tables)}")
        return cache

    def _checked(self, tables: _Tables, table: str, keys: KeyArray, rows: RowArray | None = None) -> SlabCache:
        """The cache of `table` among `tables`, if the arrays are such as it takes."""
        cache = self._cache(table, tables)
        if rows is None:
            check_keys(table, keys)
        else:
            check_rows(table, keys, rows, cache.geometry.dim)
        return cache

    def _change(self, act: Callable[[_Tables], int]) -> int:
        """Do what no row may miss: to the tables that there are, those that rows are carried over to, and those that
        took their place meanwhile. Doing it twice is harmless.
        """
        count: int | None = None
        while True:
            now = self._now
            done = act(now)
            count = done if count is None else count
            following = (
                self._next
            )  # read once `now` is changed: rows that are carried over from then on have the change
            if following is not None and following is not now:
                with self._carrying:
                    act(following)
            if self._now is now:
                return self._answer(count)

    def _answer(self, count: int) -> int:
        """`count`, unless the memory that it came from was given back meanwhile."""
        if self._closed:
            raise _closed()
        return count


def _closed() -> StoreError:
    return StoreError("the cache is closed")
