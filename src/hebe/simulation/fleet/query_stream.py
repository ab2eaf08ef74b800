"""Which queries a simulated run sends: by a seed, and by the forms of arrivals and sizes of `hebe.workload.forms`; and
whether they are of the sizes that a plan was made for, as a live monitor would see it (`size_shift`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hebe.planning.error import MessageError, Parameter
from hebe.planning.pool.query_size_monitor import QuerySizeMonitor, size_weights
from hebe.simulation.fleet.fleet_run import QueryTrace
from hebe.workload import forms
from hebe.workload.arrivals import ArrivalProcess, whole_periods_s
from hebe.workload.text_errors import WorkloadError

Floats = npt.NDArray[np.float64]

SIZE_DRAWS = 200_000
"""Queries that the share of each size is estimated from."""


def largest_drawn(sizes: str, seed: int, measured: int) -> tuple[Floats, int]:
    """The share of queries of 1, 2, ... items, float64 `[largest]`, and the largest, from many draws.

    Raises `WorkloadError` if that is larger than `measured`, the items that the service times reach to.
    """
    drawn = forms.query_sizes(sizes).draw(SIZE_DRAWS, np.random.default_rng(seed))
    largest = int(drawn.max())
    check_largest(largest, measured, sizes)
    return size_weights(drawn, largest), largest


@dataclass(frozen=True, slots=True)
class QueryStream:
    """Which queries come: `arrivals` and `sizes` as forms; about `queries` of them, or as many more as whole periods of
    the arrivals take, over which alone their mean rate is that asked for."""

    arrivals: str
    sizes: str
    queries: int
    seed: int

    def trace(self, rate_qps: float) -> QueryTrace:
        """The queries at this rate; sizes, luck and the chance in the gaps depend on the seed only."""
        if self.arrivals == "poisson":
            return QueryTrace.draw(self.queries, forms.query_sizes(self.sizes), self.seed)
        gap_rng, size_rng, luck_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(3))
        process, distribution = arrival_process(self.arrivals), forms.query_sizes(self.sizes)
        blocks = list(process.blocks(rate_qps, sending_s(self.arrivals, self.queries, rate_qps), gap_rng))
        times_s = np.concatenate(blocks) if blocks else np.zeros(1)
        at_once = self.queries + 6 * math.isqrt(self.queries) + 16  # drawn alike, however many arrive
        draws = -(-times_s.size // at_once)
        sizes = np.concatenate([distribution.draw(at_once, size_rng) for _ in range(draws)])[: times_s.size]
        return QueryTrace(np.diff(times_s, prepend=0.0) * rate_qps, sizes, luck_rng.random(times_s.size))


@lru_cache(maxsize=4)
def arrival_process(form: str) -> ArrivalProcess:
    """As `forms.arrivals`, which may read a file, and is asked for at every rate."""
    return forms.arrivals(form)


def sending_s(arrivals: str, queries: int, rate_qps: float) -> float:
    """How long about so many queries come at a rate: for whole periods of arrivals that repeat."""
    process = arrival_process(arrivals)
    if process.period_s is None:
        return queries / rate_qps
    # One query more than come in whole periods, as by rounding, is not a period more.
    return whole_periods_s(process, (queries - 1) / rate_qps)


class LargestQueryError(MessageError, WorkloadError):
    """Queries are larger than the service times reach."""


def check_largest(largest: int, measured: int, sizes: str) -> None:
    """Raises `LargestQueryError`, a `WorkloadError`, if queries are larger than the service times reach."""
    if largest > measured:
        raise LargestQueryError(
            f"query sizes {sizes}: has queries of {largest} items, but service times reach to {measured} items:"
            " measure larger ones or bound ", Parameter("sizes"),
        )  # fmt: skip


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
