"""The slab cache in plain Python, one thread: what the kernels of `slab_cache` must agree with, slot for slot."""

from __future__ import annotations

import numpy as np

from hebe.kernels.hash_tables.slab_cache import (
    EVICTIONS,
    HITS,
    ITERATION,
    MISSES,
    SIZE,
    TOTALS,
    UNHELD,
    FloatArray,
    MaskArray,
)
from hebe.kernels.hash_tables.slab_geometry import SLOTS_PER_SLAB, IntArray, SlabGeometry
from hebe.kernels.lookup.row_format import ByteArray, decode_rows_reference, encode_rows_reference

_64_BITS = 2**64 - 1


class SlabCacheReference:
    """As `SlabCache`."""

    def __init__(self, geometry: SlabGeometry, memory: ByteArray) -> None:
        self.geometry = geometry
        self.arrays = geometry.arrays(memory)
        self.totals: IntArray = np.zeros(TOTALS, np.int64)

    def query(self, keys: IntArray, rows: FloatArray, found: MaskArray, stale: MaskArray | None = None) -> int:
        """See `SlabCache.query`."""
        self.totals[ITERATION] += 1
        for item, key in enumerate(keys.tolist()):
            slot = self._find(key)
            found[item] = slot is not None
            if stale is not None:
                stale[item] = slot is not None and self._is_stale(slot)
            if slot is not None:
                decode_rows_reference(self.geometry.row_format, self._row(slot), rows[item : item + 1])
                self.arrays.slots[2 * slot + 1] = self.totals[ITERATION]
        hits = int(np.count_nonzero(found))
        self.totals[HITS] += hits
        self.totals[MISSES] += keys.size - hits
        return hits

    def replace(self, keys: IntArray, rows: FloatArray) -> int:
        """See `SlabCache.replace`."""
        return self._store(keys, rows, overwrite=False)

    def insert(self, keys: IntArray, rows: FloatArray) -> int:
        """See `SlabCache.insert`."""
        return self._store(keys, rows, overwrite=True)

    def update(self, keys: IntArray, rows: FloatArray) -> int:
        """See `SlabCache.update`."""
        present = set()
        for key, row in zip(keys.tolist(), rows, strict=True):
            slot = self._find(key)
            if slot is not None:
                self._write(slot, row)
                present.add(key)
        return len(present)

    def delete(self, keys: IntArray) -> int:
        """See `SlabCache.delete`."""
        removed = 0
        for key in keys.tolist():
            slot = self._find(key)
            if slot is not None:
                self.arrays.tags[slot] = 0
                self._set_stale(slot, False)
                removed += 1
        self.totals[SIZE] -= removed
        return removed

    def mark_stale(self, keys: IntArray) -> int:
        """See `SlabCache.mark_stale`."""
        marked = set()
        for key in keys.tolist():
            slot = self._find(key)
            if slot is not None:
                self._set_stale(slot, True)
                marked.add(key)
        return len(marked)

    def dump(self, cursor: int, keys: IntArray) -> tuple[int, int]:
        """See `SlabCache.dump`."""
        count = 0
        while cursor < self.geometry.slots and count < keys.size:
            if self.arrays.tags[cursor]:
                keys[count] = self.arrays.slots[2 * cursor]
                count += 1
            cursor += 1
        return cursor, count

    def _probe(self, key: int) -> tuple[int, list[int]]:
        """A key's tag, and the slots of its slabset in probing order."""
        mixed = key & _64_BITS
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            mixed = (mixed ^ mixed >> 33) * factor & _64_BITS
        mixed ^= mixed >> 33
        slabs = self.geometry.slabs_per_set
        base = ((mixed >> 32) * self.geometry.sets >> 32) * self.geometry.slots_per_set
        first = (mixed >> 8 & 0xFFFF) * slabs >> 16
        order = [base + (first + step) % slabs * SLOTS_PER_SLAB for step in range(slabs)]
        return max(1, mixed & 0xFF), [at + slot for at in order for slot in range(SLOTS_PER_SLAB)]

    def _find(self, key: int) -> int | None:
        tag, probed = self._probe(key)
        for slot in probed:
            if self.arrays.tags[slot] == tag and self.arrays.slots[2 * slot] == key:
                return slot
        return None

    def _store(self, keys: IntArray, rows: FloatArray, overwrite: bool) -> int:
        present = 0
        for key, row in zip(keys.tolist(), rows, strict=True):
            slot = self._find(key)
            was_there = slot is not None
            if slot is None:
                tag, probed = self._probe(key)
                empty = [slot for slot in probed if self.arrays.tags[slot] == 0]
                slot = empty[0] if empty else min(probed, key=lambda slot: self.arrays.slots[2 * slot + 1])
                self.totals[SIZE if empty else EVICTIONS] += 1
                self.arrays.tags[slot] = tag
                self.arrays.slots[2 * slot] = key
            self.arrays.slots[2 * slot + 1] = self.totals[ITERATION]
            if overwrite or not was_there:
                self._write(slot, row)
            present += was_there
        return present

    def _write(self, slot: int, row: FloatArray) -> None:
        self.totals[UNHELD] += encode_rows_reference(self.geometry.row_format, row[None], self._row(slot))
        self._set_stale(slot, False)

    def _row(self, slot: int) -> ByteArray:
        """A slot's stored row, uint8 `[1, bytes]`."""
        start = slot * self.geometry.stride_bytes
        return self.arrays.rows[start : start + self.geometry.row_format.row_bytes(self.geometry.dim)][None]

    def _stale_place(self, slot: int) -> tuple[int, int]:
        place, within = divmod(slot, self.geometry.slots_per_set)
        return place * self.geometry.state_words + 1 + within // 64, within % 64

    def _is_stale(self, slot: int) -> bool:
        word, bit = self._stale_place(slot)
        return bool(int(self.arrays.state[word]) >> bit & 1)

    def _set_stale(self, slot: int, stale: bool) -> None:
        word, bit = self._stale_place(slot)
        flags = self.arrays.state[word : word + 1].view(np.uint64)
        flags[0] = int(flags[0]) & ~(1 << bit) & _64_BITS | int(stale) << bit
