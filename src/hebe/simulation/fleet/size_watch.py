"""Whether the queries of a run are of the sizes that a plan was made for, as a live monitor would see it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.planning.pool.pool_problem import Floats
from hebe.planning.pool.query_size_monitor import QuerySizeMonitor

LOOK = 50
"""Queries between two looks at the monitor."""


@dataclass(frozen=True, slots=True)
class SizeShift:
    """Noticed after so many `queries`: the sizes seen are at this Kolmogorov-Smirnov `distance` from those planned."""

    queries: int
    distance: float


def size_shift(sizes: npt.ArrayLike, planned: Floats, *, planned_from: float = math.inf) -> SizeShift | None:
    """When it shows that queries of `sizes`, in order of arrival, are not as `planned`; None if it does not.

    `planned` float64 `[largest]` is the share of queries of 1, 2, ... items, estimated from `planned_from` queries
    (infinite: exact). Raises `PlanningError` for shares or sizes that are none.
    """
    monitor = QuerySizeMonitor(planned, planned_from=planned_from)
    seen = np.asarray(sizes)
    for begin in range(0, len(seen), LOOK):
        monitor.observe_many(seen[begin : begin + LOOK])
        if monitor.shifted():
            return SizeShift(min(begin + LOOK, len(seen)), monitor.distance())
    return None
