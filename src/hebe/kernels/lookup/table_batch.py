"""A batch of keys of several tables, flat: what kernels that take several tables in one call are given, and how rows
come into it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import array_type, compile_kernel

IntArray = npt.NDArray[np.int64]
MaskArray = npt.NDArray[np.bool_]
RowArray = npt.NDArray[np.float32]


def check_table_batch(
    dims: IntArray,
    tables: IntArray,
    keys: IntArray,
    starts: IntArray,
    rows: RowArray,
    bases: IntArray,
    *masks: MaskArray,
) -> None:
    """Raises ValueError unless `keys[starts[i] : starts[i + 1]]` and `rows[bases[i] : bases[i + 1]]` are keys of table
    number `tables[i]` and as many rows of its dim, within the arrays, and masks have a place for each key.
    """
    sizes = np.diff(starts)
    if (
        starts.shape != (len(tables) + 1,) or bases.shape != starts.shape
        or (tables.size and (tables.min() < 0 or tables.max() >= len(dims)))
        or starts[0] < 0 or bases[0] < 0 or sizes.min(initial=0) < 0
        or starts[-1] > min([keys.size, *(mask.size for mask in masks)]) or bases[-1] > rows.size
        or (np.diff(bases) != sizes * dims[tables]).any()
    ):  # fmt: skip
        raise ValueError("keys, rows and masks of a batch of several tables do not go together")


def _take_rows(source, places, found, starts, bases, rows):  # type: ignore[no-untyped-def]
    index = at = 0
    for number in range(starts.size - 1):
        start, stop = starts[number], starts[number + 1]
        if start == stop:
            continue
        dim = (bases[number + 1] - bases[number]) // (stop - start)
        while index < places.size and places[index] < stop:
            if found[index]:
                to = bases[number] + (places[index] - start) * dim
                for element in range(dim):
                    rows[to + element] = source[at + element]
            at += dim
            index += 1


def _set_rows(values, chosen, starts, bases, rows):  # type: ignore[no-untyped-def]
    for number in range(starts.size - 1):
        start, stop = starts[number], starts[number + 1]
        if start == stop:
            continue
        dim = (bases[number + 1] - bases[number]) // (stop - start)
        for place in range(start, stop):
            if chosen[place]:
                to = bases[number] + (place - start) * dim
                rows[to : to + dim] = values[number]


_INTS, _MASK, _FLOATS = (array_type(scalar, 1) for scalar in (types.int64, types.boolean, types.float32))
_ROWS = array_type(types.float32, 1, writable=True)


@functools.cache
def _take_kernel() -> Callable[..., None]:
    return compile_kernel(_take_rows, types.void(_FLOATS, _INTS, _MASK, _INTS, _INTS, _ROWS))


@functools.cache
def _set_kernel() -> Callable[..., None]:
    return compile_kernel(_set_rows, types.void(_FLOATS, _MASK, _INTS, _INTS, _ROWS))


def take_rows(
    source: RowArray, places: IntArray, found: MaskArray, starts: IntArray, bases: IntArray, rows: RowArray
) -> None:
    """Copy those rows to their places that are `found`. The flat `source` has a row for each of `places`, one after the
    other; places of a table come before those of the next.
    """
    _take_kernel()(source, places, found, starts, bases, rows)


def set_rows(values: RowArray, chosen: MaskArray, starts: IntArray, bases: IntArray, rows: RowArray) -> None:
    """Fill the rows of all places that are `chosen` with the value of their table, float32 `[tables]`."""
    _set_kernel()(values, chosen, starts, bases, rows)


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _take_kernel()
    _set_kernel()
