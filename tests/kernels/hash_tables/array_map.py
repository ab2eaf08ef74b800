"""A hash map over arrays, which tests look into."""

import numpy as np

from hebe.kernels.hash_tables import hash_map
from hebe.kernels.hash_tables import hash_map_partition as layout
from hebe.kernels.hash_tables.xxh64 import hash_key_reference

CHUNK_BITS = 3


class ArrayMap:
    """A map over arrays: every chunk that it may need from the start, slots as they are asked for."""

    def __init__(self, partitions=1, dim=2, most_rows=512, margin=layout.NO_LIMIT, target=None, policy=0):
        self.kernels = hash_map.kernels()
        self.partitions, self.dim = partitions, dim
        self.header = np.zeros(partitions * layout.HEADER_WORDS, np.int64)
        self.fields = self.header.reshape(partitions, -1)
        self.fields[:, layout.MARGIN] = margin
        self.fields[:, layout.TARGET] = margin if target is None else target
        self.fields[:, layout.POLICY] = policy
        self.fields[:, layout.SEED] = np.arange(partitions) - 1
        self.seeds = self.fields[:, layout.SEED].view(np.uint64).tolist()
        chunk_words = ((4 * dim + layout.record_bytes(policy)) << CHUNK_BITS) // 8
        chunks = most_rows >> CHUNK_BITS
        self.memory = np.zeros((partitions, chunks, chunk_words), np.int64)
        self.directory = self.memory.ctypes.data + 8 * chunk_words * np.arange(partitions * chunks)
        for partition in range(partitions):
            address = self.directory.ctypes.data + 8 * chunks * partition
            assert self.kernels.exchange_chunks(self.header, partition, address, most_rows)
        self.slots = {}

    def insert(self, keys, rows):
        keys = np.array(keys, np.int64)
        grouped = self.kernels.group(keys, self.partitions)
        partition = index = 0
        while True:
            status, partition, index = self.kernels.insert(
                self.header, CHUNK_BITS, keys, rows, *grouped, partition, index
            )
            if status != hash_map.NEEDS_SLOTS:
                return status
            bits = layout.FEWEST_BITS
            if partition in self.slots:
                bits = self.fields[partition, layout.BITS] + 1
            slots = np.zeros(2 << bits, np.int64)
            assert self.kernels.exchange_slots(self.header, partition, slots.ctypes.data, bits)
            self.slots[partition] = slots

    def query(self, keys):
        rows = np.full((len(keys), self.dim), np.nan, np.float32)
        found = np.zeros(len(keys), np.bool_)
        count = self.kernels.query(self.header, CHUNK_BITS, np.array(keys, np.int64), rows, found)
        assert count == found.sum()
        return rows, found

    def call(self, name, keys, *rest):
        kernel = getattr(self.kernels, name)
        sizes = () if rest else (4 * self.dim,)
        return kernel(self.header, CHUNK_BITS, *sizes, np.array(keys, np.int64), *rest)

    def keys(self, batch_size=7):
        found, partition, row = [], 0, 0
        while partition < self.partitions:
            keys = np.zeros(batch_size, np.int64)
            count, partition, row = self.kernels.dump(self.header, CHUNK_BITS, 4 * self.dim, partition, row, keys)
            found += keys[:count].tolist()
        return sorted(found)

    def longest_probe(self, partition=0):
        """Slots between a key and where the search for it begins; checks that it can be found from there."""
        slots, bits = self.slots[partition].reshape(-1, 2), int(self.fields[partition, layout.BITS])
        occupied = np.flatnonzero(slots[:, 1])
        homes = np.array([hash_key_reference(key) >> 64 - bits for key in slots[occupied, 0].tolist()], np.int64)
        distances = (occupied - homes) % (1 << bits)
        for home, distance in zip(homes.tolist(), distances.tolist(), strict=True):
            assert slots[(home + np.arange(distance)) % (1 << bits), 1].all()
        return int(distances.max(initial=0))
