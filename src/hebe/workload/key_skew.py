"""Which rows of an embedding table the lookups hit: uniform, Zipf, or as production tables are reused.

Each is frozen and has `draw(rows, count, rng, spread_seed)`, which gives int64 keys `[count]` in [0, rows), and
`shares(rows, spread_seed)`, the probability of each; `rows_touched(rows, lookups)` is how many different ones so many
draws are expected to hit. `spread_seed` picks where the hot rows lie; the same seed and row count always gives the same
hot rows.

`spread_ranks` is a fixed permutation of a table's rows, so that hot rows lie all over the table and not at its start. A
hot row's neighbours in a real table are cold: without this, a skewed load would touch a few pages over and over and
look faster than it is.

`draw_zipf_ranks` draws exact Zipf-distributed ranks for any table size, without a table of probabilities: W. Hoermann,
G. Derflinger: Rejection-inversion to generate variates from monotone discrete distributions, ACM Transactions on
Modeling and Computer Simulation 6(3), 1996. Inversion of the continuous hat x^-alpha, and rejection of the little that
the hat has too much; set-up is O(1), so a billion rows cost no more than ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hebe.workload.reuse_profile import PRODUCTION_2021, ReuseProfile
from hebe.workload.text_errors import WorkloadError

Floats = npt.NDArray[np.float64]


KeyArray = npt.NDArray[np.int64]


def spread_seed_of(name: str) -> int:
    """The spread seed for the input called `name`: all who draw its keys find the same rows hot."""
    return crc32(name.encode())


class KeySkew(Protocol):
    """A distribution of keys over the rows of a table."""

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:
        """`count` independent keys of a table of `rows` rows, int64 `[count]`."""
        ...

    def shares(self, rows: int, spread_seed: int = 0) -> Floats:
        """The share of the keys that each row is expected to get, float64 `[rows]`, which sums to 1."""
        ...

    def rows_touched(self, rows: int, lookups: float) -> float:
        """How many different rows `lookups` independent keys are expected to name; quick for any `rows`."""
        ...


@dataclass(frozen=True, slots=True)
class UniformKeys:
    """Every row is equally likely."""

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:  # noqa: ARG002
        """`count` independent keys."""
        _check_rows(rows)
        return rng.integers(0, rows, count, dtype=np.int64)

    def shares(self, rows: int, spread_seed: int = 0) -> Floats:  # noqa: ARG002
        """The same for each row."""
        _check_rows(rows)
        return np.full(rows, 1.0 / rows)

    def rows_touched(self, rows: int, lookups: float) -> float:
        """Expected different rows."""
        _check_rows(rows)
        return _touched(np.array([float(rows)]), np.array([1.0]), lookups)


@dataclass(frozen=True, slots=True)
class ZipfKeys:
    """The row of popularity rank r is hit with probability proportional to (r + 1) ** -alpha."""

    alpha: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and 0 < self.alpha <= 20):
            raise WorkloadError(f"zipf alpha is {self.alpha}: must lie in (0, 20]")

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:
        """`count` independent keys."""
        _check_rows(rows)
        return spread_ranks(draw_zipf_ranks(self.alpha, rows, count, rng), rows, spread_seed)

    def shares(self, rows: int, spread_seed: int = 0) -> Floats:
        """The share of each row."""
        _check_rows(rows)
        by_rank = np.arange(1, rows + 1, dtype=np.float64) ** -self.alpha
        return _spread(by_rank / by_rank.sum(), spread_seed)

    def rows_touched(self, rows: int, lookups: float) -> float:
        """Expected different rows."""
        _check_rows(rows)
        # The first ranks one by one, the others in groups a thousandth apart, in which popularity is nearly the same.
        edges = np.unique(np.concatenate((np.arange(min(rows, 1024) + 1), np.geomspace(1, rows, 30_000).astype(int))))
        counts = np.diff(edges).astype(np.float64)
        weights = counts * ((edges[:-1] + edges[1:] + 1) / 2) ** -self.alpha
        return _touched(counts, weights / weights.sum(), lookups)


@dataclass(frozen=True, slots=True)
class ReuseKeys:
    """Rows are hit as often as a `ReuseProfile` of production tables says."""

    profile: ReuseProfile = field(default=PRODUCTION_2021)

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:
        """`count` independent keys."""
        _check_rows(rows)
        return spread_ranks(self.profile.draw_ranks(rows, count, rng), rows, spread_seed)

    def shares(self, rows: int, spread_seed: int = 0) -> Floats:
        """The share of each row."""
        _check_rows(rows)
        return _spread(self.profile.shares_by_rank(rows), spread_seed)

    def rows_touched(self, rows: int, lookups: float) -> float:
        """Expected different rows."""
        _check_rows(rows)
        counts = np.array(self.profile.row_shares) * rows
        return _touched(counts, np.array(self.profile.lookup_shares), lookups)


def _touched(counts: Floats, shares: Floats, lookups: float) -> float:
    """Expected different rows of groups: `counts` rows in each, which get `shares` of the lookups, all alike."""
    there = counts > 0
    reached = -np.expm1(-lookups * shares[there] / counts[there])
    return float((counts[there] * reached).sum())


def _spread(by_rank: Floats, spread_seed: int) -> Floats:
    """`by_rank` in the order of the rows that have these ranks."""
    by_row = np.empty_like(by_rank)
    by_row[spread_ranks(np.arange(len(by_rank)), len(by_rank), spread_seed)] = by_rank
    return by_row


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise WorkloadError(f"rows is {rows}: a table has at least 1")


def draw_zipf_ranks(alpha: float, rows: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """`count` ranks in [0, rows), int64, where rank r has probability proportional to (r + 1) ** -alpha.

    `alpha` > 0; 1 included.
    """
    if rows == 1:
        return np.zeros(count, dtype=np.int64)
    top = float(_hat_integral(np.float64(1.5), alpha)) - 1.0
    bottom = float(_hat_integral(np.float64(rows + 0.5), alpha))
    # Within this distance below the rounded value, every candidate lies under the histogram.
    sure = 2.0 - float(_hat_inverse(_hat_integral(np.float64(2.5), alpha) - np.float64(2.0) ** -alpha, alpha))
    ranks = np.empty(count, dtype=np.int64)
    todo = np.arange(count)
    while todo.size:
        u = bottom + rng.random(todo.size) * (top - bottom)
        x = _hat_inverse(u, alpha)
        k = np.clip(np.rint(x), 1, rows)
        accepted = (k - x <= sure) | (u >= _hat_integral(k + 0.5, alpha) - k**-alpha)
        ranks[todo[accepted]] = k[accepted].astype(np.int64) - 1
        todo = todo[~accepted]
    return ranks


def _hat_integral(x: Floats | np.float64, alpha: float) -> Floats:
    """Integral of t^-alpha from 1 to x, well behaved around alpha = 1."""
    log_x = np.log(x)
    return np.asarray(_expm1_over((1.0 - alpha) * log_x) * log_x)


def _hat_inverse(area: Floats | np.float64, alpha: float) -> Floats:
    """The x whose `_hat_integral` is `area`."""
    t = np.maximum(np.asarray(area) * (1.0 - alpha), -1.0 + 1e-15)
    return np.asarray(np.exp(_log1p_over(t) * area))


def _expm1_over(x: Floats) -> Floats:
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, x)
    return np.where(small, 1.0 + x / 2, np.expm1(safe) / safe)


def _log1p_over(x: Floats) -> Floats:
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, x)
    return np.where(small, 1.0 - x / 2, np.log1p(safe) / safe)


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
