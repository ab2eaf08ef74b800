"""How many items a query has: the distributions that the papers and MLPerf publish.

Each is frozen, has `largest` (no draw exceeds it) and `draw(count, rng)`, which gives int64 `[count]`, all at least 1.
`at_most` fits one to a server that does not take larger queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hebe.workload.text_errors import WorkloadError

SizeArray = npt.NDArray[np.int64]

DEEPRECSYS_LARGEST = 1024
"""DeepRecSys clamps its continuous draws to [1, 1024]."""

LARGEST_SIZE = 2**31 - 1
"""No query has more items, whoever asks for it."""

_TAIL = 5.0
"""So many deviations from the centre, a draw is beyond once in three millions: sizes without a bound end there."""

MLPERF_DLRM_QUANTILES = (100,) * 2 + (200,) * 12 + (300,) * 2 + (400, 500, 600, 700)
"""MLPerf inference, DLRM-v2, `tools/dist_quantile.txt`: twenty equally likely sizes, mean 270."""


class QuerySizes(Protocol):
    """A distribution of query sizes."""

    @property
    def largest(self) -> int:
        """No drawn size exceeds it."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:
        """`count` independent sizes, int64 `[count]`, each in [1, largest]."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSizes:
    """Every query has `size` items."""

    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= LARGEST_SIZE:
            raise WorkloadError(f"query size is {self.size}: must be at least 1 item and at most {LARGEST_SIZE:,}")

    @property
    def largest(self) -> int:
        """The size."""
        return self.size

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:  # noqa: ARG002
        """`count` times the size."""
        return np.full(count, self.size, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class NormalSizes:
    """Normal, rounded and clamped to [1, largest]; DeepRecSys publishes (165, 16) and (256, 32).

    The mean lies within these bounds.
    """

    mean: float
    deviation: float
    largest: int = DEEPRECSYS_LARGEST

    def __post_init__(self) -> None:
        _check_clamped("normal", self.mean, self.deviation, self.largest)
        _check_mean("normal", self.mean, self.largest)

    @classmethod
    def unbounded(cls, mean: float, deviation: float) -> NormalSizes:
        """As large as they come: `largest` lies where hardly any draw does."""
        return cls(mean, deviation, _reach(mean + _TAIL * deviation))

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:
        """`count` independent sizes."""
        return _clamp(rng.normal(self.mean, self.deviation, count), self.largest)


@dataclass(frozen=True, slots=True)
class LogNormalSizes:
    """exp(Normal(mu, sigma)), rounded and clamped to [1, largest]; DeepRecSys publishes (5.1, 0.2), median 164.

    The mean, exp(mu + sigma^2 / 2), lies within these bounds.
    """

    mu: float = 5.1
    sigma: float = 0.2
    largest: int = DEEPRECSYS_LARGEST

    def __post_init__(self) -> None:
        _check_clamped("lognormal", self.mu, self.sigma, self.largest)
        _check_mean("lognormal", _exp(self.mu + self.sigma * self.sigma / 2), self.largest)

    @classmethod
    def unbounded(cls, mu: float, sigma: float) -> LogNormalSizes:
        """As large as they come: `largest` lies where hardly any draw does."""
        return cls(mu, sigma, _reach(_exp(mu + _TAIL * sigma)))

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:
        """`count` independent sizes."""
        # Clamped before the exponential, which has no room for what a wide sigma draws.
        exponent = np.minimum(rng.normal(self.mu, self.sigma, count), math.log(self.largest))
        return _clamp(np.exp(exponent), self.largest)


@dataclass(frozen=True, slots=True)
class QuantileSizes:
    """Each of `sizes` equally likely."""

    sizes: tuple[int, ...] = MLPERF_DLRM_QUANTILES

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or max(self.sizes) > LARGEST_SIZE:
            raise WorkloadError(
                f"query size quantiles: give at least one size, each at least 1 item and at most {LARGEST_SIZE:,}"
            )

    @property
    def largest(self) -> int:
        """The greatest of the sizes."""
        return max(self.sizes)

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:
        """`count` independent sizes."""
        return rng.choice(np.array(self.sizes, dtype=np.int64), count)


@dataclass(frozen=True, slots=True)
class ProductionSizes:
    """The heavy-tailed mixture of the Kairos artifact's sampler: mean 238, p50 177, p95 604, p99 920.

    With u uniform in 1..99: sizes uniform in 1..99 for u <= 8, in 200..599 for u <= 30, in 600..999 for u <= 35;
    for the rest LogNormal(5.1, 0.2), where a draw outside [100, 200] is replaced by one uniform in 190..199.
    """

    @property
    def largest(self) -> int:
        """999."""
        return 999

    def draw(self, count: int, rng: np.random.Generator) -> SizeArray:
        """`count` independent sizes."""
        u = rng.integers(1, 100, count)
        body = rng.lognormal(5.1, 0.2, count)
        body = np.where((body < 100) | (body > 200), rng.integers(190, 200, count), body)
        sizes = body.astype(np.int64)
        for first, last, low, high in ((1, 8, 1, 100), (9, 30, 200, 600), (31, 35, 600, 1000)):
            part = (u >= first) & (u <= last)
            sizes[part] = rng.integers(low, high, int(part.sum()))
        return sizes


def at_most(sizes: QuerySizes, most: int) -> QuerySizes:
    """These sizes for a server that takes at most `most` items a query.

    Normal and lognormal ones are clamped there instead of where they were. Raises `WorkloadError` if their mean lies
    beyond, and for all others that reach beyond.
    """
    if sizes.largest <= most:
        return sizes
    if isinstance(sizes, NormalSizes | LogNormalSizes):
        return replace(sizes, largest=most)
    raise WorkloadError(f"query sizes reach {sizes.largest:,} items: must be at most {most:,}")


def _check_clamped(kind: str, centre: float, spread: float, largest: int) -> None:
    if not (math.isfinite(centre) and math.isfinite(spread) and spread >= 0):
        raise WorkloadError(f"{kind} query sizes: {centre}, {spread}: give a finite centre and a spread of at least 0")
    if not 1 <= largest <= LARGEST_SIZE:
        raise WorkloadError(
            f"{kind} query sizes: largest is {largest}: must be at least 1 item and at most {LARGEST_SIZE:,}"
        )


def _check_mean(kind: str, mean: float, largest: int) -> None:
    if not 1 <= mean <= largest:
        raise WorkloadError(f"{kind} query sizes: the mean is {mean:.6g} items: must lie in [1, {largest:,}]")


def _reach(size: float) -> int:
    """The whole size from there on, as far as sizes go."""
    return math.ceil(min(max(size, 1.0), float(LARGEST_SIZE))) if math.isfinite(size) else LARGEST_SIZE


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _clamp(sizes: npt.NDArray[np.float64], largest: int) -> SizeArray:
    return np.clip(np.rint(sizes), 1, largest).astype(np.int64)
