"""What passes between a connection's transport, its protocol and its owner, with a transport of the test's own."""

import asyncio

import pytest

from hebe.load_generator.senders.grpc import http2_frames as frames
from hebe.load_generator.senders.grpc.connection import (
    GrpcCall,
    GrpcConnection,
    NotHttp2,
    status_number,
    status_of_answer,
    status_of_reset,
)
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, FrameReader, Setting

HEADERS = ((b":method", b"POST"), (b":path", b"/x"))


OPEN = frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(0, 1 << 30)


class Transport(asyncio.Transport):
    """Keeps what is written; after `most` bytes it wants no more."""

    def __init__(self, connection, most=1 << 30, alpn=None):
        super().__init__({"ssl_object": alpn and type("", (), {"selected_alpn_protocol": lambda _: alpn})()})
        self.connection, self.most = connection, most
        self.written, self.aborted, self.closing = b"", False, False
        connection.connection_made(self)

    def writelines(self, buffers):
        assert not self.closing
        self.written += b"".join(buffers)
        if len(self.written) > self.most:
            self.connection.pause_writing()

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True

    def frames(self):
        """What was written since the last time."""
        data, self.written = self.written.removeprefix(frames.PREFACE), b""
        return [(frame.kind, frame.stream) for frame in FrameReader().feed(data)]


class Owner:
    def __init__(self):
        self.told = []

    def ready(self, _connection):
        self.told.append("ready")

    def answered(self, call, status):
        self.told.append((call.index, *status))

    def failed(self, call, kind, message):
        self.told.append((call.index, kind, message))

    def retired(self, _connection):
        self.told.append("retired")

    def gone(self, _connection):
        self.told.append("gone")


@pytest.fixture
async def made():
    """A connection, its transport, what its owner was told; and calls on it, begun in order."""
    owner = Owner()
    connection = GrpcConnection(owner, HEADERS)
    return connection, Transport(connection), owner.told


def begin(connection, index, *parts):
    call = GrpcCall(index, 1, 0)
    connection.begin(call, parts)
    return call


async def test_settings_make_it_ready(made):
    connection, transport, told = made
    assert transport.frames() == [(frames.SETTINGS, 0), (frames.WINDOW_UPDATE, 0)]
    assert not connection.settled.done()
    connection.data_received(OPEN)
    assert connection.settled.done()
    assert told == ["ready"]
    assert transport.frames() == [(frames.SETTINGS, 0)]


async def test_a_message_begins_with_its_length(made):
    connection, transport, _ = made
    connection.data_received(OPEN)
    transport.frames()
    begin(connection, 0, b"head", memoryview(b"tensor"))
    assert transport.written.endswith(b"\0\0\0\0\x0aheadtensor")
    assert transport.frames() == [(frames.HEADERS, 1), (frames.DATA, 1)]


async def test_a_call_given_up_before_the_transport_took_it_is_not_sent(made):
    connection, transport, _ = made
    connection.data_received(OPEN)
    transport.frames()
    transport.most = 1000
    begin(connection, 0, bytes(10_000))
    given_up, kept = begin(connection, 1, bytes(10_000)), begin(connection, 2, bytes(10_000))
    assert transport.frames() == [(frames.HEADERS, 1), (frames.DATA, 1)]
    connection.cancel(given_up)
    assert transport.frames() == []
    transport.most = 1 << 30
    connection.resume_writing()
    found = transport.frames()
    assert (frames.DATA, given_up.stream) not in found
    assert found[-1] == (frames.DATA, kept.stream)
    assert (frames.RST_STREAM, given_up.stream) in found


async def test_what_is_lost_is_left_before_its_calls_are_told_of(made):
    connection, _, told = made
    connection.data_received(OPEN)
    begin(connection, 7, b"x")
    connection.connection_lost(ConnectionResetError("reset"))
    assert told == ["ready", "gone", (7, "connection closed", "reset")]
    assert connection.lost.done()


async def test_one_that_goes_away_closes_after_its_last_call(made):
    connection, transport, told = made
    connection.data_received(OPEN)
    call = begin(connection, 7, b"x")
    connection.data_received(frames.goaway(1, ErrorCode.NO_ERROR))
    assert (told[-1], connection.room, transport.closing) == ("retired", 0, False)
    connection.data_received(frames.header_frames(call.stream, b"\x88\x00\x0bgrpc-status\x010", True))
    assert (7, "OK", "") in told
    assert (transport.closing, transport.aborted) == (True, False)


