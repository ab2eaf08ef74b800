import threading

import numba
import numpy as np
import pytest

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.hash_tables.hash_map_partition import (
    LOCK_WORDS,
    lock_exclusive,
    lock_shared,
    unlock_exclusive,
    unlock_shared,
)


@pytest.fixture
def words():
    return np.zeros(LOCK_WORDS, np.int64)


@numba.njit(**OPTIONS)
def _write(words, pair, times):
    for _ in range(times):
        lock_exclusive(words, 0)
        pair[0] += 1
        pair[1] += 1
        unlock_exclusive(words, 0)


@numba.njit(**OPTIONS)
def _read(words, pair, seen, enough):
    """Read until `enough`; returns how often the two differed."""
    torn = 0
    last = 0
    while last < enough:
        lock_shared(words, 0)
        first = pair[0]
        torn += first != pair[1]
        last = first
        unlock_shared(words, 0)
        seen[0] += 1
    return torn


@numba.njit(**OPTIONS)
def _read_once(words, pair):
    lock_shared(words, 0)
    value = pair[0]
    unlock_shared(words, 0)
    return value


@numba.njit(**OPTIONS)
def _enter_shared(words):
    lock_shared(words, 0)


@numba.njit(**OPTIONS)
def _leave_shared(words):
    unlock_shared(words, 0)


def together(*calls):
    results = [None] * len(calls)

    def run(number):
        function, *arguments = calls[number]
        results[number] = function(*arguments)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_no_write_is_lost_and_none_is_half_seen(words):
    pair = np.zeros(2, np.int64)
    calls = [(_write, words, pair, 3000)] * 3 + [(_read, words, pair, np.zeros(1, np.int64), 9000)] * 2
    results = together(*calls)
    assert pair.tolist() == [9000, 9000]
    assert results[3:] == [0, 0]
    assert words[0] == words[1] == words[2]


def test_a_writer_gets_in_among_readers_that_never_stop(words):
    """The readers' loops end only by what the writer writes."""
    pair = np.zeros(2, np.int64)
    seen = [np.zeros(1, np.int64) for _ in range(3)]
    together(*[(_read, words, pair, counter, 1) for counter in seen], (_write, words, pair, 1))
    assert all(counter[0] > 0 for counter in seen)


def test_readers_are_in_together_and_a_writer_waits_for_them(words):
    pair = np.zeros(2, np.int64)
    _enter_shared(words)
    assert _read_once(words, pair) == 0  # does not wait for the other reader
    writer = threading.Thread(target=_write, args=(words, pair, 1))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    assert pair.tolist() == [0, 0]
    _leave_shared(words)
    writer.join(60)
    assert pair.tolist() == [1, 1]
