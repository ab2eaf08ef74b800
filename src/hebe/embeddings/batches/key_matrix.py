"""From the keys of queries to the key matrix of a batch: int64 `[n, spec.lookups_per_item]`, -1 where no row.

Features stand side by side in the order of the spec, `lookups` columns each. The numbers of items go beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hebe.kernels.lookup.find_keys import find_in_range
from hebe.kernels.lookup.padding import (
    COPY_COLUMNS,
    NO_COPIES,
    START,
    STOP,
    copy_fixed,
    count_present,
    describe_copies,
    describe_pad,
    pad_jagged,
    place_numbers,
)
from hebe.query import FeatureKeys, FloatArray, JaggedKeys, KeyArray
from hebe.spec import ModelSpec


def place_keys(
    out: KeyArray,
    row_start: int,
    features: Mapping[str, FeatureKeys],
    start: int,
    stop: int,
    spec: ModelSpec,
    pads: list[tuple[int, ...]] | None = None,
) -> KeyArray:
    """Write the keys of items `[start, stop)` of one query to `out[row_start : row_start + stop - start]`: the jagged
    ones now, the fixed ones when the copies that are returned are made (`padding`), at the latest by the lookup.

    `features` are those of a `Query` that was checked against the spec: fixed `[items, lookups]` or jagged, perhaps
    read-only or unaligned views of received bytes. `out` int64, C-contiguous. With `pads` the jagged ones are described
    too (`padding`), at the end of that.
    """
    fixed: list[KeyArray] = []
    columns: list[int] = []
    column = 0
    for feature in spec.features:
        keys = features[feature.name]
        if isinstance(keys, JaggedKeys):
            place = keys.values, keys.offsets, start, stop, feature.lookups, out, row_start, column
            if pads is None:
                pad_jagged(*place)
            else:
                pads.append(describe_pad(*place))
        else:
            fixed.append(keys)
            columns.append(column)
        column += feature.lookups
    return describe_copies(fixed, columns, start, stop, out, row_start) if fixed else NO_COPIES


def describe_keys(spec: ModelSpec, items: int, keys_at: Mapping[str, int]) -> KeyArray:
    """The copies of all keys of a query of so many `items`, all features fixed, to rows of a key matrix from 0 on, with
    for each feature's address the byte of some buffer at which its keys start: for `find_keys`.
    """
    described = np.zeros((len(spec.features), COPY_COLUMNS), np.int64)
    column = 0
    for row, feature in zip(described, spec.features, strict=True):
        row[:] = keys_at[feature.name], column, feature.lookups, 0, items, 0
        column += feature.lookups
    return described


def find_keys(buffer: memoryview, described: KeyArray, rows: KeyArray, dense_at: int, numbers: int) -> bool:
    """As `find_in_range`: turn what `describe_keys` said into copies of the keys in `buffer`. Whether all are below the
    `rows` of their feature's table, not negative, and the `numbers` float32 from byte `dense_at` on finite.
    """
    return find_in_range(np.frombuffer(buffer, np.uint8), described, rows, dense_at, numbers)


def place_described(out: KeyArray, row_start: int, described: KeyArray, start: int, stop: int) -> KeyArray:
    """As `place_keys`, of a query of which all keys are `described` already."""
    if not (0 <= start <= stop <= described[0, STOP] and 0 <= row_start <= len(out) - (stop - start)):
        raise ValueError(f"items [{start}, {stop}) of {described[0, STOP]} at row {row_start} do not fit {out.shape}")
    copies = described.copy()
    copies[:, START:] = start, stop, row_start
    return copies


def place_dense(out: FloatArray, row_start: int, dense: FloatArray, start: int, stop: int) -> None:
    """Write the numbers of items `[start, stop)` of one query, its `dense`, to rows of `out` from `row_start` on: of as
    many columns, float32, C-contiguous.
    """
    place_numbers(dense, start, stop, out, row_start)


def complete(keys: KeyArray, copies: KeyArray) -> None:
    """Make the copies that `place_keys` described, for one who reads `keys` before the lookup."""
    copy_fixed(copies, keys)


def fill_lengths(out: KeyArray, keys: KeyArray, spec: ModelSpec) -> None:
    """Write the valid rows of each unreduced feature: `out` int64 `[>= n, len(spec.sequences)]`, the DenseNet's
    `lengths`, from the key matrix `keys` `[n, spec.lookups_per_item]`.
    """
    column = sequence = 0
    for feature in spec.features:
        if not feature.pooling.reduces:
            count_present(keys, column, feature.lookups, out, sequence)
            sequence += 1
        column += feature.lookups
