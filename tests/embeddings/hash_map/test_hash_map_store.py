import threading
import time

import numpy as np
import pytest

from hebe.embeddings.hash_map.hash_map_store import HashMapStore, planned_bytes
from hebe.embeddings.memory import memory_pieces
from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.store import StoreError
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.store_conformance import TABLES
from tests.embeddings.stores.volatile_conformance import VolatileConformance

from .hash_map_rows import query, rows_of


class TestHashMapStore(VolatileConformance):
    @pytest.fixture(params=[1, 3, 16])
    def make_store(self, request):
        return lambda: HashMapStore(TABLES, VolatileOptions(num_partitions=request.param))


def present(store, table="t"):
    return sorted(key for batch in store.dump_keys(table, 1000) for key in batch.tolist())


def one_partition(policy, margin, target=0.8, seed=0):
    return HashMapStore({"t": 4}, VolatileOptions(1, margin, policy, target), seed=seed)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_several_tables_are_asked_for_some_of_the_keys(partitions):
    dims = {"a": 3, "b": 32, "empty": 1, "c": 1, "d": 100}
    store = HashMapStore(dims, VolatileOptions(num_partitions=partitions))
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        keys = rng.permutation(1000)[:700]
        store.insert(name, keys, rows_of(keys, dims[name]))
    tables = ["d", "empty", "a", "c", "b"]
    asked = [rng.integers(-5, 1000, count) for count in (500, 40, 0, 77, 9)]
    keys = np.concatenate(asked)
    starts = np.cumsum([0, *(part.size for part in asked)])
    bases = np.cumsum([5, *(part.size * dims[name] for name, part in zip(tables, asked, strict=True))])
    rows, found = np.full(bases[-1] + 5, np.nan, np.float32), np.ones(keys.size, np.bool_)
    wanted = rng.random(keys.size) < 0.6
    count = store.fill_tables(tables, keys, starts, rows, bases, wanted, found)
    assert count == np.count_nonzero(found & wanted)
    assert found[~wanted].all(), "left as they were"
    assert np.isnan(rows[:5]).all()
    assert np.isnan(rows[-5:]).all()
    for number, name in enumerate(tables):
        mine = slice(starts[number], starts[number + 1])
        own = rows[bases[number] : bases[number + 1]].reshape(-1, dims[name])
        alone, there = query(store, keys[mine], dims[name], name)
        assert np.array_equal(found[mine][wanted[mine]], there[wanted[mine]])
        filled = wanted[mine] & there
        assert np.array_equal(own[filled], alone[filled])
        assert np.isnan(own[~filled]).all()
    store.close()


def test_memory_is_given_back():
    before = resident_bytes()
    store = HashMapStore({"t": 128}, VolatileOptions(2))
    for first in range(0, 200_000, 10_000):
        keys = np.arange(first, first + 10_000)
        store.insert("t", keys, rows_of(keys, 128))
    assert resident_bytes() > before + (90 << 20)
    store.close()
    assert resident_bytes() < before + (30 << 20)


def test_deleted_rows_make_room_for_others():
    store = HashMapStore({"t": 16}, VolatileOptions(2))
    keys = np.arange(10_000)
    store.insert("t", keys, rows_of(keys, 16))
    taken = store.memory_bytes
    for stamp in range(1, 6):
        assert store.delete("t", keys) == 10_000
        keys = keys + 10_000 * stamp
        store.insert("t", keys[:9_000], rows_of(keys[:9_000], 16))
        store.delete("t", keys[:500])
        keys = keys[500:9_000]
        assert present(store) == keys.tolist()
        store.insert("t", np.arange(-1500, 0), rows_of(np.arange(-1500, 0), 16))
        keys = np.concatenate([np.arange(-1500, 0), keys])
    assert store.memory_bytes < 1.05 * taken
    store.close()


