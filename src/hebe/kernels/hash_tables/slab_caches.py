"""Slab caches of several tables that are asked in one call: a batch may read dozens, with a handful of keys each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hebe.kernels.hash_tables.slab_cache import (
    DIM,
    RING,
    SHAPE,
    TOTALS,
    FloatArray,
    MaskArray,
    SlabCache,
    tables_kernels,
)
from hebe.kernels.hash_tables.slab_geometry import IntArray, SlabGeometry
from hebe.kernels.lookup.row_format import ByteArray
from hebe.kernels.lookup.table_batch import check_table_batch


class SlabCaches:
    """Caches of `geometries`, one after the other in `memory`, uint8 zeros from a cache line on, asked in one call.

    `caches` are the same ones by themselves. The bytes of `memory` are a multiple of 8.
    """

    def __init__(self, geometries: Sequence[SlabGeometry], memory: ByteArray) -> None:
        self._totals: IntArray = np.zeros((len(geometries), TOTALS), np.int64)
        self._memory, self._words = memory, memory.view(np.int64)
        self._stride_bytes = max((geometry.stride_bytes for geometry in geometries), default=0)
        self.caches: list[SlabCache] = []
        plan, start = [], 0
        for geometry, totals in zip(geometries, self._totals, strict=True):
            end = start + geometry.memory_bytes
            cache = SlabCache(geometry, memory[start:end], totals)
            tags, state, slots, rows = (start + int(size) for size in np.cumsum((0, *geometry.section_bytes[:3])))
            assert state % 8 == slots % 8 == rows % 8 == 0
            plan.append([tags, state // 8, slots // 8, rows, end, *cache.shape.tolist()])
            self.caches.append(cache)
            start = end
        self._plan: IntArray = np.array(plan, np.int64).reshape(len(plan), 5 + SHAPE)

    def query(
        self,
        wanted: IntArray,
        keys: IntArray,
        starts: IntArray,
        rows: FloatArray,
        bases: IntArray,
        missing: MaskArray,
        stale: MaskArray,
        *,
        use: bool = True,
    ) -> IntArray:
        """`SlabCache.query` of caches number `wanted` `[k]`: keys `[starts[i], starts[i + 1])` are of the i-th of them,
        their rows go to numbers `[bases[i], bases[i + 1])` of the flat `rows`, and `missing` is set to which are not
        there. Returns how many each had, and how many of these are stale, `[2, k]`. Unless it is a `use`, the rows are
        as recently used afterwards as before, and nothing is counted.
        """
        check_table_batch(self._plan[:, 5 + DIM], wanted, keys, starts, rows, bases, missing, stale)
        told: IntArray = np.empty((2, len(wanted)), np.int64)
        ring, aside = np.empty(2 * RING, np.int64), np.empty(self._stride_bytes, np.uint8)
        query, _ = tables_kernels()
        query(
            self._memory, self._words, self._totals, self._plan, ring, aside,
            wanted, keys, starts, rows, bases, missing, stale, told, use,
        )  # fmt: skip
        return told

    def replace(
        self, wanted: IntArray, keys: IntArray, starts: IntArray, rows: FloatArray, bases: IntArray, chosen: MaskArray
    ) -> None:
        """`SlabCache.replace` of the keys that are `chosen` of caches number `wanted`; arrays as those of `query`."""
        check_table_batch(self._plan[:, 5 + DIM], wanted, keys, starts, rows, bases, chosen)
        ring, places = np.empty(RING, np.int64), np.empty(keys.size, np.int64)
        _, replace = tables_kernels()
        replace(
            self._memory, self._words, self._totals, self._plan, ring, places,
            wanted, keys, starts, rows, bases, chosen,
        )  # fmt: skip
