import numpy as np
import pytest

from hebe.embeddings.hash_map.hash_map_store import HashMapStore, planned_bytes
from hebe.embeddings.options import OverflowPolicy, VolatileOptions

from .hash_map_rows import query, rows_of


@pytest.mark.parametrize("dim", [1, 100, 128, 1024])
@pytest.mark.parametrize("num_partitions", [1, 16])
@pytest.mark.parametrize("rows", [1, 5_000, 20_000])
@pytest.mark.parametrize("policy", [OverflowPolicy.EVICT_RANDOM, OverflowPolicy.EVICT_LEAST_USED])
def test_memory_is_known_before(dim, num_partitions, rows, policy):
    planned = planned_bytes(rows, dim, num_partitions, policy)
    options = VolatileOptions(num_partitions, overflow_policy=policy)
    store = HashMapStore({"t": dim}, options, memory_bound_bytes=planned)
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


def bytes_over_raw(dim, policy, rows=100_000):
    """The memory of a table over its raw rows while it grows from a fifth on: at its load limit, and at most."""
    store = HashMapStore({"t": dim}, VolatileOptions(4, overflow_policy=policy))
    keys, ratios, most = np.arange(rows), [], 0.0
    for first in range(0, rows, 1000):
        store.insert("t", keys[first : first + 1000], rows_of(keys[first : first + 1000], dim))
        if first >= rows // 5:
            raw = 4 * dim * (first + 1000)
            ratios.append(store.memory_bytes / raw)
            most = max(most, store.peak_memory_bytes / raw)
    store.close()
    return min(ratios), most


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_large_tables_take_little_more_than_their_rows(policy):
    """At any time from dim 64 on, at the load limit from dim 32 on, unless accesses are counted."""
    counted = policy is OverflowPolicy.EVICT_LEAST_USED
    for dim, least_bound, most_bound in ((32, 1.4 if counted else 1.35, 1.65), (64, 1.2, 1.35), (128, 1.12, 1.25)):
        least, most = bytes_over_raw(dim, policy)
        assert least <= least_bound, dim
        assert most <= most_bound, dim
    assert planned_bytes(5_000_000, 128, 16, policy) <= 1.35 * 4 * 128 * 5_000_000


@pytest.mark.parametrize("policy", OverflowPolicy)
def test_a_row_takes_so_many_bytes_beside_it_whatever_its_dim(policy):
    """16 or 24 of its record, 21 to 43 of its slots, and at most a sixteenth of row and record not yet used."""
    record = 24 if policy is OverflowPolicy.EVICT_LEAST_USED else 16
    for dim in (1, 4, 16):
        least, _ = bytes_over_raw(dim, policy)
        assert record + 21 <= 4 * dim * (least - 1) <= record + 22 + (4 * dim + record) / 16 + 1, dim


def test_a_table_has_a_dim():
    with pytest.raises(ValueError, match="table t has dim 0"):
        HashMapStore({"t": 0}, VolatileOptions(2))
