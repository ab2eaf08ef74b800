"""How a row of float32 is stored: as it is, in halves, or in bytes with a scale of its own.

    fp32   dim float32
    fp16   dim float16, rounded to nearest; finite numbers beyond 65,504 become that
    int8   one float32 scale, then dim int8: number = int8 x scale, where the row's largest magnitude is 127 x scale

A narrower row is a shorter read: pooling, which waits for memory, runs faster by nearly as much. What a format cannot
hold at all is not made up: fp16 keeps infinities and NaN; a row of int8 with a number that is not finite has scale
NaN, so all of it reads as NaN. Rows lie in flat arrays of bytes, each at any offset.

`encode_row`, `decode_row` and `adding_columns` are for kernels, inlined into them; `encode_rows` and `decode_rows` for
everybody else.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import BORROWING, array_type, compile_kernel
from hebe.kernels.primitives import vector

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]

FP32_CODE, FP16_CODE, INT8_CODE = range(3)
"""A `RowFormat` within kernels."""

SCALE_BYTES = 4
"""An int8 row begins with its scale."""


class RowFormat(enum.StrEnum):
    """How rows of float32 are stored."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"

    @property
    def code(self) -> int:
        """This format within kernels."""
        return (FP32_CODE, FP16_CODE, INT8_CODE)[list(RowFormat).index(self)]

    def row_bytes(self, dim: int) -> int:
        """Bytes of a stored row of `dim` numbers."""
        return {RowFormat.FP32: 4 * dim, RowFormat.FP16: 2 * dim, RowFormat.INT8: SCALE_BYTES + dim}[self]


_FLOAT16_MOST = np.float32(vector.FLOAT16_MAX)
_INT8_MOST = np.float32(vector.INT8_MAX)
_SCALE_MOST = np.float32(np.nextafter(np.finfo(np.float32).max / _INT8_MOST, np.float32(0)))
"""The largest scale, of which 127 times is finite."""

_FLOAT16_MOST_BITS = int(_FLOAT16_MOST.view(np.int32))
_INFINITE_BITS = vector.INFINITE_BITS
_inlined = numba.njit(forceinline=True, **BORROWING)


@_inlined
def _peak_bits(source, start, dim):  # type: ignore[no-untyped-def]
    """The largest magnitude of a row as its bits."""
    peak = np.int32(0)
    column = 0
    while column + 32 <= dim:
        peak = max(peak, vector.peak_bits(source, start + column, 32))
        column += 32
    while column + 8 <= dim:
        peak = max(peak, vector.peak_bits(source, start + column, 8))
        column += 8
    while column < dim:
        peak = max(peak, vector.peak_bits(source, start + column, 1))
        column += 1
    return peak


@_inlined
def _encode_fp16(source, start, storage, offset, dim):  # type: ignore[no-untyped-def]
    column = 0
    while column + 32 <= dim:
        vector.store_float16(storage, offset + 2 * column, vector.load(source, start + column, 32))
        column += 32
    while column + 8 <= dim:
        vector.store_float16(storage, offset + 2 * column, vector.load(source, start + column, 8))
        column += 8
    while column < dim:
        vector.store_float16(storage, offset + 2 * column, vector.load(source, start + column, 1))
        column += 1


@_inlined
def _encode_int8(source, start, storage, offset, dim, scale):  # type: ignore[no-untyped-def]
    vector.store_float(storage, offset, scale)
    offset += SCALE_BYTES
    if not scale > 0:  # zeros, or numbers too small to tell from them; or not finite
        storage[offset : offset + dim] = 0
        return
    column = 0
    while column + 32 <= dim:
        vector.store_int8(storage, offset + column, vector.divide(vector.load(source, start + column, 32), scale))
        column += 32
    while column + 8 <= dim:
        vector.store_int8(storage, offset + column, vector.divide(vector.load(source, start + column, 8), scale))
        column += 8
    while column < dim:
        vector.store_int8(storage, offset + column, vector.divide(vector.load(source, start + column, 1), scale))
        column += 1


