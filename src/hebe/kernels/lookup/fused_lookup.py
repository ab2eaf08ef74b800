"""The SparseNet of a model in one call: gather and pool the rows of every feature into one output matrix.

All tables lie in one flat array of bytes (`embeddings.table_memory`), all in one row format, for each of which there is
a function, compiled when it is first asked for. It is one of C, over a block of words that says what is where, so that
other compiled code calls the same one. What stands where a plan says (`feature_plan`). A lookup is one pass over items,
features and keys that touches nothing else: no allocation, no GIL, no state, so any number of threads may run it at
once.

Keys: `0 <= key < rows` reads the table; -1 is no row (padding); a key below -1 names a row fetched from a slower
tier, which starts at element `-2 - key` of `fetched`, always float32. Any other key is read as no row, and counted as
refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum, auto
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.np.numpy_support import carray

from hebe.kernels.compiled import BORROWING, array_type, compile_callback, compile_kernel
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
from hebe.kernels.lookup.padding import COPY_COLUMNS, NO_COPIES, make_copies
from hebe.kernels.lookup.row_format import (
    FP32_CODE,
    ByteArray,
    RowFormat,
    adding_columns,
    decode_row,
    decode_rows_reference,
    row_bytes,
)
from hebe.kernels.primitives import vector
from hebe.kernels.primitives.raw_memory import call_at, pointer_to, put_word, word_in

PREFETCH_ROWS = 16
PREFETCH_DIM = 64
"""Copied rows of at most PREFETCH_DIM floats are asked for PREFETCH_ROWS rows ahead, as a copy's loads wait for its
stores. Wider rows are slower with it than without. So is pooling of fp32 rows, whose loads run ahead by themselves;
narrower rows take more instructions a byte, too many for that, and are asked for as well."""


class LookupWord(IntEnum):
    """Where what stands in the block of a lookup, in words of 8 bytes."""

    ITEMS = 0
    """Of the batch."""
    COPIES = auto()
    """Address of the copies of keys still to be made (`padding`), and how many."""
    COPY_COUNT = auto()
    KEYS = auto()
    """Address of the key matrix, and its columns."""
    KEY_COLUMNS = auto()
    SUMS = auto()
    """Address of the SparseNet's output, and its columns."""
    SUM_COLUMNS = auto()
    TABLES = auto()
    """Address of the tables, and their bytes."""
    TABLE_BYTES = auto()
    FETCHED = auto()
    """Address of fetched rows, and how many floats they are."""
    FETCHED_SIZE = auto()
    PLAN = auto()
    """Address of the plan; its features and columns."""
    FEATURES = auto()
    PLAN_COLUMNS = auto()
    FOUND = auto()
    """Keys of the batch that had a row; negative where the plan does not fit."""
    REFUSED = auto()
    """Those that were out of range."""


FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_CACHE_LINE_BYTES = 64
_inlined = numba.njit(forceinline=True, **BORROWING)


@_inlined
def _ask_for_later(code, tables, keys, item, position, first, lookups, start, dim, rows, column, width):  # type: ignore[no-untyped-def]
    """Prefetch what pooling `width` columns will read PREFETCH_ROWS rows later, of the next item at the farthest."""
    soon = position + min(PREFETCH_ROWS, lookups)
    if soon >= first + lookups:
        soon -= lookups
        item += 1
        if item == keys.shape[0]:
            return
    key = keys[item, soon]
    if np.uint64(key) < rows:
        begin = start + key * row_bytes(code, dim) + row_bytes(code, column) - row_bytes(code, 0)
        size = row_bytes(code, width)
        for line in range(0, max(1, size - _CACHE_LINE_BYTES + 1), _CACHE_LINE_BYTES):
            vector.prefetch(tables, begin + line)
        vector.prefetch(tables, begin + size - 1)


def _pool_columns(width: int) -> Any:
    """The inner loop: sum `width` columns over the rows of one item, in registers."""
    add_columns = adding_columns(width)

    @_inlined
    def pool_columns(  # type: ignore[no-untyped-def]
        code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
    ):
        total = vector.zeros(width)
        stored = row_bytes(code, dim)
        found = 0
        refused = 0
        for position in range(first, first + lookups):
            if code != FP32_CODE:
                _ask_for_later(code, tables, keys, item, position, first, lookups, start, dim, rows, column, width)
            key = keys[item, position]
            if np.uint64(key) < rows:
                total = add_columns(code, tables, start + key * stored, column, total)
                found += 1
            elif key < -1 and -2 - key <= fetched.size - dim:
                total = vector.add(total, vector.load(fetched, -2 - key + column, width))
                found += 1
            elif key != -1:
                refused += 1
        if mean and found > 1:
            total = vector.divide(total, np.float32(found))
        vector.store(out, target + column, total)
        return found, refused

    return pool_columns


_pool_64 = _pool_columns(64)
_pool_32 = _pool_columns(32)
_pool_16 = _pool_columns(16)
_pool_4 = _pool_columns(4)
_pool_1 = _pool_columns(1)


