"""Rows out of a Redis reply: `$512` and so many bytes for a row, `$-1` for none, read as they arrive, without the GIL.

The elements of an HMGET's reply stand one after the other in a receive buffer, whose last one may be cut off; the next
call goes on from there. In plain Python every row would become an object of its own, with the GIL held.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import array_type, compile_kernel

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

WRONG_LENGTH = -1
"""In place of the number of elements read: the next one is neither a row of the length asked for nor none."""

_NONE = (ord("$"), ord("-"), ord("1"), ord("\r"), ord("\n"))
_DOLLAR, _MINUS, _ONE, _RETURN, _NEWLINE = _NONE


def element_header(row_bytes: int) -> ByteArray:
    """What stands before a row of `row_bytes` bytes."""
    return np.frombuffer(b"$%d\r\n" % row_bytes, np.uint8)


def _read_rows(buffer, start, end, header, positions, first, rows, found):  # type: ignore[no-untyped-def]
    row_bytes = rows.shape[1]
    element_bytes = header.size + row_bytes + 2
    at = start
    number = first
    while number < positions.size and end - at >= 5:
        if (
            buffer[at] == _DOLLAR
            and buffer[at + 1] == _MINUS
            and buffer[at + 2] == _ONE
            and buffer[at + 3] == _RETURN
            and buffer[at + 4] == _NEWLINE
        ):
            found[positions[number]] = False
            at += 5
            number += 1
            continue
        for offset in range(min(header.size, end - at)):
            if buffer[at + offset] != header[offset]:
                return at, WRONG_LENGTH
        if end - at < element_bytes:
            break
        position = positions[number]
        row = at + header.size
        for offset in range(row_bytes):
            rows[position, offset] = buffer[row + offset]
        if buffer[row + row_bytes] != _RETURN or buffer[row + row_bytes + 1] != _NEWLINE:
            return at, WRONG_LENGTH
        found[position] = True
        at += element_bytes
        number += 1
    return at, number


@functools.cache
def _kernel() -> Callable[..., tuple[int, int]]:
    read_only = array_type(types.uint8, 1)
    where = types.Tuple([types.intp, types.intp])  # type: ignore[no-untyped-call]
    return compile_kernel(
        _read_rows,
        where(
            read_only,
            types.intp,
            types.intp,
            read_only,
            array_type(types.int64, 1),
            types.intp,
            array_type(types.uint8, 2, writable=True),
            array_type(types.bool_, 1, writable=True),
        ),
    )


def read_rows(
    buffer: ByteArray,
    start: int,
    end: int,
    header: ByteArray,
    positions: IntArray,
    first: int,
    rows: ByteArray,
    found: BoolArray,
) -> tuple[int, int]:
    """Read the elements `first`, `first + 1`... of a reply from `buffer[start:end]`, as many as are whole.

    Element `i` is that of the row `positions[i]`: its bytes go to `rows[positions[i]]` (uint8 `[n, row bytes]`), and
    `found[positions[i]]` tells whether there were any; a row that is not there is left as it was. `header` is
    `element_header(row bytes)`. Returns where the first element that was not read begins, and its number, or
    `WRONG_LENGTH` if it is no row of this length.
    """
    return _kernel()(buffer, start, end, header, positions, first, rows, found)


def read_rows_reference(
    buffer: ByteArray,
    start: int,
    end: int,
    header: ByteArray,
    positions: IntArray,
    first: int,
    rows: ByteArray,
    found: BoolArray,
) -> tuple[int, int]:
    """`read_rows` in plain Python: what the kernel must agree with."""
    data, head, number = buffer[start:end].tobytes(), header.tobytes(), first
    size, length = len(data), rows.shape[1]
    while number < positions.size and len(data) >= 5:
        if data.startswith(b"$-1\r\n"):
            found[positions[number]] = False
            data = data[5:]
        elif not data.startswith(head[: len(data)]):
            return start + size - len(data), WRONG_LENGTH
        elif len(data) < len(head) + length + 2:
            break
        elif data[len(head) + length : len(head) + length + 2] != b"\r\n":
            return start + size - len(data), WRONG_LENGTH
        else:
            rows[positions[number]] = np.frombuffer(data[len(head) : len(head) + length], np.uint8)
            found[positions[number]] = True
            data = data[len(head) + length + 2 :]
        number += 1
    return start + size - len(data), number


def warm_up() -> None:
    """Compile the kernel now, or load it from disk, so that no query waits for it."""
    _kernel()
