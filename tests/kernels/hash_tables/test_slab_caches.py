import numpy as np
import pytest

from hebe.kernels.hash_tables.slab_cache import HITS, MISSES, SIZE
from hebe.kernels.hash_tables.slab_caches import SlabCaches
from hebe.kernels.hash_tables.slab_geometry import SlabGeometry
from hebe.kernels.lookup.row_format import RowFormat
from tests.kernels.slab_memory import dumped, memory_for

GEOMETRIES = (SlabGeometry(1, 1, 3), SlabGeometry(2, 3, 5, RowFormat.INT8), SlabGeometry(1, 1, 1))


@pytest.fixture
def caches() -> SlabCaches:
    """The first has keys 0 to 3, the second 10 to 13, the third none; the numbers of a row are its key."""
    made = SlabCaches(GEOMETRIES, memory_for(*GEOMETRIES))
    keys, starts = np.array([*range(4), *range(10, 14)]), np.array([0, 4, 8])
    rows = np.concatenate([np.repeat(np.float32(keys[:4]), 3), np.repeat(np.float32(keys[4:]), 5)])
    made.replace(np.array([0, 1]), keys, starts, rows, np.array([0, 12, 32]), np.ones(8, np.bool_))
    return made


def test_each_has_its_own_rows(caches):
    assert [sorted(dumped(cache, 5)) for cache in caches.caches] == [[0, 1, 2, 3], [10, 11, 12, 13], []]
    assert [cache.totals[SIZE] for cache in caches.caches] == [4, 4, 0]


def test_a_call_may_ask_any_of_them_in_any_order_and_one_of_them_twice(caches):
    caches.caches[1].mark_stale(np.array([11]))
    keys, starts, wanted = np.array([11, 2, 11, 0, 9, 3]), np.array([0, 3, 3, 5, 6]), np.array([1, 2, 0, 0])
    bases = np.cumsum([0, 3 * 5, 0, 2 * 3, 1 * 3])
    rows = np.full(bases[-1], np.nan, np.float32)
    missing, stale = np.zeros(6, np.bool_), np.zeros(6, np.bool_)
    told = caches.query(wanted, keys, starts, rows, bases, missing, stale)
    assert told.tolist() == [[2, 0, 1, 1], [2, 0, 0, 0]]
    assert missing.tolist() == [False, True, False, False, True, False]
    assert stale.tolist() == [True, False, True, False, False, False]
    np.testing.assert_allclose(rows[:5], 11, rtol=0.01)
    np.testing.assert_allclose(rows[10:15], 11, rtol=0.01)
    assert rows[15:18].tolist() == [0, 0, 0]
    assert rows[21:].tolist() == [3, 3, 3]
    assert [(cache.totals[HITS], cache.totals[MISSES]) for cache in caches.caches] == [(2, 1), (2, 1), (0, 0)]


def test_only_what_is_chosen_is_stored(caches):
    chosen = np.array([False, True])
    caches.replace(np.array([2]), np.array([7, 8]), np.array([0, 2]), np.ones(2, np.float32), np.array([0, 2]), chosen)
    assert dumped(caches.caches[2], 5) == [8]
