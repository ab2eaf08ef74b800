"""XXH64 of a key: which partition of a volatile store it belongs to, on whatever machine and in whatever language.

Of a key's eight little-endian bytes, with seed 0, as the library of that name computes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import OPTIONS, array_type, compile_kernel
from hebe.kernels.primitives.xxh64_steps import PRIME_5, PRIMES, absorb, avalanche

KeyArray = npt.NDArray[np.int64]

_BYTES = np.uint64(8)


def _hash_key(key):  # type: ignore[no-untyped-def]
    return avalanche(absorb(PRIME_5 + _BYTES, np.uint64(key)))


hash_key: Callable[..., Any] = numba.njit(forceinline=True, **OPTIONS)(_hash_key)
"""The hash, uint64, of one int64 key; to be called within kernels."""


def _key_partitions(keys, num_partitions, partitions):  # type: ignore[no-untyped-def]
    count = np.uint64(num_partitions)
    for position in range(keys.size):
        partitions[position] = np.int64(hash_key(keys[position]) % count)


@functools.cache
def _partition_kernel() -> Callable[..., None]:
    return compile_kernel(
        _key_partitions,
        types.void(array_type(types.int64, 1), types.intp, array_type(types.int64, 1, writable=True)),
    )


def key_partitions(keys: KeyArray, num_partitions: int) -> KeyArray:
    """The partition of each key, int64 `[n]`: its hash modulo `num_partitions`.

    Raises ValueError if `num_partitions` is not positive, TypeError for keys that are not int64 `[n]`.
    """
    if num_partitions < 1:
        raise ValueError(f"num_partitions is {num_partitions}: must be at least 1")
    partitions = np.empty(keys.shape, np.int64)
    _partition_kernel()(np.ascontiguousarray(keys), num_partitions, partitions)
    return partitions


def hash_key_reference(key: int) -> int:
    """`hash_key` in plain Python integers: what the kernels must agree with."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = PRIMES
    mask = (1 << 64) - 1

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & mask

    mixed = rotated((key & mask) * prime_2 & mask, 31) * prime_1 & mask
    hashed = (rotated((prime_5 + 8) ^ mixed, 27) * prime_1 + prime_4) & mask
    hashed = (hashed ^ hashed >> 33) * prime_2 & mask
    hashed = (hashed ^ hashed >> 29) * prime_3 & mask
    return hashed ^ hashed >> 32


def warm_up() -> None:
    """Compile the kernel now, or load it from disk, so that no query waits for it."""
    _partition_kernel()
