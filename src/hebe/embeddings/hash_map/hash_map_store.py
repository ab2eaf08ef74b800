"""Level 2 in this process: a partitioned parallel hash map, one for each table (`kernels/hash_map`).

Calls run without the GIL and side by side. Queries of a partition never wait for each other, for writers of another,
or for it to grow; they wait for one of its writers for some microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hebe.embeddings.hash_map.hash_map_table import HashMapTable
from hebe.embeddings.memory.memory_pieces import MemoryPieces
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreError,
    check_batch_size,
    check_flat,
    check_keys,
    check_query,
    check_rows,
)
from hebe.embeddings.volatile_options import VolatileOptions
from hebe.kernels.hash_tables import hash_map
from hebe.kernels.hash_tables import hash_map_partition as layout
from hebe.kernels.lookup.table_batch import check_table_batch


class HashMapStore:
    """A `VolatileStore` of tables with the embedding dims `dims`, empty at first.

    It grows until `memory_bound_bytes` (None: what the machine has available), then insertions raise `StoreError`
    while all else goes on; those rows of the call that found room are kept. After `evict_where_memory_ends` or
    `refuse_where_memory_ends` they evict, or leave out what finds no room, and never raise for want of it.
    Memory of deleted and evicted rows is used again, and given back by `close`. `seed` is the chance of `evict_random`.
    A row is as old as its last insertion or `touch`; both count as a use, an update does not.
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        options: VolatileOptions,
        *,
        memory_bound_bytes: int | None = None,
        seed: int = 0,
    ) -> None:
        self.dims = dict(dims)
        self.options = options
        self._kernels = hash_map.kernels()
        self._memory = MemoryPieces(memory_bound_bytes)
        self._closed = self._evicts = self._refuses = False
        self._refused = dict.fromkeys(self.dims, 0)
        chance = np.random.SeedSequence(seed).spawn(len(self.dims))
        self._headers = np.zeros((len(self.dims), options.num_partitions * layout.HEADER_WORDS), np.int64)
        self._tables = {
            table: HashMapTable(table, dim, options, self._memory, self._headers[number], chance[number])
            for number, (table, dim) in enumerate(self.dims.items())
        }
        self._numbers = {table: number for number, table in enumerate(self.dims)}
        plan = [(entry.chunk_bits, entry.dim) for entry in self._tables.values()]
        self._plan = np.array(plan, np.int64).reshape(-1, 2)

    def evict_where_memory_ends(self) -> None:
        """From now on, what a partition holds when memory ends is its overflow margin, if it has a larger one; one that
        holds nothing then stays empty. For one who has all rows elsewhere, and would rather have these than those.
        """
        self._evicts = True

    def refuse_where_memory_ends(self) -> None:
        """From now on, keys that find no room are left out and counted, and the rest of the call is done. For one that
        alone has the rows: those that it has are brought up to date, whatever comes beside them.
        """
        self._refuses = True

    @property
    def refused_keys(self) -> Mapping[str, int]:
        """See `BoundedStore.refused_keys`."""
        return dict(self._refused)

    @property
    def why_refused(self) -> str:
        """See `BoundedStore.why_refused`."""
        return "the hash map's memory is used up: raise memory_bytes of [volatile_db], or add a [persistent_db]"

    @property
    def memory_bytes(self) -> int:
        """What all tables take now, rows, slots and headers; their last huge page may be partly used."""
        return self._memory.taken_bytes

    @property
    def peak_memory_bytes(self) -> int:
        """The most that `memory_bytes` ever was, slots that were being exchanged included."""
        return self._memory.peak_bytes

    def evicted_rows(self, table: str) -> int:
        """Rows that left because their partition was above its overflow margin."""
        return self._table(table).total(layout.EVICTED)

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        entry = self._table(table)
        check_query(table, keys, rows, found, entry.dim)
        return self._counted(self._kernels.query(entry.header, entry.chunk_bits, keys, rows, found))

    def fill_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        wanted: FoundMask,
        found: FoundMask,
    ) -> int:
        """See `TablesStore.fill_tables`."""
        numbers = self._numbers_of(tables)
        check_flat(tables, keys, starts, rows, bases, wanted, found, fills=True)
        try:
            check_table_batch(self._plan[:, 1], numbers, keys, starts, rows, bases, wanted, found)
        except ValueError as fault:
            raise StoreError(f"a query of {len(tables)} tables of the hash map: {fault}") from None
        return self._counted(
            self._kernels.fill_tables(self._headers, self._plan, numbers, keys, starts, rows, bases, wanted, found)
        )

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`."""
        entry = self._table(table)
        check_rows(table, keys, rows, entry.dim)
        order, hashes, starts = self._kernels.group(keys, self.options.num_partitions)
        partition = index = 0
        while True:
            status, partition, index = self._kernels.insert(
                entry.header, entry.chunk_bits, keys, rows, order, hashes, starts, partition, index
            )
            if status == hash_map.DONE:
                return
            if status == hash_map.MAP_CLOSED:
                raise _closed()
            try:
                entry.grow(partition, status)
            except StoreError:
                if self._evicts:
                    entry.bound(partition)
                if self._kernels.prune(entry.header, entry.chunk_bits, entry.row_bytes, partition):
                    continue
                rest = order[index : starts[partition + 1]]
                if self._evicts:
                    # It has no rows to give way, as where other tables had all memory first: it does without these.
                    self.delete(table, keys[rest])  # nor keeps older ones of them
                elif self._refuses:
                    there = self.update(table, keys[rest], rows[rest])
                    self._refused[table] += int(np.unique(keys[rest]).size) - there
                else:
                    raise
                partition += 1

    def insert_tables(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        rows: RowArray,
        bases: KeyArray,
        chosen: FoundMask,
    ) -> None:
        """See `VolatileStore.insert_tables`. When it fails, the rows of some tables may be there."""
        numbers = self._numbers_of(tables)
        check_flat(tables, keys, starts, rows, bases, chosen, fills=False)
        try:
            check_table_batch(self._plan[:, 1], numbers, keys, starts, rows, bases, chosen)
        except ValueError as fault:
            raise StoreError(f"rows for {len(tables)} tables of the hash map: {fault}") from None
        for number, table in enumerate(tables):
            own = np.flatnonzero(chosen[starts[number] : starts[number + 1]])
            if own.size:
                there = rows[bases[number] : bases[number + 1]].reshape(-1, self.dims[table])
                self.insert(table, keys[starts[number] + own], there[own])

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        entry = self._table(table)
        check_rows(table, keys, rows, entry.dim)
        return self._counted(self._kernels.update(entry.header, entry.chunk_bits, keys, rows))

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        entry = self._table(table)
        check_keys(table, keys)
        return self._counted(self._kernels.delete(entry.header, entry.chunk_bits, entry.row_bytes, keys))

    def touch(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """See `VolatileStore.touch`."""
        for table, keys in parts:
            entry = self._table(table)
            check_keys(table, keys)
            self._counted(self._kernels.touch(entry.header, entry.chunk_bits, entry.row_bytes, keys))

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`. While others write: each key that is present all along, exactly once."""
        check_batch_size(batch_size)
        partition = row = 0
        while partition < self.options.num_partitions:
            entry = self._table(table)
            keys = np.empty(batch_size, np.int64)
            count, partition, row = self._kernels.dump(
                entry.header, entry.chunk_bits, entry.row_bytes, partition, row, keys
            )
            if self._counted(count):
                yield keys[:count]

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return self._table(table).total(layout.SIZE)

    def close(self) -> None:
        """See `EmbeddingStore.close`. Calls that are under way end first, or raise `StoreError`."""
        self._closed = True
        for entry in self._tables.values():
            self._kernels.close(entry.header)
            entry.release()
        self._memory.close()

    def _table(self, table: str) -> HashMapTable:
        if self._closed:
            raise _closed()
        if table not in self._tables:
            raise StoreError(f"no table {table} in the hash map; there are {', '.join(self.dims)}")
        return self._tables[table]

    def _numbers_of(self, tables: Sequence[str]) -> KeyArray:
        for table in tables:
            self._table(table)
        return np.array([self._numbers[table] for table in tables], np.int64)

    def _counted(self, count: int) -> int:
        if count < 0:
            raise _closed()
        return count


def _closed() -> StoreError:
    return StoreError("the hash map is closed")