@_inlined
def _pool(  # type: ignore[no-untyped-def]
    code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, out, target
):
    """Reduce the rows of one item to one vector at `out[target : target + dim]`, widest columns first."""
    found = 0
    refused = 0
    column = 0
    while column < dim:
        left = dim - column
        if left >= 64:
            width = 64
            found, refused = _pool_64(
                code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
            )
        elif left >= 32:
            width = 32
            found, refused = _pool_32(
                code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
            )
        elif left >= 16:
            width = 16
            found, refused = _pool_16(
                code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
            )
        elif left >= 4:
            width = 4
            found, refused = _pool_4(
                code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
            )
        else:
            width = 1
            found, refused = _pool_1(
                code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, column, out, target
            )
        column += width
    return found, refused


@_inlined
def _copy(  # type: ignore[no-untyped-def]
    code, tables, fetched, keys, item, ahead, first, lookups, start, dim, rows, out, target
):
    """Copy the rows of one item side by side to `out` from `target` on; ask for those of item `ahead`."""
    stored = row_bytes(code, dim)
    found = 0
    refused = 0
    for position in range(first, first + lookups):
        if ahead < keys.shape[0] and dim <= PREFETCH_DIM:
            soon = keys[ahead, position]
            if np.uint64(soon) < rows:
                for line in range(0, stored, _CACHE_LINE_BYTES):
                    vector.prefetch(tables, start + soon * stored + line)
        key = keys[item, position]
        if np.uint64(key) < rows:
            decode_row(code, tables, start + key * stored, out, target, dim)
            found += 1
        elif key < -1 and -2 - key <= fetched.size - dim:
            vector.copy(fetched, -2 - key, out, target, dim)
            found += 1
        else:
            out[target : target + dim] = 0.0
            refused += key != -1
        target += dim
    return found, refused


@_inlined
def _look_up_batch(code, tables, fetched, copies, keys, plan, out):  # type: ignore[no-untyped-def]
    """`fused_lookup` of tables in the format of `code`; it finds -1 keys where the plan does not fit."""
    make_copies(copies, keys)
    if not plan_fits(code, plan, keys, tables, out):
        return -1, 0
    copied_rows = 0
    for feature in range(plan.shape[0]):
        if plan[feature, POOLING] == COPY or plan[feature, LOOKUPS] == 1:
            copied_rows += plan[feature, LOOKUPS]
    items_ahead = 1 + PREFETCH_ROWS // max(1, copied_rows)
    flat_out = out.reshape(-1)
    all_found = 0
    all_refused = 0
    for item in range(keys.shape[0]):
        for feature in range(plan.shape[0]):
            first = plan[feature, KEY_COLUMN]
            lookups = plan[feature, LOOKUPS]
            start = plan[feature, TABLE_START]
            dim = plan[feature, DIM]
            rows = np.uint64(plan[feature, ROWS])
            pooling = plan[feature, POOLING]
            target = item * out.shape[1] + plan[feature, OUT_COLUMN]
            if pooling == COPY or lookups == 1:
                found, refused = _copy(
                    code,
                    tables,
                    fetched,
                    keys,
                    item,
                    item + items_ahead,
                    first,
                    lookups,
                    start,
                    dim,
                    rows,
                    flat_out,
                    target,
                )
            else:
                mean = pooling == POOL_MEAN
                found, refused = _pool(
                    code, tables, fetched, keys, item, first, lookups, start, dim, rows, mean, flat_out, target
                )
            all_found += found
            all_refused += refused
    return all_found, all_refused


# Of an IntEnum numba knows no arithmetic; of numbers it does.
(_ITEMS, _COPIES, _COPY_COUNT, _KEYS, _KEY_COLUMNS, _SUMS, _SUM_COLUMNS, _TABLES, _TABLE_BYTES, _FETCHED, _FETCHED_SIZE,
 _PLAN, _FEATURES, _PLAN_COLUMNS, _FOUND, _REFUSED) = (int(word) for word in LookupWord)  # fmt: skip


@functools.cache
def look_up(row_format: RowFormat) -> Any:
    """The callback, by its `address`, that does the lookup in a block of `LookupWord`s, of which it is given the
    address, in tables of this format.
    """
    code = row_format.code  # known to the compiler, so that a callback holds no other format

    def look_up(block, _two, _three):  # type: ignore[no-untyped-def]
        items = word_in(block, _ITEMS)
        tables = carray(pointer_to(word_in(block, _TABLES)), (word_in(block, _TABLE_BYTES),), np.uint8)
        fetched = carray(pointer_to(word_in(block, _FETCHED)), (word_in(block, _FETCHED_SIZE),), np.float32)
        copies = carray(pointer_to(word_in(block, _COPIES)), (word_in(block, _COPY_COUNT), COPY_COLUMNS), np.int64)
        keys = carray(pointer_to(word_in(block, _KEYS)), (items, word_in(block, _KEY_COLUMNS)), np.int64)
        plan_shape = (word_in(block, _FEATURES), word_in(block, _PLAN_COLUMNS))
        plan = carray(pointer_to(word_in(block, _PLAN)), plan_shape, np.int64)
        out = carray(pointer_to(word_in(block, _SUMS)), (items, word_in(block, _SUM_COLUMNS)), np.float32)
        found, refused = _look_up_batch(code, tables, fetched, copies, keys, plan, out)
        put_word(block, _FOUND, found)
        put_word(block, _REFUSED, refused)
        return 0

    return compile_callback(look_up, types.int64(types.int64, types.int64, types.int64))


