from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.primitives import raw_memory

THREADS, TIMES = 4, 50_000


@numba.njit(**OPTIONS)
def swap(first, second):
    word = raw_memory.load_word(first)
    raw_memory.store_word(first, raw_memory.load_word(second))
    raw_memory.store_shared_word(second, word)


@numba.njit(**OPTIONS)
def count(address, amount, times):
    last = 0
    for _ in range(times):
        last = raw_memory.add_to_shared_word(address, amount)
    return last


@numba.njit(**OPTIONS)
def copy(target, source, size):
    raw_memory.prefetch_at(source)
    raw_memory.prefetch_soon(0)  # which is not mapped
    raw_memory.copy_bytes(target, source, size)


def test_words_are_read_and_written_where_their_address_says():
    words = np.array([-(2**63), 7, 2**63 - 1])
    swap(words.ctypes.data, words.ctypes.data + 16)
    assert words.tolist() == [2**63 - 1, 7, -(2**63)]


def test_nothing_that_several_threads_add_is_lost():
    words = np.zeros(3, np.int64)
    address = words.ctypes.data + 8
    assert count(address, 2, 1) == 0
    assert count(address, -2, 1) == 2, "what was there before"
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: count(address, 3, TIMES), range(THREADS)))
    assert words.tolist() == [0, 3 * THREADS * TIMES, 0]


def test_so_many_bytes_are_copied_and_no_more():
    source = np.arange(64, dtype=np.uint8)
    for size in (0, 1, 4, 31, 64):
        target = np.full(64, 255, np.uint8)
        copy(target.ctypes.data, source.ctypes.data, size)
        assert target.tolist() == [*range(size), *[255] * (64 - size)]
