"""Rows with a header, as a volatile store outside this process holds them: each says how new it is, and whose it is.

    position   int64     of the row's last update in its partition of the update log; -1 for a row of the model
    checksum   uint64    XXH64, with the table's seed, of the key (int64), the position and the row
    row        dim float32

All numbers are little-endian. The seed depends on the table's name and on `FORMAT`, so the checksum refuses a row of
another table, key or format, a damaged one, and one that is cut or padded. Whatever library has XXH64 computes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from hashlib import blake2b

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import BORROWING, array_type, compile_kernel
from hebe.kernels.lookup.table_batch import IntArray, MaskArray, RowArray
from hebe.kernels.primitives import vector
from hebe.kernels.primitives.xxh64_steps import (
    PRIME_1,
    PRIME_2,
    PRIME_5,
    absorb,
    absorb_half,
    avalanche,
    joined,
    lane_round,
)

ByteArray = npt.NDArray[np.uint8]
SeedArray = npt.NDArray[np.uint64]

HEADER_BYTES = 16
"""Before each row."""

FORMAT = 2
"""Of the bytes of a sealed row; a row of another format is refused."""

_FLOAT_BYTES = 4
_HEADER_FLOATS = HEADER_BYTES // _FLOAT_BYTES
_inlined = numba.njit(forceinline=True, **BORROWING)


def table_seed(table: str) -> int:
    """The seed, below 2**64, of the checksums of a table's rows."""
    return int.from_bytes(blake2b(f"{FORMAT}/{table}".encode(), digest_size=8).digest(), "little")


@_inlined
def _word(halves, at):  # type: ignore[no-untyped-def]
    """The uint64 at `at`. Unsigned indices, which do not count from the end if negative, make one load of it."""
    first = np.uint64(at)
    return np.uint64(halves[first]) | (np.uint64(halves[first + np.uint64(1)]) << np.uint64(32))


@_inlined
def _checksum(seed, key, position, halves, at, dim):  # type: ignore[no-untyped-def]
    """Of the row `halves[at : at + dim]`, uint32."""
    size = np.uint64(HEADER_BYTES + _FLOAT_BYTES * dim)  # key and position are as long as the header
    done = 0
    if dim >= 4:
        one = lane_round(seed + PRIME_1 + PRIME_2, key)
        two = lane_round(seed + PRIME_2, position)
        three = lane_round(seed, _word(halves, at))
        four = lane_round(seed - PRIME_1, _word(halves, at + 2))
        done = 4
        while done + 8 <= dim:
            one = lane_round(one, _word(halves, at + done))
            two = lane_round(two, _word(halves, at + done + 2))
            three = lane_round(three, _word(halves, at + done + 4))
            four = lane_round(four, _word(halves, at + done + 6))
            done += 8
        hashed = joined(one, two, three, four) + size
    else:
        hashed = absorb(absorb(seed + PRIME_5 + size, key), position)
    while done + 2 <= dim:
        hashed = absorb(hashed, _word(halves, at + done))
        done += 2
    if done < dim:
        hashed = absorb_half(hashed, np.uint64(halves[at + done]))
    return avalanche(hashed)


def _seal(seeds, places, keys, positions, starts, bases, halves, sealed):  # type: ignore[no-untyped-def]
    index = at = 0
    for number in range(starts.size - 1):
        start, stop = starts[number], starts[number + 1]
        if start == stop:
            continue
        dim = (bases[number + 1] - bases[number]) // (stop - start)
        while index < places.size and places[index] < stop:
            base = bases[number] + (places[index] - start) * dim
            position = np.uint64(positions[index])
            checksum = _checksum(seeds[number], np.uint64(keys[places[index]]), position, halves, base, dim)
            for half, value in enumerate((position, position >> np.uint64(32), checksum, checksum >> np.uint64(32))):
                sealed[at + half] = np.uint32(value)
            vector.copy(halves, base, sealed, at + _HEADER_FLOATS, dim)
            at += _HEADER_FLOATS + dim
            index += 1


