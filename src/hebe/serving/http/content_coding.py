"""gzip and deflate, in with a limit on what they may unfold to, out where asked for and worthwhile."""

from __future__ import annotations

import asyncio
import zlib

from hebe.serving.requests.errors import ErrorKind, InvalidInput, RequestError

MIN_COMPRESS_BYTES = 1024
"""Shorter answers go out as they are."""

_AT_ONCE_BYTES = 64 * 1024
"""What is longer, packed or unfolded, is decoded in a thread: the packed may be a thousandth of the unfolded."""
_GZIP_BEGINS = b"\x1f\x8b"
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


async def decompress(body: memoryview, coding: str, max_bytes: int, advice: str = "") -> memoryview:
    """`body` decoded. Raises `RequestError`: unknown coding, damaged data, or more than `max_bytes` of it, to which
    `advice` is added.

    What is long, packed or unfolded, is decoded in a thread, so that the event loop goes on.
    """
    coding = coding.lower()
    if coding in ("", "identity"):
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise RequestError(
            ErrorKind.WRONG_CODING, f"Content-Encoding {coding!r:.60} is not supported; use gzip, deflate or identity"
        )
    data = None
    if len(body) <= _AT_ONCE_BYTES:
        data = _decompress(body, coding, min(max_bytes, _AT_ONCE_BYTES))
    if data is None:
        data = await asyncio.get_running_loop().run_in_executor(None, _decompress, body, coding, max_bytes)
    if data is None:
        message = f"the {coding} body unfolds to more than the maximum of {max_bytes} bytes{advice}"
        raise RequestError(ErrorKind.TOO_LARGE, message)
    return data


def _decompress(body: memoryview, coding: str, max_bytes: int) -> memoryview | None:
    """As `decompress`, but None if it is more than `max_bytes`."""
    # "deflate" means zlib's format, but raw deflate is sent under that name too (RFC 9110, 8.4.1.2).
    raw = coding == "deflate" and len(body) > 1 and (body[0] & 15 != 8 or (body[0] * 256 + body[1]) % 31)
    decoder = zlib.decompressobj(-zlib.MAX_WBITS if raw else _GZIP_OR_ZLIB)
    try:
        data = decoder.decompress(body, max_bytes + 1)
    except zlib.error as fault:
        raise InvalidInput(f"the {coding} body is damaged: {fault}") from None
    if len(data) > max_bytes:
        return None
    if not decoder.eof:
        raise InvalidInput(f"the {coding} body is cut off")
    if decoder.unused_data.startswith(_GZIP_BEGINS):  # RFC 1952, 2.2: of these there may be millions, all empty
        raise InvalidInput(f"the {coding} body has more than one member: compress it as one")
    if decoder.unused_data:
        raise InvalidInput(f"the {coding} body is followed by {len(decoder.unused_data)} bytes that belong to nothing")
    return memoryview(data)


def accepted_coding(accept_encoding: str | None) -> str | None:
    """The coding that a client asks for, of those here: gzip before deflate; None if neither."""
    if not accept_encoding:
        return None
    wanted = {}
    for part in accept_encoding.lower().split(","):
        coding, _, quality = part.strip().partition(";")
        wanted[coding.strip()] = quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    if wanted.get("gzip", wanted.get("*")):
        return "gzip"
    return "deflate" if wanted.get("deflate") else None


def compress(body: bytes, coding: str) -> bytes:
    """`body` in `coding`, at the fastest level."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16 if coding == "gzip" else zlib.MAX_WBITS)
    return encoder.compress(body) + encoder.flush()
