"""Watches the query sizes that arrive, and says when they have shifted from those that the pool was planned for.

Kairos section 5.2 keeps the last 10,000 queries, enough to know the share of each size well, and plans again when
their distribution changes (Fig. 12).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import Floats, Ints

WINDOW = 10_000
_FALSE_ALARM = 1e-6
"""Probability that queries of the planned sizes look shifted, at one look."""


def size_weights(sizes: npt.ArrayLike, largest: int) -> Floats:
    """The share of queries of each size 1..`largest`, float64 `[largest]`, of the sizes seen. Larger ones count as
    `largest`. Raises `PlanningError` if there is none, or one below 1."""
    if largest < 1:
        raise PlanningError(f"largest is {largest}: must be at least 1 item")
    seen = _checked_sizes(sizes)
    if not len(seen):
        raise PlanningError("sizes is empty: give at least one query size")
    weights: Floats = _counted(seen, largest)[1:] / len(seen)
    return weights


class QuerySizeMonitor:
    """Keeps the sizes of the last `window` queries and compares them with the planned distribution.

    `planned` float64 `[sizes]`, the share of queries of 1, 2, ... items that the plan was made for, `planned_from` the
    number of queries that it was estimated from, if it was. Larger queries count as the largest. No clock, no chance.
    """

    def __init__(
        self,
        planned: Floats,
        *,
        planned_from: float = math.inf,
        window: int = WINDOW,
        threshold: float = 0.05,
        least_queries: int = 1_000,
    ) -> None:
        if not 1 <= least_queries <= window:
            raise PlanningError(f"least_queries is {least_queries}: must lie in 1..window, which is {window}")
        if not 0 < threshold < 1:
            raise PlanningError(f"threshold is {threshold}: must lie between 0 and 1, both excluded")
        self._threshold = threshold
        self._least_queries = least_queries
        self._ring: Ints = np.zeros(window, dtype=np.int64)
        self._next = 0
        self._filled = 0
        self.plan_for(planned, planned_from=planned_from)

    def plan_for(self, planned: Floats, *, planned_from: float = math.inf) -> None:
        """Compare with this distribution from now on; what was seen stays seen."""
        weights = np.array(planned, dtype=np.float64)
        if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all() or weights.min() < 0:
            raise PlanningError("planned must be the shares of query sizes 1, 2, ...: finite, at least 0")
        if not math.isclose(weights.sum(), 1, abs_tol=1e-6):
            raise PlanningError(f"planned sums to {weights.sum():.6g}: must be 1")
        if not planned_from >= 1:
            raise PlanningError(f"planned_from is {planned_from}: must be at least 1 query")
        self._planned_below = np.cumsum(weights)
        self._planned_from = planned_from
        self._largest = len(weights)
        self._counts = _counted(self._ring[: self._filled], self._largest)

    @property
    def queries(self) -> int:
        """How many queries are in the window."""
        return self._filled

    def observe(self, size: int) -> None:
        """A query of `size` items arrived."""
        if size < 1:
            raise PlanningError(f"query size is {size}: must be at least 1 item")
        if self._filled == len(self._ring):
            self._counts[min(int(self._ring[self._next]), self._largest)] -= 1
        else:
            self._filled += 1
        self._ring[self._next] = size
        self._counts[min(size, self._largest)] += 1
        self._next = (self._next + 1) % len(self._ring)

    def observe_many(self, sizes: npt.ArrayLike) -> None:
        """Queries of these sizes arrived, in this order."""
        seen = _checked_sizes(sizes)
        window = len(self._ring)
        places = (self._next + np.arange(max(len(seen) - window, 0), len(seen))) % window
        self._ring[places] = seen[-window:]
        self._next = (self._next + len(seen)) % window
        self._filled = min(self._filled + len(seen), window)
        # A window is counted anew in the time that it takes to look at the arrivals.
        self._counts = _counted(self._ring[: self._filled], self._largest)

    def weights(self) -> Floats:
        """The share of queries of each size in the window, float64 `[sizes]`; raises `PlanningError` if it is empty."""
        if not self._filled:
            raise PlanningError("no query was observed yet: there are no sizes to plan for")
        share: Floats = self._counts[1:] / self._filled
        return share

    def distance(self) -> float:
        """The Kolmogorov-Smirnov distance of window and plan: the largest difference between the shares of queries of
        at most some size; 0 while the window is empty."""
        if not self._filled:
            return 0.0
        return float(np.abs(np.cumsum(self._counts[1:]) / self._filled - self._planned_below).max())

    def shifted(self) -> bool:
        """Whether it is time to plan again: at least `least_queries` were seen, and their distance from the plan is
        beyond both the threshold and what chance brings about."""
        if self._filled < self._least_queries:
            return False
        variance = 1 / self._filled + 1 / self._planned_from
        chance = math.sqrt(-math.log(_FALSE_ALARM / 2) / 2 * variance)
        return self.distance() > max(self._threshold, chance)


def _counted(sizes: Ints, largest: int) -> Ints:
    """How many there are of each size, int64 `[largest + 1]`; larger ones count as `largest`, and none has size 0."""
    counts: Ints = np.bincount(np.minimum(sizes, largest), minlength=largest + 1)
    return counts


def _checked_sizes(sizes: npt.ArrayLike) -> Ints:
    seen = np.asarray(sizes)
    if seen.ndim != 1 or (len(seen) and not np.issubdtype(seen.dtype, np.integer)):
        raise PlanningError("sizes must be a row of whole numbers")
    if len(seen) and seen.min() < 1:
        raise PlanningError(f"query size is {seen.min()}: must be at least 1 item")
    return seen.astype(np.int64)