def _open(sealed, places, present, keys, seeds, starts, bases, rows, positions):  # type: ignore[no-untyped-def]
    index = at = refused = 0
    for number in range(starts.size - 1):
        start, stop = starts[number], starts[number + 1]
        if start == stop:
            continue
        dim = (bases[number + 1] - bases[number]) // (stop - start)
        while index < places.size and places[index] < stop:
            if present[index]:
                place = places[index]
                position, checksum = _word(sealed, at), _word(sealed, at + 2)
                row = at + _HEADER_FLOATS
                if _checksum(seeds[number], np.uint64(keys[place]), position, sealed, row, dim) == checksum:
                    vector.copy(sealed, row, rows, bases[number] + (place - start) * dim, dim)
                    positions[place] = np.int64(position)
                else:
                    present[index] = False
                    refused += 1
            at += _HEADER_FLOATS + dim
            index += 1
    return refused


_INTS, _SEEDS, _HALVES = (array_type(scalar, 1) for scalar in (types.int64, types.uint64, types.uint32))
_NEW_INTS, _NEW_HALVES, _NEW_MASK, _NEW_ROWS = (
    array_type(scalar, 1, writable=True) for scalar in (types.int64, types.uint32, types.boolean, types.float32)
)


@functools.cache
def _seal_kernel() -> Callable[..., None]:
    signature = types.void(_SEEDS, _INTS, _INTS, _INTS, _INTS, _INTS, _HALVES, _NEW_HALVES)
    return compile_kernel(_seal, signature, BORROWING)


@functools.cache
def _open_kernel() -> Callable[..., int]:
    signature = types.intp(_HALVES, _INTS, _NEW_MASK, _INTS, _SEEDS, _INTS, _INTS, _NEW_ROWS, _NEW_INTS)
    return compile_kernel(_open, signature, BORROWING)


def seal_rows(
    seeds: SeedArray,
    places: IntArray,
    keys: IntArray,
    positions: IntArray,
    starts: IntArray,
    bases: IntArray,
    rows: RowArray,
) -> list[bytes]:
    """The sealed row of each of `places`, which are indices of `keys`; `positions` has one for each place.

    `starts`, `bases` and the flat `rows` are those of a batch as `check_table_batch` describes it, `seeds` those of its
    tables. Places of a table come before those of the next. The same row, key and position give the same bytes.
    """
    row_bytes = HEADER_BYTES + _FLOAT_BYTES * (np.diff(bases) // np.maximum(np.diff(starts), 1))
    counts = np.bincount(np.searchsorted(starts, places, "right") - 1, minlength=len(seeds))
    ends = np.cumsum(counts * row_bytes)
    sealed = np.empty(int(ends[-1]) if len(seeds) else 0, np.uint8)
    _seal_kernel()(seeds, places, keys, positions, starts, bases, rows.view(np.uint32), sealed.view(np.uint32))
    taken: list[bytes] = []
    for end, count, size in zip(ends.tolist(), counts.tolist(), row_bytes.tolist(), strict=True):
        taken += sealed[end - count * size : end].view(f"V{size}").tolist()
    return taken


def seal_table(seed: int, keys: IntArray, positions: IntArray, rows: RowArray) -> ByteArray:
    """The sealed rows, uint8 `[n, row bytes]`, of one table's `keys`; `rows` float32 `[n, dim]`, C-contiguous."""
    count, dim = rows.shape
    sealed = np.empty((count, HEADER_BYTES + _FLOAT_BYTES * dim), np.uint8)
    starts, bases = np.array([0, count]), np.array([0, rows.size])
    halves, flat = rows.reshape(-1).view(np.uint32), sealed.reshape(-1).view(np.uint32)
    _seal_kernel()(np.array([seed], np.uint64), np.arange(count), keys, positions, starts, bases, halves, flat)
    return sealed


def open_rows(
    source: ByteArray,
    places: IntArray,
    present: MaskArray,
    keys: IntArray,
    seeds: SeedArray,
    starts: IntArray,
    bases: IntArray,
    rows: RowArray,
    positions: IntArray,
) -> int:
    """Copy those rows to their places that are `present` and whose checksum fits, and set `positions` [keys] there.

    Where the checksum does not fit, `present` becomes False and nothing else is written; returns how many these are.
    The flat `source` has a sealed row for each of `places`, one after the other, with any content where it is not
    `present`; its size is not checked. Places of a table come before those of the next.
    """
    return _open_kernel()(source.view(np.uint32), places, present, keys, seeds, starts, bases, rows, positions)


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _seal_kernel()
    _open_kernel()