@_inlined
def _decode_fp16(storage, offset, target, start, dim):  # type: ignore[no-untyped-def]
    column = 0
    while column + 32 <= dim:
        vector.store(target, start + column, vector.load_float16(storage, offset + 2 * column, 32))
        column += 32
    while column + 8 <= dim:
        vector.store(target, start + column, vector.load_float16(storage, offset + 2 * column, 8))
        column += 8
    while column < dim:
        vector.store(target, start + column, vector.load_float16(storage, offset + 2 * column, 1))
        column += 1


@_inlined
def _decode_int8(storage, offset, target, start, dim):  # type: ignore[no-untyped-def]
    scale = vector.load_float(storage, offset)
    offset += SCALE_BYTES
    column = 0
    while column + 32 <= dim:
        vector.store(target, start + column, vector.multiply(vector.load_int8(storage, offset + column, 32), scale))
        column += 32
    while column + 8 <= dim:
        vector.store(target, start + column, vector.multiply(vector.load_int8(storage, offset + column, 8), scale))
        column += 8
    while column < dim:
        vector.store(target, start + column, vector.multiply(vector.load_int8(storage, offset + column, 1), scale))
        column += 1


@_inlined
def row_bytes(code, dim):  # type: ignore[no-untyped-def]
    """`RowFormat.row_bytes` within kernels."""
    if code == FP32_CODE:
        return 4 * dim
    if code == FP16_CODE:
        return 2 * dim
    return SCALE_BYTES + dim


@_inlined
def encode_row(code, source, start, storage, offset, dim):  # type: ignore[no-untyped-def]
    """Store float32 `source[start : start + dim]` from byte `offset` of `storage` (uint8) on; nothing is checked.

    Returns 1 if it is a row that `encode_rows` counts, otherwise 0. `code` may be a number known when
    the kernel is compiled, and then costs nothing.
    """
    if code == FP32_CODE:
        vector.copy(source, start, storage, offset, dim)
        return 0
    peak = _peak_bits(source, start, dim)
    if code == FP16_CODE:
        _encode_fp16(source, start, storage, offset, dim)
        return 1 if peak > _FLOAT16_MOST_BITS else 0
    if peak >= _INFINITE_BITS:
        _encode_int8(source, start, storage, offset, dim, np.float32(np.nan))
        return 1
    scale = min(vector.float_of_bits(peak) / _INT8_MOST, _SCALE_MOST)
    _encode_int8(source, start, storage, offset, dim, scale)
    return 0


@_inlined
def decode_row(code, storage, offset, target, start, dim):  # type: ignore[no-untyped-def]
    """Write the row that is stored from byte `offset` of `storage` (uint8) on to float32 `target[start : start + dim]`;
    nothing is checked."""
    if code == FP32_CODE:
        vector.copy(storage, offset, target, start, dim)
    elif code == FP16_CODE:
        _decode_fp16(storage, offset, target, start, dim)
    else:
        _decode_int8(storage, offset, target, start, dim)


def adding_columns(width: int) -> Callable[..., Any]:
    """A function for kernels: `(code, storage, offset, column, total)` gives `total`, a vector of `width`, plus as many
    columns, from `column` on, of the row that is stored from byte `offset` on."""

    @_inlined
    def add_columns(code, storage, offset, column, total):  # type: ignore[no-untyped-def]
        if code == FP32_CODE:
            return vector.add(total, vector.load(storage, offset + 4 * column, width))
        if code == FP16_CODE:
            return vector.add(total, vector.load_float16(storage, offset + 2 * column, width))
        numbers = vector.load_int8(storage, offset + SCALE_BYTES + column, width)
        return vector.add_multiple(total, numbers, vector.load_float(storage, offset))

    added: Callable[..., Any] = add_columns
    return added


def _encode(code, rows, out):  # type: ignore[no-untyped-def]
    dim, stored = rows.shape[1], out.shape[1]
    source, storage = rows.reshape(-1), out.reshape(-1)
    unheld = 0
    for row in range(rows.shape[0]):
        unheld += encode_row(code, source, row * dim, storage, row * stored, dim)
    return unheld


