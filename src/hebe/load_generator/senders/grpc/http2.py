r"""The client's side of one HTTP/2 connection (RFC 9113), without a socket.

    open_stream, reset_stream, go_away -> \
                                           state: settings, windows, streams -> take_buffers() -> transport
    bytes of the peer -> receive(data) -> /                                  -> events -> whoever asked

Many requests with megabytes each share a connection, so whatever is sent goes as far as the peer's windows let it and
goes on when these open: streams in the order in which they were opened, past those whose own window is shut.

An `OutgoingMessage`'s buffers are cut where a frame or a window ends, and never copied. An `Event` is what the
connection makes of the bytes that it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hebe.load_generator.senders.grpc import http2_frames as h2
from hebe.load_generator.senders.grpc.http2_frames import (
    DATA,
    END_STREAM,
    ErrorCode,
    Frame,
    Http2Error,
    Setting,
    frame_head,
)
from hebe.load_generator.senders.grpc.http2_headers import HeaderDecoder, HeaderEncoder, Headers

STREAM_WINDOW_BYTES = 16 << 20
CONNECTION_WINDOW_BYTES = 1 << 30
"""So much the peer may send before it hears from us: it hears when half is used."""

MOST_HEADER_BYTES = 1 << 16
"""Of one header block, and of the list that it stands for."""


class _Stream:
    """A stream that the peer has not ended."""

    __slots__ = ("message", "received_bytes", "window_bytes")

    def __init__(self, message: OutgoingMessage, window_bytes: int) -> None:
        self.message = message
        self.window_bytes = window_bytes
        self.received_bytes = 0


class Http2Connection:
    """All that the two ends have told each other; `headers` are those of every request."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._encoder, self._decoder = HeaderEncoder(), HeaderDecoder()
        self._reader = h2.FrameReader()
        self._streams: dict[int, _Stream] = {}
        self._sending: dict[int, _Stream] = {}
        self._next_stream = 1
        self._window_bytes = self._stream_window_bytes = h2.DEFAULT_WINDOW_BYTES
        self._max_frame_bytes = h2.DEFAULT_MAX_FRAME_BYTES
        self._most_streams = h2.MOST_STREAM
        self._received_bytes = 0
        self._header_frame: Frame | None = None
        self._header_block = b""
        self._settled = self._spent = self._broken = False
        ours = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
        }
        self._control: list[Buffer] = [
            h2.PREFACE + h2.settings_frame(ours),
            h2.window_update(0, CONNECTION_WINDOW_BYTES - h2.DEFAULT_WINDOW_BYTES),
        ]

    # -- asking

    @property
    def room(self) -> int:
        """How many further streams may be opened now."""
        return 0 if self.spent else max(self._most_streams - len(self._streams), 0)

    @property
    def spent(self) -> bool:
        """Whether no stream will ever be opened any more: the peer said so, or all their numbers are used."""
        return self._spent or self._next_stream > h2.MOST_STREAM

    def open_stream(self, body: Sequence[Buffer]) -> int:
        """Send a request with `body`, of one byte at least, which must stay as it is; there must be room.

        Returns the stream, by which events tell of it.
        """
        assert self.room, "a stream opened beyond what the peer allows"
        number, self._next_stream = self._next_stream, self._next_stream + 2
        stream = _Stream(OutgoingMessage(body), self._stream_window_bytes)
        self._streams[number] = self._sending[number] = stream
        block = self._encoder.encode(self._headers)
        self._control.append(h2.header_frames(number, block, False, self._max_frame_bytes))
        return number

    def reset_stream(self, number: int, code: ErrorCode) -> None:
        """End the stream, if it is not over; no event tells of it any more."""
        if self._streams.pop(number, None) is not None:
            self._sending.pop(number, None)
            self._control.append(h2.rst_stream(number, code))

    def go_away(self) -> None:
        """Say goodbye; whoever does so closes the connection."""
        self._control.append(h2.goaway(0, ErrorCode.NO_ERROR))
        self._end_all()

    def take_buffers(self, most_bytes: int) -> list[Buffer]:
        """What is to be sent now, about `most_bytes` at most; nothing if the peer's windows are shut."""
        out, self._control = self._control, []
        left = most_bytes
        done = []
        for number, stream in self._sending.items():
            allowed = min(left, self._window_bytes)
            if allowed <= 0:
                break
            allowed = min(allowed, stream.window_bytes)
            if allowed <= 0:
                continue
            cut_bytes = stream.message.cut(number, allowed, self._max_frame_bytes, out)
            left -= cut_bytes
            self._window_bytes -= cut_bytes
            stream.window_bytes -= cut_bytes
            if not stream.message.unsent_bytes:
                done.append(number)
        for number in done:
            del self._sending[number]
        return out

    # -- hearing

    def receive(self, data: bytes) -> list[Event]:
        """What `data` tells. Never raises: what is not HTTP/2 is told as `ConnectionBroken`."""
        events: list[Event] = []
        if self._broken:
            return events
        try:
            for frame in self._reader.feed(data):
                self._take(frame, events)
        except Http2Error as fault:
            self._control.append(h2.goaway(0, fault.code, str(fault)))
            self._end_all()
            self._broken = True
            events.append(ConnectionBroken(str(fault)))
        return events

    def _end_all(self) -> None:
        self._streams.clear()
        self._sending.clear()
        self._spent = True

    def _take(self, frame: Frame, events: list[Event]) -> None:
        kind = frame.kind
        if not self._settled and (kind != h2.SETTINGS or frame.flags & h2.ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "it does not begin with its settings")
        if self._header_frame is not None and (kind != h2.CONTINUATION or frame.stream != self._header_frame.stream):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "another frame between those of a header block")
        if kind == h2.DATA:
            self._take_data(frame, events)
        elif kind == h2.HEADERS:
            self._header_block = h2.unpadded(frame)
            self._take_header_block(frame, frame, events)
        elif kind == h2.CONTINUATION:
            if self._header_frame is None:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block that goes on without having begun")
            self._header_block += frame.payload
            self._take_header_block(self._header_frame, frame, events)
        elif kind == h2.WINDOW_UPDATE:
            self._take_window_update(frame, events)
        elif kind == h2.SETTINGS:
            self._take_settings(frame, events)
        elif kind == h2.PING:
            self._take_ping(frame)
        elif kind == h2.RST_STREAM:
            self._take_reset(frame, events)
        elif kind == h2.GOAWAY:
            self._take_goaway(frame, events)
        elif kind == h2.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a push, which the settings forbid")
        # PRIORITY, and kinds that nobody knows (section 5.5), change nothing.

    def _open(self, frame: Frame) -> _Stream | None:
        """The stream of a frame, None if it is over; of those, frames may still come. Raises `Http2Error`."""
        number = frame.stream
        if not number % 2 or number >= self._next_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame of kind {frame.kind} on stream {number}")
        return self._streams.get(number)

    def _take_data(self, frame: Frame, events: list[Event]) -> None:
        stream = self._open(frame)
        data = h2.unpadded(frame)
        # Padding counts, and what comes for streams that are over does.
        size_bytes = len(frame.payload)
        self._received_bytes += size_bytes
        if self._received_bytes > CONNECTION_WINDOW_BYTES // 2:
            self._control.append(h2.window_update(0, self._received_bytes))
            self._received_bytes = 0
        if stream is None:
            return
        ended = bool(frame.flags & h2.END_STREAM)
        stream.received_bytes += size_bytes
        if not ended and stream.received_bytes > STREAM_WINDOW_BYTES // 2:
            self._control.append(h2.window_update(frame.stream, stream.received_bytes))
            stream.received_bytes = 0
        if ended:
            self._end_stream(frame.stream)
        events.append(DataReceived(frame.stream, data, ended))

    def _take_header_block(self, first: Frame, last: Frame, events: list[Event]) -> None:
        """A block that began with `first`, as far as `last`."""
        if len(self._header_block) > MOST_HEADER_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {MOST_HEADER_BYTES:,} bytes")
        if not last.flags & h2.END_HEADERS:
            self._header_frame = first
            return
        self._header_frame = None
        stream = self._open(first)
        # Also where nobody waits for it: the table that it changes is that of all streams.
        headers = self._decoder.decode(self._header_block)
        if stream is not None:
            ended = bool(first.flags & h2.END_STREAM)
            if ended:
                self._end_stream(first.stream)
            events.append(HeadersReceived(first.stream, headers, ended))

    def _end_stream(self, number: int) -> None:
        """The peer has answered. What it has not waited for it need not get (section 8.1)."""
        del self._streams[number]
        if self._sending.pop(number, None) is not None:
            self._control.append(h2.rst_stream(number, ErrorCode.NO_ERROR))

    def _take_reset(self, frame: Frame, events: list[Event]) -> None:
        stream, code = self._open(frame), h2.parse_number(frame)
        if stream is not None:
            del self._streams[frame.stream]
            self._sending.pop(frame.stream, None)
            events.append(StreamReset(frame.stream, code))

    def _take_window_update(self, frame: Frame, events: list[Event]) -> None:
        size_bytes = h2.parse_number(frame) & h2.MOST_WINDOW_BYTES
        if not frame.stream:
            self._window_bytes += size_bytes
            if not size_bytes or self._window_bytes > h2.MOST_WINDOW_BYTES:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window that opens by {size_bytes:,} bytes")
            return
        stream = self._open(frame)
        if stream is None:
            return
        stream.window_bytes += size_bytes
        if not size_bytes or stream.window_bytes > h2.MOST_WINDOW_BYTES:
            code = ErrorCode.FLOW_CONTROL_ERROR if size_bytes else ErrorCode.PROTOCOL_ERROR
            self.reset_stream(frame.stream, code)
            events.append(StreamReset(frame.stream, code))

    def _take_settings(self, frame: Frame, events: list[Event]) -> None:
        if frame.stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"settings on stream {frame.stream}")
        if frame.flags & h2.ACK:
            return
        for number, value in h2.parse_settings(frame):
            if number == Setting.HEADER_TABLE_SIZE:
                self._encoder.resize(value)
            elif number == Setting.MAX_CONCURRENT_STREAMS:
                self._most_streams = value
            elif number == Setting.MAX_FRAME_SIZE:
                if not h2.DEFAULT_MAX_FRAME_BYTES <= value <= h2.MOST_MAX_FRAME_BYTES:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value:,} bytes at most")
                self._max_frame_bytes = value
            elif number == Setting.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
        self._settled = True
        self._control.append(h2.settings_ack())
        events.append(SettingsReceived())

    def _resize_windows(self, size_bytes: int) -> None:
        """Streams begin with that window, and those that are open with so much more or less (section 6.9.2)."""
        change_bytes = size_bytes - self._stream_window_bytes
        self._stream_window_bytes = size_bytes
        for stream in self._streams.values():
            stream.window_bytes += change_bytes
        if max([size_bytes, *(each.window_bytes for each in self._streams.values())]) > h2.MOST_WINDOW_BYTES:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"windows of {size_bytes:,} bytes at first")

    def _take_ping(self, frame: Frame) -> None:
        if frame.stream or len(frame.payload) != 8:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a ping on a stream, or not of 8 bytes")
        if not frame.flags & h2.ACK:
            self._control.append(h2.frame(h2.PING, h2.ACK, 0, frame.payload))

    def _take_goaway(self, frame: Frame, events: list[Event]) -> None:
        last_stream, code, message = h2.parse_goaway(frame)
        self._spent = True
        lost = tuple(number for number in self._streams if number > last_stream)
        for number in lost:
            del self._streams[number]
            self._sending.pop(number, None)
        events.append(GoAwayReceived(code, message, lost))


