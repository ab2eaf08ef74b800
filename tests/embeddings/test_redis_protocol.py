import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.redis_protocol import (
    ErrorReply,
    ProtocolError,
    ReplyReader,
    RowSink,
    WrongRowLength,
    command,
    key_count_elements,
    key_elements,
    key_row_elements,
    score_key_elements,
)

KEYS = np.array([0, -1, 2**63 - 1, -(2**63)])
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def reader_of(data, piece=1 << 30):
    """Gives out `data` in pieces, then the end."""
    rest = memoryview(data)

    def receive(view):
        nonlocal rest
        count = min(piece, len(view), len(rest))
        view[:count] = rest[:count]
        rest = rest[count:]
        return count

    return ReplyReader(receive)


def sink_of(dim, positions):
    rows, found = np.full((len(positions), dim), 7, np.float32), np.zeros(len(positions), np.bool_)
    return RowSink("users", np.array(positions), rows, found), rows, found


def encoded(reply):
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(reply), reply)
        case ErrorReply(code, text):
            return f"-{code} {text}\r\n".encode()
        case list():
            return b"*%d\r\n" % len(reply) + b"".join(encoded(each) for each in reply)


def test_elements_are_laid_out_as_one_by_one():
    keys = [key.tobytes() for key in KEYS]
    rows = [row.tobytes() for row in ROWS]
    assert command(b"A", elements=key_elements(KEYS), element_count=4) == command(b"A", *keys)
    pairs = [each for pair in zip(keys, rows, strict=True) for each in pair]
    assert command(elements=key_row_elements(KEYS, ROWS), element_count=8) == command(*pairs)
    scored = [each for key in keys for each in (b"1.5", key)]
    assert command(elements=score_key_elements(b"1.5", KEYS), element_count=8) == command(*scored)
    counted = [each for key, count in zip(keys, (0, 1, 90, 10**11), strict=True) for each in (key, b"%012d" % count)]
    counts = np.array([0, 1, 90, 10**11])
    assert command(elements=key_count_elements(KEYS, counts), element_count=8) == command(*counted)
    assert key_elements(KEYS[:0]) == b""


@given(
    st.lists(
        st.recursive(
            st.none()
            | st.integers(-(2**63), 2**63 - 1)
            | st.binary(max_size=40)
            | st.just(ErrorReply("MOVED", "7 127.0.0.1:7000")),
            lambda inner: st.lists(inner, max_size=4),
            max_leaves=8,
        ),
        max_size=5,
    ),
    st.integers(1, 60),
)
def test_replies_are_read_in_whatever_pieces_they_come(replies, piece):
    reader = reader_of(b"".join(encoded(reply) for reply in replies), piece)
    assert [reader.reply() for _ in replies] == replies
    assert reader.empty
    with pytest.raises(EOFError):
        reader.reply()


def test_a_reply_larger_than_the_buffer():
    value = bytes(range(256)) * 4096
    reader = reader_of(encoded([1, value, b"x"]), 100_000)
    assert reader.reply() == [1, value, b"x"]


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 30])
def test_rows_and_other_replies_follow_one_another(piece):
    rows = [row.tobytes() for row in ROWS]
    reader = reader_of(encoded(5) + encoded([rows[0], None, rows[2]]) + encoded(b"end"), piece)
    sink, got, found = sink_of(3, [2, 0, 1])
    assert reader.reply() == 5
    assert reader.rows(sink) is None
    assert reader.reply() == b"end"
    assert found.tolist() == [False, True, True]
    assert got.tolist() == [[7, 7, 7], ROWS[2].tolist(), ROWS[0].tolist()]


def test_rows_longer_than_the_buffer():
    row = np.arange(200_000, dtype=np.float32)
    sink, got, _ = sink_of(len(row), [1, 0])
    assert reader_of(encoded([row.tobytes(), None]), 70_000).rows(sink) is None
    assert np.array_equal(got[1], row)


def test_an_error_in_place_of_rows():
    sink, _, _ = sink_of(3, [0])
    assert reader_of(b"-LOADING Redis is loading\r\n").rows(sink) == ErrorReply("LOADING", "Redis is loading")


def test_a_row_of_another_length_is_told():
    sink, _, _ = sink_of(3, [0, 1])
    with pytest.raises(WrongRowLength, match="table users has a row of 8 bytes, where its dim needs 12"):
        reader_of(encoded([ROWS[0].tobytes(), bytes(8)])).rows(sink)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b"*-2\r\n", b"$2\r\nabcd", b"x" * 100_000, b"\r\n"]
)
def test_what_is_no_reply_is_refused(data):
    with pytest.raises(ProtocolError):
        reader_of(data).reply()


@pytest.mark.parametrize("data", [b"*2\r\n", b"+OK\r\n", b":1\r\n", b"*1\r\n:1234\r\n", b"*1\r\n$4\r\nabcdef\r\n"])
def test_what_are_no_rows_is_refused(data):
    sink, _, _ = sink_of(1, [0])
    with pytest.raises(ProtocolError):
        reader_of(data).rows(sink)
