"""An HTTP request as llhttp (`httptools`) parses it: request line and headers, and a body in chunks.

A head that comes again and again is parsed once. Chunked bodies are bounded in what they carry and in what frames it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import httptools

from hebe.serving.http1.messages import JSON_LENGTH_HEADER
from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError
from hebe.serving.requests.memo import Repeated

_MAX_HEADER_LINES = 100
_MOST_KEPT = 1024
_MOST_KEPT_BYTES = 2048


class Head(NamedTuple):
    """A request without its body. Header names are lower-case bytes.

    `length`: of the body in bytes, -1 if its header is no whole number. `json_bytes`: of the JSON at its start, 0 where
    there is no header that says so, or it says no number: the handler says what is wrong.
    """

    method: str
    path: str
    query: str
    version: str
    headers: Mapping[bytes, bytes]
    keep_alive: bool
    length: int
    json_bytes: int


class Heads:
    """Those of all connections of a server."""

    def __init__(self) -> None:
        self._repeated: Repeated[Head] = Repeated(_MOST_KEPT, _MOST_KEPT_BYTES)

    def read(self, text: bytes) -> Head:
        """The head in `text`, which ends with an empty line. Raises `RequestError`."""
        head = self._repeated.find(text)
        if head is None:
            parser = _Parser()
            try:
                head = parser.parse(text)
            finally:
                parser.close()
            if self._repeated.comes_again(text):
                self._repeated.keep(text, head)
        return head


class _Parser:
    """Takes what llhttp finds in one head."""

    def __init__(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_lines = 0
        self._keep_alive = True
        self._llhttp = httptools.HttpRequestParser(self)

    def parse(self, text: bytes) -> Head:
        """As `Heads.read`."""
        try:
            self._llhttp.feed_data(text)
        except httptools.HttpParserUpgrade:
            pass  # an offer of another protocol, which a server may ignore
        except httptools.HttpParserError as fault:
            raise RequestError(ErrorKind.INVALID, f"not an HTTP/1.1 request: {fault}") from None
        if self._header_lines > _MAX_HEADER_LINES:
            message = f"the request has more than {_MAX_HEADER_LINES} headers"
            raise RequestError(ErrorKind.HEAD_TOO_LARGE, message)
        version = self._llhttp.get_http_version()
        if version not in ("1.0", "1.1"):
            message = f"HTTP/{version} is not spoken here; use HTTP/1.1 (gRPC has a port of its own)"
            raise RequestError(ErrorKind.INVALID, message)
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            try:
                parsed = httptools.parse_url(self._url)
                path, query = parsed.path or b"/", parsed.query or b""
            except httptools.HttpParserInvalidURLError:
                path = b"/"
        return Head(
            self._llhttp.get_method().decode("latin-1"),
            path.decode("latin-1"),
            query.decode("latin-1"),
            version,
            self._headers,
            self._keep_alive,
            _number(self._headers.get(b"content-length", b"0")),
            max(_number(self._headers.get(JSON_LENGTH_HEADER, b"")), 0),
        )

    def close(self) -> None:
        """Let go of llhttp, which holds this in turn: for the garbage collector it would be work with each head."""
        del self._llhttp

    def on_url(self, url: bytes) -> None:
        """Called by llhttp."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by llhttp."""
        self._header_lines += 1
        if self._header_lines > _MAX_HEADER_LINES:
            return
        name = name.lower()
        known = self._headers.get(name)
        self._headers[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        """Called by llhttp, which forgets what was said of the connection once a request without body is over."""
        self._keep_alive = self._llhttp.should_keep_alive()


def _number(text: bytes) -> int:
    """A header's whole number of bytes; -1 if it is none."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) < 19 else -1


_HEAD = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
"""Brings a parser to where a body begins. The request's own head may offer another protocol, after which it would read
no body."""


class ChunkedBody:
    """A chunked body of at most `most_bytes`, as it comes in.

    What frames it (sizes, extensions, trailers) may be as long as the body and `most_framing_bytes` more, of which no
    part without data in between may exceed these. Trailers are read over: whoever has seen a request's head has judged
    all of its headers.
    """

    def __init__(self, most_bytes: int, most_framing_bytes: int) -> None:
        self.joined = bytearray()
        self.complete = False
        self._most_bytes = most_bytes
        self._most_framing_bytes = most_framing_bytes
        self._raw_bytes = 0
        self._bytes_since_data = 0
        # No callback for headers: the parser would join a long trailer anew with each piece of it.
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        if not self.complete:  # else it is the next request's, sent without waiting
            self.joined += data

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = True

    def take(self, data: bytes) -> int:
        """Take in some bytes; returns how many of the body were among them. Raises `RequestError`."""
        assert self._parser is not None
        before = len(self.joined)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as fault:
            if not self.complete:
                raise InvalidInput(f"malformed chunked body: {fault}") from None
        held = len(self.joined)
        if held > self._most_bytes:
            raise RequestError(
                ErrorKind.TOO_LARGE,
                f"a chunked body exceeds the maximum request size of {self._most_bytes} bytes; send fewer items",
            )
        if not self.complete:
            self._raw_bytes += len(data)
            self._bytes_since_data = 0 if held > before else self._bytes_since_data + len(data)
            most = self._most_framing_bytes
            if self._bytes_since_data > most or self._raw_bytes - held > most + held:
                raise RequestError(
                    ErrorKind.HEAD_TOO_LARGE,
                    f"sizes, extensions and trailers of a chunked body exceed {most} bytes and the body's own "
                    f"{held}; send larger chunks",
                )
        return held - before

    def close(self) -> None:
        """Let go of the parser, which holds this body in turn: both would stay until a full garbage collection."""
        self._parser = None
