"""`add_hot_rows` on a GPU that holds the hot rows (Hercules IV.B, Hot-SparseNet), all features and items in one launch.

Written in the Triton language, which is imported when a kernel is first made: most machines lack it. With
TRITON_INTERPRET=1 set by then, the same kernel runs on arrays of the CPU, slowly.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from hebe.kernels.hot_rows.hot_keys import COLD
from hebe.kernels.lookup.feature_plan import (
    COPY,
    DIM,
    KEY_COLUMN,
    LOOKUPS,
    OUT_COLUMN,
    PLAN_COLUMNS,
    POOL_MEAN,
    POOLING,
    ROWS,
    TABLE_START,
)
from hebe.kernels.lookup.fused_lookup import IntArray
from hebe.kernels.lookup.row_format import RowFormat

_TILE = 2048
"""Numbers that a program reads at a time: 8 KiB of float32. The registers of an H100's multiprocessor are enough for
five programs of aligned rows, so 40 KiB are under way in each, more than its memory needs to be busy."""

_MOST_COLUMNS = 128
_LEAST_COLUMNS = 16
"""The tile's columns are those of the widest rows within these bounds; wider rows take several tiles."""

_COUNTED = 1024
"""Numbers of hot rows that a program looks at together, to learn how many there are and where they end."""

OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
"""What the kernel is compiled with. Multiply and add may be fused, as in `add_hot_rows`; Triton is to change what it
does where nothing is said."""

_WIDEST_ACCESS = 16
"""Bytes that a thread reads at once, and columns that are worth being known to divide what is read."""

_NUMBER_BYTES = {RowFormat.FP32: 4, RowFormat.FP16: 2, RowFormat.INT8: 1}

tl: Any = None
"""`triton.language`, which the kernel must find as a global of its module."""


