"""What a gRPC call ended with, as the protocol puts it into HTTP/2.

Specification: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, and beside it
`http-grpc-status-mapping.md` for answers of servers and proxies that do not speak gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from hebe.load_generator.senders.grpc.http2_frames import ErrorCode

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
