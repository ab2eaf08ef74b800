"""The client's side of a connection, against the `h2` library as the server.

Messages cut into frames: put together again they are what they were, and nothing was copied.
"""

import itertools

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.load_generator.senders.grpc import http2 as module
from hebe.load_generator.senders.grpc import http2_frames as frames
from hebe.load_generator.senders.grpc.http2 import (
    ConnectionBroken,
    DataReceived,
    GoAwayReceived,
    HeadersReceived,
    Http2Connection,
    OutgoingMessage,
    SettingsReceived,
    StreamReset,
)
from hebe.load_generator.senders.grpc.http2_frames import (
    DATA,
    END_STREAM,
    ErrorCode,
    FrameReader,
    Setting,
    frame,
    frame_head,
)

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/x"),
    (b":authority", b"h:1"),
    (b"te", b"trailers"),
)


PLAIN_SETTINGS = frames.settings_frame({})


ANSWER = [(":status", "200"), ("content-type", "application/grpc")]


TRAILERS = [("grpc-status", "0"), ("grpc-message", "fine")]


CODES = h2.settings.SettingCodes


class Peer:
    """A server of another library; `settings` are what it tells first. Windows open only when the test says so."""

    def __init__(self, client, settings=None):
        self.client, self.events, self.bodies, self.ended = client, [], {}, set()
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=False, initial_values=settings)
        self.h2.initiate_connection()
        self.heard = []

    def exchange(self, most_bytes=1 << 30):
        """Carry bytes to and fro until neither says anything more; the client's events."""
        told = []
        while True:
            sent = b"".join(self.client.take_buffers(most_bytes))
            for event in self.h2.receive_data(sent) if sent else ():
                self.heard.append(event)
                if isinstance(event, h2.events.DataReceived):
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, h2.events.StreamEnded):
                    self.ended.add(event.stream_id)
            received = self.h2.data_to_send()
            told += self.client.receive(received)
            if not sent and not received:
                return told

    def answer(self, stream, body=b"scores", trailers=TRAILERS):
        self.h2.send_headers(stream, ANSWER)
        self.h2.send_data(stream, body)
        self.h2.send_headers(stream, trailers, end_stream=True)


@pytest.fixture
def client():
    return Http2Connection(HEADERS)


def settled(client):
    """The connection after greetings with a peer that has nothing to say."""
    client.receive(PLAIN_SETTINGS)
    client.take_buffers(1)
    return client


def sent_frames(client, most_bytes=1 << 30):
    return list(FrameReader(frames.MOST_MAX_FRAME_BYTES).feed(b"".join(client.take_buffers(most_bytes))))


def test_a_request_and_its_answer(client):
    peer = Peer(client)
    assert peer.exchange() == [SettingsReceived()]
    stream = client.open_stream([b"head", memoryview(b"tensor")])
    assert peer.exchange() == []
    assert (peer.bodies, peer.ended) == ({stream: b"headtensor"}, {stream})
    asked = next(event for event in peer.heard if isinstance(event, h2.events.RequestReceived))
    assert [tuple(header) for header in asked.headers] == list(HEADERS)
    peer.answer(stream)
    headers, data, trailers = peer.exchange()
    assert isinstance(headers, HeadersReceived)
    assert (dict(headers.headers)[b":status"], headers.ended) == (b"200", False)
    assert data == DataReceived(stream, b"scores", False)
    assert trailers == HeadersReceived(stream, ((b"grpc-status", b"0"), (b"grpc-message", b"fine")), True)


