"""Messages cut into frames: put together again they are what they were, and nothing was copied."""

from hypothesis import given
from hypothesis import strategies as st

from hebe.load_generator.senders.grpc.http2 import OutgoingMessage
from hebe.load_generator.senders.grpc.http2_frames import DATA, END_STREAM, FrameReader, frame_head

PARTS = st.lists(st.one_of(st.binary(max_size=50), st.binary(max_size=50).map(memoryview))).filter(
    lambda parts: any(map(len, parts))
)


@given(PARTS, st.lists(st.integers(1, 70), min_size=1), st.integers(1, 60))
def test_whatever_the_windows_and_frames_are_the_message_is_whole(parts, windows, max_frame_bytes):
    message, reader, frames = OutgoingMessage(parts), FrameReader(), []
    turn = 0
    while message.unsent_bytes:
        before_bytes, out = message.unsent_bytes, []
        allowed = windows[turn % len(windows)]
        turn += 1
        sent_bytes = message.cut(7, allowed, max_frame_bytes, out)
        assert sent_bytes == before_bytes - message.unsent_bytes == min(allowed, before_bytes)
        new = list(reader.feed(b"".join(out)))
        assert sum(len(frame.payload) for frame in new) == sent_bytes
        frames += new
    assert b"".join(frame.payload for frame in frames) == b"".join(parts)
    assert {(frame.kind, frame.stream) for frame in frames} == {(DATA, 7)}
    assert all(0 < len(frame.payload) <= max_frame_bytes for frame in frames)
    assert [frame.flags for frame in frames] == [0] * (len(frames) - 1) + [END_STREAM]


def test_nothing_is_cut_where_nothing_is_allowed():
    message, out = OutgoingMessage([b"abc"]), []
    assert message.cut(1, 0, 10, out) == 0
    assert (out, message.unsent_bytes) == ([], 3)


def test_large_buffers_are_not_copied():
    tensor = bytearray(100)
    out = []
    OutgoingMessage([b"head", memoryview(tensor)]).cut(1, 104, 30, out)
    slices = [each for each in out if isinstance(each, memoryview)]
    assert [len(each) for each in slices] == [26, 30, 30, 14]
    assert all(each.obj is tensor for each in slices)
    assert out[0] == frame_head(30, DATA, 0, 1)
    assert out[1] == b"head"
