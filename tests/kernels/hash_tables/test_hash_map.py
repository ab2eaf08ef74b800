import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hash_tables import hash_map
from hebe.kernels.hash_tables import hash_map_partition as layout
from hebe.kernels.hash_tables.xxh64 import hash_key_reference, key_partitions
from tests.kernels.hash_map_reference import HashMapReference

from .array_map import CHUNK_BITS, ArrayMap

STORED = st.integers(0, 40) | st.sampled_from((-(2**63), -1, 2**63 - 1))
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "update", "delete", "touch"]), st.lists(STORED, max_size=12)),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(
    STEPS,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 5, 17, layout.NO_LIMIT]),
    st.sampled_from([layout.EVICT_RANDOM, layout.EVICT_LEAST_USED, layout.EVICT_OLDEST]),
)
def test_agrees_with_the_reference(steps, partitions, margin, policy):
    target = max(1, int(0.8 * margin)) if margin < 100 else margin
    ours = ArrayMap(partitions, margin=margin, target=target, policy=policy)
    theirs = HashMapReference(ours.seeds, margin, target, policy)
    for stamp, (step, keys) in enumerate(steps):
        rows = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2) + 100 * stamp
        if step == "insert":
            assert ours.insert(keys, rows) == hash_map.DONE
            theirs.insert(keys, rows)
        elif step == "update":
            assert ours.call("update", keys, rows) == theirs.update(keys, rows)
        elif step == "delete":
            assert ours.call("delete", keys) == theirs.delete(keys)
        else:
            ours.call("touch", keys)
            theirs.touch(keys)
        present = theirs.keys()
        assert ours.keys() == present
        assert ours.fields[:, layout.SIZE].sum() == len(present)
        rows, found = ours.query([*present, 77])
        assert found.tolist() == [True] * len(present) + [False]
        assert all(np.array_equal(row, theirs.get(key)) for key, row in zip(present, rows, strict=False))


@pytest.mark.parametrize("policy", [layout.EVICT_RANDOM, layout.EVICT_LEAST_USED, layout.EVICT_OLDEST])
def test_one_large_call_never_takes_more_than_the_overshoot(policy):
    margin = hash_map.OVERSHOOT_ROWS + 500
    most = margin + hash_map.OVERSHOOT_ROWS
    ours = ArrayMap(most_rows=most + 8 >> CHUNK_BITS << CHUNK_BITS, margin=margin, target=1000, policy=policy)
    theirs = HashMapReference(ours.seeds, margin, 1000, policy)
    keys = np.random.default_rng(0).integers(0, 9000, 8000).tolist()
    rows = np.arange(16000, dtype=np.float32).reshape(-1, 2)
    assert ours.insert(keys, rows) == hash_map.DONE
    theirs.insert(keys, rows)
    assert ours.keys(1000) == theirs.keys()
    assert ours.fields[0, layout.USED] == most + 1
    assert ours.fields[0, layout.EVICTED] > 0


def test_missing_room_is_said_and_the_rest_is_done_with_it():
    ours = ArrayMap(most_rows=8)
    rows = np.arange(20, dtype=np.float32).reshape(-1, 2)
    assert ours.insert(range(10), rows) == hash_map.NEEDS_ROWS
    assert ours.keys() == list(range(8))
    assert ours.insert([3], rows[:1]) == hash_map.DONE
    assert ours.query([3])[0].tolist() == [[0, 1]]


def test_a_closed_map_answers_nothing():
    ours = ArrayMap(3)
    rows = np.zeros((4, 2), np.float32)
    ours.insert(range(4), rows)
    ours.kernels.close(ours.header)
    keys = np.arange(4)
    assert ours.insert(keys, rows) == hash_map.MAP_CLOSED
    assert ours.call("query", keys, rows, np.zeros(4, np.bool_)) == -1
    assert ours.call("update", keys, rows) == -1
    assert ours.call("delete", keys) == -1
    assert ours.call("touch", keys) == -1
    assert ours.kernels.dump(ours.header, CHUNK_BITS, 8, 0, 0, keys)[0] == -1
    assert not ours.kernels.exchange_slots(ours.header, 0, ours.directory.ctypes.data, 9)
    assert not ours.kernels.exchange_chunks(ours.header, 0, ours.directory.ctypes.data, 8)


def test_groups_are_partitions_in_order_of_the_call():
    keys = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 1000)
    order, hashes, starts = hash_map.kernels().group(keys, 7)
    partitions = key_partitions(keys, 7)
    assert np.array_equal(order, np.argsort(partitions, kind="stable"))
    assert hashes.tolist() == [hash_key_reference(key) for key in keys[order].tolist()]
    assert np.array_equal(starts, np.searchsorted(partitions[order], np.arange(8)))


def test_threads_read_whole_rows_while_others_write_them():
    ours = ArrayMap(2, dim=64)
    keys, others = np.arange(100), np.arange(100) + 1000
    for batch in (keys, others):  # slots for all of them: growing is the store's
        ours.insert(batch, np.zeros((100, 64), np.float32))
    faults, ended = [], threading.Event()

    def read():
        rows, found = np.zeros((100, 64), np.float32), np.zeros(100, np.bool_)
        while not ended.is_set():
            if ours.kernels.query(ours.header, CHUNK_BITS, keys, rows, found) != 100:
                faults.append("a key was missing")
            if (rows != rows[:, :1]).any():
                faults.append("a row was torn")

    def write(name):
        for stamp in range(300):
            rows = np.full((100, 64), stamp, np.float32)
            ours.call(name, keys, rows) if name == "update" else ours.insert(keys, rows)
            ours.insert(others, rows)
            ours.call("delete", others)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(name,)) for name in ("update", "insert")]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert not faults
    assert ours.keys() == keys.tolist()