def test_streams_are_numbered_and_end_when_their_numbers_do(client):
    settled(client)
    assert [client.open_stream([b"x"]) for _ in range(3)] == [1, 3, 5]
    client._next_stream = frames.MOST_STREAM
    assert client.room > 0
    assert client.open_stream([b"x"]) == frames.MOST_STREAM
    assert (client.room, client.spent) == (0, True)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), min_size=1, max_size=5),
    st.sampled_from([0, 1, 77, 4000, 1 << 20]),
    st.sampled_from([1 << 14, 1 << 15, (1 << 24) - 1]),
    st.lists(st.integers(1, 900), min_size=1, max_size=5),
    st.sampled_from([1, 500, 1 << 20]),
)
def test_messages_arrive_whole_whatever_windows_and_frames_there_are(sizes, window, max_frame, openings, most_bytes):
    client = Http2Connection(HEADERS)
    peer = Peer(client, {CODES.INITIAL_WINDOW_SIZE: window, CODES.MAX_FRAME_SIZE: max_frame})
    peer.exchange(most_bytes)
    bodies = {}
    for head_bytes, tensor_bytes in sizes:
        head, tensor = bytes([len(bodies) + 1]) * head_bytes, bytes([len(bodies) + 101]) * tensor_bytes
        bodies[client.open_stream([head, memoryview(tensor)])] = head + tensor
    turn = 0
    peer.exchange(most_bytes)
    while peer.ended != set(bodies):
        opening = openings[turn % len(openings)]
        turn += 1
        for stream in sorted(set(bodies) - peer.ended):
            peer.h2.increment_flow_control_window(opening, stream)
        peer.h2.increment_flow_control_window(opening)
        peer.exchange(most_bytes)
        assert turn < 20_000
    assert peer.bodies == bodies


def test_a_shut_stream_does_not_hold_up_the_others_nor_the_shut_connection_for_ever(client):
    peer = Peer(client, {CODES.INITIAL_WINDOW_SIZE: 50_000})
    peer.exchange()
    first, second = client.open_stream([bytes(60_000)]), client.open_stream([bytes(30_000)])
    peer.exchange()
    assert {stream: len(body) for stream, body in peer.bodies.items()} == {first: 50_000, second: 15_535}
    peer.h2.increment_flow_control_window(100_000)
    peer.exchange()
    assert peer.ended == {second}
    peer.h2.increment_flow_control_window(10_000, first)
    peer.exchange()
    assert peer.ended == {first, second}


def test_streams_that_are_open_get_what_windows_change_by(client):
    peer = Peer(client, {CODES.INITIAL_WINDOW_SIZE: 1000})
    peer.exchange()
    stream = client.open_stream([bytes(3000)])
    peer.exchange()
    for window, arrived in ((500, 1000), (1200, 1200), (4000, 3000)):
        peer.h2.update_settings({CODES.INITIAL_WINDOW_SIZE: window})
        peer.exchange()
        assert len(peer.bodies[stream]) == arrived
    assert peer.ended == {stream}


def test_no_more_is_taken_at_once_than_asked_for(client):
    settled(client).receive(
        frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)
    )
    client.open_stream([bytes(100_000)])
    sizes = []
    while taken := [frame for frame in sent_frames(client, 40_000) if frame.kind == frames.DATA]:
        sizes.append(sum(len(frame.payload) for frame in taken))
    assert sizes == [40_000, 40_000, 20_000]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_only_so_many_streams_are_open_as_the_peer_allows(client, most):
    peer = Peer(client, {CODES.MAX_CONCURRENT_STREAMS: most})
    assert client.room > 1000, "before it says so"
    peer.exchange()
    streams = [client.open_stream([b"x"]) for _ in range(most)]
    assert client.room == 0
    peer.exchange()
    if most:
        peer.answer(streams[0])
        peer.exchange()
        assert client.room == 1
    peer.h2.update_settings({CODES.MAX_CONCURRENT_STREAMS: 5})
    peer.exchange()
    assert client.room == (6 - most if most else 5)


def test_the_peers_header_table_may_shrink(client):
    peer = Peer(client, {CODES.HEADER_TABLE_SIZE: 4096})
    peer.exchange()
    for table_bytes in (0, 100, 4096):
        peer.h2.update_settings({CODES.HEADER_TABLE_SIZE: table_bytes})
        peer.exchange()
        for _ in range(3):
            stream = client.open_stream([b"x"])
            peer.exchange()
            assert stream in peer.ended


def test_an_answer_before_the_message_is_sent_ends_its_sending(client):
    peer = Peer(client, {CODES.INITIAL_WINDOW_SIZE: 10})
    peer.exchange()
    stream = client.open_stream([bytes(100)])
    peer.exchange()
    peer.h2.send_headers(stream, [*ANSWER, ("grpc-status", "8")], end_stream=True)
    peer.h2.reset_stream(stream, ErrorCode.NO_ERROR)
    (answer,) = client.receive(peer.h2.data_to_send())
    assert answer.ended
    assert [(frame.kind, frame.payload) for frame in sent_frames(client)] == [(frames.RST_STREAM, bytes(4))]
    client.receive(frames.window_update(stream, 1000))
    assert sent_frames(client) == []


