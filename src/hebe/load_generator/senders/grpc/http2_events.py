"""What an HTTP/2 connection tells of the bytes that it was given."""

from __future__ import annotations

from dataclasses import dataclass

from hebe.load_generator.senders.grpc.http2_headers import Headers


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
