from itertools import repeat

import numpy as np
import pytest

from hebe.embeddings.redis.layout import elements, pairs


@pytest.mark.parametrize("order", ["<", ">"])
def test_keys_are_eight_bytes_whatever_they_are(order):
    keys = np.array([0, -1, 2**63 - 1, -(2**63), 5 << 56], f"{order}i8")
    assert elements(keys) == [int(key).to_bytes(8, "little", signed=True) for key in keys]


@pytest.mark.parametrize("dim", [1, 3, 100_000])
def test_rows_are_the_bytes_of_their_numbers(dim):
    rows = np.random.default_rng(dim).random((4, dim), np.float32)
    rows[:, -1] = 0  # ends in zero bytes, which are part of it
    assert elements(rows) == [row.astype("<f4").tobytes() for row in rows]
    assert elements(rows[::2]) == elements(rows)[::2]


def test_nothing():
    assert elements(np.empty(0, np.int64)) == elements(np.empty((0, 3), np.float32)) == []


def test_pairs():
    assert list(pairs([b"a", b"b"], [b"1", b"2"])) == [b"a", b"1", b"b", b"2"]
    assert list(pairs(repeat(b"s"), [b"1", b"2"])) == [b"s", b"1", b"s", b"2"]
