from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hash_tables.slab_cache import EVICTIONS, HITS, ITERATION, MISSES, SIZE, UNHELD, SlabCache
from hebe.kernels.hash_tables.slab_geometry import SlabGeometry
from hebe.kernels.lookup.row_format import RowFormat
from tests.kernels.slab_cache_reference import SlabCacheReference
from tests.kernels.slab_memory import ask, dumped, memory_for

ENDS = (-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1)


def make(sets: int, slabs: int, dim: int, row_format: RowFormat = RowFormat.FP32) -> SlabCache:
    geometry = SlabGeometry(sets, slabs, dim, row_format)
    return SlabCache(geometry, memory_for(geometry))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 3, 16, 32, 64, 100, 128, 130]),
    st.sampled_from(list(RowFormat)),
    st.integers(0, 2**32 - 1),
)
def test_agrees_with_the_reference_slot_for_slot(sets, slabs, dim, row_format, seed):
    """Twice as many keys as slots, so that rows are evicted; whole memories are compared, but for the versions."""
    geometry = SlabGeometry(sets, slabs, dim, row_format)
    ours, theirs = SlabCache(geometry, memory_for(geometry)), SlabCacheReference(geometry, memory_for(geometry))
    rng = np.random.default_rng(seed)
    pool = np.concatenate([np.array(ENDS), rng.integers(-(2**63), 2**63 - 1, 2 * geometry.slots)])
    for _ in range(12):
        keys = rng.choice(pool, rng.integers(0, 80))
        rows = rng.standard_normal((keys.size, dim)).astype(np.float32)
        rows[rng.random(rows.shape) < 0.001] = 1e6
        name = rng.choice(["query", "replace", "insert", "update", "delete", "mark_stale"])
        if name == "query":
            for got, expected in zip(ask(ours, keys), ask(theirs, keys), strict=True):
                assert np.array_equal(got, expected, equal_nan=True)
        elif name in ("delete", "mark_stale"):
            assert getattr(ours, name)(keys) == getattr(theirs, name)(keys)
        else:
            assert getattr(ours, name)(keys, rows) == getattr(theirs, name)(keys, rows)
        assert np.array_equal(ours.totals, theirs.totals)
        ours.arrays.state[:: geometry.state_words] = 0
        for got, expected in zip(ours.arrays, theirs.arrays, strict=True):
            assert np.array_equal(got, expected)
    assert dumped(ours, 7) == dumped(theirs, 1000)


def test_the_least_recently_used_row_of_a_slabset_gives_way():
    cache = make(1, 2, 1)
    keys = np.arange(64)
    cache.replace(keys, keys[:, None].astype(np.float32))
    for used in np.delete(keys, [5, 40]):
        ask(cache, np.array([used]))
    cache.replace(np.array([100]), np.zeros((1, 1), np.float32))
    cache.replace(np.array([101]), np.zeros((1, 1), np.float32))
    _, found, _ = ask(cache, np.arange(102))
    assert set(np.flatnonzero(~found)) == {5, 40, *range(64, 100)}
    assert cache.totals[[SIZE, EVICTIONS]].tolist() == [64, 2]


def test_replace_keeps_what_is_there_but_counts_it_as_used():
    cache = make(1, 1, 1)
    keys = np.arange(32)
    cache.replace(keys, np.ones((32, 1), np.float32))
    ask(cache, keys)
    ask(cache, keys[2:])
    assert cache.replace(keys[:1], np.full((1, 1), 9, np.float32)) == 1
    cache.insert(np.array([50]), np.zeros((1, 1), np.float32))
    rows, found, _ = ask(cache, keys)
    assert rows[0] == 1
    assert np.flatnonzero(~found).tolist() == [1]


def test_a_key_is_found_behind_the_hole_that_a_deletion_left():
    cache = make(1, 2, 1)
    keys = np.arange(64)
    cache.insert(keys, keys[:, None].astype(np.float32))
    for gone in range(63):
        assert cache.delete(np.array([gone, gone])) == 1
        rows, found, _ = ask(cache, keys)
        assert np.flatnonzero(found).tolist() == list(range(gone + 1, 64))
        assert np.array_equal(rows[found, 0], keys[gone + 1 :])