def _call_look_up(look_up, block, tables, fetched, copies, keys, plan, out):  # type: ignore[no-untyped-def]
    block[_ITEMS] = keys.shape[0]
    block[_COPIES], block[_COPY_COUNT] = copies.ctypes.data, copies.shape[0]
    block[_KEYS], block[_KEY_COLUMNS] = keys.ctypes.data, keys.shape[1]
    block[_SUMS], block[_SUM_COLUMNS] = out.ctypes.data, out.shape[1]
    block[_TABLES], block[_TABLE_BYTES] = tables.ctypes.data, tables.size
    block[_FETCHED], block[_FETCHED_SIZE] = fetched.ctypes.data, fetched.size
    block[_PLAN], block[_FEATURES], block[_PLAN_COLUMNS] = plan.ctypes.data, plan.shape[0], plan.shape[1]
    call_at(look_up, np.int64(block.ctypes.data), 0, 0)


@functools.cache
def _kernel() -> Callable[..., None]:
    """Calls a `look_up`, of arrays of the kinds that it takes."""
    words, result = array_type(types.int64, 1, writable=True), array_type(types.float32, 2, writable=True)
    bytes_, floats, matrix = array_type(types.uint8, 1), array_type(types.float32, 1), array_type(types.int64, 2)
    keys = array_type(types.int64, 2, writable=True)
    return compile_kernel(
        _call_look_up, types.void(types.int64, words, bytes_, floats, matrix, keys, matrix, result), BORROWING
    )


def fused_lookup(
    tables: ByteArray,
    fetched: FloatArray,
    keys: IntArray,
    plan: IntArray,
    out: FloatArray,
    copies: IntArray = NO_COPIES,
    row_format: RowFormat = RowFormat.FP32,
) -> tuple[int, int]:
    """Look up a batch: `out[:n]` becomes the SparseNet's output for the key matrix `keys` `[n, lookups_per_item]`.

    `tables` uint8 holds rows as `row_format` has them; `fetched` is flat float32; `out` float32 `[>= n, sparse_width]`;
    all C-contiguous. First, `copies` (`padding.describe_copies` for this key matrix) are made into `keys`. Returns how
    many keys had a row and how many were refused; the rest were padding. Releases the GIL. Raises ValueError for a plan
    that does not fit the arrays, TypeError for arrays of another kind.
    """
    if keys.shape[0] > out.shape[0]:
        raise ValueError(f"lookup of {keys.shape[0]} items into an output of {out.shape[0]} rows")
    block = np.empty(len(LookupWord), np.int64)
    _kernel()(look_up(row_format).address, block, tables, fetched, copies, keys, plan, out)
    found, refused = int(block[_FOUND]), int(block[_REFUSED])
    if found < 0:
        raise ValueError(
            f"the plan reaches past {tables.size} bytes of tables, {keys.shape[1]} keys an item, "
            f"or {out.shape[1]} columns of output"
        )
    return found, refused


def fused_lookup_reference(
    tables: ByteArray,
    fetched: FloatArray,
    keys: IntArray,
    plan: IntArray,
    out: FloatArray,
    row_format: RowFormat = RowFormat.FP32,
) -> tuple[int, int]:
    """`fused_lookup` in plain NumPy: what the kernel must agree with."""
    all_found = all_refused = 0
    for entry in plan:
        lookups, start, dim, rows = (int(entry[i]) for i in (LOOKUPS, TABLE_START, DIM, ROWS))
        first, out_column = int(entry[KEY_COLUMN]), int(entry[OUT_COLUMN])
        stored = row_format.row_bytes(dim)
        table = np.empty((rows, dim), np.float32)
        decode_rows_reference(row_format, tables[start : start + rows * stored].reshape(rows, stored), table)
        for item, item_keys in enumerate(keys[:, first : first + lookups]):
            vectors = np.zeros((lookups, dim), np.float32)
            found = 0
            for position, key in enumerate(item_keys.tolist()):
                if 0 <= key < rows:
                    vectors[position] = table[key]
                elif key < -1 and -2 - key + dim <= fetched.size:
                    vectors[position] = fetched[-2 - key : -2 - key + dim]
                else:
                    all_refused += key != -1
                    continue
                found += 1
            if entry[POOLING] != COPY:
                vectors = vectors.sum(axis=0, keepdims=True)
            if entry[POOLING] == POOL_MEAN:
                vectors /= max(1, found)
            out[item, out_column : out_column + vectors.size] = vectors.reshape(-1)
            all_found += found
    return all_found, all_refused


def warm_up(row_format: RowFormat = RowFormat.FP32) -> None:
    """Compile what looks up tables of this format now, or load it from disk, so that no query waits for it."""
    _kernel()
    look_up(row_format)