def test_a_stream_that_is_reset_here_is_not_heard_of_again(client):
    peer = Peer(client)
    peer.exchange()
    stream, other = client.open_stream([bytes(100_000)]), client.open_stream([b"x"])
    peer.exchange()
    client.reset_stream(stream, ErrorCode.CANCEL)
    client.reset_stream(stream, ErrorCode.CANCEL)
    # What the server had sent before it heard of it.
    peer.answer(stream)
    assert client.receive(peer.h2.data_to_send()) == []
    peer.exchange()
    resets = [event for event in peer.heard if isinstance(event, h2.events.StreamReset)]
    assert [(event.stream_id, event.error_code) for event in resets] == [(stream, 8)]
    peer.h2.increment_flow_control_window(100_000)
    peer.answer(other)
    *_, last = peer.exchange()
    assert (last.stream, last.headers[0]) == (other, (b"grpc-status", b"0")), "its headers were read all the same"


def test_a_stream_that_the_peer_resets(client):
    peer = Peer(client)
    peer.exchange()
    stream = client.open_stream([bytes(100_000)])
    peer.exchange()
    peer.h2.reset_stream(stream, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
    assert peer.exchange() == [StreamReset(stream, 11)]
    assert peer.exchange() == []


def test_going_away_leaves_what_was_begun(client):
    settled(client)
    first, second = client.open_stream([b"x"]), client.open_stream([b"x"])
    assert client.receive(frames.goaway(2**31 - 1, ErrorCode.NO_ERROR)) == [GoAwayReceived(0, "", ())]
    assert (client.room, client.spent) == (0, True)
    events = client.receive(frames.goaway(first, ErrorCode.ENHANCE_YOUR_CALM, "calm"))
    assert events == [GoAwayReceived(11, "calm", (second,))]
    assert client.receive(frame(frames.DATA, frames.END_STREAM, first, b"y")) == [DataReceived(first, b"y", True)]


def test_pings_are_answered(client):
    settled(client).receive(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, frames.ACK, 0, bytes(8)))
    assert sent_frames(client) == [(frames.PING, frames.ACK, 0, b"12345678")]


def test_windows_of_answers_are_opened_again(client, monkeypatch):
    monkeypatch.setattr(module, "CONNECTION_WINDOW_BYTES", 402)
    monkeypatch.setattr(module, "STREAM_WINDOW_BYTES", 210)
    settled(client)
    first, second = client.open_stream([b"x"]), client.open_stream([b"x"])
    sent_frames(client)
    for number, expected in enumerate([[], [(0, 202), (first, 202)], [], [(0, 202), (first, 202)]]):
        events = client.receive(frame(frames.DATA, frames.PADDED, first, b"\x0a" + bytes(100)))
        assert events == [DataReceived(first, bytes(90), False)]
        updates = [(each.stream, frames.parse_number(each)) for each in sent_frames(client)]
        assert updates == expected, number
    client.reset_stream(second, ErrorCode.CANCEL)
    client.receive(frame(frames.DATA, 0, second, bytes(202)))
    assert [each.kind for each in sent_frames(client)] == [frames.RST_STREAM, frames.WINDOW_UPDATE], "of all together"


def test_headers_in_pieces_with_padding_and_priority_and_frames_that_nobody_knows(client):
    block = hpack.Encoder().encode([(":status", "200"), ("x", "y" * 100)])
    settled(client)
    stream = client.open_stream([b"x"])
    flags = frames.PADDED | frames.WITH_PRIORITY | frames.END_STREAM
    data = frame(frames.HEADERS, flags, stream, b"\x03" + bytes(5) + block[:2] + bytes(3))
    data += frame(frames.CONTINUATION, 0, stream, block[2:5]) + frame(frames.CONTINUATION, 4, stream, block[5:])
    data = frame(99, 255, stream, b"?") + frame(frames.PRIORITY, 0, stream, bytes(5)) + data
    assert client.receive(data) == [HeadersReceived(stream, ((b":status", b"200"), (b"x", b"y" * 100)), True)]