def test_past_the_memory_bound_insertions_fail_and_the_rest_goes_on():
    store = HashMapStore({"t": 128}, VolatileOptions(1), memory_bound_bytes=4 << 20)
    keys = np.arange(20_000)
    with pytest.raises(StoreError, match="memory bound of 4,194,304 bytes"):
        store.insert("t", keys, rows_of(keys, 128))
    assert store.memory_bytes <= 4 << 20
    kept = present(store)
    assert 5_000 < len(kept) == store.size("t") < 8_200
    assert np.array_equal(query(store, kept, 128)[0], rows_of(kept, 128))
    taken = store.memory_bytes
    for _ in range(20):  # failing again takes no more, not even on paper
        with pytest.raises(StoreError, match="memory bound"):
            store.insert("t", keys[::-1].copy(), rows_of(keys[::-1], 128))
    assert store.memory_bytes - taken < 1 << 20
    store.insert("t", np.array(kept[:10]), rows_of(range(10), 128))
    assert store.delete("t", np.array(kept)) == len(kept)
    store.insert("t", keys[:3000], rows_of(keys[:3000], 128))
    assert present(store)[:3] == [0, 1, 2]
    store.close()


def test_a_partition_above_its_margin_is_pruned_where_memory_ends():
    options = VolatileOptions(1, 2000, OverflowPolicy.EVICT_OLDEST)
    bound = planned_bytes(2100, 128, 1)
    store = HashMapStore({"t": 128}, options, memory_bound_bytes=bound)
    keys = np.arange(50_000)
    store.insert("t", keys, rows_of(keys, 128))
    kept = present(store)
    assert 1600 <= len(kept) <= 2000
    assert kept == keys[-len(kept) :].tolist()
    store.close()


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_one_that_may_evicts_where_memory_ends_and_takes_whatever_comes(num_partitions):
    options = VolatileOptions(num_partitions, overflow_policy=OverflowPolicy.EVICT_OLDEST)
    store = HashMapStore({"t": 128}, options, memory_bound_bytes=planned_bytes(6000, 128, num_partitions))
    store.evict_where_memory_ends()
    keys = np.arange(50_000)
    for first in range(0, keys.size, 1000):
        part = keys[first : first + 1000]
        store.insert("t", part, rows_of(part, 128))
        assert query(store, part, 128)[1].all(), "what came last is there"
    kept = present(store)
    assert 4000 <= len(kept) <= 6600
    assert np.array_equal(query(store, kept, 128)[0], rows_of(kept, 128))
    store.close()


def test_one_that_may_evict_does_without_rows_of_a_table_that_came_when_memory_had_ended():
    store = HashMapStore({"t": 128, "late": 128}, VolatileOptions(2), memory_bound_bytes=planned_bytes(2000, 128, 2))
    keys = np.arange(3000)
    with pytest.raises(StoreError, match="memory bound"):
        store.insert("t", keys, rows_of(keys, 128))
    with pytest.raises(StoreError, match="memory bound"):
        store.insert("late", keys, rows_of(keys, 128))
    store.evict_where_memory_ends()
    store.insert("late", keys, rows_of(keys, 128))
    assert not query(store, keys, 128, "late")[1].any()
    store.insert("t", keys[::-1].copy(), rows_of(keys[::-1], 128))
    assert query(store, keys[:300], 128)[1].all(), "what came last is there"
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.insert("late", keys, rows_of(keys, 128))


