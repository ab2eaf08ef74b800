"""Which rows of an embedding table the lookups hit: uniform, Zipf, or as production tables are reused.

Each is frozen and has `draw(rows, count, rng, spread_seed)`, which gives int64 keys `[count]` in [0, rows).
`spread_seed` picks where the hot rows lie; the same seed and row count always gives the same hot rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hebe.workload.error import WorkloadError
from hebe.workload.reuse_profile import PRODUCTION_2021, ReuseProfile
from hebe.workload.spreading import spread_ranks
from hebe.workload.zipf import draw_zipf_ranks

KeyArray = npt.NDArray[np.int64]


class KeySkew(Protocol):
    """A distribution of keys over the rows of a table."""

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:
        """`count` independent keys of a table of `rows` rows, int64 `[count]`."""
        ...


@dataclass(frozen=True, slots=True)
class UniformKeys:
    """Every row is equally likely."""

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:  # noqa: ARG002
        """`count` independent keys."""
        _check_rows(rows)
        return rng.integers(0, rows, count, dtype=np.int64)


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


@dataclass(frozen=True, slots=True)
class ReuseKeys:
    """Rows are hit as often as a `ReuseProfile` of production tables says."""

    profile: ReuseProfile = field(default=PRODUCTION_2021)

    def draw(self, rows: int, count: int, rng: np.random.Generator, spread_seed: int = 0) -> KeyArray:
        """`count` independent keys."""
        _check_rows(rows)
        return spread_ranks(self.profile.draw_ranks(rows, count, rng), rows, spread_seed)


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise WorkloadError(f"rows is {rows}: a table has at least 1")
