import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.lookup.padding import (
    _QUICKLY_PLACED,
    copy_fixed,
    count_present,
    describe_copies,
    describe_pad,
    make_pads,
    pad_jagged,
    place_numbers,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_items_are_padded_and_counted(lengths, data):
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.arange(100, 100 + offsets[-1])
    out = np.full((stop - start + 2, 8), 7)
    pad_jagged(values, offsets, start, stop, 5, out, 1, 2)
    for row, item in enumerate(range(start, stop), start=1):
        mine = values[offsets[item] : offsets[item + 1]].tolist()
        assert out[row].tolist() == [7, 7, *mine, *[-1] * (5 - len(mine)), 7]
    assert (out[0] == 7).all()
    assert (out[-1] == 7).all()
    counts = np.zeros((len(out), 3), np.int64)
    count_present(out[1:-1], 2, 5, counts, 1)
    assert counts[: stop - start, 1].tolist() == lengths[start:stop]
    assert not counts[:, [0, 2]].any()


def test_received_bytes_are_read_as_they_are():
    raw = b"abc" + np.array([4, 5, 6]).tobytes()
    values = np.frombuffer(raw, np.int64, offset=3)
    out = np.zeros((2, 2), np.int64)
    pad_jagged(values, np.array([0, 1, 3]), 0, 2, 2, out, 0, 0)
    assert out.tolist() == [[4, -1], [5, 6]]


@pytest.mark.parametrize(
    ("offsets", "start", "stop", "row", "column"),
    [
        ([0, 1, 4], 0, 2, 0, 0),  # past the values
        ([0, 1, 3], 0, 3, 0, 0),  # past the items
        ([0, 1, 3], 0, 2, 1, 0),  # past the rows
        ([0, 1, 3], 0, 2, 0, 1),  # past the columns
    ],
)
def test_nothing_is_touched_out_of_bounds(offsets, start, stop, row, column):
    out = np.zeros((2, 2), np.int64)
    with pytest.raises(ValueError, match=r"reach past|do not fit"):
        pad_jagged(np.arange(3), np.array(offsets), start, stop, 2, out, row, column)
    with pytest.raises(ValueError, match="columns"):
        count_present(out, 1, 2, out, 0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=5), st.integers(0, 6), st.data())
def test_fixed_keys_are_copied_where_they_belong(lookups, items, data):
    start = data.draw(st.integers(0, items))
    stop = data.draw(st.integers(start, items))
    keys = [np.arange(items * width).reshape(items, width) + 1000 * (i + 1) for i, width in enumerate(lookups)]
    columns = [1 + sum(lookups[:i]) for i in range(len(lookups))]
    out = np.full((stop - start + 2, sum(lookups) + 2), 7)
    copy_fixed(describe_copies(keys, columns, start, stop, out, 1), out)
    expected = np.full_like(out, 7)
    for array, column in zip(keys, columns, strict=True):
        expected[1 : 1 + stop - start, column : column + array.shape[1]] = array[start:stop]
    assert (out == expected).all()


def test_fixed_keys_may_be_read_only_views_of_received_bytes():
    keys = np.frombuffer(b"abc" + np.arange(6).tobytes(), np.int64, offset=3).reshape(3, 2)
    out = np.zeros((2, 2), np.int64)
    copy_fixed(describe_copies([keys], [0], 1, 3, out, 0), out)
    assert out.tolist() == [[2, 3], [4, 5]]


@pytest.mark.parametrize(("start", "stop", "column", "row"), [(0, 4, 0, 0), (0, 2, 1, 0), (0, 2, 0, 1), (2, 1, 0, 0)])
def test_fixed_keys_that_do_not_fit_are_refused(start, stop, column, row):
    with pytest.raises(ValueError, match="do not fit"):
        describe_copies([np.zeros((3, 2), np.int64)], [column], start, stop, np.zeros((2, 2), np.int64), row)


@pytest.mark.parametrize("keys", [np.zeros((3, 2), np.int32), np.zeros((3, 4), np.int64)[:, ::2]])
def test_fixed_keys_of_another_kind_are_refused(keys):
    with pytest.raises(TypeError, match="int64"):
        describe_copies([keys], [0], 0, 1, np.zeros((2, 2), np.int64), 0)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 5), st.integers(0, 4), st.data())
def test_numbers_are_placed_however_they_lie_in_memory(items, columns, data):
    start = data.draw(st.integers(0, items))
    stop = data.draw(st.integers(start, items))
    values = np.random.default_rng(0).random((items, columns), dtype=np.float32)
    received = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.float32).reshape(values.shape)
    assert not received.flags.writeable
    for given_values in (values, received, np.asfortranarray(values)):
        out = np.full((stop - start + 2, columns), -1, np.float32)
        place_numbers(given_values, start, stop, out, 1)
        assert np.array_equal(out[1:-1], values[start:stop])
        assert (out[[0, -1]] == -1).all()


def test_many_numbers_are_placed_too():
    values = np.random.default_rng(0).random((_QUICKLY_PLACED // 8 + 1, 8), dtype=np.float32)
    out = np.zeros_like(values)
    place_numbers(values, 0, len(values), out, 0)
    assert np.array_equal(out, values)


@pytest.mark.parametrize(
    ("start", "stop", "row", "columns"),
    [(-1, 1, 0, 3), (1, 0, 0, 3), (0, 3, 0, 3), (0, 2, 1, 3), (0, 1, -1, 3), (0, 1, 0, 4)],
)
def test_numbers_that_do_not_fit_are_refused(start, stop, row, columns):
    out = np.zeros((2, columns), np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        place_numbers(np.ones((2, 3), np.float32), start, stop, out, row)
    assert not out.any()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.data())
def test_described_pads_are_what_is_padded_at_once(lengths, data):
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    raw = b"abc" + np.arange(100, 100 + offsets[-1]).tobytes()
    values = np.frombuffer(raw, np.int64, offset=3)
    out, expected = (np.full((stop - start + 2, 8), 7) for _ in range(2))
    pad_jagged(values, offsets, start, stop, 3, expected, 1, 2)
    make_pads(np.array([describe_pad(values, offsets, start, stop, 3, out, 1, 2)]), out)
    np.testing.assert_array_equal(out, expected)


def test_pads_of_other_numbers_are_not_described():
    out = np.zeros((2, 2), np.int64)
    with pytest.raises(TypeError, match="C-contiguous int64, not int32"):
        describe_pad(np.arange(3, dtype=np.int32), np.array([0, 1, 3]), 0, 2, 2, out, 0, 0)
    with pytest.raises(ValueError, match="reach past"):
        describe_pad(np.arange(3), np.array([0, 1, 4]), 0, 2, 2, out, 0, 0)