def test_rows_that_find_no_room_leave_no_older_ones_behind():
    store = HashMapStore({"t": 4}, VolatileOptions(1), memory_bound_bytes=planned_bytes(1000, 4, 1))
    keys = np.arange(5000)
    with pytest.raises(StoreError, match="memory bound"):
        store.insert("t", keys, rows_of(keys, 4))
    store.evict_where_memory_ends()
    store._kernels = store._kernels._replace(prune=lambda *_: False)  # as where others have emptied it meanwhile
    store.insert("t", np.array([0, 6000, 1, 2]), rows_of([7, 7, 7, 7], 4))
    rows, found = query(store, [0, 6000, 1, 2, 3], 4)
    assert found.tolist() == [True, False, False, False, True]
    assert rows[:, 0].tolist() == [7, 0, 0, 0, 3]
    store.close()


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_one_that_may_refuse_brings_what_it_has_up_to_date_and_counts_the_rest(num_partitions):
    store = HashMapStore(
        {"t": 128, "late": 4}, VolatileOptions(num_partitions), memory_bound_bytes=planned_bytes(6000, 128, 3)
    )
    store.insert("t", np.arange(3000), rows_of(range(3000), 128))
    store.refuse_where_memory_ends()
    keys = np.random.default_rng(5).permutation(np.arange(-20_000, 20_000))
    keys = np.concatenate([keys, keys[::7]])  # of repeated ones the last counts, as a row and as refused
    values = np.arange(keys.size) % 1000
    store.insert("t", keys, rows_of(values, 128))
    kept = present(store)
    assert set(range(3000)) <= set(kept)
    assert 4000 < len(kept) < 8000
    assert store.refused_keys == {"t": 40_000 - len(kept), "late": 0}
    last = dict(zip(keys.tolist(), values.tolist(), strict=True))
    assert query(store, kept, 128)[0][:, 5].tolist() == [last[key] for key in kept]
    store.insert("late", np.arange(9), rows_of(range(9), 4))
    assert store.refused_keys["late"] + store.size("late") == 9
    store.delete("t", np.array(kept))
    store.insert("t", np.arange(50_000, 52_000), rows_of(range(2000), 128))
    assert store.size("t") == 2000, "what was deleted made room"
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.insert("t", keys, rows_of(values, 128))


def test_no_memory_at_all_is_an_error(monkeypatch):
    monkeypatch.setattr(memory_pieces, "available_bytes", lambda: 1000)
    store = HashMapStore({"t": 4}, VolatileOptions(1))
    with pytest.raises(StoreError, match="1,000 are available"):
        store.insert("t", np.arange(3), rows_of(range(3), 4))
    assert store.size("t") == 0
    store.close()


def test_the_oldest_leave_by_their_last_access():
    store = one_partition(OverflowPolicy.EVICT_OLDEST, margin=10)
    for key in range(10):
        store.insert("t", np.array([key]), rows_of([key], 4))
    store.touch([("t", np.array([0, 3, 99]))])
    store.update("t", np.array([1]), rows_of([1], 4))  # no access
    store.insert("t", np.array([2]), rows_of([2], 4))
    assert store.size("t") == 10
    store.insert("t", np.array([10]), rows_of([10], 4))
    assert present(store) == [0, 2, 3, 6, 7, 8, 9, 10]
    assert store.evicted_rows("t") == 3
    store.close()


def test_the_least_used_leave_and_the_older_of_those():
    store = one_partition(OverflowPolicy.EVICT_LEAST_USED, margin=5)
    for key in range(5):
        store.insert("t", np.array([key]), rows_of([key], 4))
    store.touch([("t", np.array([0, 0, 4, 1]))])
    store.insert("t", np.array([5]), rows_of([5], 4))
    assert present(store) == [0, 1, 4, 5]
    store.close()


def test_random_rows_leave_by_the_seed():
    kept = []
    for seed in (1, 1, 2):
        store = one_partition(OverflowPolicy.EVICT_RANDOM, margin=100, target=0.5, seed=seed)
        store.insert("t", np.arange(101), rows_of(range(101), 4))
        kept.append(present(store))
        store.close()
    assert len(kept[0]) == 50
    assert kept[0] == kept[1] != kept[2]
    assert min(kept[0]) < 25
    assert max(kept[0]) > 75


def test_partitions_are_pruned_each_for_itself():
    options = VolatileOptions(4, 50, OverflowPolicy.EVICT_OLDEST, 0.4)
    store = HashMapStore({"t": 4, "u": 4}, options)
    keys = np.arange(1000)
    partitions = key_partitions(keys, 4)
    crowded, other = keys[partitions == 2][:51], keys[partitions == 3][:50]
    for table in ("t", "u"):
        store.insert(table, other, rows_of(other, 4))
    store.insert("t", crowded, rows_of(crowded, 4))
    assert present(store) == sorted([*crowded[-20:].tolist(), *other.tolist()])
    assert (store.evicted_rows("t"), store.evicted_rows("u"), store.size("u")) == (31, 0, 50)
    store.close()


