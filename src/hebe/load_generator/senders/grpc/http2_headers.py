"""Header lists as HPACK blocks and back (RFC 7541), a load test's way: the same few lists, over and over.

Compressing a list in Python takes longer than sending a small query. But whoever sends the same lists all the time
has them in the peer's table after the first time, and from then on each is the same few bytes.
"""

from __future__ import annotations

import hpack

from hebe.load_generator.senders.grpc.http2_frames import ErrorCode, Http2Error

Headers = tuple[tuple[bytes, bytes], ...]

TABLE_BYTES = 4096
"""Of the table of recent headers, in either direction, unless the peer has less: what RFC 9113 begins with."""

_ENTRY_BYTES = 32
"""What an entry of the table counts for beside its name and value (RFC 7541, section 4.1)."""


class HeaderEncoder:
    """Blocks for one connection, in the order in which they are sent."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()
        self._table_bytes = TABLE_BYTES
        self._entries: set[tuple[bytes, bytes]] = set()
        self._sent: set[Headers] = set()
        self._settled: dict[Headers, bytes] = {}

    def resize(self, table_bytes: int) -> None:
        """The peer keeps a table of that size from now on: its setting HEADER_TABLE_SIZE."""
        self._set_table(min(table_bytes, TABLE_BYTES))

    def encode(self, headers: Headers) -> bytes:
        """The next block to send; the list must not change what it says of the same names within the connection."""
        settled = self._settled.get(headers)
        if settled is not None:
            return settled
        self._entries.update(headers)
        if self._table_bytes < sum(len(name) + len(value) + _ENTRY_BYTES for name, value in self._entries):
            # Lists that push each other out of the table would need another block each time: without a table they do
            # not.
            self._set_table(0)
        block: bytes = self._encoder.encode(headers)
        if headers in self._sent:
            # Nothing is ever pushed out, so the second block, which only points into the table, stays right.
            self._settled[headers] = block
        self._sent.add(headers)
        return block

    def _set_table(self, table_bytes: int) -> None:
        if table_bytes != self._table_bytes:
            self._encoder.header_table_size = self._table_bytes = table_bytes
            self._sent.clear()
            self._settled.clear()


class HeaderDecoder:
    """Lists of one connection, from blocks in the order in which they came."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder()
        self._known: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """The list of the next block. Raises `Http2Error`."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            decoded = self._decoder.decode(block, raw=True)
        except (hpack.HPACKError, ValueError) as fault:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"headers that cannot be read: {fault}") from None
        headers = tuple((name, value) for name, value, *_ in decoded)
        if _only_points(block):
            self._known[block] = headers
        else:
            self._known.clear()  # what others point to may have moved
        return headers


def _only_points(block: bytes) -> bool:
    """Whether all of a block is numbers of table entries of one byte each, so that it leaves the table as it is."""
    return bool(block) and min(block) >= 0x80 and max(block) < 0xFF
