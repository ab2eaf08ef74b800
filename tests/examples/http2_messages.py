"""gRPC calls frame by frame over HTTP/2: with messages that are never whole, and with answers that are never read."""

from __future__ import annotations

import socket
import struct
import time
from abc import ABC, abstractmethod

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4
_REFUSED_STREAM = 7
_MOST_FRAME_BYTES = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """As HPACK writes it without tables and Huffman's code; both shorter than 127."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def _head(method: bytes) -> bytes:
    """The headers of a call."""
    return b"".join(
        _header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )


class _Connection(ABC):
    """A connection to `host:port`; what comes on it goes to `_take`."""

    def __init__(self, url: str, settings: bytes = b"", *, answers_pings: bool = True) -> None:
        self._answers_pings = answers_pings
        host, port = url.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings))
        self._received = b""

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _receive(self, wait_s: float) -> None:
        """Take in what the server says within `wait_s`. Raises EOFError where it has closed the connection."""
        self._socket.settimeout(wait_s)
        try:
            received = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        finally:
            self._socket.settimeout(60)
        if not received:
            raise EOFError
        self._received += received
        while len(self._received) >= 9:
            end = 9 + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                return
            kind, flags, call = struct.unpack(">xxxBBI", self._received[:9])
            payload, self._received = self._received[9:end], self._received[end:]
            if kind == _PING and not flags & _ACK and self._answers_pings:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            self._take(kind, flags, call, payload)
            if kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0))

    @abstractmethod
    def _take(self, kind: int, flags: int, call: int, payload: bytes) -> None:
        """What this kind of client does with a frame."""


class HalfMessages(_Connection):
    """Calls that each announce a message of `message_bytes` and stop one byte before its end."""

    def __init__(self, url: str, message_bytes: int) -> None:
        super().__init__(url)
        self._message_bytes = message_bytes
        self._stream_window = self._window = 65_535  # as HTTP/2 begins
        self._windows: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        """Bytes that went out, by call that is under way."""
        self.sent_ever: dict[int, int] = {}
        """The same of all calls, those that have ended too."""
        self.ended = 0
        """Calls that the server has ended."""

    def __enter__(self) -> HalfMessages:
        return self

    def begin(self, method: str, calls: int = 1) -> None:
        """Begin so many calls more of `/service/method`."""
        for _ in range(calls):
            call = 2 * (len(self.sent) + self.ended) + 1
            self._socket.sendall(_frame(_HEADERS, _END_HEADERS, call, _head(method.encode())))
            self._windows[call] = self._stream_window
            self.sent[call] = 0

    def go_on(self, wait_s: float = 0.02) -> None:
        """Send what the windows allow, and take in what the server says within `wait_s`."""
        for call, sent in self.sent.items():
            end = min(self._message_bytes + 4, sent + self._windows[call], sent + self._window)
            self._window -= end - sent
            self._windows[call] -= end - sent
            while sent < end:
                size = min(end - sent, _MOST_FRAME_BYTES)
                start = (b"\x00" + struct.pack(">I", self._message_bytes))[sent:]  # what a window had no room for
                self._socket.sendall(_frame(_DATA, 0, call, (start + bytes(size))[:size]))
                sent += size
            self.sent[call] = sent
            self.sent_ever[call] = sent
        self._receive(wait_s)

    def _take(self, kind: int, flags: int, call: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    for each in self._windows:
                        self._windows[each] += value - self._stream_window
                    self._stream_window = value
        elif kind == _WINDOW_UPDATE and call == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == _WINDOW_UPDATE and call in self._windows:
            self._windows[call] += int.from_bytes(payload, "big")
        elif kind in (_HEADERS, _RST_STREAM) and self.sent.pop(call, None) is not None:
            del self._windows[call]
            self.ended += 1

    def go_on_until(self, condition) -> None:
        """Go on until `condition()`, for a minute at most."""
        end_s = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end_s, "did not happen within a minute"
            self.go_on()


class UnreadAnswers(_Connection):
    """Calls with whole messages, whose answers have no window to come in."""

    def __init__(self, url: str, *, answers_pings: bool = True) -> None:
        super().__init__(url, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0), answers_pings=answers_pings)
        self._calls = 0
        self._answered: set[int] = set()
        self._refused: set[int] = set()

    def __enter__(self) -> UnreadAnswers:
        return self

    def ask(self, method: str, message: bytes = b"") -> bool:
        """Call `/service/method`, whose request stays open; whether it was answered, rather than refused by gRPC."""
        call = 2 * self._calls + 1
        self._calls += 1
        data = b"\x00" + struct.pack(">I", len(message)) + message
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, call, _head(method.encode())) + _frame(_DATA, 0, call, data)
        )
        end_s = time.monotonic() + 60
        while call not in self._answered | self._refused:
            assert time.monotonic() < end_s, "neither within a minute"
            self._receive(0.02)
        return call in self._answered

    def wait(self) -> None:
        """Wait a minute for whatever comes."""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            self._receive(0.1)

    def _take(self, kind: int, flags: int, call: int, payload: bytes) -> None:  # noqa: ARG002
        if kind == _HEADERS:
            self._answered.add(call)
        elif kind == _RST_STREAM and int.from_bytes(payload, "big") == _REFUSED_STREAM:
            self._refused.add(call)