def test_stale_marks_last_until_the_row_is_written():
    cache = make(2, 3, 4)
    keys, rows = np.arange(100), np.ones((100, 4), np.float32)
    cache.insert(keys, rows)
    assert cache.mark_stale(np.array([3, 3, 70, 96, 1000])) == 3
    assert np.flatnonzero(ask(cache, keys)[2]).tolist() == [3, 70, 96]
    cache.replace(keys, rows)
    assert np.flatnonzero(ask(cache, keys)[2]).tolist() == [3, 70, 96]
    cache.update(keys[:50], rows[:50])
    cache.insert(keys[96:], rows[96:])
    assert np.flatnonzero(ask(cache, keys)[2]).tolist() == [70]
    cache.delete(keys[70:71])
    cache.replace(keys[70:71], rows[70:71])
    assert not ask(cache, keys)[2].any()


def test_totals():
    cache = make(1, 1, 2, RowFormat.FP16)
    cache.replace(np.array([1, 2, 2]), np.array([[1, 2], [3, 1e6], [5, 6]], np.float32))
    ask(cache, np.array([1, 1, 7]))
    assert cache.totals[[ITERATION, SIZE, HITS, MISSES, EVICTIONS, UNHELD]].tolist() == [1, 2, 2, 1, 0, 1]


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize("dim", [1, 128, 1024])
def test_no_reader_sees_a_torn_row(dim, row_format):
    """A row holds one number throughout. Writers rewrite, evict and delete rows of one slabset while others read."""
    cache = make(1, 2, dim, row_format)
    stop = threading.Event()
    keys = np.arange(80)

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            some = rng.integers(0, 80, 40)
            stamps = (1 + some + 100 * rng.integers(0, 9, 40)).astype(np.float32)
            rows = np.repeat(stamps[:, None], dim, axis=1)
            change: Callable[..., object] = rng.choice([cache.insert, cache.replace, cache.update])
            change(some, rows)
            cache.delete(rng.integers(0, 80, 3))

    def read() -> int:
        hits = 0
        for _ in range(300):
            rows, found, _ = ask(cache, keys)
            assert np.isnan(rows[~found]).all()
            assert (rows[found] == rows[found][:, :1]).all()
            difference = np.abs((rows[found][:, 0] - 1 - keys[found]) % 100)
            assert (np.minimum(difference, 100 - difference) < 1).all()
            hits += int(found.sum())
        return hits

    with ThreadPoolExecutor(5) as threads:
        writers = [threads.submit(write, seed) for seed in range(2)]
        try:
            assert all(reader.result() for reader in [threads.submit(read) for _ in range(3)])
        finally:
            stop.set()
        for writer in writers:
            writer.result()
    assert cache.totals[SIZE] == len(dumped(cache, 16)) == len(set(dumped(cache, 16)))


def test_writers_in_several_threads_lose_nothing():
    cache = make(2000, 2, 8)
    keys = np.arange(40_000)
    rows = np.repeat(keys[:, None].astype(np.float32), 8, axis=1)
    with ThreadPoolExecutor(4) as threads:
        parts = [slice(first, first + 20_000) for first in (0, 20_000, 0, 20_000)]
        assert sum(threads.map(lambda part: cache.insert(keys[part], rows[part]), parts)) == 40_000
    got, found, _ = ask(cache, keys)
    assert found.all()
    assert np.array_equal(got, rows)
    assert cache.totals[SIZE] == 40_000
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(cache.delete, [keys] * 4)) == 40_000
    assert dumped(cache, 100) == []


def test_a_batch_larger_than_the_cache():
    cache = make(1, 1, 1)
    keys = np.arange(1000)
    cache.replace(keys, keys[:, None].astype(np.float32))
    rows, found, _ = ask(cache, keys)
    assert found.sum() == 32
    assert np.array_equal(rows[found, 0], keys[found])
    assert cache.totals[[SIZE, EVICTIONS]].tolist() == [32, 968]


def test_wrong_arguments_are_errors():
    cache = make(1, 1, 3)
    keys, rows, found = np.arange(2), np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    with pytest.raises(ValueError, match=r"rows \[2, 2\] for keys \[2\]: must be \[n, 3\]"):
        cache.insert(keys, rows[:, :2].copy())
    with pytest.raises(ValueError, match="masks for 2 keys"):
        cache.query(keys, rows, found[:1])
    with pytest.raises(ValueError, match="masks for 2 keys"):
        cache.query(keys, rows, found, found[:1])
    for wrong in (rows.astype(np.float64), np.zeros((3, 2), np.float32).T, rows[:1], rows[None]):
        with pytest.raises((TypeError, ValueError)):
            cache.query(keys, wrong, found)
        with pytest.raises((TypeError, ValueError)):
            cache.insert(keys, wrong)
    with pytest.raises(TypeError):
        cache.delete(keys.astype(np.int32))
