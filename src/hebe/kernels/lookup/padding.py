"""Into the buffers of a batch: fixed keys are copied to the rectangular key matrix, jagged ones padded with -1, numbers
copied; and what is there is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hebe.kernels.compiled import LOCKED, OPTIONS, array_type, compile_kernel

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


ADDRESS, COLUMN, LOOKUPS, START, STOP, ROW = range(6)
COPY_COLUMNS = 6
"""Columns of a copy still to be made: where an array of fixed keys starts in memory, the column of the key matrix for
its first key, keys per item; which items, and the row for the first of them."""

VALUES, OFFSETS, PAD_COLUMN, PAD_LOOKUPS, PAD_START, PAD_STOP, PAD_ROW = range(7)
PAD_COLUMNS = 7
"""Columns of jagged keys still to be padded: where values and offsets start in memory, the rest as for a copy."""

_INT64 = np.dtype(np.int64)

_QUICKLY_PLACED = 1 << 15
"""So many numbers are copied in some microseconds."""

NO_COPIES: IntArray = np.empty((0, COPY_COLUMNS), np.int64)


def _reads(scalar: Any, bits: int) -> Any:
    """What reads a number of so many bits at a memory address, which need not be a multiple of its size: received bytes
    lie as they came.
    """

    def read(_typing: Any, address: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)

        return scalar(address), codegen

    return intrinsic(read)


key_at = _reads(types.int64, 64)
bits_at = _reads(types.uint32, 32)


@cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)
def copy_unaligned(_typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one memory address to another, whatever these are multiples of."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, start = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, start, arguments[2], 1)  # type: ignore[no-untyped-call]

    return types.void(target, source, count), codegen


def _copy(copies, out):  # type: ignore[no-untyped-def]
    for copy in range(copies.shape[0]):
        column, lookups = copies[copy, COLUMN], copies[copy, LOOKUPS]
        start = copies[copy, START]
        for item in range(start, copies[copy, STOP]):
            address = copies[copy, ADDRESS] + 8 * item * lookups
            row = copies[copy, ROW] + item - start
            for position in range(lookups):
                out[row, column + position] = key_at(address + 8 * position)


make_copies = numba.njit(**OPTIONS)(_copy)
"""`copy_fixed`, to be called within other kernels."""


def _pad(pads, out):  # type: ignore[no-untyped-def]
    for pad in range(pads.shape[0]):
        values, offsets = pads[pad, VALUES], pads[pad, OFFSETS]
        column, lookups, start = pads[pad, PAD_COLUMN], pads[pad, PAD_LOOKUPS], pads[pad, PAD_START]
        for item in range(start, pads[pad, PAD_STOP]):
            first = key_at(offsets + 8 * item)
            length = min(key_at(offsets + 8 * item + 8) - first, lookups)
            row = pads[pad, PAD_ROW] + item - start
            for position in range(length):
                out[row, column + position] = key_at(values + 8 * (first + position))
            for position in range(length, lookups):
                out[row, column + position] = -1


make_pads = numba.njit(**OPTIONS)(_pad)
"""Make what `describe_pad` described for `out`, within other kernels."""


def _count(keys, column, lookups, out, out_column):  # type: ignore[no-untyped-def]
    for item in range(keys.shape[0]):
        present = 0
        for position in range(column, column + lookups):
            present += keys[item, position] != -1
        out[item, out_column] = present


count_in_column = numba.njit(**OPTIONS)(_count)
"""`count_present`, to be called within other kernels."""


def _address(array):  # type: ignore[no-untyped-def]
    return array.ctypes.data


def _place(values, start, stop, out, row):  # type: ignore[no-untyped-def]
    row_bytes = 4 * out.shape[1]
    source, target = values.ctypes.data + start * row_bytes, out.ctypes.data + row * row_bytes
    copy_unaligned(target, source, (stop - start) * row_bytes)


@functools.cache
def _address_kernel() -> Callable[..., int]:
    return compile_kernel(_address, types.intp(array_type(types.int64, 2)), LOCKED)


@functools.cache
def _place_kernel() -> Callable[..., None]:
    values, out, index = array_type(types.float32, 2), array_type(types.float32, 2, writable=True), types.intp
    return compile_kernel(_place, types.void(values, index, index, out, index), LOCKED)


@functools.cache
def _copy_kernel() -> Callable[..., None]:
    matrix = array_type(types.int64, 2, writable=True)
    return compile_kernel(_copy, types.void(array_type(types.int64, 2), matrix))


@functools.cache
def _pad_kernel() -> Callable[..., None]:
    matrix = array_type(types.int64, 2, writable=True)
    return compile_kernel(_pad, types.void(array_type(types.int64, 2), matrix))


@functools.cache
def _count_kernel() -> Callable[..., None]:
    index = types.intp
    written = array_type(types.int64, 2, writable=True)
    return compile_kernel(_count, types.void(array_type(types.int64, 2), index, index, written, index))


def describe_copies(
    keys: Sequence[IntArray], columns: Sequence[int], start: int, stop: int, out: IntArray, row: int
) -> IntArray:
    """Copies of items `[start, stop)` of each of `keys`, int64 `[items, lookups]`, to `out[row : row + stop - start]`.

    The first key of `keys[i]` goes to column `columns[i]`. Returns int64 `[len(keys), COPY_COLUMNS]`, checked, good
    for as long as the arrays live. Described rather than made, so that the lookup can make them in its own call: each
    return from compiled code waits for the interpreter lock while the front end may hold it. Raises TypeError for
    other keys, ValueError for what does not fit.
    """
    if row < 0 or row + stop - start > out.shape[0]:
        raise ValueError(f"{stop - start} items at row {row} do not fit {out.shape}")
    address_of = _address_kernel()  # a fifth of the time of __array_interface__
    described: list[int] = []
    for array, column in zip(keys, columns, strict=True):
        if array.dtype != _INT64 or not array.flags.c_contiguous:
            raise TypeError(f"keys must be C-contiguous int64, not {array.dtype}")
        items, lookups = array.shape
        if not 0 <= start <= stop <= items or column < 0 or column + lookups > out.shape[1]:
            raise ValueError(f"items [{start}, {stop}) of {array.shape} at column {column} do not fit {out.shape}")
        described += (address_of(array), column, lookups, start, stop, row)
    return np.array(described, np.int64).reshape(-1, COPY_COLUMNS)


def place_numbers(values: FloatArray, start: int, stop: int, out: FloatArray, row: int) -> None:
    """Copy items `[start, stop)` of `values`, float32 `[items, n]`, to rows of `out`, of that form, from `row` on.

    `values` may be read-only and unaligned, `out` is C-contiguous. Raises ValueError for what does not fit.
    """
    if not 0 <= start <= stop <= len(values) or not 0 <= row <= len(out) - (stop - start):
        raise ValueError(f"items [{start}, {stop}) of {len(values)} do not fit {len(out)} rows from row {row} on")
    if values.shape[1] != out.shape[1]:
        raise ValueError(f"{values.shape[1]} numbers an item do not fit {out.shape[1]} columns")
    if values.flags.c_contiguous and (stop - start) * out.shape[1] <= _QUICKLY_PLACED:
        _place_kernel()(values, start, stop, out, row)
    else:  # NumPy lets go of the lock meanwhile
        out[row : row + stop - start] = values[start:stop]


def copy_fixed(copies: IntArray, out: IntArray) -> None:
    """Make `copies`, described for `out`."""
    _copy_kernel()(copies, out)


def pad_jagged(
    values: IntArray, offsets: IntArray, start: int, stop: int, lookups: int, out: IntArray, row: int, column: int
) -> None:
    """Write the keys of items `[start, stop)` to `out[row : row + stop - start, column : column + lookups]`.

    `values` int64 `[sum(lengths)]` and `offsets` int64 `[items + 1]` may be read-only and unaligned; `out` is the
    batch's key matrix, int64. Places past an item's keys become -1. Raises ValueError for items that are not there, or
    do not fit, TypeError for other keys.
    """
    described = describe_pad(values, offsets, start, stop, lookups, out, row, column)
    _pad_kernel()(np.array([described], np.int64), out)


def describe_pad(
    values: IntArray, offsets: IntArray, start: int, stop: int, lookups: int, out: IntArray, row: int, column: int
) -> tuple[int, ...]:
    """What `pad_jagged` does, as one of the rows that `make_pads` takes, good for as long as the arrays live. Raises as
    that does.
    """
    if not 0 <= start <= stop < len(offsets) or offsets[start] < 0 or offsets[stop] > len(values):
        raise ValueError(f"items [{start}, {stop}) reach past {len(offsets) - 1} items or {len(values)} keys")
    if row < 0 or column < 0 or row + stop - start > out.shape[0] or column + lookups > out.shape[1]:
        raise ValueError(f"{stop - start} items of {lookups} keys at [{row}, {column}] do not fit {out.shape}")
    for array in (values, offsets):
        if array.dtype != _INT64 or not array.flags.c_contiguous:
            raise TypeError(f"keys and offsets must be C-contiguous int64, not {array.dtype}")
    return values.ctypes.data, offsets.ctypes.data, column, lookups, start, stop, row


def count_present(keys: IntArray, column: int, lookups: int, out: IntArray, out_column: int) -> None:
    """Set `out[:n, out_column]` to how many of `keys[:n, column : column + lookups]` are not -1; both are int64.

    Raises ValueError for columns or rows that are not there.
    """
    if len(keys) > len(out) or not 0 <= out_column < out.shape[1] or not 0 <= column <= keys.shape[1] - lookups:
        raise ValueError(f"columns {column}..{column + lookups} of {keys.shape} to column {out_column} of {out.shape}")
    _count_kernel()(keys, column, lookups, out, out_column)


def warm_up() -> None:
    """Compile the kernels now, or load them from disk."""
    _address_kernel()
    _place_kernel()
    _copy_kernel()
    _pad_kernel()
    _count_kernel()
