import os
import threading
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.cache.cache_table import CacheTable, by_fraction, planned_bytes
from hebe.embeddings.cache.host_cache import HostCache
from hebe.embeddings.memory import table_memory
from hebe.embeddings.memory.table_memory import HUGE_PAGE_BYTES
from hebe.embeddings.store import StoreError
from hebe.kernels.hash_tables.slab_cache import SlabCache
from hebe.kernels.lookup.row_format import RowFormat
from tests.embeddings.stores.cache_conformance import CacheConformance, ask, filled

SHAPES = {"users": (1_000_000, 64), "items": (50_000, 16), "days": (7, 4)}


class TestHostCache(CacheConformance):
    @pytest.fixture
    def make_cache(self):
        made = []

        def make(tables):
            made.append(HostCache(tables))
            return made[-1]

        yield make
        for cache in made:
            cache.close()


def test_memory_is_known_before_it_is_taken():
    tables = by_fraction(SHAPES, 0.01)
    assert {name: table.rows for name, table in tables.items()} == {"users": 10_000, "items": 500, "days": 1}
    assert all(table.rows <= table.capacity < table.rows + 64 for table in tables.values())
    cache = HostCache(tables)
    assert cache.memory_bytes == planned_bytes(tables)
    rows = sum(4 * table.capacity * table.dim for table in tables.values())
    assert rows < cache.memory_bytes < 1.1 * rows + HUGE_PAGE_BYTES
    cache.close()


def test_every_slot_of_every_table_can_be_used():
    tables = {"a": CacheTable(3, 200), "b": CacheTable(5, 300, RowFormat.INT8, slabs_per_set=3), "c": CacheTable(1, 1)}
    cache = HostCache(tables)
    keys = np.arange(20_000)
    for name, table in tables.items():
        cache.insert(name, keys, filled(keys, table.dim))
    for name, table in tables.items():
        assert cache.size(name) == table.capacity
        rows, found, _ = ask(cache, name, keys, table.dim)
        assert found.sum() == table.capacity
        np.testing.assert_allclose(rows[found], filled(keys[found], table.dim), rtol=0.01)
    cache.close()


