"""Keys that lie in one received buffer, found and checked in one call: with ten features what NumPy does for one after
the other takes longer than all their keys."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import types

from hebe.kernels.compiled import LOCKED, OPTIONS, array_type, compile_kernel
from hebe.kernels.lookup.padding import ADDRESS, COPY_COLUMNS, LOOKUPS, START, STOP, IntArray, bits_at, key_at

_EXPONENT = np.uint32(0x7F80_0000)
_WITHOUT_SIGN = np.uint32(0x7FFF_FFFF)

_FOUND, _REFUSED, _OUTSIDE = range(3)

_QUICKLY_READ = 1 << 19
"""So many bytes are read in some ten microseconds."""


def _find(buffer, copies, limits, numbers_at, numbers):  # type: ignore[no-untyped-def]
    base, size = buffer.ctypes.data, buffer.shape[0]
    if numbers_at < 0 or numbers_at + 4 * numbers > size:
        return _OUTSIDE
    for copy in range(copies.shape[0]):
        start = copies[copy, ADDRESS]
        keys = (copies[copy, STOP] - copies[copy, START]) * copies[copy, LOOKUPS]
        if start < 0 or start + 8 * keys > size:
            return _OUTSIDE
        copies[copy, ADDRESS] = base + start
        last = limits[copy] - 1
        refused = np.int64(0)
        for position in range(keys):
            key = key_at(base + start + 8 * position)
            refused |= key | (last - key)  # one of the two has its sign bit set
        if refused < 0:
            return _REFUSED
    most = np.uint32(0)
    for position in range(numbers):
        most = max(most, bits_at(base + numbers_at + 4 * position) & _WITHOUT_SIGN)
    return _FOUND if most < _EXPONENT else _REFUSED


@functools.cache
def _find_kernel(*, locked: bool) -> Callable[..., int]:
    buffer, limits = array_type(types.uint8, 1), array_type(types.int64, 1)
    copies, index = array_type(types.int64, 2, writable=True), types.intp
    signature = types.intp(buffer, copies, limits, index, index)
    return compile_kernel(_find, signature, LOCKED if locked else OPTIONS)


def find_in_range(
    buffer: npt.NDArray[np.uint8], copies: IntArray, limits: IntArray, numbers_at: int, numbers: int
) -> bool:
    """Turn the addresses of `copies` (`padding.describe_copies`), which count from the start of `buffer`, into those of
    memory, good for as long as that lives. Whether all keys of `copies[i]` lie in 0..`limits[i]` - 1, and all of the
    `numbers` float32 from byte `numbers_at` on are finite; if not, `copies` are of no use.

    Lets go of the interpreter lock where it takes longer than to wait for that. Raises ValueError for what lies outside
    of `buffer`.
    """
    if copies.shape != (len(limits), COPY_COLUMNS):
        raise ValueError(f"copies {copies.shape} are not those of {len(limits)} features")
    kernel = _find_kernel(locked=len(buffer) <= _QUICKLY_READ)
    found = kernel(buffer, copies, limits, numbers_at, numbers)
    if found == _OUTSIDE:
        raise ValueError(f"keys or numbers lie outside of {len(buffer)} bytes")
    return found == _FOUND


def warm_up() -> None:
    """Compile the kernels now, or load them from disk."""
    for locked in (True, False):
        _find_kernel(locked=locked)
