import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hash_tables.slab_cache import SIZE
from hebe.kernels.hash_tables.slab_geometry import SlabGeometry

from .slab_cache_reference import SlabCacheReference
from .slab_memory import ask, dumped, memory_for

KEYS = st.lists(st.integers(0, 30) | st.sampled_from((-(2**63), -1, 2**63 - 1)), max_size=8)
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "replace", "update", "delete", "mark_stale", "query"]), KEYS), max_size=12
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_while_all_have_room_it_is_a_dict(steps):
    cache = SlabCacheReference(geometry := SlabGeometry(1, 2, 2), memory_for(geometry))
    rows_by_key, stale_keys = {}, set()
    for stamp, (step, listed) in enumerate(steps):
        keys = np.array(listed, np.int64)
        rows = np.full((keys.size, 2), stamp, np.float32)
        there = set(listed) & rows_by_key.keys()
        if step == "query":
            got, found, stale = ask(cache, keys)
            assert found.tolist() == [key in rows_by_key for key in listed]
            assert got[found, 0].tolist() == [rows_by_key[key] for key in listed if key in rows_by_key]
            assert stale.tolist() == [key in stale_keys for key in listed]
        elif step in ("delete", "mark_stale"):
            assert getattr(cache, step)(keys) == len(there)
            if step == "delete":
                rows_by_key = {key: row for key, row in rows_by_key.items() if key not in there}
                stale_keys -= there
            else:
                stale_keys |= there
        else:
            present = getattr(cache, step)(keys, rows)
            if step == "update":
                assert present == len(there)
            written = there if step == "update" else set(listed) - (there if step == "replace" else set())
            rows_by_key.update(dict.fromkeys(written, stamp))
            stale_keys -= written
    assert sorted(dumped(cache, 3)) == sorted(rows_by_key)
    assert cache.totals[SIZE] == len(rows_by_key)


def test_what_was_asked_for_longest_ago_gives_way():
    cache = SlabCacheReference(geometry := SlabGeometry(1, 1, 1), memory_for(geometry))
    keys = np.arange(geometry.slots)
    for part in np.array_split(keys, 4):
        ask(cache, part)
        cache.insert(part, np.zeros((part.size, 1), np.float32))
    ask(cache, keys[:8])
    cache.insert(np.arange(100, 108), np.zeros((8, 1), np.float32))
    assert set(dumped(cache, 32)) == {*range(8), *range(16, 32), *range(100, 108)}
