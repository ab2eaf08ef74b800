"""Slab caches of several tables that are queried in one call: a batch may read dozens, with a handful of keys each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hebe.kernels.row_format import ByteArray
from hebe.kernels.slab_cache import DIM, RING, SHAPE, TOTALS, FloatArray, MaskArray, SlabCache, query_tables_kernel
from hebe.kernels.slab_geometry import IntArray, SlabGeometry


class SlabCaches:
    """Caches of `geometries`, one after the other in `memory`, uint8 zeros from a cache line on, queried in one call.

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
        found: MaskArray,
        stale: MaskArray,
    ) -> IntArray:
        """`SlabCache.query` of caches number `wanted` `[k]`: keys `[starts[i], starts[i + 1])` are of the i-th of them,
        their rows go to numbers `[bases[i], bases[i + 1])` of the flat `rows`. Returns how many each had, `[k]`.
        """
        sizes = np.diff(starts)
        if (
            starts.shape != (len(wanted) + 1,) or bases.shape != starts.shape
            or (wanted.size and (wanted.min() < 0 or wanted.max() >= len(self.caches)))
            or starts[0] < 0 or bases[0] < 0 or sizes.min(initial=0) < 0
            or starts[-1] > min(keys.size, found.size, stale.size) or bases[-1] > rows.size
            or (np.diff(bases) != sizes * self._plan[wanted, 5 + DIM]).any()
        ):  # fmt: skip
            raise ValueError("keys, rows and masks of a query of several caches do not go together")
        hits: IntArray = np.empty(len(wanted), np.int64)
        ring, aside = np.empty(2 * RING, np.int64), np.empty(self._stride_bytes, np.uint8)
        query_tables_kernel()(
            self._memory, self._words, self._totals, self._plan, ring, aside,
            wanted, keys, starts, rows, bases, found, stale, hits,
        )  # fmt: skip
        return hits