def test_more_memory_than_there_is_is_an_error(monkeypatch):
    monkeypatch.setattr(table_memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(StoreError, match=r"caches of embedding rows need 2,097,152 bytes .* 1,048,576 are available"):
        HostCache({"t": CacheTable(4, 10)})


def resident_bytes() -> int:
    """Memory that this process has taken and used."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_closing_gives_the_memory_back():
    cache = HostCache({"t": CacheTable(64, 400_000)})
    keys = np.arange(400_000)
    cache.insert("t", keys, filled(keys, 64))
    before = resident_bytes()
    cache.close()
    assert resident_bytes() < before - cache.memory_bytes // 2


def small_and_large() -> tuple[dict[str, CacheTable], dict[str, CacheTable]]:
    return tuple(
        {"a": CacheTable(3, rows, RowFormat.FP16), "b": CacheTable(64, 2 * rows, slabs_per_set=3)}
        for rows in (1_000, 20_000)
    )


def test_resizing_carries_rows_over_with_their_stale_marks_and_order():
    small, large = small_and_large()
    cache = HostCache(small)
    for name, table in small.items():
        keys = np.arange(table.rows // 2)
        for part in np.array_split(keys, 10):
            ask(cache, name, np.empty(0, np.int64), table.dim)
            cache.insert(name, part, filled(part, table.dim))
        cache.mark_stale(name, keys[::5].copy())
    before = {name: cache.counts(name) for name in small}
    cache.resize(large)
    assert cache.tables == large
    assert cache.memory_bytes == planned_bytes(large)
    for name, table in small.items():
        assert cache.counts(name) == before[name]
        keys = np.arange(table.rows)
        rows, found, stale = ask(cache, name, keys, table.dim)
        assert found.tolist() == (keys < table.rows // 2).tolist()
        assert stale.tolist() == (found & (keys % 5 == 0)).tolist()
        stored = np.float16 if name == "a" else np.float32
        assert np.array_equal(rows[found], filled(keys[found], table.dim).astype(stored))
    cache.close()


def test_where_not_all_rows_fit_those_used_last_stay():
    cache = HostCache({"t": CacheTable(4, 10_000)})
    for part in np.array_split(np.arange(2000), 200):
        ask(cache, "t", np.empty(0, np.int64), 4)
        cache.insert("t", part, filled(part, 4))
    cache.resize({"t": CacheTable(4, 1000)})
    kept = cache.keys_by_use("t")
    assert 900 < kept.size <= cache.tables["t"].capacity
    assert np.median(kept) > 1400
    assert np.median(kept[:100]) > np.median(kept[-100:]) + 500, "in the order of use"
    cache.close()


def test_no_change_is_lost_while_it_is_resized():
    """Each of two threads changes rows of its own, and reads them, as a third one resizes the cache over and over."""
    sizes = [{"t": CacheTable(8, rows)} for rows in (40_000, 50_000)]
    cache = HostCache(sizes[0])
    every = np.arange(20_000)
    cache.insert("t", every, filled(every, 8))
    over, checked = threading.Event(), []

    def change(mine, seed):
        rng = np.random.default_rng(seed)
        versions, marked = np.zeros(every.size, np.float32), np.zeros(every.size, np.bool_)
        for step in range(1, 400):
            some = rng.choice(mine, 100, replace=False)
            if step % 4 == 0:
                cache.mark_stale("t", some)
                marked[some] = True
            else:
                if step % 4 == 1:
                    cache.delete("t", some)
                    _, found, _ = ask(cache, "t", some, 8)
                    assert not found.any()
                    cache.insert("t", some, np.full((some.size, 8), step, np.float32))
                else:
                    cache.update("t", some, np.full((some.size, 8), step, np.float32))
                versions[some], marked[some] = step, False
            changed = mine[versions[mine] > 0]
            rows, found, stale = ask(cache, "t", changed, 8)
            assert found.mean() > 0.5
            assert np.array_equal(rows[found, 0], versions[changed[found]])
            assert np.array_equal(stale[found], marked[changed[found]])
        checked.append(seed)

    def resize():
        while not over.is_set():
            for tables in sizes[::-1]:
                cache.resize(tables)

    threads = [
        threading.Thread(target=change, args=(part, seed)) for seed, part in enumerate(np.array_split(every[::5], 2))
    ]
    resizer = threading.Thread(target=resize)
    for thread in (resizer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    resizer.join()
    assert sorted(checked) == [0, 1]
    cache.close()


def test_what_cannot_be_resized_stays(monkeypatch):
    small, large = small_and_large()
    cache = HostCache(small)
    keys = np.arange(100)
    cache.insert("a", keys, filled(keys, 3))
    monkeypatch.setattr(table_memory, "available_bytes", lambda: 1 << 20)
    with pytest.raises(StoreError):
        cache.resize(large)
    monkeypatch.undo()
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(StoreError):
        cache.resize(large, cancelled)
    assert cache.tables == small
    assert ask(cache, "a", keys, 3)[1].all()
    cache.close()
    with pytest.raises(StoreError):
        cache.resize(small)


def test_a_resized_cache_gives_the_old_memory_back():
    cache = HostCache({"t": CacheTable(64, 400_000)})
    keys = np.arange(400_000)
    cache.insert("t", keys, filled(keys, 64))
    walk = cache.dump_keys("t", 100)
    next(walk)
    before, old_bytes = resident_bytes(), cache.memory_bytes
    cache.resize({"t": CacheTable(64, 40)})
    assert resident_bytes() < before - old_bytes // 2, "though somebody is in the midst of its keys"
    cache.close()


def test_no_more_queries_run_at_once_than_there_are_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    cache = HostCache({"t": CacheTable(4, 64)})
    running, most, counting, all_in = 0, 0, threading.Lock(), threading.Event()
    query = SlabCache.query

    def slow(self, *arguments):
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
            if most == 3:
                all_in.set()
        assert all_in.wait(20.0), "three are let in"
        found = query(self, *arguments)
        with counting:
            running -= 1
        return found

    monkeypatch.setattr(SlabCache, "query", slow)
    keys = np.arange(4)

    def ask_once():
        cache.query("t", keys, np.empty((4, 4), np.float32), np.zeros(4, np.bool_))

    threads = [threading.Thread(target=ask_once) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert most == 3
    cache.close()
