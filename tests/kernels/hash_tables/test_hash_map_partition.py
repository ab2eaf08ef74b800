import threading

import numba
import numpy as np
import pytest

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.hash_tables import hash_map_partition as layout
from hebe.kernels.hash_tables.hash_map_partition import (
    LOCK_WORDS,
    lock_exclusive,
    lock_shared,
    unlock_exclusive,
    unlock_shared,
)

from .array_map import ArrayMap


def test_the_fewest_slots_leave_some_empty():
    """A search ends at an empty slot."""
    for bits in range(layout.FEWEST_BITS, 40):
        assert 0 < layout.most_keys(bits) < 1 << bits
        assert layout.most_keys(bits + 1) == 2 * layout.most_keys(bits)


def test_rows_stay_where_they_are_and_those_given_back_are_taken_first():
    ours = ArrayMap()
    ours.insert(range(20), np.zeros((20, 2), np.float32))
    before = {int(key): int(place) for key, place in ours.slots[0].reshape(-1, 2) if place}
    assert sorted(before.values()) == list(range(1, 21))
    ours.call("delete", [3, 11])
    ours.insert(range(100, 140), np.zeros((40, 2), np.float32))  # takes more slots
    after = {int(key): int(place) for key, place in ours.slots[0].reshape(-1, 2) if place}
    assert {key: after[key] for key in before if key in after} == {
        key: place for key, place in before.items() if key not in (3, 11)
    }
    assert {after[100], after[101]} == {before[3], before[11]}
    assert ours.fields[0, layout.USED] == 58


def test_deletes_leave_no_trace_in_the_slots():
    ours = ArrayMap()
    rng = np.random.default_rng(1)
    rows = np.zeros((96, 2), np.float32)
    ours.insert(range(96), rows)
    present = set(range(96))
    longest = 0
    for _ in range(200):
        gone = rng.choice(sorted(present), 24, replace=False)
        assert ours.call("delete", gone) == 24
        longest = max(longest, ours.longest_probe())
        come = rng.integers(0, 2**40, 24)
        ours.insert(come, rows[:24])
        present = present - set(gone.tolist()) | set(come.tolist())
        longest = max(longest, ours.longest_probe())
        assert ours.keys() == sorted(present)
    assert len(ours.slots[0]) == 2 * 128
    assert ours.fields[0, layout.USED] == 96
    assert longest < 64


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
