import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.updates import message as module
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.message import MessageFault, decode, encode, message_bytes, most_keys, sender_in

AT = TopicPartition("dlrm", "users", 3)
INT64 = st.integers(-(2**63), 2**63 - 1)


def message(keys=(1, -1), dim=2, **fields):
    keys = np.array(keys, np.int64)
    rows = None if dim is None else np.arange(keys.size * dim, dtype=np.float32).reshape(keys.size, dim)
    return UpdateMessage(**{"producer": "p", "sequence": 5, "sent_s": 1.5, "keys": keys, "rows": rows} | fields)


PAYLOAD = encode(message(), AT)


@given(
    st.lists(INT64, min_size=1, max_size=20),
    st.none() | st.integers(1, 70),
    st.integers(0, 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0, allow_nan=False, allow_infinity=False),
)
def test_what_is_written_is_read(keys, dim, sequence, sent_s, span_s):
    written = message(keys, dim, sequence=sequence, sent_s=sent_s, span_s=span_s)
    payload = encode(written, AT)
    assert len(payload) == message_bytes("p", AT.topic, len(keys), dim or 0)
    read = decode(payload, AT)
    assert (read.producer, read.sequence, read.sent_s, read.span_s) == ("p", sequence, sent_s, span_s)
    assert read.keys.tolist() == keys
    assert read.keys.dtype == np.int64
    assert (read.rows is None) == (dim is None)
    if dim is not None:
        assert np.array_equal(read.rows, written.rows)
        assert read.rows.dtype == np.float32


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: PAYLOAD[:8] + tail))
def test_any_other_bytes_are_a_fault(payload):
    with pytest.raises(MessageFault, match=r"\w"):
        decode(payload, AT)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: PAYLOAD[:8] + tail))
def test_of_any_other_bytes_the_sender_is_told_if_at_all(payload):
    sender = sender_in(payload)
    assert sender is None or (sender[0].isprintable() and sender[1] >= 0)


def test_the_sender_is_told_of_what_is_broken_behind_it():
    payload = encode(message(producer="trainer-7", sequence=2**40), AT)
    assert sender_in(payload[:-9]) == ("trainer-7", 2**40)
    assert sender_in(b"HEBU" + bytes(100)) is None, "a name must be one"
    assert sender_in(payload[:30]) is None
    assert sender_in(b"x" + payload[1:]) is None


def test_every_truncation_is_a_fault():
    for size in range(len(PAYLOAD)):
        with pytest.raises(MessageFault, match=r"truncated"):
            decode(PAYLOAD[:size], AT)


def test_every_changed_bit_is_a_fault():
    for bit in range(8 * len(PAYLOAD)):
        changed = bytearray(PAYLOAD)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MessageFault, match=r"corrupt|version|not an update message"):
            decode(bytes(changed), AT)


@given(st.integers(0, len(PAYLOAD)), st.binary(min_size=1, max_size=30))
def test_bytes_put_in_are_a_fault(place, more):
    with pytest.raises(MessageFault):
        decode(PAYLOAD[:place] + more + PAYLOAD[place:], AT)


def with_check(body):
    return body + module._CHECK.pack(module.zlib.crc32(body))


@pytest.mark.parametrize(
    ("place", "byte", "fault"),
    [(5, 2, "kind 2"), (5, 1, "kind 1 with 2 keys and dim 2"), (46, 0x2F, "model name '/lrm'"), (46, 0xFF, "model: ")],
)
def test_a_well_signed_message_is_checked_too(place, byte, fault):
    body = bytearray(PAYLOAD[:-4])
    body[place] = byte
    with pytest.raises(MessageFault, match=fault):
        decode(with_check(bytes(body)), AT)


@pytest.mark.parametrize("sent_s", [math.nan, math.inf])
def test_a_time_that_is_none_is_a_fault(sent_s):
    body = bytearray(PAYLOAD[:-4])
    body[29:37] = np.float64(sent_s).tobytes()
    with pytest.raises(MessageFault, match="sent_s"):
        decode(with_check(bytes(body)), AT)
    with pytest.raises(ValueError, match="sent_s"):
        encode(message(sent_s=sent_s), AT)


@pytest.mark.parametrize("span_s", [math.nan, math.inf, -1e-9])
def test_a_span_that_is_none_is_a_fault(span_s):
    body = bytearray(PAYLOAD[:-4])
    body[37:45] = np.float64(span_s).tobytes()
    with pytest.raises(MessageFault, match="span_s"):
        decode(with_check(bytes(body)), AT)
    with pytest.raises(ValueError, match="span_s"):
        encode(message(span_s=span_s), AT)


def test_one_of_version_1_is_read_and_may_have_rows_that_waited_as_long_as_any():
    body = PAYLOAD[:4] + b"\x01" + PAYLOAD[5:37] + PAYLOAD[45:-4]
    payload, now = with_check(body), decode(PAYLOAD, AT)
    read = decode(payload, AT)
    assert (read.producer, read.sequence, read.sent_s) == ("p", 5, 1.5)
    assert (read.keys.tolist(), read.rows.tolist()) == (now.keys.tolist(), now.rows.tolist())
    assert (read.newest_s, now.newest_s) == (3601.5, 1.5)
    assert sender_in(payload) == sender_in(PAYLOAD) == ("p", 5)
    for size in range(len(payload)):
        with pytest.raises(MessageFault, match="truncated"):
            decode(payload[:size], AT)


@pytest.mark.parametrize(
    "elsewhere",
    [TopicPartition("dlrm", "users", 4), TopicPartition("dlrm", "items", 3), TopicPartition("din", "users", 3)],
)
def test_a_message_that_strayed_is_told(elsewhere):
    with pytest.raises(MessageFault, match=r"is for partition 3 of model dlrm, table users; it came in"):
        decode(PAYLOAD, elsewhere)


def test_one_of_another_version_is_told():
    with pytest.raises(MessageFault, match="has version 9, this one reads up to 2"):
        decode(PAYLOAD[:4] + b"\x09" + PAYLOAD[5:], AT)


def test_sizes_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", len(PAYLOAD) - 1)
    with pytest.raises(ValueError, match="at most"):
        encode(message(), AT)
    with pytest.raises(MessageFault, match="at most"):
        decode(PAYLOAD, AT)


def test_a_header_that_promises_much_allocates_nothing():
    body = bytearray(PAYLOAD[:-4])
    body[13:17] = b"\xff\xff\xff\xff"  # keys
    with pytest.raises(MessageFault, match="its header says"):
        decode(with_check(bytes(body)), AT)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (message(keys=()), "without keys"),
        (message(rows=np.zeros((3, 2), np.float32)), r"keys \[2\] with rows \[3, 2\]"),
        (message(rows=np.zeros((2, 0), np.float32)), r"rows \[2, 0\]"),
        (message(rows=np.zeros(2, np.float32)), r"rows \[2\]"),
        (message(sequence=-1), "sequence -1"),
        (message(producer="a b"), "producer name 'a b'"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(wrong, fault):
    with pytest.raises(ValueError, match=fault):
        encode(wrong, AT)


@given(st.integers(1, 100), st.integers(0, 5000))
def test_most_keys_is_the_most_that_fit(dim, room):
    topic = Topic("dlrm", "users")
    size = message_bytes("p", topic, 0, dim) + room
    keys = most_keys("p", topic, dim, size)
    assert message_bytes("p", topic, keys, dim) <= size < message_bytes("p", topic, keys + 1, dim)
    assert most_keys("p", topic, dim, 1) == 0
