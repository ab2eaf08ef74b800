"""HTTP/2's frames (RFC 9113, sections 4, 6 and 7): their bytes, and nothing of what they mean together.

A frame is a head of nine bytes, which tells its size, kind, flags and stream, and a payload. Both ends of a load test
are built on it: the sender's connection, and the echo server that it is measured against.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its first frame (section 3.4)."""

HEAD_BYTES = 9
DEFAULT_MAX_FRAME_BYTES = 1 << 14
"""The largest payload that any peer takes; it may allow up to `MOST_MAX_FRAME_BYTES` by its settings."""
MOST_MAX_FRAME_BYTES = (1 << 24) - 1
DEFAULT_WINDOW_BYTES = (1 << 16) - 1
MOST_WINDOW_BYTES = MOST_STREAM = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""Kinds of frames."""

END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
"""Flags."""

_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")


class Setting(IntEnum):
    """Numbers of the settings (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Http2Error(Exception):
    """The peer broke the protocol in a way that ends the connection; `code` is what it is to be told."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameHead(NamedTuple):
    """What stands before a payload of `size_bytes` bytes."""

    size_bytes: int
    kind: int
    flags: int
    stream: int


class Frame(NamedTuple):
    """A whole frame as it came: padding and all."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame_head(size_bytes: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload."""
    return _HEAD.pack(size_bytes >> 8, size_bytes & 0xFF, kind, flags, stream)


def parse_frame_head(buffer: bytes | bytearray | memoryview, at: int = 0) -> FrameHead:
    """The head that begins at byte `at`; nine bytes must be there."""
    high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
    return FrameHead(high << 8 | low, kind, flags, stream & MOST_STREAM)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings_frame(settings: Mapping[Setting, int]) -> bytes:
    """SETTINGS; what is not in `settings` stays as it was."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings.items()))


def settings_ack() -> bytes:
    """What a peer's SETTINGS are answered with."""
    return frame(SETTINGS, ACK, 0, b"")


def window_update(stream: int, size_bytes: int) -> bytes:
    """WINDOW_UPDATE: the peer may send so many bytes more, on `stream`, or on all together if that is 0."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(size_bytes))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """RST_STREAM: the stream ends here."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last_stream: int, code: ErrorCode, message: str = "") -> bytes:
    """GOAWAY: of the peer's streams, none after `last_stream` is looked at."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last_stream) + _NUMBER.pack(code) + message.encode()[:1000])


def header_frames(stream: int, block: bytes, ends: bool, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> bytes:
    """HEADERS with `block`, and CONTINUATION for as much of it as does not fit; with `ends`, the stream's last."""
    pieces = [block[at : at + max_frame_bytes] for at in range(0, len(block), max_frame_bytes)] or [b""]
    out = []
    for number, piece in enumerate(pieces):
        flags = END_HEADERS if number == len(pieces) - 1 else 0
        if number:
            out.append(frame(CONTINUATION, flags, stream, piece))
        else:
            out.append(frame(HEADERS, flags | (END_STREAM if ends else 0), stream, piece))
    return b"".join(out)


def unpadded(received: Frame) -> bytes:
    """The payload of DATA or HEADERS without padding and priority. Raises `Http2Error`."""
    payload, flags = received.payload, received.flags
    start, padding_bytes = 0, 0
    if flags & PADDED:
        start, padding_bytes = 1, payload[0] if payload else 0
    if flags & WITH_PRIORITY and received.kind == HEADERS:
        start += 5
    if start + padding_bytes > len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame of more padding than payload")
    return payload[start : len(payload) - padding_bytes]


def parse_number(received: Frame) -> int:
    """The 32 bits of RST_STREAM or WINDOW_UPDATE. Raises `Http2Error`."""
    if len(received.payload) != 4:
        raise Http2Error(
            ErrorCode.FRAME_SIZE_ERROR, f"frame of kind {received.kind} with {len(received.payload)} bytes"
        )
    number: int = _NUMBER.unpack(received.payload)[0]
    return number


def parse_settings(received: Frame) -> list[tuple[int, int]]:
    """Number and value of each setting, in order, unknown ones too. Raises `Http2Error`."""
    if len(received.payload) % _SETTING.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(received.payload)} bytes")
    return list(_SETTING.iter_unpack(received.payload))


def parse_goaway(received: Frame) -> tuple[int, int, str]:
    """The last stream that is looked at, the code, and what else is said. Raises `Http2Error`."""
    payload = received.payload
    if len(payload) < 8:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last_stream, code = struct.unpack_from(">LL", payload)
    return last_stream & MOST_STREAM, code, payload[8:].decode("utf-8", "replace")


class FrameReader:
    """Finds frames in a stream of bytes, in whatever pieces these come."""

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises `Http2Error` after these if the next one is larger than allowed."""
        data = self._rest + data if self._rest else data
        at, size_bytes = 0, len(data)
        try:
            while size_bytes - at >= HEAD_BYTES:
                head = parse_frame_head(data, at)
                if head.size_bytes > self._max_frame_bytes:
                    message = f"a frame of {head.size_bytes:,} bytes, where {self._max_frame_bytes:,} are allowed"
                    raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, message)
                end = at + HEAD_BYTES + head.size_bytes
                if end > size_bytes:
                    break
                found = Frame(head.kind, head.flags, head.stream, data[at + HEAD_BYTES : end])
                at = end
                yield found
        finally:
            self._rest = data[at:]
