"""Distinct keys of a batch, in the order they first come: a sort would cost ten times as much (HPS Algorithm 1, DEDUP).

Open addressing in a scratch table at most half full. What the batch's key matrix then holds is what `fused_lookup`
reads: the place of each key's row in the buffer of fetched rows, where distinct keys have theirs one after the other.
All tables of a batch are gone through in one call: there may be dozens, with a handful of keys each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import OPTIONS, array_type, compile_kernel

IntArray = npt.NDArray[np.int64]

ANY_KEY = -1
"""In place of a table's greatest key: its keys may be any but -1."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: spreads keys that follow one another
_LEAST_BITS = 4
_inlined = numba.njit(forceinline=True, **OPTIONS)


@dataclass(frozen=True)
class KeyTable:
    """Which columns of a key matrix hold keys of one table: `blocks` of (first column, columns).

    `dim`: numbers of a row. `most`: the greatest key, where the least is 0; or `ANY_KEY`.
    """

    blocks: Sequence[tuple[int, int]]
    dim: int
    most: int = ANY_KEY


class KeyPlan:
    """The tables whose keys are looked for in key matrices of at least `width` columns."""

    def __init__(self, tables: Sequence[KeyTable]) -> None:
        self.tables = tuple(tables)
        self.blocks: IntArray = np.array([block for table in tables for block in table.blocks], np.int64).reshape(-1, 2)
        self.ends: IntArray = np.cumsum([len(table.blocks) for table in tables], dtype=np.int64)
        self.dims: IntArray = np.array([table.dim for table in tables], np.int64)
        self.most: IntArray = np.array([table.most for table in tables], np.int64)
        if self.blocks.size and self.blocks.min() < 0:
            raise ValueError(f"blocks {self.blocks.tolist()} of a key matrix")
        self.width = int(self.blocks.sum(axis=1).max(initial=0))
        self.columns = int(self.blocks[:, 1].sum())
        self.widest = max((sum(columns for _, columns in table.blocks) for table in tables), default=0)
        """Columns of the table that has most."""


@dataclass(frozen=True, slots=True)
class DistinctKeys:
    """Distinct keys of several tables: `keys[starts[i] : starts[i + 1]]` are those of table i, whose rows have their
    places from number `bases[i]` of the buffer of rows on. Arrays that the next run overwrites.
    """

    keys: IntArray
    starts: IntArray
    bases: IntArray


@_inlined
def _place(key, shift):  # type: ignore[no-untyped-def]
    return np.intp((np.uint64(key) * _MULTIPLIER) >> shift)


def _deduplicate(matrix, blocks, ends, dims, most, scratch, distinct, starts, bases):  # type: ignore[no-untyped-def]
    items, start, base, first_block = matrix.shape[0], 0, 0, 0
    for table in range(dims.size):
        columns = 0
        for block in range(first_block, ends[table]):
            columns += blocks[block, 1]
        bits = _LEAST_BITS
        while (1 << bits) < 2 * items * columns:
            bits += 1
        shift, mask = np.uint64(64 - bits), (1 << bits) - 1
        scratch[: 1 << bits] = -1
        starts[table], bases[table] = start, base
        found, dim, greatest = 0, dims[table], most[table]
        for item in range(items):
            for block in range(first_block, ends[table]):
                first = blocks[block, 0]
                for column in range(first, first + blocks[block, 1]):
                    key = matrix[item, column]
                    if key == -1:
                        continue
                    if greatest >= 0 and (key < 0 or key > greatest):
                        return table
                    at = _place(key, shift)
                    while True:
                        number = scratch[at]
                        if number < 0:
                            number = found
                            scratch[at] = found
                            distinct[start + found] = key
                            found += 1
                            break
                        if distinct[start + number] == key:
                            break
                        at = (at + 1) & mask
                    matrix[item, column] = -2 - (base + number * dim)
        start += found
        base += found * dim
        first_block = ends[table]
    starts[dims.size], bases[dims.size] = start, base
    return -1


