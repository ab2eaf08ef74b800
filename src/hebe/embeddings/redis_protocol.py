"""Redis' protocol (RESP2) for many keys at once: commands are laid out as arrays, replies read from one buffer.

Of a command with thousands of keys or rows, every element has the same length, so NumPy writes it as an array of
records; the rows of a reply go from the receive buffer to the caller's by a kernel. No key is an object of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import FoundMask, KeyArray, RowArray
from hebe.kernels.redis_reply import WRONG_LENGTH, element_header, read_rows

KEY_BYTES = 8
_BUFFER_BYTES = 1 << 18
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """What Redis says instead of an answer: a word in capitals (`code`), and the rest of the line."""

    code: str
    text: str


Reply = int | bytes | None | ErrorReply | list["Reply"]


class ProtocolError(Exception):
    """Bytes that are no reply, or no reply to what was asked. The connection is of no more use."""


class RowSink:
    """Where the rows of one HMGET go: element `i` of the reply is the row of `positions[i]`.

    `rows` float32 `[n, dim]` and `found` bool `[n]` are the caller's and C-contiguous. `table` is for errors.
    """

    def __init__(self, table: str, positions: KeyArray, rows: RowArray, found: FoundMask) -> None:
        self.positions = positions
        self.found = found
        self.table = table
        self.row_bytes: int = rows.shape[1] * 4
        self.rows = rows.view(np.uint8)
        self.header = element_header(self.row_bytes)
        self.element_bytes = len(self.header) + self.row_bytes + 2


@dataclass(frozen=True, slots=True)
class Command:
    """One command on keys of one hash slot, ready to be sent; its reply is rows for `sink`, or anything if None."""

    slot: int
    request: bytes
    sink: RowSink | None = field(default=None)


def command(*arguments: bytes, elements: bytes = b"", element_count: int = 0) -> bytes:
    """A command of single `arguments`, and then `element_count` more that are laid out already."""
    head = b"*%d\r\n" % (len(arguments) + element_count)
    return head + b"".join([b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments]) + elements


def key_elements(keys: KeyArray) -> bytes:
    """Each key as one element, its eight bytes, little-endian."""
    return _records(len(keys), (("key", keys),))


def key_row_elements(keys: KeyArray, rows: RowArray) -> bytes:
    """Two elements for each key: itself, and the bytes of its row."""
    return _records(len(keys), (("key", keys), ("row", rows)))


def key_count_elements(keys: KeyArray, counts: npt.NDArray[np.int64]) -> bytes:
    """Two elements for each key: itself, and its count in decimal, of twelve digits."""
    digits = counts[:, None] // 10 ** np.arange(11, -1, -1) % 10 + ord("0")
    return _records(len(keys), (("key", keys), ("count", np.ascontiguousarray(digits, np.uint8))))


def score_key_elements(score: bytes, keys: KeyArray) -> bytes:
    """Two elements for each key: `score`, the same for all, and itself."""
    scores = np.broadcast_to(np.frombuffer(score, np.uint8), (len(keys), len(score)))
    return _records(len(keys), (("score", np.ascontiguousarray(scores)), ("key", keys)))


def _records(count: int, columns: Sequence[tuple[str, npt.NDArray[np.generic]]]) -> bytes:
    values = []
    for name, column in columns:
        little_endian = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        size = little_endian.itemsize * (column.shape[1] if column.ndim == 2 else 1)
        values.append((name, little_endian.view(np.uint8).reshape(count, size), b"$%d\r\n" % size))
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    for name, value, head in values:
        fields += [(f"{name} head", "u1", (len(head),)), (name, "u1", (value.shape[1],)), (f"{name} end", "u1", (2,))]
    records = np.empty(count, np.dtype(fields))
    for name, value, head in values:
        records[f"{name} head"] = np.frombuffer(head, np.uint8)
        records[name] = value
        records[f"{name} end"] = (ord("\r"), ord("\n"))
    return records.tobytes()


class ReplyReader:
    """Reads replies from what `receive` puts into a buffer; it returns how many bytes came, 0 at the end."""

    def __init__(self, receive: Callable[[memoryview], int]) -> None:
        self._receive = receive
        self._start = self._end = 0
        self._use(np.empty(_BUFFER_BYTES, np.uint8))

    @property
    def empty(self) -> bool:
        """Whether all that was received has been read."""
        return self._start == self._end

    def reply(self) -> Reply:
        """The next reply. Raises `ProtocolError`, OSError from `receive`, EOFError when there is no more."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            code, _, text = rest.decode(errors="replace").partition(" ")
            return ErrorReply(code, text)
        number = _number(rest) if kind in (b":", b"$", b"*") else None
        if number is None or (kind != b":" and number < -1):
            raise ProtocolError
        if kind == b":":
            return number
        if number == -1:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(number)]
        return self._bytes(number)

    def rows(self, sink: RowSink) -> ErrorReply | None:
        """The next reply: rows for `sink`, or an error. Raises as `reply` does."""
        line = self._line()
        if line[:1] == b"-":
            code, _, text = line[1:].decode(errors="replace").partition(" ")
            return ErrorReply(code, text)
        if line != b"*%d" % len(sink.positions):
            raise ProtocolError
        number = 0
        while True:
            self._start, number = read_rows(
                self._buffer, self._start, self._end, sink.header, sink.positions, number, sink.rows, sink.found
            )
            if number == WRONG_LENGTH:
                line = self._line()
                length = _number(line[1:]) if line[:1] == b"$" else None
                if length is None:
                    raise ProtocolError
                raise WrongRowLength(sink.table, length, sink.row_bytes)
            if number == len(sink.positions):
                return None
            self._fill(sink.element_bytes)

    def _line(self) -> bytes:
        while True:
            received = bytes(self._view[self._start : self._end][:_LONGEST_LINE])
            length = received.find(b"\r\n")
            if length >= 0:
                self._start += length + 2
                return received[:length]
            if len(received) == _LONGEST_LINE:
                raise ProtocolError
            self._fill(_LONGEST_LINE)

    def _bytes(self, count: int) -> bytes:
        while self._end - self._start < count + 2:
            self._fill(count + 2)
        value = bytes(self._view[self._start : self._start + count + 2])
        if not value.endswith(b"\r\n"):
            raise ProtocolError
        self._start += count + 2
        return value[:-2]

    def _fill(self, needed: int) -> None:
        """Receive more; there is then room for at least `needed` bytes in one piece."""
        unread = self._end - self._start
        if self._start + needed > len(self._buffer) or self.empty:
            buffer = self._buffer if needed <= len(self._buffer) else np.empty(needed, np.uint8)
            buffer[:unread] = self._buffer[self._start : self._end].copy()
            self._use(buffer)
            self._start, self._end = 0, unread
        received = self._receive(self._view[self._end :])
        if received == 0:
            raise EOFError
        self._end += received

    def _use(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)  # type: ignore[arg-type]


class WrongRowLength(ProtocolError):
    """A row of another length than the table's dim asks for."""

    def __init__(self, table: str, stored_bytes: int, row_bytes: int) -> None:
        super().__init__(f"table {table} has a row of {stored_bytes} bytes, where its dim needs {row_bytes}")


def _number(digits: bytes) -> int | None:
    try:
        return int(digits)
    except ValueError:
        return None