def _decode(code, stored, out):  # type: ignore[no-untyped-def]
    dim, size = out.shape[1], stored.shape[1]
    storage, target = stored.reshape(-1), out.reshape(-1)
    for row in range(stored.shape[0]):
        decode_row(code, storage, row * size, target, row * dim, dim)


@functools.cache
def _encode_kernel() -> Callable[..., int]:
    rows, out = array_type(types.float32, 2), array_type(types.uint8, 2, writable=True)
    return compile_kernel(_encode, types.intp(types.intp, rows, out), BORROWING)


@functools.cache
def _decode_kernel() -> Callable[..., None]:
    stored, out = array_type(types.uint8, 2), array_type(types.float32, 2, writable=True)
    return compile_kernel(_decode, types.void(types.intp, stored, out), BORROWING)


def _check(row_format: RowFormat, rows: npt.NDArray[Any], stored: npt.NDArray[Any]) -> None:
    if rows.ndim != 2 or stored.ndim != 2 or stored.shape != (len(rows), row_format.row_bytes(rows.shape[1])):
        raise ValueError(f"{row_format} rows {list(rows.shape)} do not fit stored bytes {list(stored.shape)}")


def encode_rows(row_format: RowFormat, rows: FloatArray, out: ByteArray) -> int:
    """Store `rows`, float32 `[n, dim]`, in `out`, uint8 `[n, row_format.row_bytes(dim)]`; both C-contiguous.

    Returns how many rows a narrow format has no place for: for fp16 those with a number beyond 65,504 or NaN, for int8
    those with one that is not finite. Releases the GIL. Raises ValueError for other shapes, TypeError for other arrays.
    """
    _check(row_format, rows, out)
    return _encode_kernel()(row_format.code, rows, out)


def decode_rows(row_format: RowFormat, stored: ByteArray, out: FloatArray) -> None:
    """Reverse: `stored`, uint8 `[n, row_format.row_bytes(dim)]`, into `out`, float32 `[n, dim]`. Raises likewise."""
    _check(row_format, out, stored)
    _decode_kernel()(row_format.code, stored, out)


def encode_rows_reference(row_format: RowFormat, rows: FloatArray, out: ByteArray) -> int:
    """`encode_rows` in plain NumPy: what the kernel must agree with, to the bit."""
    _check(row_format, rows, out)
    if row_format is RowFormat.FP32:
        out[:] = rows.view(np.uint8)
        return 0
    finite = np.isfinite(rows)
    if row_format is RowFormat.FP16:
        clipped = np.where(finite, np.clip(rows, -_FLOAT16_MOST, _FLOAT16_MOST), rows)
        out[:] = clipped.astype(np.float16).view(np.uint8)
        return int((~(np.abs(rows) <= _FLOAT16_MOST)).any(axis=1).sum())
    held = finite.all(axis=1, keepdims=True)
    magnitudes = np.where(held, np.abs(rows), np.float32(0))
    scales = np.minimum(magnitudes.max(axis=1, keepdims=True, initial=0) / _INT8_MOST, _SCALE_MOST)
    steps = np.zeros(rows.shape, np.float32)
    np.divide(rows, scales, out=steps, where=held & (scales > 0))
    out[:, SCALE_BYTES:] = np.rint(np.clip(steps, -_INT8_MOST, _INT8_MOST)).astype(np.int8).view(np.uint8)
    out[:, :SCALE_BYTES] = np.where(held, scales, np.float32(np.nan)).view(np.uint8)
    return int((~held).sum())


def decode_rows_reference(row_format: RowFormat, stored: ByteArray, out: FloatArray) -> None:
    """`decode_rows` in plain NumPy."""
    _check(row_format, out, stored)
    if row_format is RowFormat.FP32:
        out[:] = np.ascontiguousarray(stored).view(np.float32)
    elif row_format is RowFormat.FP16:
        out[:] = np.ascontiguousarray(stored).view(np.float16)
    else:
        scales = np.ascontiguousarray(stored[:, :SCALE_BYTES]).view(np.float32)
        out[:] = np.ascontiguousarray(stored[:, SCALE_BYTES:]).view(np.int8) * scales


def warm_up() -> None:
    """Compile the kernels now, or load them from disk."""
    _encode_kernel()
    _decode_kernel()
