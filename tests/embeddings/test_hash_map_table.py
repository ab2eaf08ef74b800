import numpy as np
import pytest

from hebe.embeddings.hash_map_store import HashMapStore
from hebe.embeddings.hash_map_table import planned_bytes
from hebe.embeddings.volatile_options import VolatileOptions

from .hash_map_rows import query, rows_of


@pytest.mark.parametrize("dim", [1, 100, 128, 1024])
@pytest.mark.parametrize("num_partitions", [1, 16])
@pytest.mark.parametrize("rows", [1, 5_000, 20_000])
def test_memory_is_known_before(dim, num_partitions, rows):
    planned = planned_bytes(rows, dim, num_partitions)
    store = HashMapStore({"t": dim}, VolatileOptions(num_partitions), memory_bound_bytes=planned)
    keys = np.random.default_rng(0).permutation(rows)
    for first in range(0, rows, 4096):
        part = keys[first : first + 4096]
        store.insert("t", part, rows_of(part, dim))
    assert store.size("t") == rows
    assert store.memory_bytes <= store.peak_memory_bytes <= planned
    sample = keys[:100]
    assert np.array_equal(query(store, sample, dim)[0], rows_of(sample, dim))
    store.close()
    assert store.memory_bytes == 0


def test_large_tables_take_little_more_than_their_rows():
    rows, dim = 100_000, 128
    store = HashMapStore({"t": dim}, VolatileOptions(4))
    keys = np.arange(rows)
    most = 0.0
    for first in range(0, rows, 1000):
        store.insert("t", keys[first : first + 1000], rows_of(keys[first : first + 1000], dim))
        if first >= 20_000:
            most = max(most, store.peak_memory_bytes / (4 * dim * (first + 1000)))
    assert most <= 1.35
    assert planned_bytes(5_000_000, dim, 16) <= 1.35 * 4 * dim * 5_000_000
    store.close()


def test_a_table_has_a_dim():
    with pytest.raises(ValueError, match="table t has dim 0"):
        HashMapStore({"t": 0}, VolatileOptions(2))