SETTINGS_OUT_OF_RANGE = [(Setting.MAX_FRAME_SIZE, 16383), (Setting.MAX_FRAME_SIZE, 1 << 24)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.PING, 0, 0, bytes(7)), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.DATA, 0, 3, b"x"), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.DATA, 0, 2, b"x"), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.HEADERS, 4, 1, bytes([255] * 8)), ErrorCode.COMPRESSION_ERROR),
        (PLAIN_SETTINGS + frame(frames.HEADERS, 0, 1, b"") + PLAIN_SETTINGS, ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.HEADERS, 0, 1, b"") + 5 * frame(frames.CONTINUATION, 0, 1, bytes(1 << 14)),
         ErrorCode.ENHANCE_YOUR_CALM),
        (PLAIN_SETTINGS + frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (PLAIN_SETTINGS + frame(frames.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        *[(frames.settings_frame(dict([each])), ErrorCode.PROTOCOL_ERROR) for each in SETTINGS_OUT_OF_RANGE],
        (frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (PLAIN_SETTINGS + frames.window_update(0, 0), ErrorCode.FLOW_CONTROL_ERROR),
        (PLAIN_SETTINGS + frames.window_update(0, frames.MOST_WINDOW_BYTES), ErrorCode.FLOW_CONTROL_ERROR),
        (PLAIN_SETTINGS + frames.frame_head(1 << 20, frames.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (PLAIN_SETTINGS + frame(frames.GOAWAY, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (PLAIN_SETTINGS + frame(frames.RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
def test_a_peer_that_breaks_the_protocol_is_told_and_heard_no_more(client, data, code):
    client.open_stream([b"x"])
    sent_frames(client)
    *_, broken = client.receive(data)
    assert isinstance(broken, ConnectionBroken)
    told = [each for each in sent_frames(client) if each.kind == frames.GOAWAY]
    assert [frames.parse_goaway(each)[1] for each in told] == [code]
    assert client.receive(PLAIN_SETTINGS) == []
    assert (client.room, sent_frames(client)) == (0, [])


@pytest.mark.parametrize(("opening", "code"), [(0, 1), (frames.MOST_WINDOW_BYTES, 3)])
def test_a_senseless_window_of_a_stream_ends_that_stream(client, opening, code):
    settled(client)
    stream = client.open_stream([b"x"])
    sent_frames(client)
    assert client.receive(frames.window_update(stream, opening)) == [StreamReset(stream, code)]
    assert [each.kind for each in sent_frames(client)] == [frames.RST_STREAM]


def test_saying_goodbye_sends_nothing_more(client):
    settled(client)
    client.open_stream([bytes(1000)])
    client.go_away()
    assert [each.kind for each in sent_frames(client)] == [frames.HEADERS, frames.GOAWAY]
    assert client.room == 0


def told_in_pieces(data, cuts):
    client = Http2Connection(HEADERS)
    for _ in range(3):
        client.open_stream([bytes(100_000)])
    client.take_buffers(1 << 30)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    events = [e for start, end in itertools.pairwise(bounds) for e in client.receive(data[start:end])]
    return events, sent_frames(client)


def answers():
    """What a server says to three requests, in bytes."""
    client = Http2Connection(HEADERS)
    peer = Peer(client)
    data = peer.h2.data_to_send()
    client.receive(data)
    for _ in range(3):
        client.open_stream([bytes(100)])
    peer.h2.receive_data(b"".join(client.take_buffers(1 << 30)))
    data += peer.h2.data_to_send()
    peer.answer(1)
    peer.h2.increment_flow_control_window(1000)
    peer.h2.ping(b"12345678")
    peer.answer(3, bytes(3000))
    peer.h2.reset_stream(5, 7)
    return data + peer.h2.data_to_send() + frames.goaway(5, ErrorCode.NO_ERROR)


ANSWERS = answers()


@given(st.lists(st.integers(0, len(ANSWERS)), max_size=20))
def test_bytes_tell_the_same_in_whatever_pieces_they_come(cuts):
    whole = told_in_pieces(ANSWERS, [])
    assert len(whole[0]) == 9
    assert told_in_pieces(ANSWERS, cuts) == whole


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 255), st.integers(0, 6), st.binary(max_size=20)), max_size=20
    ),
    st.binary(max_size=30),
    st.lists(st.integers(0, 400), max_size=10),
)
def test_whatever_comes_nothing_is_raised(others, rest, cuts):
    data = PLAIN_SETTINGS + b"".join(frame(*each) for each in others) + rest
    whole = told_in_pieces(data, [])
    assert told_in_pieces(data, cuts) == whole
    assert sum(isinstance(event, ConnectionBroken) for event in whole[0]) <= 1


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