def test_many_partitions():
    store = HashMapStore({"t": 2}, VolatileOptions(65536))
    keys = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 5_000)
    store.insert("t", keys, rows_of(np.arange(5_000), 2))
    assert np.array_equal(query(store, keys, 2)[0], rows_of(np.arange(5_000), 2))
    assert present(store) == sorted(keys.tolist())
    store.close()


class Threads:
    """Runs loops until they are told to end, and raises what they raised."""

    def __init__(self):
        self.ended = threading.Event()
        self.faults = []
        self.threads = []

    def loop(self, function):
        def run():
            try:
                while not self.ended.is_set():
                    function()
            except BaseException as fault:
                self.faults.append(fault)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads)
        if self.faults:
            raise self.faults[0]


def test_queries_and_dumps_see_every_key_while_the_store_grows_and_is_written():
    dim = 32
    store = HashMapStore({"t": dim}, VolatileOptions(3))
    steady = np.arange(2_000)
    store.insert("t", steady, rows_of(steady, dim))
    threads = Threads()
    seen = set(steady.tolist())

    def look_up():
        rows, found = query(store, steady, dim)
        assert found.all()
        assert np.array_equal(rows, rows_of(steady, dim))
        store.touch([("t", steady)])

    def dump():
        keys = [key for batch in store.dump_keys("t", 500) for key in batch.tolist() if key in seen]
        assert sorted(keys) == steady.tolist()

    def churn():
        keys = np.arange(-3_000, 0)
        store.insert("t", keys, rows_of(keys, dim))
        store.delete("t", keys[::2].copy())
        store.update("t", steady, rows_of(steady, dim))

    for function in (look_up, dump, churn):
        threads.loop(function)

    def grow(first):
        for start in range(first, first + 60_000, 1_000):
            keys = np.arange(start, start + 1_000)
            store.insert("t", keys, rows_of(keys, dim))

    growing = [threading.Thread(target=grow, args=(first,)) for first in (10_000, 40_000)]
    for thread in growing:
        thread.start()
    for thread in growing:
        thread.join()
    threads.end()
    store.delete("t", np.arange(-3_000, 0))
    assert present(store) == [*range(2_000), *range(10_000, 100_000)]
    keys = np.arange(10_000, 100_000)
    assert np.array_equal(query(store, keys, dim)[0], rows_of(keys, dim))
    store.close()


def test_evictions_while_others_query():
    dim = 8
    store = HashMapStore({"t": dim}, VolatileOptions(2, 600, OverflowPolicy.EVICT_LEAST_USED, 0.5))
    rng = np.random.default_rng(4)
    threads = Threads()

    def look_up():
        keys = np.arange(3_000)
        rows, found = query(store, keys, dim)
        assert np.array_equal(rows[found], rows_of(keys[found], dim))
        store.touch([("t", keys[:100])])

    threads.loop(look_up)
    threads.loop(look_up)
    for _ in range(200):
        keys = rng.integers(0, 3_000, 400)
        store.insert("t", keys, rows_of(keys, dim))
        assert store.size("t") <= 1200
    threads.end()
    assert store.evicted_rows("t") > 0
    store.close()


def test_closing_ends_calls_that_are_under_way():
    store = HashMapStore({"t": 64}, VolatileOptions(4))
    keys = np.arange(20_000)
    store.insert("t", keys, rows_of(keys, 64))
    answers, faults = [], []

    def look_up():
        try:
            while True:
                rows, found = query(store, keys, 64)
                answers.append(bool(found.all() and np.array_equal(rows, rows_of(keys, 64))))
        except StoreError as fault:
            faults.append(str(fault))

    def write():
        first = 20_000
        try:
            while True:
                store.insert("t", np.arange(first, first + 5_000), np.zeros((5_000, 64), np.float32))
                first += 5_000
        except StoreError as fault:
            faults.append(str(fault))

    threads = [threading.Thread(target=target) for target in (look_up, look_up, write)]
    for thread in threads:
        thread.start()
    while len(answers) < 4:
        time.sleep(0.01)
    store.close()
    for thread in threads:
        thread.join(60)
    assert len(faults) == 3
    assert all("closed" in fault for fault in faults)
    assert all(answers)


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
