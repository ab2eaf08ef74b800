import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hebe.kernels.lookup.row_format import (
    RowFormat,
    decode_rows,
    decode_rows_reference,
    encode_rows,
    encode_rows_reference,
)

FORMATS = list(RowFormat)
DIMS = [1, 2, 3, 7, 8, 16, 31, 32, 40, 64, 100, 128, 1024]
LARGEST = np.finfo(np.float32).max
SMALLEST = np.float32(2**-149)


def stored(row_format: RowFormat, rows: np.ndarray, filler: int = 0xAB) -> tuple[np.ndarray, int]:
    """`rows` encoded by the kernel, which must agree with the reference, and how many could not be held."""
    out = np.full((len(rows), row_format.row_bytes(rows.shape[1])), filler, np.uint8)
    expected = np.full_like(out, filler ^ 0xFF)
    unheld = encode_rows(row_format, rows, out)
    assert unheld == encode_rows_reference(row_format, rows, expected)
    read, expected_read = np.empty_like(rows), np.empty_like(rows)
    decode_rows(row_format, out, read)
    decode_rows_reference(row_format, expected, expected_read)
    np.testing.assert_array_equal(read, expected_read)
    if not np.isnan(rows).any():  # the bits of a NaN are free
        np.testing.assert_array_equal(out, expected)
    return out, unheld


def through(row_format: RowFormat, rows: np.ndarray) -> np.ndarray:
    """`rows` as they come back."""
    read = np.full_like(rows, 7.0)
    decode_rows(row_format, stored(row_format, rows)[0], read)
    return read


@pytest.mark.parametrize(("row_format", "row_bytes"), [("fp32", 256), ("fp16", 128), ("int8", 68)])
def test_bytes_of_a_row(row_format, row_bytes):
    assert RowFormat(row_format).row_bytes(64) == row_bytes


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("row_format", FORMATS)
def test_rows_come_back_within_their_rounding(row_format, dim):
    rng = np.random.default_rng(dim)
    rows = (rng.standard_normal((50, dim)) * 10.0 ** rng.integers(-3, 4, (50, 1))).astype(np.float32)
    error = np.abs(through(row_format, rows) - rows)
    if row_format is RowFormat.FP32:
        assert not error.any()
    elif row_format is RowFormat.FP16:
        assert (error <= np.maximum(np.abs(rows) * 2.0**-11, 2.0**-25)).all()
    else:
        assert (error <= 0.5001 * np.abs(rows).max(axis=1, keepdims=True) / 127).all()


@settings(deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.tuples(st.integers(0, 5), st.sampled_from([1, 3, 8, 33, 45])).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.floats(width=32))
    ),
)
def test_kernel_and_reference_agree_on_any_float(row_format, rows):
    unheld = stored(row_format, rows)[1]
    read = through(row_format, rows)
    if not unheld:
        assert (np.isfinite(read) == np.isfinite(rows)).all()


def test_halves_round_to_nearest_even():
    rows = np.array([[1.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11 - 2.0**-20]], np.float32)
    assert through(RowFormat.FP16, rows).tolist() == [[1.0, 1.0, 1 + 2.0**-9, -1 - 2.0**-10]]


def test_bytes_round_to_nearest_even():
    rows = np.array([[127.0, 0.5, 1.5, -2.5, 3.49, -127.0]], np.float32)
    assert through(RowFormat.INT8, rows).tolist() == [[127.0, 0.0, 2.0, -2.0, 3.0, -127.0]]


def test_halves_clip_what_is_beyond_them_and_keep_what_is_not_finite():
    rows = np.array([[65504.0, -65504.0], [65505.0, -LARGEST], [np.inf, np.nan], [-np.inf, 1e5]], np.float32)
    assert stored(RowFormat.FP16, rows)[1] == 3
    expected = [[65504.0, -65504.0], [65504.0, -65504.0], [np.inf, np.nan], [-np.inf, 65504.0]]
    np.testing.assert_array_equal(through(RowFormat.FP16, rows), np.array(expected, np.float32))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim", [1, 5, 40])
def test_a_row_of_bytes_that_is_not_finite_reads_as_nan_and_leaves_the_others(number, dim):
    rows = np.ones((3, dim), np.float32)
    rows[1, -1] = number
    assert stored(RowFormat.INT8, rows)[1] == 1
    read = through(RowFormat.INT8, rows)
    assert np.isnan(read[1]).all()
    assert (read[[0, 2]] == 1).all()


@pytest.mark.parametrize("row_format", FORMATS)
def test_zeros_are_zeros(row_format):
    rows = np.array([[0.0] * 9, [-0.0] * 9], np.float32)
    assert not through(row_format, rows).any()


@pytest.mark.parametrize("size", [LARGEST, LARGEST / 3, 2.0**-126, 128 * SMALLEST, 64 * SMALLEST, SMALLEST])
def test_bytes_at_the_ends_of_float32(size):
    rows = np.array([[size, -size, size / 2, 0.0]], np.float32)
    read = through(RowFormat.INT8, rows)
    assert np.isfinite(read).all()
    assert (np.abs(read - rows) <= max(np.float32(size / 127), 63 * SMALLEST)).all()


@pytest.mark.parametrize("row_format", FORMATS)
def test_encoding_what_was_decoded_changes_nothing(row_format):
    rows = np.random.default_rng(3).standard_normal((200, 64)).astype(np.float32)
    once = through(row_format, rows)
    np.testing.assert_allclose(through(row_format, once), once, rtol=1e-6)


@pytest.mark.parametrize("row_format", FORMATS)
def test_rows_from_read_only_and_unaligned_bytes(row_format):
    rows = np.random.default_rng(4).standard_normal((6, 9)).astype(np.float32)
    raw = b"x" + rows.tobytes()
    received = np.frombuffer(raw, np.float32, offset=1).reshape(6, 9)
    out = np.empty((6, row_format.row_bytes(9)), np.uint8)
    assert encode_rows(row_format, received, out) == 0
    np.testing.assert_array_equal(out, stored(row_format, rows)[0])


@pytest.mark.parametrize("row_format", FORMATS)
def test_wrong_arrays_are_errors(row_format):
    rows = np.zeros((4, 3), np.float32)
    for shape in ((4, row_format.row_bytes(3) + 1), (3, row_format.row_bytes(3)), (4 * row_format.row_bytes(3),)):
        with pytest.raises(ValueError, match=f"{row_format} rows .* do not fit stored bytes"):
            encode_rows(row_format, rows, np.zeros(shape, np.uint8))
        with pytest.raises(ValueError, match=f"{row_format} rows .* do not fit stored bytes"):
            decode_rows(row_format, np.zeros(shape, np.uint8), rows)
    fitting = np.zeros((4, row_format.row_bytes(3)), np.uint8)
    with pytest.raises(TypeError):
        encode_rows(row_format, rows.astype(np.float64), fitting)
    with pytest.raises(TypeError):
        decode_rows(row_format, fitting.view(np.int8), rows)