def _count_states(matrix, blocks, ends, dims, starts, bases, states, counts):  # type: ignore[no-untyped-def]
    first_block = 0
    for table in range(dims.size):
        for block in range(first_block, ends[table]):
            first, columns = blocks[block, 0], blocks[block, 1]
            for item in range(matrix.shape[0]):
                for column in range(first, first + columns):
                    name = matrix[item, column]
                    if name < -1:
                        counts[item, states[starts[table] + (-2 - name - bases[table]) // dims[table]]] += 1
        first_block = ends[table]


@functools.cache
def _kernels() -> tuple[Callable[..., int], Callable[..., None]]:
    vector, matrix = (array_type(types.int64, dimensions, writable=True) for dimensions in (1, 2))
    read, blocks = array_type(types.int64, 1), array_type(types.int64, 2)
    deduplicate = types.intp(matrix, blocks, read, read, read, vector, vector, vector, vector)
    states, counts = array_type(types.uint8, 1), array_type(types.int32, 2, writable=True)
    count = types.void(blocks, blocks, read, read, read, read, states, counts)
    return compile_kernel(_deduplicate, deduplicate), compile_kernel(_count_states, count)


def slots_of(keys: int) -> int:
    """How many the scratch table has for so many keys of a table, int64 each."""
    return 1 << max(_LEAST_BITS, (2 * keys - 1).bit_length())


class Deduplicator:
    """Finds distinct keys with buffers of its own, which grow to the largest batch seen. One thread at a time."""

    def __init__(self) -> None:
        self._scratch: IntArray = np.empty(0, np.int64)
        self._distinct = self._starts = self._bases = self._scratch

    def run(self, matrix: IntArray, plan: KeyPlan) -> DistinctKeys:
        """Replace keys of `matrix`, int64 C-contiguous, by where their rows will be; -1 stays.

        Distinct key number i of a table, in order of appearance, gets `[base + i * dim, base + (i + 1) * dim)` of the
        buffer, written as `-2 - (base + i * dim)`, where `base` follows what the tables before it need. Raises
        ValueError for columns that `matrix` lacks, IndexError for a key above its table's greatest or below 0: then
        `matrix` is half done, and the error's argument is the number of the table.
        """
        if plan.width > matrix.shape[1]:
            raise ValueError(f"blocks {plan.blocks.tolist()} of a key matrix {list(matrix.shape)}")
        total, tables = len(matrix) * plan.columns, len(plan.tables)
        if total > self._distinct.size:
            self._distinct = np.empty(total, np.int64)
        slots = slots_of(len(matrix) * plan.widest)
        if slots > self._scratch.size:
            self._scratch = np.empty(slots, np.int64)
        if tables + 1 > self._starts.size:
            self._starts, self._bases = np.empty((2, tables + 1), np.int64)
        starts, bases = self._starts[: tables + 1], self._bases[: tables + 1]
        deduplicate, _ = _kernels()
        wrong = deduplicate(
            matrix, plan.blocks, plan.ends, plan.dims, plan.most, self._scratch, self._distinct, starts, bases
        )
        if wrong >= 0:
            raise IndexError(wrong)
        return DistinctKeys(self._distinct[: starts[-1]], starts, bases)


def count_states(
    matrix: IntArray,
    plan: KeyPlan,
    starts: IntArray,
    bases: IntArray,
    states: npt.NDArray[np.uint8],
    kinds: int,
) -> npt.NDArray[np.int32]:
    """How many keys of each row of `matrix` were answered in which way, int32 `[n, kinds]`.

    `matrix` as `Deduplicator.run` has left it, with the `starts` and `bases` that it told; `states` has one number
    below `kinds` for each distinct key. Raises ValueError for states of another number of keys, or not below it.
    """
    if states.size != starts[-1] or (states.size and states.max() >= kinds):
        raise ValueError(f"{states.size} states, up to {states.max(initial=0)}, of {starts[-1]} keys and {kinds} kinds")
    counts: npt.NDArray[np.int32] = np.zeros((len(matrix), kinds), np.int32)
    _, count = _kernels()
    count(matrix, plan.blocks, plan.ends, plan.dims, starts, bases, states, counts)
    return counts


def deduplicate_reference(matrix: IntArray, plan: KeyPlan) -> tuple[list[int], list[int], list[int]]:
    """`Deduplicator.run` in plain Python, keys, starts and bases: what the kernel must agree with."""
    keys: list[int] = []
    starts, bases = [0], [0]
    for table in plan.tables:
        numbers: dict[int, int] = {}
        for item in matrix:
            for first, columns in table.blocks:
                for column in range(first, first + columns):
                    key = int(item[column])
                    if key == -1:
                        continue
                    number = numbers.setdefault(key, len(numbers))
                    item[column] = -2 - (bases[-1] + number * table.dim)
        keys += numbers
        starts.append(len(keys))
        bases.append(bases[-1] + len(numbers) * table.dim)
    return keys, starts, bases


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _kernels()