async def test_garbage_ends_it(made):
    connection, transport, told = made
    connection.data_received(b"220 mail.example ESMTP\r\n")
    assert isinstance(connection.settled.exception(), NotHttp2)
    assert transport.frames()[-1] == (frames.GOAWAY, 0)
    assert transport.aborted
    connection.data_received(b"250 ok\r\n")
    assert "ready" not in told


@pytest.mark.parametrize(("alpn", "aborted"), [("h2", False), ("http/1.1", True)])
async def test_tls_must_have_agreed_on_http2(alpn, aborted):
    connection = GrpcConnection(Owner(), HEADERS)
    assert Transport(connection, alpn=alpn).aborted == aborted
    assert connection.settled.done() == aborted


async def test_a_goodbye_ends_all_calls_without_a_word_of_them(made):
    connection, transport, told = made
    connection.data_received(OPEN)
    transport.frames()
    transport.most = 0
    begin(connection, 0, bytes(10_000))
    transport.frames()
    connection.say_goodbye()
    assert transport.frames() == [(frames.GOAWAY, 0)]
    assert transport.aborted
    assert told == ["ready"]


@pytest.mark.parametrize(
    ("http_status", "headers", "status"),
    [
        (200, {b"grpc-status": b"0"}, ("OK", "")),
        (200, {b"grpc-status": b"14", b"grpc-message": b"full"}, ("UNAVAILABLE", "full")),
        (
            200,
            {b"grpc-status": b"8", b"grpc-message": b"100%25 %C3%BCber %zz"},
            ("RESOURCE_EXHAUSTED", "100% über %zz"),
        ),
        (200, {b"grpc-status": b"2", b"grpc-message": b"%ff"}, ("UNKNOWN", "\ufffd")),
        (200, {b"grpc-status": b"16"}, ("UNAUTHENTICATED", "")),
        (200, {b"grpc-status": b"17"}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b"-1"}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b""}, ("UNKNOWN", "")),
        (200, {b"grpc-status": b"9" * 5000}, ("UNKNOWN", "")),
        (503, {b"grpc-status": b"5"}, ("NOT_FOUND", "")),
        (503, {}, ("UNAVAILABLE", "HTTP status 503 and no gRPC status")),
        (429, {}, ("UNAVAILABLE", "HTTP status 429 and no gRPC status")),
        (401, {}, ("UNAUTHENTICATED", "HTTP status 401 and no gRPC status")),
        (403, {}, ("PERMISSION_DENIED", "HTTP status 403 and no gRPC status")),
        (404, {}, ("UNIMPLEMENTED", "HTTP status 404 and no gRPC status")),
        (400, {}, ("INTERNAL", "HTTP status 400 and no gRPC status")),
        (500, {}, ("UNKNOWN", "HTTP status 500 and no gRPC status")),
        (200, {}, ("UNKNOWN", "HTTP status 200 and no gRPC status")),
    ],
)
def test_what_an_answer_ended_with(http_status, headers, status):
    assert status_of_answer(http_status, headers) == status


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, ("UNAVAILABLE", "stream reset: REFUSED_STREAM")),
        (ErrorCode.CANCEL, ("CANCELLED", "stream reset: CANCEL")),
        (ErrorCode.ENHANCE_YOUR_CALM, ("RESOURCE_EXHAUSTED", "stream reset: ENHANCE_YOUR_CALM")),
        (ErrorCode.INADEQUATE_SECURITY, ("PERMISSION_DENIED", "stream reset: INADEQUATE_SECURITY")),
        (ErrorCode.NO_ERROR, ("INTERNAL", "stream reset: NO_ERROR")),
        (ErrorCode.PROTOCOL_ERROR, ("INTERNAL", "stream reset: PROTOCOL_ERROR")),
        (77, ("INTERNAL", "stream reset: error 77")),
    ],
)
def test_what_a_stream_was_reset_for(code, status):
    assert status_of_reset(int(code)) == status


def test_numbers_of_codes():
    assert [status_number(code) for code in ("OK", "NOT_FOUND", "UNIMPLEMENTED", "UNAVAILABLE")] == [0, 5, 12, 14]
