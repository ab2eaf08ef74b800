"""One model in one interval of a planned day, query by query: what the servers do that a provisioning plan gives it.

An interval lasts minutes and a server answers hundreds of queries a second, so a sample of the queries is simulated:
some thousands that arrive at the interval's load, one after another, at servers that are idle at first. Where servers
are late, the interval is simulated in two parts, each weighted by its share of the interval:

    opening   until the last of them is set up and as long again, in real time and whole periods of the arrivals: late
              servers join when they are set up, and serve what has piled up until then
    the rest  a sample, with all servers but those that are set up after the interval only

The router and its policy are those that a live fleet is to run, as in `fleet_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hebe.scheduling.events import Availability, InstanceChanged
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.fleet_run import FleetRun, QueryTrace, ServiceModel, run_fleet
from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]

_OPENING_WAITS = 2.0
"""How long an opening lasts, by how long the last late server takes to join."""
_MOST_OF_AN_OPENING = 20
"""An opening has at most so many times the queries of a sample. A longer one is simulated as a shorter one, in which
servers join earlier, so that less piles up than would."""

Draw = Callable[[int, float], QueryTrace]
"""So many queries at a rate in queries/s."""


@dataclass(frozen=True, slots=True)
class LateServers:
    """`counts` [types] servers that join `after_s` after an interval begins, which may be after it ends."""

    after_s: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlannedServers:
    """What a plan gives a model in an interval: `counts` [types] servers for `rate_qps`, some of them `late`."""

    rate_qps: float
    counts: tuple[int, ...]
    late: tuple[LateServers, ...] = ()

    def in_time(self, until_s: float) -> tuple[int, ...]:
        """Those that have joined after so many seconds of the interval, [types]."""
        missing = [late.counts for late in self.late if late.after_s > until_s]
        return tuple(count - sum(of_type) for count, *of_type in zip(self.counts, *missing, strict=True))


@dataclass(frozen=True, slots=True)
class IntervalRun:
    """What became of an interval: `attainment`, the share of its queries that were answered within the SLA's bound;
    `tail_s`, the latency at the SLA's percentile, infinite where so many were not answered; `utilisation` [types], the
    share of their time that the servers of each type work, 0 where there are none; `queries`, how many were sent."""

    attainment: float
    tail_s: float
    utilisation: tuple[float, ...]
    queries: int

    def meets(self, sla: SlaTarget) -> bool:
        """Whether the SLA target holds."""
        return self.tail_s <= sla.latency_s


@dataclass(frozen=True, slots=True)
class _Part:
    """Some seconds of the interval, of which `queries` are simulated; `late` servers join at their times of these."""

    share: float
    queries: int
    pool: tuple[int, ...]
    late: tuple[LateServers, ...] = ()


def run_interval(
    planned: PlannedServers,
    interval_s: float,
    servers: ServiceModel,
    make_policy: Callable[[], DistributionPolicy | PartitionedRouter],
    sla: SlaTarget,
    *,
    queries: int,
    draws: Sequence[Draw],
    workers_per_instance: Mapping[str, int] | None = None,
    period_s: float | None = None,
) -> IntervalRun | None:
    """Simulate samples of `queries` queries of an interval, one for each of `draws`; all count alike. `period_s`: after
    so long the arrivals' rate repeats, as often as what is drawn holds, which may be more than was asked for.

    None if there is no load. A load without servers is answered by nobody. An interval in which fewer queries arrive is
    simulated whole.
    """
    if planned.rate_qps <= 0:
        return None
    if not any(planned.counts):
        return IntervalRun(0.0, math.inf, (0.0,) * len(planned.counts), 0)
    latency_s: list[Floats] = []
    weights: list[Floats] = []
    busy = np.zeros(len(planned.counts))
    for part in _parts(planned, interval_s, queries, period_s):
        for draw in draws:
            run = _run(part, planned.rate_qps, servers, make_policy(), sla, draw, workers_per_instance or {})
            latency_s.append(np.nan_to_num(run.latency_s, nan=np.inf))
            weights.append(np.full(run.latency_s.size, part.share / len(draws) / run.latency_s.size))
            busy += part.share / len(draws) * np.asarray(run.busy_s) / run.end_s
    latency, weight = np.concatenate(latency_s), np.concatenate(weights)
    in_order = np.argsort(latency)
    reached = np.cumsum(weight[in_order])
    at = int(np.searchsorted(reached, sla.percentile / 100 - 1e-9))
    workers = [
        count * (workers_per_instance or {}).get(name, 1)
        for name, count in zip(servers.types, planned.counts, strict=True)
    ]
    return IntervalRun(
        min(float(weight[latency <= sla.latency_s].sum()), 1.0),
        float(latency[in_order[min(at, latency.size - 1)]]),
        tuple(seconds / count if count else 0.0 for seconds, count in zip(busy.tolist(), workers, strict=True)),
        latency.size,
    )


def queries_drawn(
    planned: PlannedServers, interval_s: float, queries: int, *, period_s: float | None = None
) -> tuple[int, ...]:
    """How many queries `run_interval` asks of each draw, one time after the other."""
    if planned.rate_qps <= 0 or not any(planned.counts):
        return ()
    return tuple(part.queries for part in _parts(planned, interval_s, queries, period_s))


def _parts(planned: PlannedServers, interval_s: float, queries: int, period_s: float | None) -> list[_Part]:
    joining = [late for late in planned.late if 0 < late.after_s < interval_s]
    opening_s = _OPENING_WAITS * max((late.after_s for late in joining), default=0.0)
    if period_s is not None:
        opening_s = math.ceil(opening_s / period_s - 1e-9) * period_s
    opening_s = min(opening_s, interval_s)
    parts = []
    if opening_s:
        arriving = planned.rate_qps * opening_s
        simulated = _whole(max(min(arriving, _MOST_OF_AN_OPENING * queries), planned.rate_qps * (period_s or 0.0)))
        pace = min(simulated / arriving, 1.0)
        late = tuple(replace(each, after_s=pace * each.after_s) for each in joining)
        parts.append(_Part(opening_s / interval_s, simulated, planned.in_time(0.0), late))
    if opening_s < interval_s:
        simulated = _whole(min(planned.rate_qps * (interval_s - opening_s), queries))
        parts.append(_Part(1 - opening_s / interval_s, simulated, planned.in_time(opening_s)))
    return parts


def _whole(queries: float) -> int:
    return max(round(queries), 1)


def _run(
    part: _Part,
    rate_qps: float,
    servers: ServiceModel,
    policy: DistributionPolicy | PartitionedRouter,
    sla: SlaTarget,
    draw: Draw,
    workers_per_instance: Mapping[str, int],
) -> FleetRun:
    joining = [
        (late.after_s, name)
        for late in part.late
        for name, count in zip(servers.types, late.counts, strict=True)
        for _ in range(count)
    ]
    trace = draw(part.queries, rate_qps)
    if not any(part.pool) and not joining:
        return FleetRun(np.full(len(trace), np.nan), (0.0,) * len(part.pool), 1.0)
    changes = [
        (after_s, InstanceChanged(number, name, Availability.UP, workers_per_instance.get(name, 1)))
        for number, (after_s, name) in enumerate(joining, sum(part.pool))
    ]
    return run_fleet(
        trace, rate_qps, part.pool, servers, policy, sla.latency_s,
        workers_per_instance=workers_per_instance, changes=changes,
    )  # fmt: skip
