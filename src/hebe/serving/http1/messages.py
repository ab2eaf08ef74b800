"""HTTP requests and responses as handlers see them, and the limits that both ends keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hebe.serving.requests.errors import ErrorKind, RequestError

JSON_LENGTH_HEADER = b"inference-header-content-length"
"""How many bytes at the start of a body are JSON; raw tensors follow."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a connection may cost. Times in seconds.

    `max_json_bytes` bounds the JSON of a request, the tensors behind a JSON header not counted: reading JSON keeps all
    other queries waiting, 10 to 15 ms for each megabyte of numbers, 25 to 85 of small lists and members, of which there
    may not be as many (`http.infer_codec.parse_json_object`).
    """

    max_request_bytes: int = 64 * 1024 * 1024
    max_json_bytes: int = 8 * 1024 * 1024
    max_head_bytes: int = 64 * 1024
    max_connections: int = 1024
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    linger_s: float = 2.0

    @property
    def max_turned_away(self) -> int:
        """Connections beyond `max_connections` that may stay open for `linger_s`, to read that there are too many."""
        return max(self.max_connections // 16, 1)


LINK_BYTES_PER_S = 125e6
"""1 Gbit/s. Of the time that a request takes to come no more counts than it would at this rate: the rest is the doing
of its client, or of the way from there, and no server would be in time then."""


@dataclass(slots=True)
class HttpRequest:
    """One request. Header names are lower-case bytes; `body` is empty until it has been read.

    `arrival_s` is when the first byte of the request was read, on the server's clock; later where its client sent it
    more slowly than `LINK_BYTES_PER_S`. `peer` is the client's address.
    `route` and `most_bytes` are the handler's: what `screen` found, for `answer`, and the longest body that it takes,
    where that is less than the limits say.
    """

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    arrival_s: float
    peer: str
    version: str = "1.1"
    route: Any = None
    most_bytes: int | None = None
    body: memoryview = field(default_factory=lambda: memoryview(b""))

    def header(self, name: bytes) -> str | None:
        """The header `name` (lower-case) as text, or None."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()


@dataclass(slots=True)
class HttpResponse:
    """Status, body and headers of an answer; lengths and dates are the connection's business.

    `rest_s`: for how long the client is not listened to then, where the connection stays open.
    """

    status: int
    body: bytes = b""
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    rest_s: float = 0.0


def refusal_headers(error: RequestError) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that the answer to what is refused needs."""
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after_s > 0:
        headers.append((b"retry-after", str(math.ceil(min(error.retry_after_s, 3600.0))).encode()))
    if error.kind is ErrorKind.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.kind is ErrorKind.WRONG_METHOD:
        headers.append((b"allow", error.message.rpartition("use ")[2].encode()))
    return tuple(headers)


class Handler(Protocol):
    """What a connection asks of the application."""

    def screen(self, head: HttpRequest) -> HttpResponse | None:
        """The answer to a request whose body is not worth reading, or None to read it."""

    def preview(self, request: HttpRequest, start: memoryview) -> HttpResponse | None:
        """The answer to a request of which only the `start`, its JSON header, has come, or None to read the rest."""

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The answer to a whole request; never raises but CancelledError."""

    def refuse(self, error: RequestError, head: HttpRequest | None) -> HttpResponse:
        """The answer to what is not a proper request, or took too much or too long."""
