from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.primitives import atomic

THREADS, TIMES = 4, 50_000


@numba.njit(**OPTIONS)
def count(counters, times):
    for _ in range(times):
        atomic.fetch_add(counters, 1, 2)


@numba.njit(**OPTIONS)
def count_under_lock(lock, counters, times):
    """Each counter is moved by an ordinary, slow read and write, which only the lock makes safe."""
    for _ in range(times):
        spins = 0
        while not atomic.compare_and_swap(lock, 0, 0, 1):
            atomic.wait(spins)
            spins += 1
        for place in range(counters.size):
            counters[place] += 1
        atomic.store_release(lock, 0, 0)


@numba.njit(**OPTIONS)
def write_versions(version, values, times):
    for _ in range(times):
        now = version[0]
        atomic.store_release(version, 0, now + 1)
        atomic.fence()
        for place in range(values.size):
            values[place] += 1
        atomic.store_release(version, 0, now + 2)


@numba.njit(**OPTIONS)
def read_versions(version, values, last):
    """Reads until version `last`; returns how many reads that the version called whole were not."""
    torn = 0
    spins = 0
    while True:
        before = atomic.load_acquire(version, 0)
        if before % 2:
            atomic.wait(spins)
            spins += 1
            continue
        spins = 0
        low, high = values.min(), values.max()
        atomic.fence()
        if atomic.load_acquire(version, 0) == before:
            torn += low != high
            if before == last:
                return torn


@numba.njit(**OPTIONS)
def swap(array, expected, desired):
    return atomic.compare_and_swap(array, 1, expected, desired)


@numba.njit(**OPTIONS)
def add(array, amount):
    return atomic.fetch_add(array, 1, amount)


@numba.njit(**OPTIONS)
def store_and_load(array, value):
    atomic.store_release(array, 1, value)
    return atomic.load_acquire(array, 1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_each_operation_alone(dtype):
    array = np.array([1, 2, 3], dtype)
    assert not swap(array, 7, 9)
    assert swap(array, 2, 9)
    assert add(array, 5) == 9
    assert store_and_load(array, array[1] + 1) == 15
    assert array.tolist() == [1, 15, 3]


def test_values_of_64_bits_keep_them_all():
    array = np.zeros(2, np.int64)
    assert store_and_load(array, -(2**63)) == -(2**63)
    assert swap(array, -(2**63), 2**63 - 1)
    assert array[1] == 2**63 - 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_no_addition_is_lost_between_threads(dtype):
    counters = np.zeros(3, dtype)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: count(counters, TIMES), range(THREADS)))
    assert counters.tolist() == [0, 2 * THREADS * TIMES, 0]


def test_a_lock_lets_one_thread_in_at_a_time():
    lock, counters = np.zeros(1, np.int64), np.zeros(40, np.int64)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: count_under_lock(lock, counters, TIMES // 10), range(THREADS)))
    assert set(counters.tolist()) == {THREADS * TIMES // 10}


def test_a_version_tells_readers_of_torn_reads():
    version, values = np.zeros(1, np.int64), np.zeros(64, np.int64)
    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read_versions, version, values, 2 * TIMES) for _ in range(2)]
        write_versions(version, values, TIMES)
        assert [reader.result() for reader in readers] == [0, 0]


def test_other_arrays_are_refused():
    with pytest.raises(TypingError):
        add(np.zeros(2), 1.0)
    with pytest.raises(TypingError):
        add(np.zeros((2, 2), np.int64), 1)
