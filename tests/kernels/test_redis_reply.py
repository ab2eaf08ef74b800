import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.redis_reply import WRONG_LENGTH, element_header, read_rows, read_rows_reference


def encoded(elements):
    return b"".join(b"$-1\r\n" if e is None else b"$%d\r\n%s\r\n" % (len(e), e) for e in elements)


def outcome(read, data, start, end, first, positions, row_bytes):
    rows, found = np.full((len(positions), row_bytes), 7, np.uint8), np.zeros(len(positions), np.bool_)
    found[::2] = True
    where = read(np.frombuffer(data, np.uint8), start, end, element_header(row_bytes), positions, first, rows, found)
    return where, rows.tolist(), found.tolist()


@settings(max_examples=200)
@given(st.data())
def test_agrees_with_the_reference(data):
    row_bytes = data.draw(st.sampled_from((1, 4, 12, 128)))
    row = st.binary(min_size=row_bytes, max_size=row_bytes)
    elements = data.draw(st.lists(row | st.none() | st.binary(max_size=13), max_size=6))
    reply = b"xx" + encoded(elements) + data.draw(st.sampled_from((b"", b"+OK\r\n", b"-ERR\r\n")))
    positions = np.array(data.draw(st.permutations(range(len(elements)))), np.int64)
    end = data.draw(st.integers(2, len(reply)))
    first = data.draw(st.integers(0, len(elements)))
    arguments = reply, 2, end, first, positions, row_bytes
    assert outcome(read_rows, *arguments) == outcome(read_rows_reference, *arguments)


@pytest.mark.parametrize("read", [read_rows, read_rows_reference])
def test_a_reply_in_pieces_is_read_as_one(read):
    rng = np.random.default_rng(0)
    elements = [rng.bytes(12) if rng.random() < 0.7 else None for _ in range(50)]
    reply = np.frombuffer(encoded(elements), np.uint8)
    positions = rng.permutation(50)
    rows, found = np.zeros((50, 12), np.uint8), np.zeros(50, np.bool_)
    at = number = 0
    for end in [*sorted(rng.integers(0, len(reply), 40).tolist()), len(reply)]:
        at, number = read(reply, at, end, element_header(12), positions, number, rows, found)
    assert (at, number) == (len(reply), 50)
    for element, position in zip(elements, positions.tolist(), strict=True):
        assert found[position] == (element is not None)
        assert rows[position].tobytes() == (element or bytes(12))


@pytest.mark.parametrize("read", [read_rows, read_rows_reference])
@pytest.mark.parametrize(
    "reply", [b"$5\r\nabcde\r\n", b"$40\r\n", b"-ERR no\r\n", b"$4\r\nabcdef\r\n", b"$4\n\rabcd\r\n"]
)
def test_what_is_no_row_of_this_length_is_said(read, reply):
    data = b"$4\r\nwxyz\r\n" + reply
    (at, number), rows, _ = outcome(read, data, 0, len(data), 0, np.arange(3), 4)
    assert (at, number) == (10, WRONG_LENGTH)
    assert bytes(rows[0]) == b"wxyz"
