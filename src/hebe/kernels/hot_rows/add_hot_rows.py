"""Hot rows into the SparseNet's output that the whole tables have made of the other keys (Hercules IV.B: partial sums).

What stands there is the sum or the mean of an item's cold rows, or its cold rows side by side with zeros between them.
Plan, flat tables and row formats are those of `fused_lookup`, of the hot rows alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from hebe.kernels.compiled import BORROWING, array_type, compile_kernel
from hebe.kernels.hot_rows.hot_keys import COLD
from hebe.kernels.lookup.feature_plan import (
    COPY,
    DIM,
    KEY_COLUMN,
    LOOKUPS,
    OUT_COLUMN,
    POOL_MEAN,
    POOLING,
    ROWS,
    TABLE_START,
    plan_fits,
)
from hebe.kernels.lookup.fused_lookup import FloatArray, IntArray
from hebe.kernels.lookup.row_format import (
    ByteArray,
    RowFormat,
    adding_columns,
    decode_row,
    decode_rows_reference,
    row_bytes,
)
from hebe.kernels.primitives import vector

_inlined = numba.njit(forceinline=True, **BORROWING)


def _add_columns(width: int) -> Any:
    """The inner loop: `width` columns of the hot rows of one item onto what is there, in registers."""
    add_columns = adding_columns(width)

    @_inlined
    def add(  # type: ignore[no-untyped-def]
        code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target
    ):
        total = vector.load(out, target + column, width)
        if before > 1:  # a mean
            total = vector.multiply(total, np.float32(before))
        for position in range(first, first + lookups):
            number = numbers[item, position]
            if np.uint64(number) < rows:
                total = add_columns(code, tables, start + number * row_bytes(code, dim), column, total)
        if after > 1:
            total = vector.divide(total, np.float32(after))
        vector.store(out, target + column, total)

    return add


_add_64 = _add_columns(64)
_add_32 = _add_columns(32)
_add_16 = _add_columns(16)
_add_4 = _add_columns(4)
_add_1 = _add_columns(1)


@_inlined
def _add(  # type: ignore[no-untyped-def]
    code, tables, numbers, item, first, lookups, start, dim, rows, before, after, out, target
):
    """Add the hot rows of one item to `out[target : target + dim]`, widest columns first."""
    column = 0
    while column < dim:
        left = dim - column
        if left >= 64:
            width = 64
            _add_64(code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target)
        elif left >= 32:
            width = 32
            _add_32(code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target)
        elif left >= 16:
            width = 16
            _add_16(code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target)
        elif left >= 4:
            width = 4
            _add_4(code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target)
        else:
            width = 1
            _add_1(code, tables, numbers, item, first, lookups, start, dim, rows, before, after, column, out, target)
        column += width


@_inlined
def _add_all(code, tables, numbers, plan, out):  # type: ignore[no-untyped-def]
    if not plan_fits(code, plan, numbers, tables, out):
        return -1
    flat_out = out.reshape(-1)
    all_added = 0
    for item in range(numbers.shape[0]):
        for feature in range(plan.shape[0]):
            first = plan[feature, KEY_COLUMN]
            lookups = plan[feature, LOOKUPS]
            start = plan[feature, TABLE_START]
            dim = plan[feature, DIM]
            rows = np.uint64(plan[feature, ROWS])
            pooling = plan[feature, POOLING]
            target = item * out.shape[1] + plan[feature, OUT_COLUMN]
            if pooling == COPY or lookups == 1:
                for position in range(first, first + lookups):
                    number = numbers[item, position]
                    if np.uint64(number) < rows:
                        decode_row(code, tables, start + number * row_bytes(code, dim), flat_out, target, dim)
                        all_added += 1
                    target += dim
                continue
            hot = 0
            cold = 0
            for position in range(first, first + lookups):
                number = numbers[item, position]
                hot += 1 if np.uint64(number) < rows else 0
                cold += 1 if number == COLD else 0
            if hot:
                before = cold if pooling == POOL_MEAN else 0
                after = cold + hot if pooling == POOL_MEAN else 0
                _add(
                    code,
                    tables,
                    numbers,
                    item,
                    first,
                    lookups,
                    start,
                    dim,
                    rows,
                    before,
                    after,
                    flat_out,
                    target,
                )
                all_added += hot
    return all_added


@functools.cache
def _kernel(row_format: RowFormat) -> Callable[..., int]:
    code = row_format.code  # known to the compiler, so that a kernel holds no other format

    def add(tables, numbers, plan, out):  # type: ignore[no-untyped-def]
        return _add_all(code, tables, numbers, plan, out)

    matrix, result = array_type(types.int64, 2), array_type(types.float32, 2, writable=True)
    return compile_kernel(add, types.intp(array_type(types.uint8, 1), matrix, matrix, result), BORROWING)


def add_hot_rows(
    tables: ByteArray, numbers: IntArray, plan: IntArray, out: FloatArray, row_format: RowFormat = RowFormat.FP32
) -> int:
    """Complete `out[:n]`, float32 `[>= n, sparse_width]`, the lookup of a batch's cold keys, by the hot rows that
    `numbers`, int64 `[n, lookups_per_item]` of `hot_keys.split_hot_keys`, names.

    Summed rows are added, means weighed by how many rows are in them, copied rows put in their places. `tables` uint8
    holds the hot rows as `row_format` has them; all C-contiguous. Returns how many rows were added. Releases the GIL
    and allocates nothing. Raises ValueError for a plan that does not fit the arrays, TypeError for other arrays.
    """
    if len(numbers) > len(out):
        raise ValueError(f"hot rows of {len(numbers)} items for an output of {len(out)} rows")
    added = _kernel(row_format)(tables, numbers, plan, out)
    if added < 0:
        raise ValueError(
            f"the plan reaches past {tables.size} bytes of tables, {numbers.shape[1]} keys an item, "
            f"or {out.shape[1]} columns of output"
        )
    return added


def add_hot_rows_reference(
    tables: ByteArray, numbers: IntArray, plan: IntArray, out: FloatArray, row_format: RowFormat = RowFormat.FP32
) -> int:
    """`add_hot_rows` in plain NumPy: what the kernel must agree with."""
    all_added = 0
    for entry in plan.tolist():
        lookups, start, dim, rows = (entry[i] for i in (LOOKUPS, TABLE_START, DIM, ROWS))
        stored = row_format.row_bytes(dim)
        table = np.empty((rows, dim), np.float32)
        decode_rows_reference(row_format, tables[start : start + rows * stored].reshape(rows, stored), table)
        for item, own in enumerate(numbers[:, entry[KEY_COLUMN] : entry[KEY_COLUMN] + lookups]):
            hot = own >= 0
            added, cold = int(hot.sum()), int((own == COLD).sum())
            target = out[item, entry[OUT_COLUMN] :]
            if entry[POOLING] == COPY or lookups == 1:
                for position in np.flatnonzero(hot):
                    target[position * dim : (position + 1) * dim] = table[own[position]]
            elif added:
                before, after = (max(cold, 1), cold + added) if entry[POOLING] == POOL_MEAN else (1, 1)
                target[:dim] = (target[:dim] * before + table[own[hot]].sum(axis=0)) / after
            all_added += added
    return all_added


def warm_up(row_format: RowFormat = RowFormat.FP32) -> None:
    """Compile the kernel of this format now, or load it from disk, so that no query waits for it."""
    _kernel(row_format)
