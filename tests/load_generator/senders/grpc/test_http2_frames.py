"""Bytes of frames, beside what `hyperframe` makes of them."""

import itertools

import pytest
from hyperframe import frame as hyperframe
from hypothesis import given
from hypothesis import strategies as st

from hebe.load_generator.senders.grpc import http2_frames as h2
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, Frame, FrameReader, Http2Error, Setting


def parsed(data):
    """The frame that another library finds in `data`."""
    found, size_bytes = hyperframe.Frame.parse_frame_header(memoryview(data[:9]))
    assert len(data) == 9 + size_bytes
    found.parse_body(memoryview(data[9:]))
    return found


def test_frames_are_what_another_library_reads():
    settings = parsed(h2.settings_frame({Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: 1 << 30}))
    assert (settings.settings, settings.flags) == ({2: 0, 4: 1 << 30}, set())
    assert parsed(h2.settings_ack()).flags == {"ACK"}
    update = parsed(h2.window_update(3, 2**31 - 1))
    assert (update.stream_id, update.window_increment) == (3, 2**31 - 1)
    reset = parsed(h2.rst_stream(5, ErrorCode.CANCEL))
    assert (reset.stream_id, reset.error_code) == (5, 8)
    goodbye = parsed(h2.goaway(7, ErrorCode.PROTOCOL_ERROR, "why"))
    assert (goodbye.last_stream_id, goodbye.error_code, goodbye.additional_data) == (7, 1, b"why")


def test_a_block_that_is_too_large_for_a_frame_goes_on_in_others():
    block = bytes(range(256)) * 10
    data = h2.header_frames(9, block, True, 1000)
    frames = list(FrameReader().feed(data))
    assert [(frame.kind, frame.flags, frame.stream) for frame in frames] == [
        (h2.HEADERS, h2.END_STREAM, 9),
        (h2.CONTINUATION, 0, 9),
        (h2.CONTINUATION, h2.END_HEADERS, 9),
    ]
    assert b"".join(frame.payload for frame in frames) == block
    assert parsed(h2.header_frames(1, b"", False)).flags == {"END_HEADERS"}


FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, h2.MOST_STREAM), st.binary(max_size=40))
)


@given(FRAMES, st.lists(st.integers(0, 300)))
def test_frames_are_found_in_whatever_pieces_they_come(frames, cuts):
    data = b"".join(h2.frame(*each) for each in frames)
    reader, found = FrameReader(), []
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(bounds):
        found += reader.feed(data[start:end])
    assert found == [Frame(*each) for each in frames]


def test_a_frame_that_is_too_large_is_found_by_its_head():
    reader = FrameReader(100)
    data = h2.frame(h2.PING, 0, 0, bytes(8)) + h2.frame_head(101, h2.DATA, 0, 1)
    found = reader.feed(data)
    assert next(found).kind == h2.PING
    with pytest.raises(Http2Error, match="a frame of 101 bytes, where 100 are allowed") as fault:
        next(found)
    assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("kind", "flags", "payload", "rest"),
    [
        (h2.DATA, 0, b"abc", b"abc"),
        (h2.DATA, h2.PADDED, b"\2abc--", b"abc"),
        (h2.DATA, h2.PADDED, b"\3---", b""),
        (h2.DATA, h2.WITH_PRIORITY, b"abc", b"abc"),
        (h2.HEADERS, h2.WITH_PRIORITY, b"12345abc", b"abc"),
        (h2.HEADERS, h2.WITH_PRIORITY | h2.PADDED, b"\x0112345abc-", b"abc"),
    ],
)
def test_padding_and_priority_are_taken_off(kind, flags, payload, rest):
    assert h2.unpadded(Frame(kind, flags, 1, payload)) == rest


@pytest.mark.parametrize(
    ("kind", "flags", "payload"),
    [
        (h2.DATA, h2.PADDED, b""),
        (h2.DATA, h2.PADDED, b"\3--"),
        (h2.HEADERS, h2.WITH_PRIORITY, b"1234"),
    ],
)
def test_padding_that_is_more_than_there_is(kind, flags, payload):
    with pytest.raises(Http2Error, match="more padding"):
        h2.unpadded(Frame(kind, flags, 1, payload))


def test_payloads_of_the_wrong_size():
    for parse, payload in ((h2.parse_number, bytes(5)), (h2.parse_settings, bytes(7)), (h2.parse_goaway, bytes(7))):
        with pytest.raises(Http2Error) as fault:
            parse(Frame(h2.SETTINGS, 0, 0, payload))
        assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_payloads_are_read():
    assert h2.parse_settings(Frame(h2.SETTINGS, 0, 0, b"\0\5\0\1\0\0\xff\xff\0\0\0\1")) == [(5, 65536), (65535, 1)]
    assert h2.parse_number(Frame(h2.RST_STREAM, 0, 1, b"\0\0\1\0")) == 256
    assert h2.parse_goaway(Frame(h2.GOAWAY, 0, 0, b"\x80\0\0\3\0\0\0\x0bcalm\xff")) == (3, 11, "calm\ufffd")
