"""Level 2 in this process: a partitioned parallel hash map, one for each table (`kernels/hash_tables/hash_map`).

Calls run without the GIL and side by side. Queries of a partition never wait for each other, for writers of another, or
for it to grow; they wait for one of its writers for some microseconds.

A table's memory (`HashMapTable`) begins small and grows by chunks; `planned_bytes` is the most that it takes. A
partition has slots, which say where the row of a key is, and chunks of rows, which a directory lists. Kernels read
their addresses from the table's header (`kernels/hash_tables/hash_map_partition`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hebe.embeddings.memory.memory_pieces import MemoryPieces, ZeroedMemory
from hebe.embeddings.memory.table_memory import ALIGNMENT_BYTES
from hebe.embeddings.options import OverflowPolicy, VolatileOptions
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
from hebe.kernels.hash_tables import hash_map
from hebe.kernels.hash_tables import hash_map_partition as layout
from hebe.kernels.lookup.table_batch import check_table_batch

_POLICIES = {
    OverflowPolicy.EVICT_RANDOM: layout.EVICT_RANDOM,
    OverflowPolicy.EVICT_LEAST_USED: layout.EVICT_LEAST_USED,
    OverflowPolicy.EVICT_OLDEST: layout.EVICT_OLDEST,
}


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
        positions: KeyArray | None = None,  # noqa: ARG002
        row_positions: KeyArray | None = None,  # noqa: ARG002
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


_CHUNK_BYTES = 128 << 10
_FEWEST_CHUNK_BYTES = 4 << 10
_ALL_CHUNK_BYTES = 2 << 20
"""A first chunk in each partition takes so much together, within the two limits before."""
_CHUNK_GROWTH = 16
"""Chunks are added by one sixteenth, so that at most that share of the rows' memory is not yet used."""
_DEVIATIONS = 5


