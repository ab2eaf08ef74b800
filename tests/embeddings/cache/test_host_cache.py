import threading

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
    assert cache.memory_bytes == cache._memory.bytes.size
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


def test_closing_gives_the_memory_back():
    cache = HostCache({"t": CacheTable(64, 10_000)})
    cache.insert("t", np.arange(100), filled(np.arange(100), 64))
    memory = cache._memory
    kept = memory.bytes
    assert kept.any()
    cache.close()
    assert not kept.any()
    assert memory.bytes.size == 0


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
