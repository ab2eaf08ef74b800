"""Which rows of an embedding table the lookups hit: uniform, Zipf, or as production tables are reused.

Each is frozen and has `draw(rows, count, rng, spread_seed)`, which gives int64 keys `[count]` in [0, rows), and
`shares(rows, spread_seed)`, the probability of each; `rows_touched(rows, lookups)` is how many different ones so many
draws are expected to hit. `spread_seed` picks where the hot rows lie; the same seed and row
count always gives the same hot rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from hebe.workload.error import WorkloadError
from hebe.workload.reuse_profile import PRODUCTION_2021, ReuseProfile
from hebe.workload.spreading import spread_ranks
from hebe.workload.zipf import draw_zipf_ranks

KeyArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
