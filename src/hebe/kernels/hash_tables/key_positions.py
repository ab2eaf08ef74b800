"""The last position by key, in slots: which keys had an update that a row elsewhere may lack.

A key's slot is among those of its partition of the update log, as positions of different ones do not compare. A slot
has the latest position of any of its keys: never an earlier one than the key's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import array_type, compile_kernel
from hebe.kernels.hash_tables.xxh64 import hash_key

IntArray = npt.NDArray[np.int64]


def _note(keys, offsets, first, bits, slots):  # type: ignore[no-untyped-def]
    shift = np.uint64(64 - bits)
    for index in range(keys.size):
        slot = first + np.int64(hash_key(keys[index]) >> shift)
        slots[slot] = max(slots[slot], offsets[index])


def _read(keys, starts, counts, firsts, bits, begun, stored, slots, required, own):  # type: ignore[no-untyped-def]
    shift = np.uint64(64 - bits)
    for table in range(counts.size):
        count = np.uint64(max(counts[table], 1))
        for place in range(starts[table], starts[table + 1]):
            if counts[table] == 0:
                required[place] = own[place] = -1
                continue
            hashed = hash_key(keys[place])
            partition = firsts[table] + np.int64(hashed % count)
            own[place] = stored[partition]
            required[place] = begun[partition]
            if slots.size:
                last = slots[(partition << bits) + np.int64(hashed >> shift)]
                required[place] = max(last, begun[partition])


_INTS, _OUT = array_type(types.int64, 1), array_type(types.int64, 1, writable=True)


@functools.cache
def _note_kernel() -> Callable[..., None]:
    return compile_kernel(_note, types.void(_INTS, _INTS, types.int64, types.int64, _OUT))


@functools.cache
def _read_kernel() -> Callable[..., None]:
    signature = types.void(_INTS, _INTS, _INTS, _INTS, types.int64, _INTS, _INTS, _INTS, _OUT, _OUT)
    return compile_kernel(_read, signature)


def note_positions(keys: IntArray, offsets: IntArray, partition: int, bits: int, slots: IntArray) -> None:
    """Keys int64 `[n]` of one partition, number `partition` of all, had updates at `offsets`. `slots` int64
    `[partitions << bits]`.
    """
    _note_kernel()(keys, offsets, partition << bits, bits, slots)


def read_positions(
    keys: IntArray,
    starts: IntArray,
    counts: IntArray,
    firsts: IntArray,
    bits: int,
    begun: IntArray,
    stored: IntArray,
    slots: IntArray,
    required: IntArray,
    own: IntArray,
) -> None:
    """Of `keys[starts[i] : starts[i + 1]]`, keys of a table with `counts[i]` partitions, the first of which is number
    `firsts[i]` of all: `required` is filled with the later of what the slots have, if there are any, and of what its
    partition has in `begun`; `own` with what it has in `stored`, both int64 `[partitions]`. -1 both for a table without
    partitions.
    """
    _read_kernel()(keys, starts, counts, firsts, bits, begun, stored, slots, required, own)


def warm_up() -> None:
    """Compile the kernels now, or load them from disk, so that no query waits for it."""
    _note_kernel()
    _read_kernel()
