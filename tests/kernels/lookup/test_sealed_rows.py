import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.lookup.sealed_rows import HEADER_BYTES, open_rows, seal_rows, table_seed

INT64 = st.integers(-(2**63), 2**63 - 1)
SHAPES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5)), min_size=1, max_size=5)
"""Of each table the dim and the number of keys."""

SMALL_DIMS = [1, 2, 3, 4, 5, 12, 15]


def sealed_reference(table: str, key: int, position: int, row: np.ndarray) -> bytes:
    content = struct.pack("<qq", key, position) + row.astype("<f4").tobytes()
    checksum = xxhash.xxh64_intdigest(content, seed=table_seed(table))
    return struct.pack("<qQ", position, checksum) + row.astype("<f4").tobytes()


def seeds_of(*tables):
    return np.array([table_seed(table) for table in tables], np.uint64)


def seal(table, key, position, row):
    """One row, sealed as that of the one key of one table."""
    one, starts = np.zeros(1, np.int64), np.array([0, 1])
    keys, positions = np.array([key]), np.array([position])
    return seal_rows(seeds_of(table), one, keys, positions, starts, starts * row.size, row)[0]


def opened(table, key, sealed, dim):
    """The position and row of one sealed row, None if it is refused."""
    starts, present = np.array([0, 1]), np.ones(1, np.bool_)
    rows, positions = np.full(dim, np.nan, np.float32), np.array([-7])
    source = np.frombuffer(sealed, np.uint8)
    one, keys = np.zeros(1, np.int64), np.array([key])
    refused = open_rows(source, one, present, keys, seeds_of(table), starts, starts * dim, rows, positions)
    assert refused == (not present[0])
    if refused:
        assert np.isnan(rows).all()
        assert positions[0] == -7
        return None
    return int(positions[0]), rows


def a_row(dim):
    return np.random.default_rng(dim).standard_normal(dim, np.float32)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 3), st.data(), st.randoms(use_true_random=False))