@functools.cache
def kernel() -> Any:
    """The kernel, to be compiled when first launched. Raises ImportError where there is no Triton."""
    global tl
    try:
        import triton
        import triton.language
    except ImportError as fault:
        raise ImportError("hot rows on a GPU need Triton: pip install 'hebe-serve[gpu]'") from fault
    tl = triton.language

    # A tile is ROWS_AT_ONCE x COLUMNS numbers. What is pooled has POSITIONS rows for each of some items in it, which
    # are summed when all positions are through; what is copied has one row for each of ROWS_AT_ONCE items.
    def add_hot_rows(  # type: ignore[no-untyped-def]
        tables,
        entries,
        numbers,
        out,
        items,
        pooled_entries,
        pooling_programs,
        number_columns,
        out_columns,
        FORMAT: tl.constexpr,  # noqa: N803
        ROWS_AT_ONCE: tl.constexpr,  # noqa: N803
        POSITIONS: tl.constexpr,  # noqa: N803
        COLUMNS: tl.constexpr,  # noqa: N803
        COUNTED: tl.constexpr,  # noqa: N803
        ALIGNED_BYTES: tl.constexpr,  # noqa: N803
        ALIGNED_COLUMNS: tl.constexpr,  # noqa: N803
        COLD: tl.constexpr,  # noqa: N803
    ):
        ITEMS: tl.constexpr = ROWS_AT_ONCE // POSITIONS  # noqa: N806
        program = tl.program_id(0)
        copies = program >= pooling_programs
        entry = 0
        positions = POSITIONS
        if copies:
            program -= pooling_programs
            entry += pooled_entries
            positions = 1
        items_at_once = ROWS_AT_ONCE // positions
        blocks = (items + items_at_once - 1) // items_at_once
        entry += program // blocks
        first_item = (program % blocks).to(tl.int64) * items_at_once

        key_column = tl.load(entries + entry * 8)
        lookups = tl.load(entries + entry * 8 + 1).to(tl.int32)
        start = tl.load(entries + entry * 8 + 2)
        row_bytes = tl.load(entries + entry * 8 + 3)
        dim = tl.multiple_of(tl.load(entries + entry * 8 + 4).to(tl.int32), ALIGNED_COLUMNS)
        rows = tl.load(entries + entry * 8 + 5)
        out_column = tl.multiple_of(tl.load(entries + entry * 8 + 6), ALIGNED_COLUMNS)
        mean = tl.load(entries + entry * 8 + 7)

        # How many rows of the pooled items are hot, and after which position none is: where the keys of a feature may
        # change places, hot ones come first, and the rest of the tiles is not read.
        pooled = first_item + tl.arange(0, ITEMS)
        hot = tl.zeros([ITEMS], tl.int32)
        cold = tl.zeros([ITEMS], tl.int32)
        end = lookups
        if not copies:
            ends = tl.zeros([ITEMS], tl.int32)
            for step in range(0, lookups, COUNTED):
                position = step + tl.arange(0, COUNTED)
                number = tl.load(
                    numbers + (pooled * number_columns + key_column)[:, None] + position[None, :],
                    mask=(pooled < items)[:, None] & (position < lookups)[None, :],
                    other=-1,
                )
                is_hot = (number >= 0) & (number < rows)
                hot += tl.sum(is_hot.to(tl.int32), 1)
                cold += tl.sum((number == COLD).to(tl.int32), 1)
                ends = tl.maximum(ends, tl.max(tl.where(is_hot, position[None, :] + 1, 0), 1))
            end = tl.max(ends, 0)

        row = tl.arange(0, ROWS_AT_ONCE)
        item = first_item + row // positions
        own_numbers = numbers + item * number_columns + key_column
        target = tl.multiple_of(item * out_columns + out_column, ALIGNED_COLUMNS)
        pooled_target = tl.multiple_of(pooled * out_columns + out_column, ALIGNED_COLUMNS)
        for first_column in range(0, dim, COLUMNS):
            column = first_column + tl.arange(0, COLUMNS)
            total = tl.zeros([ROWS_AT_ONCE, COLUMNS], tl.float32)
            for step in range(0, end, positions):
                position = step + row % positions
                number = tl.load(own_numbers + position, mask=(item < items) & (position < lookups), other=-1)
                is_hot = (number >= 0) & (number < rows)
                there = is_hot[:, None] & (column < dim)[None, :]
                stored = tables + tl.multiple_of(start + number * row_bytes, ALIGNED_BYTES)
                if FORMAT == "fp32":
                    read = tl.load(stored.to(tl.pointer_type(tl.float32))[:, None] + column[None, :], there, 0.0)
                elif FORMAT == "fp16":
                    halves = tl.load(stored.to(tl.pointer_type(tl.float16))[:, None] + column[None, :], there, 0.0)
                    read = halves.to(tl.float32)
                else:
                    if ALIGNED_BYTES >= 4:
                        scale = tl.load(stored.to(tl.pointer_type(tl.float32)), is_hot, 0.0)
                    else:
                        bits = tl.load(stored, is_hot, 0).to(tl.uint32)
                        bits |= tl.load(stored + 1, is_hot, 0).to(tl.uint32) << 8
                        bits |= tl.load(stored + 2, is_hot, 0).to(tl.uint32) << 16
                        bits |= tl.load(stored + 3, is_hot, 0).to(tl.uint32) << 24
                        scale = bits.to(tl.float32, bitcast=True)
                    steps = (stored + 4).to(tl.pointer_type(tl.int8))[:, None] + column[None, :]
                    read = tl.load(steps, there, 0).to(tl.float32) * scale[:, None]
                if copies:
                    tl.store(out + target[:, None] + column[None, :], read, there)
                else:
                    total += read
            if not copies:
                added = tl.sum(tl.reshape(total, [ITEMS, POSITIONS, COLUMNS]), 1)
                before = tl.where(mean != 0, tl.maximum(cold, 1), 1).to(tl.float32)
                after = tl.where(mean != 0, tl.maximum(cold + hot, 1), 1).to(tl.float32)
                place = out + pooled_target[:, None] + column[None, :]
                written = (hot > 0)[:, None] & (column < dim)[None, :]
                whole = tl.load(place, written, 0.0) * before[:, None] + added
                tl.store(place, tl.div_rn(whole, tl.broadcast_to(after[:, None], [ITEMS, COLUMNS])), written)

    # How many items there are changes from call to call and must not make another kernel.
    jit = triton.jit(do_not_specialize=["items", "pooling_programs"], do_not_specialize_on_alignment=["numbers"])
    return jit(add_hot_rows)


