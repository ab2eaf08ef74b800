"""The memory of one table's hash map: what it takes at first, how it grows, and the most that it will take.

A partition has slots, which say where the row of a key is, and chunks of rows, which a directory lists. Kernels read
their addresses from the table's header (`kernels/hash_map_partition`).
"""

from __future__ import annotations

import math
import threading

import numpy as np

from hebe.embeddings.memory.memory_pieces import MemoryPieces, ZeroedMemory
from hebe.embeddings.memory.table_memory import ALIGNMENT_BYTES
from hebe.embeddings.store import KeyArray, StoreError
from hebe.embeddings.volatile_options import OverflowPolicy, VolatileOptions
from hebe.kernels.hash_tables import hash_map
from hebe.kernels.hash_tables import hash_map_partition as layout

_POLICIES = {
    OverflowPolicy.EVICT_RANDOM: layout.EVICT_RANDOM,
    OverflowPolicy.EVICT_LEAST_USED: layout.EVICT_LEAST_USED,
    OverflowPolicy.EVICT_OLDEST: layout.EVICT_OLDEST,
}
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