def test_rows_come_back_with_their_positions(shapes, before, data, chance):
    rng = np.random.default_rng(chance.getrandbits(64))
    starts = np.cumsum([before, *(count for _, count in shapes)])
    bases = np.cumsum([before, *(dim * count for dim, count in shapes)])
    names = [f"table {number}" for number in range(len(shapes))]
    places, dims, tables = [], {}, {}
    for number, (dim, count) in enumerate(shapes):
        own = [int(starts[number]) + key for key in range(count) if chance.random() < 0.8]
        chance.shuffle(own)
        places += own
        dims |= dict.fromkeys(own, dim)
        tables |= dict.fromkeys(own, number)
    keys = np.array([data.draw(INT64) for _ in range(starts[-1])], np.int64)
    positions = np.array([data.draw(INT64) for _ in places], np.int64)
    rows = rng.integers(0, 2**32, bases[-1], np.uint32).view(np.float32)  # NaN of all kinds among them
    wanted, seeds = np.array(places, np.int64), seeds_of(*names)

    def row_of(flat, place):
        base = bases[tables[place]] + (place - starts[tables[place]]) * dims[place]
        return flat[base : base + dims[place]]

    sealed = seal_rows(seeds, wanted, keys, positions, starts, bases, rows)
    assert sealed == [
        sealed_reference(names[tables[place]], int(keys[place]), int(position), row_of(rows, place))
        for place, position in zip(places, positions, strict=True)
    ]

    fates = [chance.choice(["whole", "whole", "damaged", "absent"]) for _ in places]
    for index, fate in enumerate(fates):
        if fate != "whole":
            sealed[index] = bytes(len(sealed[index]))
    present = np.array([fate != "absent" for fate in fates], np.bool_)
    expected, expected_positions = np.full(bases[-1], 5, np.float32), np.full(starts[-1], 5)
    rows_read, positions_read = expected.copy(), expected_positions.copy()
    for place, position, fate in zip(places, positions, fates, strict=True):
        if fate == "whole":
            row_of(expected, place)[:] = row_of(rows, place)
            expected_positions[place] = position
    source = np.frombuffer(b"".join(sealed), np.uint8)
    refused = open_rows(source, wanted, present, keys, seeds, starts, bases, rows_read, positions_read)
    assert refused == fates.count("damaged")
    assert present.tolist() == [fate == "whole" for fate in fates]
    assert np.array_equal(rows_read.view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(positions_read, expected_positions)


@pytest.mark.parametrize("dim", SMALL_DIMS)
def test_any_other_bit_is_refused(dim):
    row = a_row(dim)
    sealed = seal("users", 7, 123, row)
    position, read = opened("users", 7, sealed, dim)
    assert (position, read.tolist()) == (123, row.tolist())
    for bit in range(8 * len(sealed)):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        assert opened("users", 7, bytes(damaged), dim) is None
    for bit in range(63):
        assert opened("users", 7 ^ 1 << bit, sealed, dim) is None
    assert opened("users", 7 - 2**63, sealed, dim) is None


@pytest.mark.parametrize("dim", SMALL_DIMS)
def test_rows_of_others_are_refused(dim):
    sealed = seal("users", 7, 123, a_row(dim))
    assert opened("items", 7, sealed, dim) is None
    assert opened("users", 8, sealed, dim) is None
    longer = seal("users", 7, 123, a_row(dim + 1))
    assert opened("users", 7, longer[:-4], dim) is None  # cut
    assert opened("users", 7, sealed + bytes(4), dim + 1) is None  # padded
    newer = seal("users", 7, 124, a_row(dim) + 1)
    assert opened("users", 7, newer[:HEADER_BYTES] + sealed[HEADER_BYTES:], dim) is None  # torn
    assert opened("users", 7, bytes(HEADER_BYTES + 4 * dim), dim) is None
    zeros = np.zeros(dim, np.float32)
    assert opened("users", 0, seal("users", 0, 0, zeros), dim) is not None  # but zeros are a row


def test_swapped_rows_are_both_refused():
    starts, bases, places, keys = np.array([0, 2]), np.array([0, 8]), np.array([0, 1]), np.array([1, 2])
    one, two = seal_rows(seeds_of("users"), places, keys, np.array([5, 5]), starts, bases, a_row(8))
    source, present = np.frombuffer(two + one, np.uint8), np.ones(2, np.bool_)
    rows, positions = np.zeros(8, np.float32), np.zeros(2, np.int64)
    assert open_rows(source, places, present, keys, seeds_of("users"), starts, bases, rows, positions) == 2
    assert not present.any()
    assert not rows.any()


def test_the_format_stays():
    """Rows of a store outlive the server: who changes their bytes gives them another `FORMAT`."""
    assert seal("users", 7, 123, np.arange(3, dtype=np.float32)).hex() == (
        "7b000000000000003893e2365f886be2000000000000803f00000040"
    )


def test_no_rows():
    starts = np.array([0, 0, 0])
    none = np.zeros(0, np.int64)
    assert seal_rows(seeds_of("a", "b"), none, none, none, starts, starts, np.zeros(0, np.float32)) == []
    present = np.zeros(0, np.bool_)
    source, rows = np.zeros(0, np.uint8), np.zeros(0, np.float32)
    assert open_rows(source, none, present, none, seeds_of("a", "b"), starts, starts, rows, none) == 0


def test_rows_of_another_kind_are_refused():
    starts, one = np.array([0, 1]), np.zeros(1, np.int64)
    with pytest.raises(TypeError):
        seal_rows(np.array([1]), one, one, one, starts, starts, np.zeros(1, np.float32))
    source = np.zeros(20, np.uint8)
    with pytest.raises(TypeError):
        open_rows(source, one, np.ones(1, np.bool_), one, seeds_of("a"), starts, starts, np.zeros(1), one)