class HotRowAdder:
    """Completes lookups of cold keys by the hot rows in `tables`, uint8 `[bytes]` on a GPU, as `row_format` has them.

    `plan`, int64 `[features, PLAN_COLUMNS]`, is of the hot rows alone, on the host, and features write to columns of
    their own. `number_columns` and `out_columns` are those of what `add` will be given. Raises ValueError for a plan
    that does not fit these or the tables, or names a table that begins amid a number, ImportError without Triton.

    `constants` are what the kernel is compiled for. `add` may run in any number of threads.
    """

    def __init__(
        self,
        tables: torch.Tensor,
        plan: IntArray,
        row_format: RowFormat = RowFormat.FP32,
        *,
        number_columns: int,
        out_columns: int,
    ) -> None:
        if tables.dtype != torch.uint8 or tables.ndim != 1 or not tables.is_contiguous():
            raise ValueError(f"tables must be contiguous uint8 [bytes], not {tables.dtype} {list(tables.shape)}")
        if not _plan_fits(plan, row_format, tables.numel(), number_columns, out_columns):
            raise ValueError(
                f"the plan reaches past {tables.numel()} bytes of tables, {number_columns} keys an item, "
                f"or {out_columns} columns of output"
            )
        self._kernel = kernel()
        self._tables, self._number_columns, self._out_columns = tables, number_columns, out_columns
        pooled, copied = _entries(plan, row_format)
        both = np.concatenate([pooled, copied])
        self._entries = torch.from_numpy(both).to(tables.device)
        self._pooled, self._copied = len(pooled), len(copied)
        starts, row_bytes, dims, first_columns = both[:, [2, 3, 4, 6]].T
        aligned_bytes = _alignment(tables.data_ptr(), *starts.tolist(), *row_bytes.tolist())
        if aligned_bytes < _NUMBER_BYTES[row_format]:
            raise ValueError(f"{row_format} tables must begin at multiples of {_NUMBER_BYTES[row_format]} bytes")
        columns = min(max(_power_of_two(max(dims, default=1)), _LEAST_COLUMNS), _MOST_COLUMNS)
        self._rows_at_once = _TILE // columns
        lookups = pooled[:, 1].tolist() or [1]
        positions = min(_power_of_two(sum(lookups) // len(lookups)), self._rows_at_once)
        self._items_at_once = self._rows_at_once // positions
        self.constants: dict[str, Any] = {
            "FORMAT": row_format.value,
            "ROWS_AT_ONCE": self._rows_at_once,
            "POSITIONS": positions,
            "COLUMNS": columns,
            "COUNTED": min(_power_of_two(max(lookups)), _COUNTED // self._items_at_once),
            "ALIGNED_BYTES": aligned_bytes,
            "ALIGNED_COLUMNS": _alignment(out_columns, *dims.tolist(), *first_columns.tolist()),
            "COLD": COLD,
        }

    def add(self, numbers: torch.Tensor, out: torch.Tensor) -> None:
        """Complete `out[:n]`, float32 `[>= n, out_columns]`, by the hot rows that `numbers`, int64
        `[n, number_columns]` of `hot_keys.split_hot_keys`, names, as `add_hot_rows` does; both contiguous, where the
        tables are.

        Work is queued on the current stream and not waited for; nothing is allocated, but the first call compiles.
        Raises ValueError for other arrays.
        """
        for what, array, dtype, columns in (
            ("numbers", numbers, torch.int64, self._number_columns),
            ("out", out, torch.float32, self._out_columns),
        ):
            if array.dtype != dtype or array.ndim != 2 or array.shape[1] != columns or not array.is_contiguous():
                raise ValueError(
                    f"{what} must be contiguous {dtype} [n, {columns}], not {array.dtype} {list(array.shape)}"
                )
            if array.device != self._tables.device:
                raise ValueError(f"{what} are on {array.device}, the hot rows on {self._tables.device}")
        items = len(numbers)
        if items > len(out):
            raise ValueError(f"hot rows of {items} items for an output of {len(out)} rows")
        pooling = self._pooled * -(-items // self._items_at_once)
        programs = pooling + self._copied * -(-items // self._rows_at_once)
        if not programs:
            return
        with torch.cuda.device(out.get_device()):  # Triton launches on the current one; there is none for -1, the CPU
            self._kernel[(programs,)](
                self._tables,
                self._entries,
                numbers,
                out,
                items,
                self._pooled,
                pooling,
                self._number_columns,
                self._out_columns,
                **self.constants,
                **OPTIONS,
            )

    def warm_up(self) -> None:
        """Compile the kernel now, or load it from disk, so that no query waits for it."""
        device = self._tables.device
        numbers = torch.full((1, self._number_columns), -1, dtype=torch.int64, device=device)
        self.add(numbers, torch.zeros((1, self._out_columns), device=device))


def _plan_fits(plan: IntArray, row_format: RowFormat, table_bytes: int, number_columns: int, out_columns: int) -> bool:
    """`feature_plan.plan_fits`, for a plan whose arrays are not on this device."""
    if plan.ndim != 2 or plan.shape[1] != PLAN_COLUMNS:
        return False
    for entry in plan.tolist():
        lookups, dim = entry[LOOKUPS], entry[DIM]
        width = dim * lookups if entry[POOLING] == COPY else dim
        if (
            min(entry) < 0
            or entry[KEY_COLUMN] + lookups > number_columns
            or entry[TABLE_START] + entry[ROWS] * row_format.row_bytes(dim) > table_bytes
            or entry[OUT_COLUMN] + width > out_columns
        ):
            return False
    return True


def _entries(plan: IntArray, row_format: RowFormat) -> tuple[IntArray, IntArray]:
    """What the kernel reads of the features that are pooled, and of each position of those that are copied: key column,
    lookups, first byte and bytes a row of the table, dim, rows, output column, whether it is a mean. int64 `[n, 8]`.

    Features of which no row is hot are left out.
    """
    pooled, copied = [], []
    for entry in plan.tolist():
        key_column, lookups, start, dim, rows, out_column, pooling = (
            entry[i] for i in (KEY_COLUMN, LOOKUPS, TABLE_START, DIM, ROWS, OUT_COLUMN, POOLING)
        )
        table = (start, row_format.row_bytes(dim), dim, rows)
        if not rows * dim:
            continue
        if pooling == COPY or lookups == 1:
            copied += [(key_column + i, 1, *table, out_column + i * dim, False) for i in range(lookups)]
        elif lookups:
            pooled.append((key_column, lookups, *table, out_column, pooling == POOL_MEAN))
    return np.array(pooled, np.int64).reshape(-1, 8), np.array(copied, np.int64).reshape(-1, 8)


def _alignment(*numbers: int) -> int:
    """The largest power of two that divides all of `numbers`, of those worth knowing."""
    return math.gcd(_WIDEST_ACCESS, *numbers)


def _power_of_two(number: int) -> int:
    """The least power of two that is no less than `number`, which is positive."""
    return 1 << (int(number) - 1).bit_length()
