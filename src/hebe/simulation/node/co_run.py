"""Several models on one server, batch by batch: what planning predicts from each model alone, "measured" here.

Queries of each model come as a Poisson process, wait first come first served for one of the model's workers, and are
split into parts. A part's seconds of computing pass as they are. Its seconds of waiting for memory pass the more slowly
the more memory traffic the parts ask for that are under way at that moment, of whatever model (`MemoryContention`).
How much it has to fetch depends on how many workers are at work when it starts, for they share the cache: the model's
own ways, or without partitions the whole cache, in proportion to what each fetches.

Independent of the prediction: contention in time, queueing, who is at work, and all effects of one model on another.
Not independent: what a batch costs given its cache (`batch_phases`), and how latency rises with traffic.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.latency import percentile_of
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.fleet.capacity import largest_rate_qps
from hebe.simulation.fleet.fleet_run import QueryTrace
from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]

_CACHE_LEVELS = 48
"""Batch costs are tabled at so many amounts of cache, from the second level alone to the whole last level besides."""

_PRECISION = 0.01
"""Rates are found to this share of themselves."""


class BatchCosts:
    """A model's phases by amount of cache and batch size, tabled once for all simulations on one server.

    Lists, as a simulation reads single values: seconds of computing, of waiting for memory, and bytes/s while waiting.
    """

    def __init__(self, phases: BatchPhases) -> None:
        self.shared, self.model = phases.shared, phases.model
        self._least, span = self.shared.core_cache_bytes, float(self.shared.server.llc_bytes)
        # Geometric steps: what a batch costs changes fastest where the cache is small.
        self._per_log = (_CACHE_LEVELS - 1) / math.log1p(span / self._least)
        self.compute_s: list[list[float]] = []
        self.memory_s: list[list[float]] = []
        self.demand: list[list[float]] = []
        sizes = np.arange(self.shared.batch_size + 1)
        for level in range(_CACHE_LEVELS):
            times = phases.times(sizes, self._least * math.exp(level / self._per_log))
            memory = times.memory_s
            demand = np.divide(times.memory_bytes, memory, out=np.zeros_like(memory), where=memory > 0)
            self.compute_s.append(times.compute_s.tolist())
            self.memory_s.append(memory.tolist())
            self.demand.append(demand.tolist())
        middle = _CACHE_LEVELS // 2
        waiting, computing = self.memory_s[middle][-1], self.compute_s[middle][-1]
        self.pressure = waiting * self.demand[middle][-1] / (waiting + computing)
        """Bytes/s that a worker at work fetches: its weight where the cache is not partitioned."""

    def level(self, cache_bytes: float) -> int:
        """The nearest level to so much last-level cache for one worker."""
        return min(round(math.log1p(cache_bytes / self._least) * self._per_log), _CACHE_LEVELS - 1)


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One model on the server: workers, cache ways (None: the cache is not partitioned), its queries without a rate."""

    costs: BatchCosts
    workers: int
    cache_ways: int | None
    sla: SlaTarget
    trace: QueryTrace

    def __post_init__(self) -> None:
        least = {"workers": self.workers, "cache_ways": 1 if self.cache_ways is None else self.cache_ways}
        for name, count in least.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PlanningError(f"tenant {self.costs.model.name}: {name} is {count!r}: must be at least 1")


@dataclass(frozen=True, slots=True)
class CoRun:
    """What each tenant sustains at once: queries/s within its SLA target, and as shares of the rates asked for."""

    qps: tuple[float, ...]
    shares: tuple[float, ...]


