"""A fixed permutation of a table's rows, so that hot rows lie all over the table and not at its start.

A hot row's neighbours in a real table are cold: without this, a skewed load would touch a few pages over and over
and look faster than it is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RankArray = npt.NDArray[np.int64]


def spread_ranks(ranks: RankArray, rows: int, seed: int) -> RankArray:
    """The row of each popularity rank: a permutation of [0, rows) that `seed` picks, int64, shape of `ranks`.

    Needs no memory for the permutation: odd multiplications and xor-shifts are bijections of [0, 2^k), and what
    falls outside [0, rows) is mapped again until it falls inside ("cycle walking", Black and Rogaway 2002), fewer
    than two steps on average.
    """
    if rows <= 2:
        return ranks.copy()
    bits = (rows - 1).bit_length()
    mask = np.uint64((1 << bits) - 1)
    shift = np.uint64(max(bits // 2, 1))
    words = np.random.SeedSequence(seed).generate_state(4, np.uint64)
    odd = words[:2] | np.uint64(1)

    def step(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        x = ((x + words[2]) * odd[0]) & mask
        x ^= x >> shift
        x = ((x + words[3]) * odd[1]) & mask
        x ^= x >> shift
        return x

    flat = step(ranks.reshape(-1).astype(np.uint64))
    outside = np.flatnonzero(flat >= np.uint64(rows))
    while outside.size:
        again = step(flat[outside])
        flat[outside] = again
        outside = outside[again >= np.uint64(rows)]
    return flat.astype(np.int64).reshape(ranks.shape)
