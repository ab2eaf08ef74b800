"""One HTTP/2 connection to a gRPC server: its calls by stream, between the transport and the protocol.

`GrpcStatus` is what a call ended with, as the protocol puts it into HTTP/2. Specification:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, and beside it `http-grpc-status-mapping.md` for answers
of servers and proxies that do not speak gRPC.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, cast
from urllib.parse import unquote_to_bytes

from hebe.load_generator.senders.grpc.http2 import (
    Buffer,
    ConnectionBroken,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    Http2Connection,
    SettingsReceived,
    StreamReset,
)
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode
from hebe.load_generator.senders.grpc.http2_headers import Headers
from hebe.load_generator.senders.http_sender import SEND_BUFFER_BYTES

_MOST_WRITE_BYTES = 4 << 20
"""Handed to the transport at once; while that has not taken it, a call that is given up need not be sent."""

CONNECTION_CLOSED, NOT_HTTP2 = "connection closed", "not HTTP/2"
"""Kinds of failure."""


class GrpcConnectionOwner(Protocol):
    """Whom a connection tells what becomes of it and of its calls."""

    def ready(self, connection: GrpcConnection) -> None:
        """Calls may begin, or more than before."""
        ...

    def answered(self, call: GrpcCall, status: GrpcStatus) -> None:
        """The server has ended the call."""
        ...

    def failed(self, call: GrpcCall, kind: str, message: str) -> None:
        """There will be no answer."""
        ...

    def retired(self, connection: GrpcConnection) -> None:
        """No further calls can begin on it; it ends with those that are under way."""
        ...

    def gone(self, connection: GrpcConnection) -> None:
        """It is closed."""
        ...


class NotHttp2(ConnectionError):
    """What listens there speaks otherwise."""


class GrpcCall:
    """One query under way, and what is known of its answer; without a connection it is lined up."""

    __slots__ = ("connection", "http_status", "index", "items", "offset", "stream")

    def __init__(self, index: int, items: int, offset: int) -> None:
        self.index, self.items, self.offset = index, items, offset
        self.connection: GrpcConnection | None = None
        self.stream = 0
        self.http_status = 0


class GrpcConnection(asyncio.Protocol):
    """One connection and its calls by stream.

    `settled` is done once the server has told its settings, or has the OSError why it will not; `lost` once it is
    closed.
    """

    def __init__(self, owner: GrpcConnectionOwner, headers: Headers) -> None:
        loop = asyncio.get_running_loop()
        self._owner = owner
        self._http2 = Http2Connection(headers)
        self._calls: dict[int, GrpcCall] = {}
        self._paused = False
        self.transport: asyncio.Transport
        self.settled: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    @property
    def room(self) -> int:
        """How many further calls may begin."""
        return self._http2.room

    def begin(self, call: GrpcCall, parts: Sequence[Buffer]) -> None:
        """Send the call's message, with the five bytes before it: uncompressed, and its length."""
        prefix = b"\0" + sum(map(len, parts)).to_bytes(4, "big")
        call.connection, call.stream = self, self._http2.open_stream([prefix, *parts])
        self._calls[call.stream] = call
        self._flush()
        self._retire_if_spent()

    def cancel(self, call: GrpcCall) -> None:
        """End the call before its answer."""
        del self._calls[call.stream]
        self._http2.reset_stream(call.stream, ErrorCode.CANCEL)
        self._flush()
        self._retire_if_spent()

    def say_goodbye(self) -> None:
        """Close, with all calls that are under way."""
        self._calls.clear()
        self._http2.go_away()
        self._paused = False
        self._flush()
        self.transport.abort()

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is open, TLS and all."""
        self.transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None and encrypted.selected_alpn_protocol() != "h2":
            self._fail(NotHttp2("it does not speak HTTP/2 over TLS (ALPN)"))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed, and all calls with it."""
        # First itself, then its calls: those that follow them must not go the same way.
        self._owner.gone(self)
        self._settle(ConnectionError(CONNECTION_CLOSED + (f": {exc}" if exc else "")))
        self.lost.set_result(None)
        self._fail_calls(CONNECTION_CLOSED, str(exc or ""))

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        """The server says something."""
        for event in self._http2.receive(data):
            self._take(event)
        self._flush()
        self._retire_if_spent()

    def _flush(self) -> None:
        while not self._paused and not self.transport.is_closing():
            buffers = self._http2.take_buffers(_MOST_WRITE_BYTES)
            if not buffers:
                return
            self.transport.writelines(buffers)

    def _take(self, event: Event) -> None:
        match event:
            case HeadersReceived():
                self._take_headers(event)
            case DataReceived():
                # Of the answer itself nobody wants to know.
                if event.ended and (call := self._calls.pop(event.stream, None)) is not None:
                    self._owner.answered(call, status_of_answer(call.http_status, {}))
            case StreamReset():
                if (call := self._calls.pop(event.stream, None)) is not None:
                    self._owner.answered(call, status_of_reset(event.code))
            case SettingsReceived():
                self._settle(None)
                self._owner.ready(self)
            case GoAwayReceived():
                self._owner.retired(self)
                for stream in event.lost:
                    if (call := self._calls.pop(stream, None)) is not None:
                        self._owner.failed(call, CONNECTION_CLOSED, event.message)
            case ConnectionBroken():
                self._fail(NotHttp2(event.message))

    def _take_headers(self, event: HeadersReceived) -> None:
        call = self._calls.get(event.stream)
        if call is None:
            return
        headers = dict(event.headers)
        status = headers.get(b":status", b"")
        if status.isdigit():
            call.http_status = int(status[:3])
        if event.ended:
            del self._calls[event.stream]
            self._owner.answered(call, status_of_answer(call.http_status, headers))

    def _fail(self, fault: NotHttp2) -> None:
        """What listens there cannot be talked to."""
        self._owner.retired(self)
        self._fail_calls(NOT_HTTP2, str(fault))
        self._settle(fault)
        self._flush()
        self.transport.abort()

    def _fail_calls(self, kind: str, message: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._owner.failed(call, kind, message)

    def _settle(self, fault: OSError | None) -> None:
        if self.settled.done():
            return
        if fault is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(fault)
            self.settled.exception()  # there may be nobody any more to whom it matters

    def _retire_if_spent(self) -> None:
        if self._http2.spent:
            self._owner.retired(self)
            if not self._calls:
                self.transport.close()


OK = "OK"
_NAMES = (
    OK, "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Codes by number."""

_OF_HTTP = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
"""HTTP status codes of answers without a gRPC status; all others are UNKNOWN."""

_OF_RESET = {
    ErrorCode.REFUSED_STREAM: "UNAVAILABLE",
    ErrorCode.CANCEL: "CANCELLED",
    ErrorCode.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
    ErrorCode.INADEQUATE_SECURITY: "PERMISSION_DENIED",
}
"""Codes of RST_STREAM; all others are INTERNAL."""


class GrpcStatus(NamedTuple):
    """Name of the code ("UNAVAILABLE"), and the server's message."""

    code: str
    message: str


def status_number(code: str) -> int:
    """The number that stands for a code in `grpc-status`. Raises ValueError for what is none."""
    return _NAMES.index(code)


def status_of_answer(http_status: int, last_headers: Mapping[bytes, bytes]) -> GrpcStatus:
    """The status of an answer that has ended; `last_headers` are its trailers, or all its headers if it has none."""
    given = last_headers.get(b"grpc-status")
    if given is None:
        what = f"HTTP status {http_status} and no gRPC status"
        return GrpcStatus(_OF_HTTP.get(http_status, "UNKNOWN"), what)
    number = int(given) if given.isdigit() and len(given) < 4 else -1
    code = _NAMES[number] if 0 <= number < len(_NAMES) else "UNKNOWN"
    return GrpcStatus(code, unquote_to_bytes(last_headers.get(b"grpc-message", b"")).decode("utf-8", "replace"))


def status_of_reset(code: int) -> GrpcStatus:
    """The status of a call whose stream the server has reset with this code."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return GrpcStatus("INTERNAL", f"stream reset: error {code}")
    return GrpcStatus(_OF_RESET.get(known, "INTERNAL"), f"stream reset: {known.name}")
