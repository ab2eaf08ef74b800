import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.lookup.find_keys import _QUICKLY_READ, find_in_range
from hebe.kernels.lookup.padding import COPY_COLUMNS, copy_fixed

ENDS = [0, 1, 2**63 - 1, -1, -(2**63)]


def described(items, lookups, starts):
    columns = np.cumsum([0, *lookups])
    rows = [(at, columns[i], width, 0, items, 0) for i, (at, width) in enumerate(zip(starts, lookups, strict=True))]
    return np.array(rows, np.int64).reshape(-1, COPY_COLUMNS)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_keys_are_found_where_they_are_and_refused_as_numpy_would(data):
    items, lead = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 9))
    lookups = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    key = st.integers(0, 20) | st.sampled_from(ENDS)
    keys = [
        np.array(data.draw(st.lists(key, min_size=items * width, max_size=items * width)), np.int64)
        for width in lookups
    ]
    number = st.floats(width=32)
    numbers = np.array(data.draw(st.lists(number, max_size=4)), np.float32)
    limits = np.array(data.draw(st.lists(st.integers(1, 25), min_size=len(lookups), max_size=len(lookups))), np.int64)
    parts = [bytes(lead), numbers.tobytes(), *(each.tobytes() for each in keys)]
    starts = np.cumsum([len(part) for part in parts])[1:-1]
    buffer = np.frombuffer(b"".join(parts), np.uint8)
    copies = described(items, lookups, starts)
    wanted = bool(np.isfinite(numbers).all()) and all(
        ((each >= 0) & (each < limit)).all() for each, limit in zip(keys, limits, strict=True)
    )
    assert find_in_range(buffer, copies, limits, lead, len(numbers)) is wanted
    if wanted:
        out = np.full((items, sum(lookups)), -7, np.int64)
        copy_fixed(copies, out)
        beside = [each.reshape(items, width) for each, width in zip(keys, lookups, strict=True)]
        assert out.tolist() == np.concatenate(beside, axis=1).tolist()


@pytest.mark.parametrize(
    ("start", "numbers_at", "numbers"), [(-1, 0, 0), (1, 0, 0), (0, -1, 1), (0, 13, 1), (0, 0, 5), (2**62, 0, 0)]
)
def test_nothing_outside_of_the_buffer_is_read(start, numbers_at, numbers):
    buffer = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="outside of 16 bytes"):
        find_in_range(buffer, described(1, [2], [start]), np.array([5]), numbers_at, numbers)
    with pytest.raises(ValueError, match="not those of 2 features"):
        find_in_range(buffer, described(1, [2], [0]), np.array([5, 5]), 0, 0)
    assert find_in_range(buffer, described(1, [2], [0]), np.array([5]), 0, 4)


@pytest.mark.parametrize("at", [0, 1])
def test_large_buffers_are_read_alike(at):
    keys = np.zeros(2 * _QUICKLY_READ // 8, np.int64)
    buffer = np.concatenate([np.zeros(at, np.uint8), keys.view(np.uint8)])
    for last, wanted in ((4, True), (5, False), (-1, False)):
        buffer[-8:] = np.array([last]).view(np.uint8)
        assert find_in_range(buffer, described(len(keys) // 2, [2], [at]), np.array([5]), 0, 0) is wanted
