"""The steps of XXH64 as numba values: what the hashes of a key and of a row are made of.

All values are uint64. An input of 32 bytes or more goes through four lanes, a word of eight bytes to each in turn,
which `joined` makes into one hash; what is left over, or a shorter input, is absorbed word by word.
"""

from __future__ import annotations

import numba
import numpy as np

from hebe.kernels.compiled import BORROWING

PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = (np.uint64(prime) for prime in PRIMES)

_inlined = numba.njit(forceinline=True, **BORROWING)


@_inlined
def _rotated(value, bits):  # type: ignore[no-untyped-def]
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@_inlined
def lane_round(lane, word):  # type: ignore[no-untyped-def]
    """The lane after one more `word`."""
    return _rotated(lane + word * PRIME_2, 31) * PRIME_1


@_inlined
def _merged(hashed, lane):  # type: ignore[no-untyped-def]
    return (hashed ^ lane_round(np.uint64(0), lane)) * PRIME_1 + PRIME_4


@_inlined
def joined(one, two, three, four):  # type: ignore[no-untyped-def]
    """The hash so far of what went through four lanes."""
    hashed = _rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)
    return _merged(_merged(_merged(_merged(hashed, one), two), three), four)


@_inlined
def absorb(hashed, word):  # type: ignore[no-untyped-def]
    """The hash after eight more bytes."""
    return _rotated(hashed ^ lane_round(np.uint64(0), word), 27) * PRIME_1 + PRIME_4


@_inlined
def absorb_half(hashed, half_word):  # type: ignore[no-untyped-def]
    """The hash after the last four bytes."""
    return _rotated(hashed ^ half_word * PRIME_1, 23) * PRIME_2 + PRIME_3


@_inlined
def avalanche(hashed):  # type: ignore[no-untyped-def]
    """The finished hash: each bit of it depends on all of `hashed`."""
    hashed = (hashed ^ (hashed >> np.uint64(33))) * PRIME_2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * PRIME_3
    return hashed ^ (hashed >> np.uint64(32))
