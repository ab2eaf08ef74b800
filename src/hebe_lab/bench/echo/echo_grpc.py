"""One gRPC connection of the echo server: as much of HTTP/2 (RFC 9113) as answers a load generator.

It looks at the heads of frames and drops the megabytes between them: those of large frames in the kernel, those of
small ones after they were read in long strides. What clients may send without asking is as much as HTTP/2 allows, and
they are told so in large steps. Answers go out as far as the client's window of the connection lets them; windows of
single streams are taken to hold an answer of a kilobyte, as all clients' do.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping

from hebe.load_generator.discovery import GRPC_SERVICE
from hebe.load_generator.protobuf_wire import delimited
from hebe.load_generator.senders.grpc import http2_frames as h2
from hebe.load_generator.senders.grpc.connection import status_number
from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, Frame, Http2Error, Setting
from hebe.load_generator.senders.grpc.http2_headers import HeaderDecoder, HeaderEncoder, Headers
from hebe_lab.bench.echo.echo_model import REFUSAL, EchoModel

_STRIDE_BYTES = 1 << 19
_SCRATCH = memoryview(bytearray((1 << 24) + _STRIDE_BYTES))
"""Shared: what is not used up of a stride is set aside before the next connection's turn."""

_DROPPED_AT_ONCE_BYTES = 1 << 16
"""Of more than that the kernel drops the rest: less is read sooner than it is asked for."""

_INFER, _METADATA, _CONFIG = (GRPC_SERVICE + name for name in ("ModelInfer", "ModelMetadata", "ModelConfig"))
_ANSWER_HEADERS: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))


