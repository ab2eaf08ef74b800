"""What every level-1 cache must do, on whichever device. A cache's tests subclass `CacheConformance`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import pytest

from hebe.embeddings.cache.cache_table import CacheCounts, CacheTable
from hebe.embeddings.store import EmbeddingCache, EmbeddingStore, StoreError
from hebe.kernels.lookup.row_format import RowFormat

from .store_conformance import ENDS, LARGE_CAPACITY, TABLES, StoreConformance

ONE_SLABSET = 64


class CountingCache(EmbeddingCache, Protocol):
    """A cache that says what has become of each table."""

    def counts(self, table: str) -> CacheCounts: ...


MakeCache = Callable[[Mapping[str, CacheTable]], CountingCache]


def filled(keys: np.ndarray, dim: int, stamp: int = 0) -> np.ndarray:
    """Rows of one number throughout, which tells the key and a stamp below 100."""
    return np.repeat((100.0 * keys + stamp).astype(np.float32)[:, None], dim, axis=1)


def ask(cache: EmbeddingCache, table: str, keys: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, NaN where the cache wrote nothing, and which were found, and which of these stale."""
    rows = np.full((keys.size, dim), np.nan, np.float32)
    found, stale = np.zeros(keys.size, np.bool_), np.ones(keys.size, np.bool_)
    assert cache.query(table, keys, rows, found, stale) == np.count_nonzero(found)
    return rows, found, stale


def zipf(rng: np.random.Generator, rows: int, count: int, exponent: float = 1.2) -> np.ndarray:
    """Keys below `rows`, the first ones most often."""
    share = np.cumsum(1 / np.arange(1, rows + 1) ** exponent)
    return np.searchsorted(share / share[-1], rng.random(count))