class SharedServerSimulation:
    """Tenants on one server for `duration_s`: all runs last as long and see the same queries, whatever their rates.

    Raises `PlanningError` where tenants do not fit the server or only some of them have cache ways.
    """

    def __init__(self, tenants: Sequence[TenantLoad], duration_s: float) -> None:
        if not tenants:
            raise PlanningError("shared server: there are no tenants")
        if not (math.isfinite(duration_s) and duration_s > 0):
            raise PlanningError(f"duration_s is {duration_s!r}: must be a positive number of seconds")
        self._tenants, self._duration_s = tuple(tenants), duration_s
        self._shared = tenants[0].costs.shared
        _check(self._shared, tenants)

    def within_sla(self, rates_qps: Sequence[float]) -> tuple[bool, ...]:
        """For each tenant whether its tail latency at these rates stays within its SLA target.

        So it does at rate 0; at a rate so low that no query came, nothing is known and it does not.
        """
        return tuple(
            percentile_of(own, tenant.sla.percentile) <= tenant.sla.latency_s if len(own) else rate == 0
            for own, rate, tenant in zip(self.latencies_s(rates_qps), rates_qps, self._tenants, strict=True)
        )

    def sustained(self, rates_qps: Sequence[float]) -> CoRun:
        """What the tenants sustain when asked for in these proportions, then what any of them can take besides.

        All rates are scaled together until some tenant's SLA target breaks; then each tenant is raised further, in
        turn, for as long as all targets hold. No rate is tried for which a trace has too few queries.
        """
        asked = self._rates(rates_qps)
        if not asked.any():
            raise PlanningError("rates_qps: are all 0; ask for at least one tenant")
        together = largest_rate_qps(lambda scale: self._hold((scale * asked).tolist()), 1.0, _PRECISION)
        shares = np.full(len(asked), together)
        if together > 0 and len(asked) > 1:
            for tenant in np.flatnonzero(asked).tolist():
                raised = shares.copy()

                def holds(share: float, tenant: int = tenant, raised: Floats = raised) -> bool:
                    raised[tenant] = share
                    return self._hold((raised * asked).tolist())

                a_little_more = together * (1 + 2 * _PRECISION)
                if holds(a_little_more):
                    shares[tenant] = largest_rate_qps(holds, a_little_more, _PRECISION)
        return CoRun(tuple((shares * asked).tolist()), tuple(shares.tolist()))

    def _hold(self, rates_qps: Sequence[float]) -> bool:
        return all(map(self._lasts, self._tenants, rates_qps)) and all(self.within_sla(rates_qps))

    def _lasts(self, tenant: TenantLoad, rate_qps: float) -> bool:
        return float(tenant.trace.gaps.sum()) >= rate_qps * self._duration_s

    def latencies_s(self, rates_qps: Sequence[float]) -> list[Floats]:
        """Latency of each tenant's queries, float64 `[queries]` each; the first tenth of the time is not counted.

        Raises `PlanningError` where a trace has too few queries for the duration at its rate.
        """
        arrivals = []
        for tenant, rate in zip(self._tenants, self._rates(rates_qps).tolist(), strict=True):
            if not self._lasts(tenant, rate):
                raise PlanningError(
                    f"tenant {tenant.costs.model.name}: its trace has {len(tenant.trace)} queries, too few for"
                    f" {self._duration_s:.3g} s at {rate:.3g} queries/s"
                )
            times = np.cumsum(tenant.trace.gaps / rate) if rate > 0 else np.empty(0)
            arrivals.append(times[: int(np.searchsorted(times, self._duration_s))])
        latencies = _Run(self._shared, self._tenants, arrivals).latencies()
        return [own[times >= 0.1 * self._duration_s] for own, times in zip(latencies, arrivals, strict=True)]

    def _rates(self, rates_qps: Sequence[float]) -> Floats:
        rates = np.array(rates_qps, dtype=np.float64)
        if len(rates) != len(self._tenants) or not np.isfinite(rates).all() or (rates < 0).any():
            raise PlanningError(f"rates_qps is {list(rates_qps)!r}: give one for each tenant, none negative")
        return rates