class _Call:
    """A request that has not ended; its message is kept if it is a short one that is to be looked at."""

    __slots__ = ("message", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.message = b""


class GrpcEcho:
    """One connection: drops the messages of inferences, answers at their end, `delay_s()` seconds later.

    `messages` are the answers by path; `max_frame_bytes` is how large frames the client is allowed to send.
    """

    def __init__(
        self,
        connection: socket.socket,
        model: EchoModel,
        messages: Mapping[str, bytes],
        delay_s: Callable[[], float],
        max_frame_bytes: int,
    ) -> None:
        self._socket = connection
        self._model, self._messages, self._delay_s = model, messages, delay_s
        self._max_frame_bytes = max_frame_bytes
        self._loop = asyncio.get_running_loop()
        self._encoder, self._decoder = HeaderEncoder(), HeaderDecoder()
        self._calls: dict[int, _Call] = {}
        self._greeted = False
        self._rest = b""
        self._missing, self._missing_ends = 0, 0
        self._dropped_bytes = 0
        self._block, self._block_ends = b"", False
        self._window_bytes = h2.DEFAULT_WINDOW_BYTES
        self._answers: deque[tuple[int, str, str, str]] = deque()
        self._outgoing = bytearray()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(connection, self._readable)
        settings = {
            Setting.INITIAL_WINDOW_SIZE: h2.MOST_WINDOW_BYTES,
            Setting.MAX_FRAME_SIZE: max_frame_bytes,
        }
        self._outgoing += h2.settings_frame(settings)
        self._outgoing += h2.window_update(0, h2.MOST_WINDOW_BYTES - h2.DEFAULT_WINDOW_BYTES)
        self._send()

    def close(self) -> None:
        """Hang up."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        self._calls.clear()
        self._answers.clear()

    # -- reading

    def _readable(self) -> None:
        try:
            if self._missing > _DROPPED_AT_ONCE_BYTES:
                received = self._socket.recv_into(_SCRATCH, self._missing, socket.MSG_TRUNC)
                self._missing -= received
            else:
                kept = len(self._rest)
                _SCRATCH[:kept] = self._rest
                received = self._socket.recv_into(_SCRATCH[kept:], _STRIDE_BYTES)
                if received:
                    self._walk(kept + received)
            if not received:
                self.close()
                return
            if not self._missing and self._missing_ends:
                stream, self._missing_ends = self._missing_ends, 0
                self._ended(stream)
        except BlockingIOError:
            return
        except Http2Error as fault:
            self._outgoing += h2.goaway(0, fault.code, str(fault))
            self._send()
            self.close()
        except OSError:
            self.close()
        else:
            self._send()

    def _walk(self, size_bytes: int) -> None:
        """Go from frame to frame through what was read; what is not whole yet is kept. Raises `Http2Error`."""
        at = 0
        if not self._greeted:
            if size_bytes < len(h2.PREFACE):
                self._rest = bytes(_SCRATCH[:size_bytes])
                return
            at = len(h2.PREFACE)
            if _SCRATCH[:at] != h2.PREFACE:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "not HTTP/2")
            self._greeted = True
        self._rest = b""
        while True:
            if self._missing:
                skipped = min(self._missing, size_bytes - at)
                at += skipped
                self._missing -= skipped
                if self._missing:
                    return
                if self._missing_ends:
                    stream, self._missing_ends = self._missing_ends, 0
                    self._ended(stream)
            if size_bytes - at < h2.HEAD_BYTES:
                break
            payload_bytes, kind, flags, stream = h2.parse_frame_head(_SCRATCH, at)
            if payload_bytes > self._max_frame_bytes:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {payload_bytes:,} bytes")
            if kind == h2.DATA:
                call = self._calls.get(stream)
                if call is None or call.path == _INFER:
                    self._count(payload_bytes)
                    at += h2.HEAD_BYTES
                    self._missing = payload_bytes
                    self._missing_ends = stream if flags & h2.END_STREAM else 0
                    if not payload_bytes and self._missing_ends:
                        self._missing_ends = 0
                        self._ended(stream)
                    continue
            end = at + h2.HEAD_BYTES + payload_bytes
            if end > size_bytes:
                break
            self._take(Frame(kind, flags, stream, bytes(_SCRATCH[at + h2.HEAD_BYTES : end])))
            at = end
        self._rest = bytes(_SCRATCH[at:size_bytes])

    def _count(self, payload_bytes: int) -> None:
        """So much more has come; the client may send it again when half of all is used up."""
        self._dropped_bytes += payload_bytes
        if self._dropped_bytes > h2.MOST_WINDOW_BYTES // 2:
            self._outgoing += h2.window_update(0, self._dropped_bytes)
            self._dropped_bytes = 0

    def _take(self, frame: Frame) -> None:
        kind, flags = frame.kind, frame.flags
        if kind == h2.DATA and (call := self._calls.get(frame.stream)) is not None:
            self._count(len(frame.payload))
            call.message += h2.unpadded(frame)
            if flags & h2.END_STREAM:
                self._ended(frame.stream)
        elif kind in (h2.HEADERS, h2.CONTINUATION):
            if kind == h2.HEADERS:
                self._block, self._block_ends = h2.unpadded(frame), bool(flags & h2.END_STREAM)
            else:
                self._block += frame.payload
            if flags & h2.END_HEADERS:
                path = dict(self._decoder.decode(self._block)).get(b":path", b"").decode("latin-1")
                self._calls.setdefault(frame.stream, _Call(path))
                if self._block_ends:
                    self._ended(frame.stream)
        elif kind == h2.SETTINGS and not flags & h2.ACK:
            for number, value in h2.parse_settings(frame):
                if number == Setting.HEADER_TABLE_SIZE:
                    self._encoder.resize(value)
            self._outgoing += h2.settings_ack()
        elif kind == h2.PING and not flags & h2.ACK:
            self._outgoing += h2.frame(h2.PING, h2.ACK, 0, frame.payload)
        elif kind == h2.WINDOW_UPDATE and not frame.stream:
            self._window_bytes += h2.parse_number(frame)
            self._answer_more()
        elif kind == h2.RST_STREAM:
            self._calls.pop(frame.stream, None)

    # -- answering

    def _ended(self, stream: int) -> None:
        """A request is whole."""
        call = self._calls.get(stream)
        if call is None:
            return
        if call.path == _INFER:
            refused = self._model.status != 200
            code, said = ("UNAVAILABLE", REFUSAL) if refused else ("OK", "")
            delay_s = self._delay_s()
            if delay_s > 0:
                self._loop.call_later(delay_s, self._answer_late, stream, call.path, code, said)
                return
        elif call.path not in self._messages:
            code, said = "UNIMPLEMENTED", "unknown method"
        elif call.path == _METADATA and delimited(1, self._model.name) not in call.message:
            code, said = "NOT_FOUND", "unknown model"
        else:
            code, said = "OK", ""
        self._answer(stream, call.path, code, said)

    def _answer_late(self, stream: int, path: str, code: str, said: str) -> None:
        self._answer(stream, path, code, said)
        self._send()

    def _answer(self, stream: int, path: str, code: str, said: str) -> None:
        if self._calls.pop(stream, None) is not None:
            self._answers.append((stream, path, code, said))
            self._answer_more()

    def _answer_more(self) -> None:
        """Answer, in order, as far as the client's window goes."""
        while self._answers:
            stream, path, code, said = self._answers[0]
            message = self._messages[path] if code == "OK" else b""
            body = b"\0" + len(message).to_bytes(4, "big") + message if code == "OK" else b""
            if len(body) > self._window_bytes:
                return
            self._answers.popleft()
            self._window_bytes -= len(body)
            trailers = ((b"grpc-status", b"%d" % status_number(code)), (b"grpc-message", said.encode()))
            if body:
                self._outgoing += h2.header_frames(stream, self._encoder.encode(_ANSWER_HEADERS), False)
                for at in range(0, len(body), h2.DEFAULT_MAX_FRAME_BYTES):
                    self._outgoing += h2.frame(h2.DATA, 0, stream, body[at : at + h2.DEFAULT_MAX_FRAME_BYTES])
                self._outgoing += h2.header_frames(stream, self._encoder.encode(trailers), True)
            else:
                block = self._encoder.encode((*_ANSWER_HEADERS, *trailers))
                self._outgoing += h2.header_frames(stream, block, True)

    def _send(self) -> None:
        if not self._outgoing or self._socket.fileno() < 0:
            return
        try:
            del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._outgoing:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self._send()


def grpc_answers(model: EchoModel) -> dict[str, bytes]:
    """Messages that a model's calls are answered with, by path."""
    return {_INFER: model.infer_message(), _METADATA: model.metadata_message(), _CONFIG: model.config_message()}
