"""HTTP/1.1 on an asyncio transport: one request at a time to a handler, its answer back.

Written for few, large requests: a body of known length is read by the kernel straight into the buffer that its
tensors will be views of, placed so that the binary section behind the JSON header is 8-byte aligned. The head is
parsed in `head`. Everything that a peer can draw out is bounded: size of head and body, the bodies of
all connections together, what it sends before it is asked to or has read its answers, time for head, body and response,
number of connections, of which one that waits for its client gives its place to a newcomer.

    head -> handler.screen(head): answer now (no token, unknown path), or read the body
         -> body, at most `max_request_bytes`; once its JSON header is there and the rest is not,
            handler.preview(start): answer now and skip the rest, or read it
         -> await handler.answer(request), cancelled if the client goes away
         -> response -> next request

A client that closes only its sending side once it has asked gets its answers. Whether it has closed both is told by
its system alone, when it is sent something: an interim response, 100 Continue, which any client must pass over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from enum import Enum
from http import HTTPStatus
from typing import cast

import numpy as np

from hebe.serving.http1.connections import HttpConnections
from hebe.serving.http1.head import ChunkedBody, Head
from hebe.serving.http1.messages import LINK_BYTES_PER_S, HttpRequest, HttpResponse
from hebe.serving.requests.errors import ErrorKind, RequestError

_OWN_LAG_S = 5e-3
"""So much later than it came a busy event loop may read a part of a body."""
_PIPELINED_BYTES = 64 * 1024
"""How much is kept of what comes before its turn; beyond that the connection is not read."""
_ALIGNMENT = 8
_HELD_BACK_BYTES = 64 * 1024
"""A client without TCP_NODELAY, as tritonclient is over TLS, holds back what fills no segment, the largest of which is
about this, until we acknowledge what came before; and we would not for 40 ms, in case that we have something to send.
"""
_LOOK_AFTER_PEER_S = 0.25
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _State(Enum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    SKIPPING = "skipping"
    CHUNKED = "chunked"
    ANSWERING = "answering"
    DRAINING = "draining"
    CLOSED = "closed"


_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


class HttpConnection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, shared: HttpConnections) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._transport: asyncio.Transport
        self._state = _State.IDLE
        self._scratch = shared.scratch
        self._pending = bytearray()  # what has come and has not had its turn, among it a head that is not whole
        self._head: Head | None = None
        self._request: HttpRequest | None = None
        self._body: memoryview = self._scratch
        self._filled = 0
        self._preview_at = 0
        self._skip = 0
        self._chunks: ChunkedBody | None = None
        self._held_bytes = 0
        self._keep_alive = True
        self._peer_is_done = False
        self._arrival_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._peer = ""
        self._reading_paused = False
        self._writing_paused = False
        self._rest: asyncio.TimerHandle | None = None
        self.give_up_s = 0.0
        """When `out_of_time` is due, on the server's clock."""

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or say that there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        shared = self._shared
        shared.open.add(self)
        self._arrival_s = shared.clock()
        self.give_up_s = self._arrival_s + self._limits.head_timeout_s
        too_many = len(shared.open) > self._limits.max_connections
        if shared.stopping or (too_many and not shared.free_place()):
            most = self._limits.max_connections
            lingers = len(shared.turned_away) < self._limits.max_turned_away
            if lingers:
                shared.turned_away.add(self)
            self._refuse(
                RequestError(
                    ErrorKind.UNAVAILABLE,
                    "the server is shutting down"
                    if shared.stopping
                    else f"more than {most} connections are open; close some, or try again later",
                    retry_after_s=1.0,
                )
            )
            if not lingers:  # a flood of them would take all the files that may be open
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Withdraw what the client no longer waits for."""
        self._state = _State.CLOSED
        self._shared.open.discard(self)
        self._shared.turned_away.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self._release()

    def eof_received(self) -> bool:
        """Whether to keep our side open: the client sends no more, but has asked for something."""
        if not self._transport.can_write_eof():
            return False  # TLS closes both sides at once
        if self._state is _State.ANSWERING:
            self._peer_is_done = True
            self._ask_after_peer()
            return True
        if self._state is _State.IDLE and self._pending:
            self._peer_is_done = True
            return True
        return False

    def _ask_after_peer(self) -> None:
        """Find out whether the client, which closed its side, still reads; if not, its system answers so."""
        request = self._request
        if request is not None and request.version != "1.0":  # which knows no interim responses
            self._transport.write(_CONTINUE)
            self._allow(_LOOK_AFTER_PEER_S)

    def _peer_is_gone(self) -> bool:
        """Whether the client's system has answered that nobody reads there any more."""
        connection = self._transport.get_extra_info("socket")
        return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the kernel writes next: the body itself while one of known length is read."""
        if self._state is _State.BODY:
            return self._body[self._filled :]
        if self._state is _State.SKIPPING:
            return self._scratch[: self._skip]
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came in."""
        if self._state is _State.BODY:
            self._filled += nbytes
            if self._hold(nbytes):
                self._look_at_body()
            return
        if self._state is _State.SKIPPING:
            self._skip -= nbytes
            if not self._skip:
                self._skipped()
            return
        self._take(self._scratch[:nbytes])

    def pause_writing(self) -> None:
        """The client does not read its answer: give it a limited time."""
        self._writing_paused = True
        if self._state is not _State.DRAINING:
            self.give_up_s = self._shared.clock() + self._limits.write_timeout_s

    def resume_writing(self) -> None:
        """The answer is on its way: go on."""
        self._writing_paused = False
        if self._state is _State.IDLE:
            self._allow(self._limits.idle_timeout_s)
        elif self._state is _State.DRAINING:
            self._allow(self._limits.linger_s)
        self._next_request()

    def _allow(self, seconds: float) -> None:
        """Give what the connection does now so much time; but who must first read its answers gets none by asking."""
        if not self._writing_paused:
            self.give_up_s = self._shared.clock() + seconds

    # -- bytes in

    def _take(self, data: memoryview) -> None:
        """Bytes that are not the body of known length, according to the state."""
        if self._state is _State.CHUNKED:
            self._take_chunks(bytes(data))
            return
        if self._state not in (_State.IDLE, _State.HEAD, _State.ANSWERING):
            return
        before = len(self._pending)
        self._pending += data
        if self._state is _State.HEAD:
            self._take_head(before)
        elif self._state is _State.IDLE and not before and not self._writing_paused and self._rest is None:
            self._start_head()
        elif len(self._pending) > _PIPELINED_BYTES:
            self._stop_reading()

    def _start_head(self) -> None:
        """The next request begins with what is pending, but for empty lines, which ask for nothing (RFC 9112, 2.2)."""
        pending = self._pending
        if pending.startswith((b"\r", b"\n")):
            del pending[: len(pending) - len(pending.lstrip(b"\r\n"))]
        if not pending:
            return
        self._state = _State.HEAD
        self._arrival_s = self._shared.clock()
        self._allow(self._limits.head_timeout_s)
        self._take_head(0)

    def _take_head(self, before: int) -> None:
        """Go on if the head is whole; so many bytes of what is pending have been looked at."""
        pending, most_bytes = self._pending, self._limits.max_head_bytes
        end = pending.find(b"\r\n\r\n", max(0, before - 3), most_bytes)
        if end < 0:
            if len(pending) > most_bytes:
                message = f"request line and headers exceed {most_bytes} bytes"
                self._refuse(RequestError(ErrorKind.HEAD_TOO_LARGE, message))
            return
        head = bytes(memoryview(pending)[: end + 4])
        del pending[: end + 4]  # moves nothing, as no deletion at the front of a bytearray does
        try:
            self._head = self._shared.heads.read(head)
        except RequestError as error:
            self._refuse(error)
            return
        self._head_complete(self._head)

    def _head_complete(self, head: Head) -> None:
        headers, length = head.headers, head.length
        self._keep_alive = head.keep_alive and not self._shared.stopping
        request = HttpRequest(head.method, head.path, head.query, headers, self._arrival_s, self._peer, head.version)
        self._request = request
        chunked = b"transfer-encoding" in headers
        if chunked:
            length = 0
            if headers[b"transfer-encoding"].strip().lower() != b"chunked":
                coding = headers[b"transfer-encoding"].decode("latin-1")
                message = f"Transfer-Encoding {coding!r:.60} is not supported; use chunked, or Content-Encoding: gzip"
                self._refuse(RequestError(ErrorKind.UNSUPPORTED, message))
                return
        elif length < 0:
            self._refuse(RequestError(ErrorKind.INVALID, "header Content-Length is not a whole number"))
            return
        if length > self._limits.max_request_bytes:
            self._refuse(self._too_large(f"a body of {length} bytes"))
            return
        early = self._shared.handler.screen(request)
        if early is not None:
            whole = length <= len(self._pending)
            del self._pending[:length]
            self._respond(early, close=not self._keep_alive or chunked or not whole)
            self._next_request()
            return
        if chunked or length:
            self._allow(self._limits.body_timeout_s)
            if headers.get(b"expect", b"").lower() == b"100-continue" and head.version != "1.0":
                self._transport.write(_CONTINUE)
        if chunked:
            self._state = _State.CHUNKED
            most = self._limits.max_request_bytes if request.most_bytes is None else request.most_bytes
            self._chunks = ChunkedBody(most, self._limits.max_head_bytes)
            if self._pending:
                data = bytes(self._pending)
                self._pending.clear()
                self._take_chunks(data)
            return
        if length:
            self._start_body(length, head.json_bytes)
            return
        self._start_answer()

    def _start_body(self, length: int, json_bytes: int) -> None:
        """Lay out the buffer for a body of `length` bytes, whose first bytes may have come with the head."""
        self._body = aligned_buffer(length, json_bytes)
        have = min(length, len(self._pending))
        self._body[:have] = memoryview(self._pending)[:have]
        del self._pending[:have]
        self._filled = have
        self._state = _State.BODY
        self._preview_at = json_bytes
        if self._hold(have):
            self._look_at_body()

    def _hold(self, size_bytes: int) -> bool:
        """Count so many bytes more of the body; False if that was too much, and the request is refused."""
        try:
            self._shared.budget.take(size_bytes)
        except RequestError as error:
            self._refuse(error)
            return False
        self._held_bytes += size_bytes
        return True

    def _look_at_body(self) -> None:
        """Go on once the body is there, or ask the handler about its start as soon as that is."""
        left_bytes = len(self._body) - self._filled
        if not left_bytes:
            self._start_answer()
            return
        if left_bytes <= _HELD_BACK_BYTES:
            self._acknowledge()
        if 0 < self._preview_at <= self._filled:
            request, start = self._request, self._body[: self._preview_at]
            assert request is not None
            self._preview_at = 0
            self._count_arrival(request)
            early = self._shared.handler.preview(request, start)
            if early is not None:
                self._skip = len(self._body) - self._filled
                self._respond(early, close=not self._keep_alive)
                if self._state is _State.IDLE:
                    self._state = _State.SKIPPING
                    self._allow(self._limits.body_timeout_s)

    def _acknowledge(self) -> None:
        """At once; the system forgets after a while that it should."""
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):  # the client has gone
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _skipped(self) -> None:
        """The rest of a body that was not read has gone by."""
        self._state = _State.IDLE
        self._allow(self._limits.idle_timeout_s)
        self._next_request()

    def _take_chunks(self, data: bytes) -> None:
        chunks, head = self._chunks, self._head
        assert chunks is not None
        assert head is not None
        try:
            taken = chunks.take(data)
        except RequestError as error:
            self._refuse(error)
            return
        if self._hold(taken) and chunks.complete:
            self._body = aligned_buffer(len(chunks.joined), head.json_bytes)
            self._body[:] = chunks.joined
            self._drop_chunks()
            # What a client sent after a chunked body without waiting cannot be told from it any more.
            self._keep_alive = False
            self._start_answer()

    def _drop_chunks(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def _too_large(self, what: str) -> RequestError:
        return RequestError(
            ErrorKind.TOO_LARGE,
            f"{what} exceeds the maximum request size of {self._limits.max_request_bytes} bytes; send fewer items",
        )

    # -- answers

    def _start_answer(self) -> None:
        request = self._request
        assert request is not None
        if self._state in (_State.BODY, _State.CHUNKED):
            request.body = self._body
            self._count_arrival(request)
        self._state = _State.ANSWERING
        self._body = self._scratch
        self._allow(math.inf)
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    def _count_arrival(self, request: HttpRequest) -> None:
        """What has come of the body counts from its first byte on, unless its client took its time over it."""
        since_s = self._shared.clock() - self._held_bytes / LINK_BYTES_PER_S - _OWN_LAG_S
        request.arrival_s = max(self._arrival_s, since_s)

    async def _answer(self, request: HttpRequest) -> None:
        try:
            response = await self._shared.handler.answer(request)
        except asyncio.CancelledError:
            self._task = None
            if self._state is not _State.CLOSED:
                self._transport.abort()
            raise
        self._task = None
        if self._state is not _State.ANSWERING:
            return
        self._respond(response, close=not self._keep_alive)
        self._next_request()

    def _respond(self, response: HttpResponse, *, close: bool) -> None:
        """Write the answer; then either wait for the next request or close in an orderly way."""
        close = close or self._shared.stopping or (self._peer_is_done and not self._pending)
        parts = [
            _STATUS_LINES[response.status],
            self._shared.date_header,
            b"content-type: ",
            response.content_type,
            b"\r\ncontent-length: ",
            str(len(response.body)).encode(),
            b"\r\n",
        ]
        for name, value in response.headers:
            parts += (name, b": ", value, b"\r\n")
        if close:
            parts.append(b"connection: close\r\n")
        elif self._head is not None and self._head.headers.get(b"connection"):
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        if self._request is None or self._request.method != "HEAD":
            parts.append(response.body)
        self._state = _State.IDLE
        self._arrival_s = self._shared.clock()
        self._allow(self._limits.idle_timeout_s)
        self._transport.write(b"".join(parts))
        self._release()
        if close:
            self._close_after_answer()
        elif response.rest_s > 0 and not self._transport.is_closing():  # as it is where the answer cannot be sent
            self._rest = asyncio.get_running_loop().call_later(response.rest_s, self._rested)
            self._stop_reading()

    def _release(self) -> None:
        """Let go of the request's buffers."""
        self._request = None
        self._head = None
        self._drop_chunks()
        self._body = self._scratch
        if self._held_bytes:
            self._shared.budget.give(self._held_bytes)
            self._held_bytes = 0

    def _close_after_answer(self) -> None:
        """Close once the client has had time to read the answer.

        Closing at once with bytes unread would reset the connection, and the client might lose the answer.
        """
        if self._state is _State.CLOSED:
            return
        self._state = _State.DRAINING
        self._pending.clear()
        self._allow(self._limits.linger_s)
        self._read_on()
        if self._transport.can_write_eof() and not self._peer_is_done:
            self._transport.write_eof()
        else:
            self._transport.close()

    def _next_request(self) -> None:
        """Go on with what a pipelining client has already sent."""
        if self._writing_paused or self._rest is not None or self._state is not _State.IDLE:
            return
        self._read_on()
        if self._pending:
            # By the loop, not by recursion: a client may pipeline thousands.
            asyncio.get_running_loop().call_soon(self._resume)

    def _rested(self) -> None:
        """Who was refused has been left alone for long enough."""
        self._rest = None
        if self._transport.is_closing():
            return
        if self._state is _State.SKIPPING:
            self._read_on()
        self._next_request()

    def _stop_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Read again if what is pending has become little, or is a head whose end is needed."""
        if self._reading_paused and (len(self._pending) <= _PIPELINED_BYTES or self._state is _State.HEAD):
            self._reading_paused = False
            self._transport.resume_reading()

    def _resume(self) -> None:
        if self._state is _State.IDLE and self._pending and not self._writing_paused:
            self._start_head()
            self._read_on()
            if self._peer_is_done:
                self._go_on_alone()

    def _go_on_alone(self) -> None:
        """What the client had sent when it closed its side has been taken."""
        if self._state is _State.ANSWERING:
            self._ask_after_peer()
        elif self._state in (_State.HEAD, _State.BODY, _State.CHUNKED) or not self._pending:
            self._transport.close()  # the rest will not come

    def _refuse(self, error: RequestError) -> None:
        self._respond(self._shared.handler.refuse(error, self._request), close=True)

    # -- the end

    def out_of_time(self) -> None:
        """The time for what the connection is doing is over."""
        limits = self._limits
        if (
            self._writing_paused
            or self._state in (_State.DRAINING, _State.CLOSED)
            or self._transport.is_closing()  # but waits for the client, to read what is left or to end TLS
        ):
            self.abort()
        elif self._state is _State.ANSWERING:
            if self._peer_is_gone():
                self.abort()
            else:
                self.give_up_s = self._shared.clock() + _LOOK_AFTER_PEER_S
        elif self._state in (_State.IDLE, _State.SKIPPING):
            self._transport.close()
            self.give_up_s = self._shared.clock() + limits.linger_s
        elif self._state is _State.HEAD:
            self._refuse(
                RequestError(ErrorKind.TIMED_OUT, f"the request's head did not come within {limits.head_timeout_s:g} s")
            )
        else:
            self._refuse(
                RequestError(ErrorKind.TIMED_OUT, f"the request's body did not come within {limits.body_timeout_s:g} s")
            )

    @property
    def waits_since_s(self) -> float:
        """Since when, on the server's clock, it has only waited for its client's next request, or for the rest of that
        one's head; infinite if it does anything else.
        """
        waits = self._state is _State.HEAD or (self._state is _State.IDLE and not self._pending)
        waits = waits and not self._writing_paused
        return self._arrival_s if waits else math.inf

    def give_place(self) -> None:
        """Another needs its place: end at once, with a word where a request has begun."""
        self._shared.open.discard(self)
        if self._state is _State.HEAD:
            message = "the request's head did not come yet, and others need this connection's place"
            self._refuse(RequestError(ErrorKind.TIMED_OUT, message))
        self.abort()

    def finish(self) -> None:
        """The server stops: close now if idle, else after the answer under way."""
        self._keep_alive = False
        if self._state in (_State.IDLE, _State.HEAD):
            self._transport.close()
        elif self._state is _State.SKIPPING:
            self._close_after_answer()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._transport.abort()


def aligned_buffer(length: int, json_bytes: int) -> memoryview:
    """`length` writable bytes in which what follows the JSON header, of so many bytes, starts at a multiple of 8.

    The memory is not touched: a client that announces much and sends little costs little.
    """
    lead = -json_bytes % _ALIGNMENT
    return np.empty(lead + length, np.uint8).data[lead:]