@dataclass(frozen=True, slots=True)
class SettingsReceived:
    """The peer told its settings; the first time, it speaks HTTP/2. Streams that may be opened can be more now."""


@dataclass(frozen=True, slots=True)
class HeadersReceived:
    """Headers or trailers of an answer; with `ended`, its last, and the stream is over."""

    stream: int
    headers: Headers
    ended: bool


@dataclass(frozen=True, slots=True)
class DataReceived:
    """A piece of an answer's body; with `ended`, its last, and the stream is over."""

    stream: int
    data: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer ended the stream with an error code, which may be one that nobody knows."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class GoAwayReceived:
    """The peer takes no further streams. Those in `lost` it has not looked at and never will; others go on."""

    code: int
    message: str
    lost: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """The peer broke the protocol: all streams are over, and what else it sends is ignored. `message` says how."""

    message: str


Event = SettingsReceived | HeadersReceived | DataReceived | StreamReset | GoAwayReceived | ConnectionBroken


Buffer = bytes | memoryview


class OutgoingMessage:
    """The body of one stream, and how far it has been sent; `unsent_bytes` are left."""

    __slots__ = ("_at", "_part", "_parts", "unsent_bytes")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        """`parts` follow one another, items of one byte each; one at least is not empty."""
        self._parts = parts
        self._part = self._at = 0
        self.unsent_bytes = sum(map(len, parts))

    def cut(self, stream: int, allowed_bytes: int, max_frame_bytes: int, out: list[Buffer]) -> int:
        """Append to `out` the next DATA frames of `stream`, as far as `allowed_bytes` of payload go.

        Returns how many bytes of payload that is. The last frame of the message ends the stream.
        """
        parts, part, at = self._parts, self._part, self._at
        cut_bytes = min(allowed_bytes, self.unsent_bytes)
        left, ends = cut_bytes, cut_bytes == self.unsent_bytes
        # All frames but the last have the same head: a hundred of them at the size that every peer takes.
        full_head = frame_head(max_frame_bytes, DATA, 0, stream)
        while left:
            missing = max_frame_bytes
            if left > max_frame_bytes:
                out.append(full_head)
            else:
                missing = left
                out.append(frame_head(left, DATA, END_STREAM if ends else 0, stream))
            left -= missing
            while missing:
                buffer = parts[part]
                available = len(buffer) - at
                if available > missing:
                    out.append(buffer[at : at + missing])
                    at += missing
                    break
                if available:
                    out.append(buffer[at:] if at else buffer)
                    missing -= available
                part, at = part + 1, 0
        self._part, self._at = part, at
        self.unsent_bytes -= cut_bytes
        return cut_bytes
