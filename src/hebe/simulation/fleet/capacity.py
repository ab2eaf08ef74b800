"""Latency-bounded throughput of a fleet and policy: the largest rate at which the SLA target holds, by bisection.

Every rate, pool and policy sees the same queries (common random numbers), so that two capacities differ by what is
compared and not by chance; several traces give the confidence interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import stdtrit

from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.fleet_run import QueryTrace, ServiceModel, run_fleet
from hebe.spec import SlaTarget

_Result = TypeVar("_Result")

_CONFIDENCE = 0.95
_WIDEST = 2.0**20


@dataclass(frozen=True, slots=True)
class Capacity:
    """`qps` is the mean over traces, `low` and `high` bound its 95% confidence interval (None: one trace has none),
    `by_trace_qps` are all."""

    qps: float
    low: float | None
    high: float | None
    by_trace_qps: tuple[float, ...]

    @classmethod
    def of(cls, by_trace_qps: Sequence[float]) -> Capacity:
        """Student's interval, of two traces or more: a single one says nothing of how far others lie from it.

        It ends at 0, as rates do: of two traces it is 12.7 standard errors wide to either side.
        """
        values = np.asarray(by_trace_qps)
        mean = float(values.mean())
        if values.size == 1:
            return cls(mean, None, None, (mean,))
        standard_error = values.std(ddof=1) / math.sqrt(values.size)
        half = float(stdtrit(values.size - 1, 0.5 + _CONFIDENCE / 2) * standard_error)
        return cls(mean, max(mean - half, 0.0), mean + half, tuple(values.tolist()))


def narrowed_rate_qps(
    meets: Callable[[float], bool], guess_qps: float, tolerance: float = 0.005
) -> Generator[float, None, float]:
    """`largest_rate_qps`, one question at a time: yields after each what that is at most by what was asked so far, and
    returns it."""
    if not (math.isfinite(guess_qps) and guess_qps > 0):
        raise ValueError(f"guess_qps is {guess_qps}: must be a positive rate")
    step = 1.1
    low, high = guess_qps, guess_qps
    if meets(guess_qps):
        yield math.inf
        while meets(high := low * step):
            low, step = high, step * step
            if low > guess_qps * _WIDEST:
                raise ValueError(f"the target still holds at {low:g} queries/s: it does not bound the rate")
            yield math.inf
    else:
        yield high
        while not meets(low := high / step):
            high, step = low, step * step
            if high < guess_qps / _WIDEST:
                return 0.0
            yield high
    while high > low * (1 + tolerance):
        yield high
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def largest_rate_qps(meets: Callable[[float], bool], guess_qps: float, tolerance: float = 0.005) -> float:
    """The largest rate at which `meets` holds, within `tolerance` of itself; 0 if it never does.

    From the guess outwards by steps that double, then by bisection. Where `meets` is not monotone by chance, some rate
    at which it held.
    """
    return in_one(narrowed_rate_qps(meets, guess_qps, tolerance))


def in_one(steps: Generator[float, None, _Result]) -> _Result:
    """What they return in the end."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: _Result = end.value
        return result


def fleet_capacity(
    traces: Sequence[QueryTrace],
    pool: Sequence[int],
    servers: ServiceModel,
    make_policy: Callable[[], DistributionPolicy | PartitionedRouter],
    sla: SlaTarget,
    *,
    guess_qps: float | None = None,
    tolerance: float = 0.005,
) -> Capacity:
    """The latency-bounded throughput of `pool[t]` instances of each type under a policy (or partitioned router, see
    `run_fleet`), new for each run."""
    if not traces:
        raise ValueError("no trace: give at least one")

    found: list[float] = []
    guess = guess_qps or _saturation_qps(traces[0], pool, servers)
    for trace in traces:

        def holds(rate_qps: float, trace: QueryTrace = trace) -> bool:
            return holds_target(trace, rate_qps, pool, servers, make_policy(), sla)

        found.append(largest_rate_qps(holds, guess, tolerance))
        guess = found[-1] or guess
    return Capacity.of(found)


def holds_target(
    trace: QueryTrace,
    rate_qps: float,
    pool: Sequence[int],
    servers: ServiceModel,
    policy: DistributionPolicy | PartitionedRouter,
    sla: SlaTarget,
) -> bool:
    """Whether the pool meets the SLA target at this rate; stops as soon as it is seen not to."""
    late = most_late(len(trace), sla)
    run = run_fleet(trace, rate_qps, pool, servers, policy, sla.latency_s, give_up_late=late)
    return run.percentile_s(sla.percentile) <= sla.latency_s


def most_late(queries: int, sla: SlaTarget) -> int:
    """How many of so many queries may be late."""
    return int(queries * (1 - sla.percentile / 100) + 1e-9)


def _saturation_qps(trace: QueryTrace, pool: Sequence[int], servers: ServiceModel) -> float:
    """A first guess: most of what the pool could do if every instance were always busy with queries of its share."""
    servers.begin(trace)
    some = [Query(at, int(trace.sizes[at]), 0.0) for at in range(min(len(trace), 200))]
    wholes = [SubQuery(query, 0, query.items) for query in some]
    return 0.7 * sum(
        count / float(np.mean([servers.service_s(server_type, whole) for whole in wholes]))
        for server_type, count in enumerate(pool)
        if count
    )