class HashMapTable:
    """One map: its header, and the memory that this points to."""

    def __init__(
        self,
        name: str,
        dim: int,
        options: VolatileOptions,
        memory: MemoryPieces,
        header: KeyArray,
        chance: np.random.SeedSequence,
    ) -> None:
        if dim < 1:
            raise ValueError(f"table {name} has dim {dim}: must be at least 1")
        self.name, self.dim, self.row_bytes = name, dim, 4 * dim
        self._record_bytes = layout.record_bytes(_POLICIES[options.overflow_policy])
        self.chunk_bits = _chunk_bits(self.row_bytes + self._record_bytes, options.num_partitions)
        self._memory = memory
        partitions = options.num_partitions
        memory.claim(8 * partitions * layout.HEADER_WORDS)
        self.header = header
        self._fields = header.reshape(partitions, layout.HEADER_WORDS)
        self._resolution_target = options.overflow_resolution_target
        margin = min(options.overflow_margin, layout.NO_LIMIT)
        self._fields[:, layout.MARGIN] = margin
        self._fields[:, layout.TARGET] = self._target(margin)
        self._fields[:, layout.POLICY] = _POLICIES[options.overflow_policy]
        self._fields[:, layout.SEED] = chance.generate_state(partitions, np.uint64).view(np.int64)
        self._slots: list[ZeroedMemory | None] = [None] * partitions
        self._directories = [np.empty(0, np.int64)] * partitions
        self._growing = [threading.Lock() for _ in range(partitions)]

    def total(self, field: int) -> int:
        """The sum of a header's field over all partitions."""
        return int(self._fields[:, field].sum())

    def grow(self, partition: int, status: int) -> None:
        """Give a partition what a kernel said that it needs, unless another thread has. Raises `StoreError`."""
        with self._growing[partition]:
            header = self._fields[partition]
            if status == hash_map.NEEDS_SLOTS:
                self._grow_slots(partition, int(header[layout.SIZE]))
            elif header[layout.FREE] == 0 and header[layout.USED] == header[layout.ROWS]:
                self._grow_rows(partition, int(header[layout.ROWS]) >> self.chunk_bits)

    def bound(self, partition: int) -> None:
        """Where a partition has rows, it is above its overflow margin from now on, if it was not."""
        with self._growing[partition]:
            header = self._fields[partition]
            margin = int(header[layout.SIZE]) - 1
            if 1 <= margin < header[layout.MARGIN]:
                header[layout.TARGET] = self._target(margin)
                header[layout.MARGIN] = margin

    def _target(self, margin: int) -> int:
        return min(margin, max(1, int(margin * self._resolution_target)))

    def release(self) -> None:
        """Give the slots back, after the kernel `close`."""
        for partition, growing in enumerate(self._growing):
            with growing:
                memory, self._slots[partition] = self._slots[partition], None
                if memory is not None:
                    self._memory.release(memory)
                self._directories[partition] = np.empty(0, np.int64)

    def _grow_slots(self, partition: int, size: int) -> None:
        bits = _bits_for(size + 1)
        old = self._slots[partition]
        if old is not None and old.size_bytes >= layout.SLOT_BYTES << bits:
            return
        new = self._memory.block(layout.SLOT_BYTES << bits)
        if hash_map.kernels().exchange_slots(self.header, partition, new.address, bits):
            self._slots[partition] = new
            if old is not None:
                self._memory.release(old)
        else:
            self._memory.release(new)

    def _grow_rows(self, partition: int, chunks: int) -> None:
        try:
            self._add_chunks(partition, chunks, max(1, chunks // _CHUNK_GROWTH))
        except StoreError:
            if chunks < 2 * _CHUNK_GROWTH:
                raise
            self._add_chunks(partition, chunks, 1)

    def _add_chunks(self, partition: int, chunks: int, more: int) -> None:
        directory = self._directories[partition]
        directory_bytes = 8 * max(0, _directory_size(chunks + more) - directory.size)
        self._memory.claim(directory_bytes)
        chunk_bytes = _chunk_bytes(self.row_bytes + self._record_bytes, self.chunk_bits)
        try:
            first = self._memory.piece(more * chunk_bytes)
        except StoreError:
            self._memory.claim(-directory_bytes)
            raise
        if directory_bytes:
            directory = np.zeros(_directory_size(chunks + more), np.int64)
            directory[:chunks] = self._directories[partition][:chunks]
        directory[chunks : chunks + more] = first + chunk_bytes * np.arange(more)  # of which no kernel knows yet
        rows = (chunks + more) << self.chunk_bits
        if hash_map.kernels().exchange_chunks(self.header, partition, directory.ctypes.data, rows):
            self._directories[partition] = directory


def planned_bytes(
    rows: int, dim: int, num_partitions: int, policy: OverflowPolicy = OverflowPolicy.EVICT_RANDOM
) -> int:
    """The most memory that a table of `rows` rows of `dim` floats will take, known before any of it is taken.

    Partitions fill unevenly, by chance; it is as good as certain that none holds more than is assumed here.
    """
    mean = rows / num_partitions
    most = min(rows, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)))
    entry_bytes = 4 * dim + layout.record_bytes(_POLICIES[policy])
    chunk_bits = _chunk_bits(entry_bytes, num_partitions)
    chunks = -(-most >> chunk_bits)
    chunks += max(1, chunks // _CHUNK_GROWTH)
    slots = layout.SLOT_BYTES << _bits_for(most)
    partition_bytes = chunks * _chunk_bytes(entry_bytes, chunk_bits) + slots + 8 * _directory_size(chunks)
    return num_partitions * (partition_bytes + 8 * layout.HEADER_WORDS) + slots // 2 + 8 * _directory_size(chunks)


def _chunk_bits(entry_bytes: int, num_partitions: int) -> int:
    """The logarithm of the rows of a chunk, each with its record: at least three, so that records begin on a word."""
    size_bytes = min(_CHUNK_BYTES, max(_FEWEST_CHUNK_BYTES, _ALL_CHUNK_BYTES // num_partitions))
    return max(3, (size_bytes // entry_bytes).bit_length() - 1)


def _chunk_bytes(entry_bytes: int, chunk_bits: int) -> int:
    """Whole cache lines."""
    return -(-(entry_bytes << chunk_bits) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _bits_for(size: int) -> int:
    """The logarithm of the fewest slots that hold `size` keys."""
    bits = layout.FEWEST_BITS
    while layout.most_keys(bits) < size:
        bits += 1
    return bits


def _directory_size(chunks: int) -> int:
    return 1 << max(4, (chunks - 1).bit_length())