class CacheConformance(StoreConformance):
    """Subclasses define the fixture `make_cache`: a callable that gives an empty cache of the tables it is given."""

    @pytest.fixture
    def make_store(self, make_cache: MakeCache) -> Callable[[], EmbeddingStore]:
        return lambda: make_cache({name: CacheTable(dim, 2 * LARGE_CAPACITY) for name, dim in TABLES.items()})

    def test_the_least_recently_used_row_gives_way(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(2, ONE_SLABSET)})
        keys = np.arange(ONE_SLABSET)
        cache.replace("t", keys, filled(keys, 2))
        ask(cache, "t", np.delete(keys, [5, 40]), 2)
        ask(cache, "t", np.delete(keys, [5, 40, 41]), 2)
        for new in (1000, 1001, 1002):
            cache.replace("t", np.array([new]), filled(np.array([new]), 2))
        rows, found, _ = ask(cache, "t", keys, 2)
        assert np.flatnonzero(~found).tolist() == [5, 40, 41]
        assert np.array_equal(rows[found], filled(keys[found], 2))
        assert ask(cache, "t", np.array([1000, 1001, 1002]), 2)[1].all()

    def test_keys_are_told_by_use(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(4, 100)})
        assert cache.keys_by_use("t").tolist() == []
        keys = np.arange(-5, 5)
        rows, found = np.zeros((10, 4), np.float32), np.zeros(10, np.bool_)
        cache.insert("t", keys, rows)
        for key in (3, -5, 4, 3):
            cache.query("t", np.array([key]), rows[:1], found[:1])
        cache.delete("t", np.array([4]))
        told = cache.keys_by_use("t")
        assert told[:2].tolist() == [3, -5]
        assert sorted(told.tolist()) == list(range(-5, 4))

    def test_a_look_that_is_no_use_of_the_rows_changes_nothing(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(2, ONE_SLABSET), "u": CacheTable(1, 10)})
        keys = np.arange(ONE_SLABSET)
        cache.replace("t", keys, filled(keys, 2))
        ask(cache, "t", np.delete(keys, [5, 40]), 2)
        before = [cache.keys_by_use("t").tolist(), cache.counts("t"), cache.counts("u")]
        asked, starts, bases = np.array([5, -1, 40, 7]), np.array([0, 3, 4]), np.array([0, 6, 7])
        rows, missing, stale = np.zeros(7, np.float32), np.zeros(4, np.bool_), np.ones(4, np.bool_)
        told = cache.query_tables(["t", "u"], asked, starts, rows, bases, missing, stale, use=False)
        assert told.tolist() == [[2, 0], [0, 0]]
        assert (missing.tolist(), stale.any()) == ([False, True, False, True], False)
        assert rows.tolist() == [500, 500, 0, 0, 4000, 4000, 0]
        assert [cache.keys_by_use("t").tolist(), cache.counts("t"), cache.counts("u")] == before
        cache.replace("t", np.array([1000, 1001]), filled(np.array([1000, 1001]), 2))
        assert np.flatnonzero(~ask(cache, "t", keys, 2)[1]).tolist() == [5, 40]

    def test_several_tables_are_asked_as_each_is(self, make_cache: MakeCache) -> None:
        dims = {"a": 3, "b": 32, "none": 1, "c": 1, "d": 100}
        formats = dict(
            zip(dims, [RowFormat.FP32, RowFormat.INT8, RowFormat.FP32, RowFormat.FP16, RowFormat.FP32], strict=True)
        )
        cache = make_cache({name: CacheTable(dim, 500, formats[name]) for name, dim in dims.items()})
        rng = np.random.default_rng(0)
        for name, dim in dims.items():
            keys = rng.permutation(400)[:300] - 100
            cache.insert(name, keys, rng.standard_normal((300, dim)).astype(np.float32))
            cache.mark_stale(name, keys[:40])
        asked = {name: rng.permutation(400)[:count] - 100 for name, count in zip(dims, (50, 1, 0, 77, 9), strict=True)}
        tables = ["d", "a", "none", "c", "b"]
        keys = np.concatenate([asked[name] for name in tables])
        starts = np.cumsum([0, *(asked[name].size for name in tables)])
        bases = np.cumsum([5, *(asked[name].size * dims[name] for name in tables)])
        rows = np.full(bases[-1] + 5, np.nan, np.float32)
        missing, stale = np.zeros(keys.size, np.bool_), np.ones(keys.size, np.bool_)
        hits, olds = cache.query_tables(tables, keys, starts, rows, bases, missing, stale)
        assert np.isnan(rows[:5]).all()
        assert np.isnan(rows[-5:]).all()
        for number, name in enumerate(tables):
            mine = slice(starts[number], starts[number + 1])
            alone, there, old = ask(cache, name, asked[name], dims[name])
            np.testing.assert_array_equal(rows[bases[number] : bases[number + 1]].reshape(alone.shape), alone)
            assert np.array_equal(missing[mine], ~there)
            assert np.array_equal(stale[mine], old)
            assert (hits[number], olds[number]) == (np.count_nonzero(there), np.count_nonzero(old))
            assert cache.counts(name).queries == 2
        for wrong in ({"starts": starts + 1}, {"bases": bases + 10}, {"rows": rows[:-10]}, {"missing": stale[1:]}):
            given = {"keys": keys, "starts": starts, "rows": rows, "bases": bases, "missing": missing, "stale": stale}
            with pytest.raises(StoreError, match="do not go together"):
                cache.query_tables(tables, **{**given, **wrong})
        with pytest.raises(StoreError, match="no table ghost"):
            cache.query_tables(["ghost"], keys[:0], np.zeros(2, np.int64), rows, np.zeros(2, np.int64), missing, stale)
        cache.close()
        with pytest.raises(StoreError, match=r"closed|no table"):
            cache.query_tables(tables, keys, starts, rows, bases, missing, stale)

    def test_rows_of_several_tables_are_taken_in_as_those_of_each_are(self, make_cache: MakeCache) -> None:
        dims = {"a": 3, "b": 32, "none": 1, "c": 1, "d": 100}
        tables = ["d", "a", "none", "c", "b"]
        together, alone = (make_cache({name: CacheTable(dim, 128) for name, dim in dims.items()}) for _ in range(2))
        rng = np.random.default_rng(0)
        for round_ in range(20):
            given = {name: rng.permutation(400)[:count] for name, count in zip(dims, (50, 1, 0, 77, 9), strict=True)}
            keys = np.concatenate([given[name] for name in tables])
            starts = np.cumsum([0, *(given[name].size for name in tables)])
            bases = np.cumsum([5, *(given[name].size * dims[name] for name in tables)])
            rows = rng.standard_normal(bases[-1]).astype(np.float32)
            chosen = rng.random(keys.size) < 0.5
            together.replace_tables(tables, keys, starts, rows, bases, chosen)
            for number, name in enumerate(tables):
                mine = slice(starts[number], starts[number + 1])
                own = rows[bases[number] : bases[number + 1]].reshape(-1, dims[name])
                alone.replace(name, keys[mine][chosen[mine]], np.ascontiguousarray(own[chosen[mine]]))
                for cache in (together, alone) if round_ % 3 == 0 else ():  # which rows go depends on what was asked
                    ask(cache, name, np.arange(0, 400, 3), dims[name])
        for name, dim in dims.items():
            assert together.counts(name) == alone.counts(name)
            for one, other in zip(*(ask(cache, name, np.arange(400), dim) for cache in (together, alone)), strict=True):
                np.testing.assert_array_equal(one, other)
        for wrong in ({"starts": starts + 1}, {"bases": bases + 10}, {"rows": rows[:-10]}, {"chosen": chosen[1:]}):
            whole = {"keys": keys, "starts": starts, "rows": rows, "bases": bases, "chosen": chosen}
            with pytest.raises(StoreError, match="do not go together"):
                together.replace_tables(tables, **{**whole, **wrong})
        together.close()
        with pytest.raises(StoreError, match=r"closed|no table"):
            together.replace_tables(tables, keys, starts, rows, bases, chosen)

    def test_replacing_counts_as_use_and_updating_does_not(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(1, ONE_SLABSET)})
        keys = np.arange(ONE_SLABSET)
        cache.replace("t", keys, filled(keys, 1))
        ask(cache, "t", keys, 1)
        ask(cache, "t", keys[2:], 1)
        cache.replace("t", keys[:1], filled(keys[:1], 1, stamp=9))
        assert cache.update("t", keys[1:2], filled(keys[1:2], 1, stamp=9)) == 1
        cache.insert("t", np.array([1000]), filled(np.array([1000]), 1))
        rows, found, _ = ask(cache, "t", keys, 1)
        assert np.flatnonzero(~found).tolist() == [1]
        assert rows[0] == 0  # the row that was there has stayed

    @pytest.mark.parametrize("slabs", [1, 2, 3, 8])
    def test_under_eviction_every_row_found_is_the_newest(self, make_cache: MakeCache, slabs: int) -> None:
        """Five times as many keys as slots, in all orders of operations, against a dict of what was last written."""
        rng = np.random.default_rng(slabs)
        table = CacheTable(3, 200, slabs_per_set=slabs)
        cache = make_cache({"t": table})
        pool = np.unique(np.concatenate([np.array(ENDS), rng.integers(-(2**40), 2**40, 5 * table.capacity)]))
        newest: dict[int, float] = {}
        stale: set[int] = set()
        for step in range(300):
            keys = rng.choice(pool, rng.integers(1, 60), replace=False)
            stamps = np.arange(keys.size, dtype=np.float32) + 1000 * step
            rows = np.repeat(stamps[:, None], 3, axis=1)
            got, found, marked = ask(cache, "t", keys, 3)
            assert all(key in newest for key in keys[found].tolist())
            assert got[found, 0].tolist() == [newest[key] for key in keys[found].tolist()]
            assert (got[found] == got[found][:, :1]).all()
            assert np.isnan(got[~found]).all()
            assert marked.tolist() == [bool(there) and key in stale for key, there in zip(keys, found, strict=True)]
            present = set(keys[found].tolist())
            what = rng.integers(0, 5)
            if what == 0:
                cache.replace("t", keys, rows)
                written = set(keys.tolist()) - present
            elif what == 1:
                cache.insert("t", keys, rows)
                written = set(keys.tolist())
            elif what == 2:
                assert cache.update("t", keys, rows) == len(present)
                written = present
            elif what == 3:
                assert cache.delete("t", keys) == len(present)
                assert not ask(cache, "t", keys, 3)[1].any()
                written = set()
            else:
                assert cache.mark_stale("t", np.tile(keys, 2)) == len(present)
                stale |= present
                written = set()
            newest.update((key, stamp) for key, stamp in zip(keys.tolist(), stamps, strict=True) if key in written)
            stale -= written
            dumped = np.concatenate([np.empty(0, np.int64), *cache.dump_keys("t", 17)])
            assert np.unique(dumped).size == dumped.size == cache.size("t") <= table.capacity
        assert cache.counts("t").evictions > 0

    def test_stale_marks_last_until_the_row_is_newer(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(1, 4 * ONE_SLABSET)})
        keys = np.arange(40)
        rows = filled(keys, 1)
        cache.insert("t", keys, rows)
        assert cache.mark_stale("t", np.array([1, 2, 2, 3, 4, 500])) == 4
        assert cache.mark_stale("t", np.array([1])) == 1
        cache.replace("t", keys, rows)
        assert np.flatnonzero(ask(cache, "t", keys, 1)[2]).tolist() == [1, 2, 3, 4]
        cache.insert("t", keys[1:2], rows[1:2])
        cache.update("t", keys[2:3], rows[2:3])
        cache.delete("t", keys[3:4])
        cache.replace("t", keys[3:4], rows[3:4])
        assert np.flatnonzero(ask(cache, "t", keys, 1)[2]).tolist() == [4]
        got, found = np.zeros_like(rows), np.zeros(40, np.bool_)
        assert cache.query("t", keys, got, found) == 40  # nobody need ask for the marks
        assert np.array_equal(got, rows)

    @pytest.mark.parametrize("row_format", list(RowFormat))
    @pytest.mark.parametrize("dim", [1, 7, 16, 64, 128, 129, 1024])
    def test_rows_come_back_as_their_format_holds_them(
        self, make_cache: MakeCache, dim: int, row_format: RowFormat
    ) -> None:
        rng = np.random.default_rng(dim)
        cache = make_cache({"t": CacheTable(dim, 4000, row_format)})
        keys = rng.integers(-(2**63), 2**63 - 1, 1000)
        rows = rng.standard_normal((1000, dim), np.float32)
        cache.insert("t", keys, np.zeros_like(rows))
        assert cache.update("t", keys, rows) == 1000
        got, found, _ = ask(cache, "t", keys[::-1].copy(), dim)
        assert found.all()
        most = np.abs(rows[::-1]).max(axis=1, keepdims=True)
        bound = {RowFormat.FP32: 0 * most, RowFormat.FP16: most * 2**-11, RowFormat.INT8: most * 0.51 / 127}
        assert (np.abs(got - rows[::-1]) <= bound[row_format]).all()
        assert cache.counts("t").unheld == 0

    def test_a_row_that_its_format_cannot_hold_is_counted(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(2, 10, RowFormat.FP16)})
        cache.insert("t", np.array([1, 2]), np.array([[1, -1e6], [3, 4]], np.float32))
        rows, _, _ = ask(cache, "t", np.array([1, 2]), 2)
        assert rows.tolist() == [[1, -65504], [3, 4]]
        assert cache.counts("t").unheld == 1

    @pytest.mark.parametrize("dim", [1, 128])
    def test_smaller_than_one_batch(self, make_cache: MakeCache, dim: int) -> None:
        table = CacheTable(dim, 1)
        cache = make_cache({"t": table})
        keys = np.arange(5000)
        for _ in range(3):
            cache.replace("t", keys, filled(keys, dim))
            rows, found, _ = ask(cache, "t", keys, dim)
            assert found.sum() == table.capacity == cache.size("t")
            assert np.array_equal(rows[found], filled(keys[found], dim))
        assert [batch.size for batch in cache.dump_keys("t", 10_000)] == [table.capacity]

    def test_tables_are_apart(self, make_cache: MakeCache) -> None:
        cache = make_cache({name: CacheTable(dim, 300) for name, dim in (("a", 1), ("b", 4), ("c", 4))})
        keys = np.arange(50)
        for stamp, (name, dim) in enumerate((("a", 1), ("b", 4), ("c", 4))):
            cache.insert(name, keys, filled(keys, dim, stamp))
        cache.delete("b", keys[:25])
        cache.mark_stale("c", keys[:5])
        assert [cache.size(name) for name in "abc"] == [50, 25, 50]
        for stamp, (name, dim) in enumerate((("a", 1), ("b", 4), ("c", 4))):
            rows, found, stale = ask(cache, name, keys, dim)
            assert np.array_equal(rows[found], filled(keys, dim, stamp)[found])
            assert stale.sum() == (5 if name == "c" else 0)

    def test_counts(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(1, ONE_SLABSET), "other": CacheTable(1, 1)})
        keys = np.arange(ONE_SLABSET + 10)
        cache.insert("t", keys, filled(keys, 1))
        present = next(cache.dump_keys("t", 1))[0]
        ask(cache, "t", np.array([present, present, 2000]), 1)
        ask(cache, "t", np.empty(0, np.int64), 1)
        assert cache.counts("t") == CacheCounts(queries=2, hits=2, misses=1, size=64, evictions=10, unheld=0)
        assert cache.counts("other") == CacheCounts(0, 0, 0, 0, 0, 0)

    def test_its_hit_rate_is_nearly_that_of_an_exact_lru(self, make_cache: MakeCache) -> None:
        """A cache of 5% of 20,000 rows, asked for Zipf(1.2) keys, whose misses are then put in."""
        rng = np.random.default_rng(3)
        cache = make_cache({"t": CacheTable(1, 1024)})
        exact: OrderedDict[int, None] = OrderedDict()
        ours = theirs = asked = 0
        for step in range(150):
            keys = zipf(rng, 20_000, 256)
            _, found, _ = ask(cache, "t", keys, 1)
            cache.replace("t", keys[~found], filled(keys[~found], 1))
            hits = sum(key in exact for key in keys.tolist())
            for key in keys.tolist():
                exact[key] = None
                exact.move_to_end(key)
            while len(exact) > 1024:
                exact.popitem(last=False)
            if step >= 50:
                ours, theirs, asked = ours + int(found.sum()), theirs + hits, asked + keys.size
        assert abs(ours - theirs) / asked < 0.02
        assert theirs / asked > 0.5

    def test_64_threads_at_once(self, make_cache: MakeCache) -> None:
        """All change and ask for the same keys, in a cache too small for them; each row tells its key."""
        dim = 24
        cache = make_cache({"t": CacheTable(dim, 4 * ONE_SLABSET)})

        def work(seed: int) -> int:
            rng = np.random.default_rng(seed)
            hits = 0
            for _ in range(30):
                keys = zipf(rng, 1000, 200)
                rows, found, _ = ask(cache, "t", keys, dim)
                assert (rows[found] == rows[found][:, :1]).all()
                assert np.array_equal(rows[found, 0] // 100, keys[found])
                assert np.isnan(rows[~found]).all()
                missing = np.unique(keys[~found])
                cache.replace("t", missing, filled(missing, dim))
                cache.update("t", keys[:20], filled(keys[:20], dim, stamp=seed))
                cache.delete("t", keys[-3:])
                cache.mark_stale("t", keys[:5])
                hits += int(found.sum())
            return hits

        with ThreadPoolExecutor(64) as threads:
            assert sum(threads.map(work, range(64))) > 0
        dumped = np.concatenate(list(cache.dump_keys("t", 10)))
        assert np.unique(dumped).size == dumped.size == cache.size("t")

    def test_a_dump_meets_every_key_that_stays_once_while_others_come_and_go(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(4, 4000)})
        keys = np.arange(1000)
        cache.insert("t", keys, filled(keys, 4))
        stop = threading.Event()

        def change() -> None:
            passing = np.arange(5000, 5200)
            while not stop.is_set():
                cache.insert("t", passing, filled(passing, 4))
                cache.delete("t", passing)

        with ThreadPoolExecutor(1) as threads:
            changing = threads.submit(change)
            try:
                for _ in range(20):
                    dumped = np.concatenate(list(cache.dump_keys("t", 64)))
                    assert np.sort(dumped[dumped < 1000]).tolist() == keys.tolist()
                    assert (dumped[dumped >= 1000] >= 5000).all()
            finally:
                stop.set()
            changing.result()

    def test_closing_under_queries_gives_rows_or_errors(self, make_cache: MakeCache) -> None:
        dim = 64
        cache = make_cache({"t": CacheTable(dim, 4000)})
        keys = np.arange(2000)
        cache.insert("t", keys, filled(keys, dim))
        started = threading.Barrier(5)

        def work(_: int) -> None:
            def go_on() -> None:
                while True:
                    rows, found, _ = ask(cache, "t", keys, dim)
                    assert found.all()
                    assert np.array_equal(rows, filled(keys, dim))

            started.wait()
            with pytest.raises(StoreError, match="closed"):
                go_on()

        with ThreadPoolExecutor(4) as threads:
            working = threads.map(work, range(4))
            started.wait()
            cache.close()
            assert list(working) == [None] * 4

    def test_wrong_arrays_are_errors_and_change_nothing(self, make_cache: MakeCache) -> None:
        cache = make_cache({"t": CacheTable(4, 100)})
        keys, rows, found = np.arange(3), np.ones((3, 4), np.float32), np.zeros(3, np.bool_)
        frozen, frozen_mask = rows.copy(), found.copy()
        frozen.flags.writeable = frozen_mask.flags.writeable = False
        cache.insert("t", keys, rows)
        wrong_rows = (rows[:, :3].copy(), rows[:2], rows.astype(np.float64), rows[0], np.asfortranarray(rows))
        wrong_keys = (keys.astype(np.int32), keys[None], np.arange(6)[::2], keys[:2], keys.astype(np.float64))
        for bad in wrong_rows:
            for call in (cache.insert, cache.replace, cache.update):
                with pytest.raises(StoreError, match=r"for 3 keys of table t: must be float32 \[3, 4\]"):
                    call("t", keys, bad)
            with pytest.raises(StoreError, match="for 3 keys of table t"):
                cache.query("t", keys, bad, found)
        for bad in wrong_keys:
            for call in (cache.insert, cache.replace, cache.update):
                with pytest.raises(StoreError, match=r"table t"):
                    call("t", bad, rows)
            if bad.shape != (2,):
                for drop in (cache.delete, cache.mark_stale):
                    with pytest.raises(StoreError, match=r"must be int64 \[n\]"):
                        drop("t", bad)
        whole = {"keys": keys, "starts": np.array([0, 3]), "rows": rows.reshape(-1), "bases": np.array([0, 12])}
        for name, kind in (
            ("keys", keys.astype(np.int32)), ("keys", np.arange(6)[::2]), ("starts", np.array([0, 3], np.int32)),
            ("bases", np.array([0.0, 12.0])), ("rows", np.ones(12)), ("rows", np.ones(24, np.float32)[::2]),
        ):  # fmt: skip
            with pytest.raises(StoreError, match="1 tables of the cache"):
                cache.replace_tables(["t"], **{**whole, name: kind}, chosen=~found)
            with pytest.raises(StoreError, match="1 tables of the cache"):
                cache.query_tables(["t"], **{**whole, name: kind}, missing=found.copy(), stale=found.copy())
        with pytest.raises(StoreError, match="1 tables of the cache"):
            cache.replace_tables(["t"], **whole, chosen=np.ones(3, np.uint8))
        for bad in (found[:2], found.astype(np.uint8), np.zeros(6, np.bool_)[::2], frozen_mask):
            with pytest.raises(StoreError, match=r"mask found is .*: must be bool \[3\]"):
                cache.query("t", keys, rows, bad)
            with pytest.raises(StoreError, match=r"mask stale is .*: must be bool \[3\]"):
                cache.query("t", keys, rows, found, bad)
        with pytest.raises(StoreError, match="read-only"):
            cache.query("t", keys, frozen, found)
        with pytest.raises(StoreError, match="batch_size is 0"):
            list(cache.dump_keys("t", 0))
        cache.insert("t", keys, frozen)  # only read
        got, there, stale = ask(cache, "t", keys, 4)
        assert np.array_equal(got, rows)
        assert there.all()
        assert not stale.any()
        for call in (cache.replace, cache.insert, cache.update):
            with pytest.raises(StoreError, match="no table nobody"):
                call("nobody", keys, rows)
        with pytest.raises(StoreError, match="no table nobody"):
            cache.mark_stale("nobody", keys)
        cache.close()
        with pytest.raises(StoreError, match="closed"):
            cache.replace("t", keys, rows)
        with pytest.raises(StoreError, match="closed"):
            cache.mark_stale("t", keys)
        with pytest.raises(StoreError, match="closed"):
            cache.counts("t")
