"""Distinct keys of a batch, in the order they first come: a sort would cost ten times as much (HPS Algorithm 1, DEDUP).

Open addressing in a scratch table at most half full. What the batch's key matrix then holds is what `fused_lookup`
reads: the place of each key's row in the buffer of fetched rows, where distinct keys have theirs one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import OPTIONS, array_type, compile_kernel

IntArray = npt.NDArray[np.int64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads keys that follow one another
_inlined = numba.njit(forceinline=True, **OPTIONS)


@_inlined
def _place(key, shift):  # type: ignore[no-untyped-def]
    return np.intp((np.uint64(key) * _MULTIPLIER) >> shift)


def _deduplicate(matrix, blocks, base, dim, scratch, distinct):  # type: ignore[no-untyped-def]
    bits = 0
    while (1 << bits) < scratch.size:
        bits += 1
    shift = np.uint64(64 - bits)
    mask = scratch.size - 1
    scratch[:] = -1
    found = 0
    for item in range(matrix.shape[0]):
        for block in range(blocks.shape[0]):
            first = blocks[block, 0]
            for column in range(first, first + blocks[block, 1]):
                key = matrix[item, column]
                if key == -1:
                    continue
                at = _place(key, shift)
                while True:
                    number = scratch[at]
                    if number < 0:
                        number = found
                        scratch[at] = found
                        distinct[found] = key
                        found += 1
                        break
                    if distinct[number] == key:
                        break
                    at = (at + 1) & mask
                matrix[item, column] = -2 - (base + number * dim)
    return found


@functools.cache
def _kernel() -> Callable[..., int]:
    vector, matrix = (array_type(types.int64, dimensions, writable=True) for dimensions in (1, 2))
    blocks = array_type(types.int64, 2)
    return compile_kernel(_deduplicate, types.intp(matrix, blocks, types.intp, types.intp, vector, vector))


class Deduplicator:
    """Finds distinct keys with buffers of its own, which grow to the largest batch seen. One thread at a time."""

    def __init__(self) -> None:
        self._scratch: IntArray = np.empty(0, np.int64)
        self._distinct = self._scratch

    def run(self, matrix: IntArray, blocks: IntArray, base: int, dim: int) -> IntArray:
        """Replace keys of `matrix`, int64 C-contiguous, by where their rows will be; -1 stays.

        `blocks` int64 `[k, 2]` gives first column and number of columns of each block of columns that is read. Distinct
        key number i gets `[base + i * dim, base + (i + 1) * dim)` of the buffer, written as `-2 - (base + i * dim)`.
        Returns the distinct keys in order of appearance, an array that the next run overwrites.
        Raises ValueError for columns that `matrix` lacks.
        """
        if blocks.size and (blocks.min() < 0 or blocks.sum(axis=1).max() > matrix.shape[1]):
            raise ValueError(f"blocks {blocks.tolist()} of a key matrix {list(matrix.shape)}")
        total = len(matrix) * int(blocks[:, 1].sum())
        if total > self._distinct.size:
            self._distinct = np.empty(total, np.int64)
        slots = 1 << max(4, (2 * total - 1).bit_length())
        if slots > self._scratch.size:
            self._scratch = np.empty(slots, np.int64)
        found = _kernel()(matrix, blocks, base, dim, self._scratch[:slots], self._distinct)
        return self._distinct[:found]


def deduplicate_reference(matrix: IntArray, blocks: IntArray, base: int, dim: int) -> IntArray:
    """`Deduplicator.run` in plain Python: what the kernel must agree with."""
    numbers: dict[int, int] = {}
    for item in matrix:
        for first, columns in blocks.tolist():
            for column in range(first, first + columns):
                key = int(item[column])
                if key == -1:
                    continue
                number = numbers.setdefault(key, len(numbers))
                item[column] = -2 - (base + number * dim)
    return np.array(list(numbers), np.int64)


def warm_up() -> None:
    """Compile the kernel now, or load it from disk, so that no query waits for it."""
    _kernel()
