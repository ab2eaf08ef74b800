"""Memory of slab caches, and what tests ask of these."""

from __future__ import annotations

import numpy as np

from hebe.kernels.hash_tables.slab_cache import SlabCache
from hebe.kernels.hash_tables.slab_geometry import CACHE_LINE_BYTES, SlabGeometry

from .slab_cache_reference import SlabCacheReference


def memory_for(*geometries: SlabGeometry) -> np.ndarray:
    """Zeros from a cache line on."""
    size = sum(geometry.memory_bytes for geometry in geometries)
    raw = np.zeros(size + CACHE_LINE_BYTES, np.uint8)
    skip = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[skip : skip + size]


def ask(cache: SlabCache | SlabCacheReference, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.full((keys.size, cache.geometry.dim), np.nan, np.float32)
    found, stale = np.zeros(keys.size, np.bool_), np.ones(keys.size, np.bool_)
    assert cache.query(keys, rows, found, stale) == np.count_nonzero(found)
    return rows, found, stale


def dumped(cache: SlabCache | SlabCacheReference, batch: int) -> list[int]:
    cursor, taken = 0, []
    keys = np.empty(batch, np.int64)
    while cursor < cache.geometry.slots:
        cursor, count = cache.dump(cursor, keys)
        taken += keys[:count].tolist()
    return taken
