"""What became of the queries of a run: tail latency, throughput, SLA attainment, refusals.

Latency is completion minus *intended* arrival, whoever measures it; a recorder only counts. Its memory does not grow
with the run: beyond `EXACT_ANSWERS` latencies it keeps a histogram with buckets `BUCKETS_PER_OCTAVE` to the factor
of two, so that a percentile is off by at most half a bucket, 0.27 %, the idea of HdrHistogram.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]

EXACT_ANSWERS = 1 << 14
"""Up to so many answers, percentiles are exact."""

BUCKETS_PER_OCTAVE = 128
SMALLEST_S = 1e-7
"""Latencies below are counted as this; the largest bucket starts at 2^40 times it, 30 hours."""

_BUCKETS = 40 * BUCKETS_PER_OCTAVE + 1
_PENDING = 4096


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The latencies of all answers, in seconds; nan where there were none."""

    answers: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    p999_s: float
    largest_s: float


class LatencyRecorder:
    """Counts answers, refusals and failures; gives percentiles of the answers and the SLA attainment of all.

    `sla` is the target to hold answers to, if any. Percentiles are nearest-rank: the smallest recorded latency
    that at least that share of answers does not exceed.
    """

    def __init__(self, sla: SlaTarget | None = None) -> None:
        self.sla = sla
        self._answers = 0
        self.items = 0
        self.refused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._within_sla = 0
        self._sum_s = 0.0
        self._largest_s = 0.0
        self._pending: list[float] = []
        self._exact: Floats | None = np.empty(0)
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)

    def record(self, latency_s: float, items: int = 0) -> None:
        """One answered query of `items` items. Raises ValueError for a latency below 0, or nan."""
        if not latency_s >= 0:
            raise ValueError(f"latency is {latency_s} s: must be at least 0")
        self.items += items
        self._pending.append(latency_s)
        if len(self._pending) >= _PENDING:
            self._settle()

    def record_many(self, latencies_s: npt.ArrayLike, items: int = 0) -> None:
        """Many answered queries of `items` items in total; `latencies_s` is float64 `[queries]`. Raises as `record`."""
        latencies = np.asarray(latencies_s, dtype=np.float64).ravel()
        if latencies.size and not latencies.min() >= 0:
            raise ValueError("latencies must be at least 0, and none may be nan")
        self._settle()
        self.items += items
        self._add(latencies)

    def refuse(self, reason: str, count: int = 1) -> None:
        """`count` queries that the server refused; they count as arrivals that missed the SLA."""
        self.refused[reason] += count

    def fail(self, kind: str, count: int = 1) -> None:
        """`count` queries that were neither answered nor refused; they count as arrivals that missed the SLA."""
        self.failed[kind] += count

    def merge(self, other: LatencyRecorder) -> None:
        """Add all that `other` has counted, leaving it as it is. Raises ValueError if its SLA target differs."""
        if other.sla != self.sla:
            raise ValueError(f"cannot merge recorders of different SLA targets: {self.sla} and {other.sla}")
        self._settle()
        other._settle()
        self.items += other.items
        self.refused += other.refused
        self.failed += other.failed
        if other._exact is not None:
            self._add(other._exact)
            return
        self._spill()
        self._counts += other._counts
        self._answers += other._answers
        self._within_sla += other._within_sla
        self._sum_s += other._sum_s
        self._largest_s = max(self._largest_s, other._largest_s)

    @property
    def answers(self) -> int:
        """Queries that were answered."""
        return self._answers + len(self._pending)

    @property
    def arrivals(self) -> int:
        """Answers, refusals and failures."""
        return self.answers + self.refused.total() + self.failed.total()

    @property
    def sla_attainment(self) -> float:
        """The share of all arrivals that were answered within the SLA's latency; nan without arrivals or SLA."""
        self._settle()
        arrivals = self.arrivals
        return self._within_sla / arrivals if arrivals and self.sla is not None else math.nan

    def percentile_s(self, percentile: float) -> float:
        """The latency that `percentile` percent of the answers do not exceed, nan without answers. Raises ValueError
        for a percentile outside (0, 100]."""
        if not 0 < percentile <= 100:
            raise ValueError(f"percentile is {percentile}: must lie in (0, 100]")
        self._settle()
        if not self.answers:
            return math.nan
        rank = nearest_rank(percentile, self.answers)
        if rank == self.answers:
            return self._largest_s
        if self._exact is not None:
            return percentile_of(self._exact, percentile)
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_middle_s(bucket), self._largest_s)

    def summary(self) -> LatencySummary:
        """Mean, p50, p95, p99, p99.9 and largest latency."""
        self._settle()
        if not self.answers:
            return LatencySummary(0, *[math.nan] * 6)
        p50, p95, p99, p999 = (self.percentile_s(p) for p in (50.0, 95.0, 99.0, 99.9))
        return LatencySummary(self.answers, self._sum_s / self.answers, p50, p95, p99, p999, self._largest_s)

    def samples_s(self, most: int = EXACT_ANSWERS) -> Floats:
        """At most `most` latencies that stand for all, float64, ascending: all of them, or evenly spaced quantiles."""
        self._settle()
        if self._exact is not None and self.answers <= most:
            return np.sort(self._exact)
        ranks = np.ceil(np.linspace(0, self.answers, most + 1)[1:]).astype(np.int64)
        if self._exact is not None:
            return np.asarray(np.sort(self._exact)[ranks - 1])
        buckets = np.searchsorted(np.cumsum(self._counts), ranks)
        return np.minimum(SMALLEST_S * np.exp2((buckets + 0.5) / BUCKETS_PER_OCTAVE), self._largest_s)

    def histogram(self) -> list[tuple[float, int]]:
        """The buckets that are not empty: (middle in seconds, answers), ascending."""
        self._settle()
        counts = self._counts if self._exact is None else _count(self._exact)
        return [(_middle_s(int(bucket)), int(counts[bucket])) for bucket in np.flatnonzero(counts)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: counts, refusals and failures by reason, percentiles in milliseconds (None if nan)."""
        summary = self.summary()
        return {
            "arrivals": self.arrivals,
            "answers": self.answers,
            "items": self.items,
            "refused": dict(self.refused),
            "failed": dict(self.failed),
            "sla_attainment": _number(self.sla_attainment),
            "mean_ms": _number(summary.mean_s * 1e3),
            "p50_ms": _number(summary.p50_s * 1e3),
            "p95_ms": _number(summary.p95_s * 1e3),
            "p99_ms": _number(summary.p99_s * 1e3),
            "p999_ms": _number(summary.p999_s * 1e3),
            "largest_ms": _number(summary.largest_s * 1e3),
        }

    def _settle(self) -> None:
        if self._pending:
            latencies, self._pending = np.array(self._pending), []
            self._add(latencies)

    def _add(self, latencies: Floats) -> None:
        if not latencies.size:
            return
        self._answers += latencies.size
        self._sum_s += float(latencies.sum())
        self._largest_s = max(self._largest_s, float(latencies.max()))
        if self.sla is not None:
            self._within_sla += int(np.count_nonzero(latencies <= self.sla.latency_s))
        if self._exact is not None and self._answers <= EXACT_ANSWERS:
            self._exact = np.concatenate((self._exact, latencies))
            return
        self._spill()
        self._counts += _count(latencies)

    def _spill(self) -> None:
        """From exact latencies to the histogram, for good."""
        if self._exact is not None:
            self._counts += _count(self._exact)
            self._exact = None


def nearest_rank(percentile: float, samples: int) -> int:
    """Which of so many ascending samples, counted from 1, is the percentile: at least that share do not exceed it."""
    # The small step back undoes the rounding of, say, 99.9 / 100 * 1000 to just above 999.
    return max(math.ceil(percentile / 100 * samples - 1e-9), 1)


def percentile_of(samples: npt.ArrayLike, percentile: float) -> float:
    """The percentile of `samples`, at least one, in any order: one of them, as a recorder has it; nan, no answer,
    counts as infinitely late.
    """
    every = np.asarray(samples, dtype=np.float64)
    rank = nearest_rank(percentile, every.size)
    return float(np.partition(np.where(np.isnan(every), np.inf, every), rank - 1)[rank - 1])


def attainment(latency_s: Floats, bound_s: float) -> float:
    """The share of queries that were answered within `bound_s`; nan, no answer, counts as infinitely late."""
    return float(np.mean(latency_s <= bound_s))


def _count(latencies: Floats) -> npt.NDArray[np.int64]:
    """How many latencies fall into each bucket: bucket b covers SMALLEST_S * 2 ** ([b, b + 1) / BUCKETS_PER_OCTAVE)."""
    octaves = np.log2(np.maximum(latencies, SMALLEST_S) / SMALLEST_S)
    buckets = np.minimum(octaves * BUCKETS_PER_OCTAVE, _BUCKETS - 1).astype(np.int64)
    return np.bincount(buckets, minlength=_BUCKETS)


def _middle_s(bucket: int) -> float:
    return float(SMALLEST_S * 2 ** ((bucket + 0.5) / BUCKETS_PER_OCTAVE))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
