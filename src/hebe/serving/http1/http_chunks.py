"""Chunked request bodies: unpacked by llhttp, and bounded in what they carry and in what frames it."""

from __future__ import annotations

import httptools

from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError

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