class _Run:
    """One simulation. Parts under way are in one of two heaps: waiting for memory, or computing.

    Waiting parts all slow down alike, so they are ordered by how much waiting has passed when they are done: one clock
    that runs at 1 / slowdown for all of them.
    """

    def __init__(
        self,
        shared: SharedServerModel,
        tenants: Sequence[TenantLoad],
        arrivals: Sequence[Floats],
    ) -> None:
        self._shared, self._tenants = shared, tenants
        self._costs = [tenant.costs for tenant in tenants]
        self._times = [times.tolist() for times in arrivals]
        self._sizes = [
            tenant.trace.sizes[: len(times)].tolist() for tenant, times in zip(tenants, arrivals, strict=True)
        ]
        self._busy = [0] * len(tenants)
        self._levels: dict[tuple[int, ...], list[int]] = {}

    def latencies(self) -> list[Floats]:
        """Run until every query is answered; latency by tenant and query."""
        slowdown_of = self._shared.memory.slowdown
        batch = self._shared.batch_size
        tenants = range(len(self._tenants))
        queues: list[deque[tuple[int, int]]] = [deque() for _ in tenants]
        parts_left = [[-(-items // batch) for items in sizes] for sizes in self._sizes]
        done = [[0.0] * len(times) for times in self._times]
        idle = [tenant.workers for tenant in self._tenants]
        busy = self._busy
        memory: list[tuple[float, int, int, int, float, float]] = []
        computing: list[tuple[float, int, int, int]] = []
        coming = [(times[0], tenant, 0) for tenant, times in zip(tenants, self._times, strict=True) if times]
        heapq.heapify(coming)
        now = clock = demand = 0.0
        slowdown, started = 1.0, 0
        never = math.inf
        while coming or memory or computing:
            next_memory = now + (memory[0][0] - clock) * slowdown if memory else never
            next_done = computing[0][0] if computing else never
            next_coming = coming[0][0] if coming else never
            then = min(next_memory, next_done, next_coming)
            clock += (then - now) / slowdown
            now = then
            if next_memory <= then:
                clock, _, tenant, query, asks, compute = heapq.heappop(memory)
                demand = max(demand - asks, 0.0) if memory else 0.0
                slowdown = slowdown_of(demand)
                heapq.heappush(computing, (now + compute, started, tenant, query))
                started += 1
                continue
            if next_done <= then:
                _, _, tenant, query = heapq.heappop(computing)
                idle[tenant] += 1
                busy[tenant] -= 1
                parts_left[tenant][query] -= 1
                if parts_left[tenant][query] == 0:
                    done[tenant][query] = now
            else:
                _, tenant, query = heapq.heappop(coming)
                items = self._sizes[tenant][query]
                queues[tenant].extend((query, batch) for _ in range(items // batch))
                if items % batch:
                    queues[tenant].append((query, items % batch))
                if query + 1 < len(self._times[tenant]):
                    heapq.heappush(coming, (self._times[tenant][query + 1], tenant, query + 1))
            queue = queues[tenant]
            while queue and idle[tenant]:
                query, items = queue.popleft()
                idle[tenant] -= 1
                busy[tenant] += 1
                level = self._level_of(tenant)
                costs = self._costs[tenant]
                asks, compute = costs.demand[level][items], costs.compute_s[level][items]
                heapq.heappush(memory, (clock + costs.memory_s[level][items], started, tenant, query, asks, compute))
                started += 1
                demand += asks
                slowdown = slowdown_of(demand)
        return [
            np.array(ends) - np.array(times) if times else np.empty(0)
            for ends, times in zip(done, self._times, strict=True)
        ]

    def _level_of(self, tenant: int) -> int:
        """The cache level of a tenant's worker while so many are busy."""
        state = tuple(self._busy)
        levels = self._levels.get(state)
        if levels is None:
            levels = self._levels[state] = [self._new_level(other) for other in range(len(state))]
        return levels[tenant]

    def _new_level(self, tenant: int) -> int:
        costs, ways, busy = self._costs[tenant], self._tenants[tenant].cache_ways, max(self._busy[tenant], 1)
        if ways is not None:
            return costs.level(ways * self._shared.way_bytes / busy)
        pressure = sum(other.pressure * count for other, count in zip(self._costs, self._busy, strict=True))
        return costs.level(self._shared.server.llc_bytes * (costs.pressure / pressure if pressure > 0 else 1 / busy))


def _check(shared: SharedServerModel, tenants: Sequence[TenantLoad]) -> None:
    where = f"shared server {shared.server.name}"
    workers = sum(tenant.workers for tenant in tenants)
    if workers > shared.server.cores:
        raise PlanningError(f"{where}: workers are {workers} in all: it has {shared.server.cores} cores")
    ways = [tenant.cache_ways for tenant in tenants if tenant.cache_ways is not None]
    if ways and len(ways) < len(tenants):
        raise PlanningError(f"{where}: cache_ways: give them to every tenant or to none")
    if sum(ways) > shared.cache_ways:
        raise PlanningError(f"{where}: cache_ways are {sum(ways)} in all: it has {shared.cache_ways}")
    if any(tenant.costs.shared != shared for tenant in tenants):
        raise PlanningError(f"{where}: the costs of a tenant are those of another server")
