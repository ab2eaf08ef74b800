"""A router and its fleet in virtual time: the `scheduling.router` that a live fleet is to run, over modelled servers.

All policies, pools and rates of one study see the same queries (common random numbers): `QueryTrace` holds gaps at rate
1, sizes, and each query's luck, from which a table server draws its service time at any type and size.

`partitioned` deals a policy over partitions of the fleet, as a large live fleet would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hebe.latency import attainment, percentile_of
from hebe.profile import LatencyProfile
from hebe.query import Query, SubQuery
from hebe.scheduling.events import (
    Availability,
    CompleteQuery,
    InstanceChanged,
    QueryArrived,
    SendSubQuery,
    SubQueryFinished,
)
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.scheduling.fleet.router import Router, RouterConfig
from hebe.simulation.event_queue import EventQueue
from hebe.simulation.measured.service_table import ServiceTable
from hebe.workload.query_sizes import QuerySizes

Floats = npt.NDArray[np.float64]

_PROFILE_SIZES = 100
_PROFILE_STEP = 1.1
"""From one size to the next in a profile: from 64 items on enough of them for a predictor to trust its table."""


@dataclass(frozen=True)
class QueryTrace:
    """Queries without a rate yet: `gaps` float64 [queries], mean 1; `sizes` int64 [queries]; `luck` float64 [queries]
    in [0, 1), small is fast."""

    gaps: Floats
    sizes: npt.NDArray[np.int64]
    luck: Floats

    @classmethod
    def draw(cls, queries: int, sizes: QuerySizes, seed: int) -> QueryTrace:
        """Exponential gaps (a Poisson process), sizes of a distribution, luck uniform; the same for the same seed."""
        gap_rng, size_rng, luck_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
        return cls(gap_rng.exponential(size=queries), sizes.draw(queries, size_rng), luck_rng.random(queries))

    def __len__(self) -> int:
        return self.gaps.size


class ServiceModel(Protocol):
    """How long modelled servers take."""

    @property
    def types(self) -> tuple[str, ...]:
        """The server types it knows, base first."""
        ...

    def fleet(self) -> Fleet:
        """A router's new fleet of these types, without workers yet: it knows beforehand, or learns, what they take."""
        ...

    def begin(self, trace: QueryTrace) -> None:
        """A run of this trace begins; query ids will be its indices."""
        ...

    def service_s(self, server_type: int, sub_query: SubQuery) -> float:
        """Seconds that a worker of the type takes for this part."""
        ...


class TableServers:
    """Servers that take as long as was measured, with the measured spread.

    `known`: routers know service times beforehand, as where a model was profiled before it is served; else they learn
    them in the run, which costs short runs dear. Parts of one query share its luck, turned on by the golden ratio from
    part to part, so that they are not alike.
    """

    def __init__(self, table: ServiceTable, *, known: bool = False) -> None:
        self.table = table
        self.profiles: Mapping[str, LatencyProfile] = {}
        """Of every type if they are known, else of none."""
        if known:
            sizes = sorted({min(round(_PROFILE_STEP**step), table.largest) for step in range(_PROFILE_SIZES)})
            self.profiles = {name: table.profile(name, sizes) for name in table.types}
        self._whole_s: list[list[float]] = []
        self._sizes: list[int] = []
        self._luck: list[float] = []

    @property
    def types(self) -> tuple[str, ...]:
        """The table's types."""
        return self.table.types

    def fleet(self) -> Fleet:
        """Which has the profiles of known types."""
        return Fleet(self.types, self.profiles)

    def begin(self, trace: QueryTrace) -> None:
        """Draw every query's service time on every type, should it go there whole."""
        if trace.sizes.size and trace.sizes.max() > self.table.largest:
            raise ValueError(
                f"queries of {trace.sizes.max()} items, but servers were measured up to {self.table.largest}"
            )
        samples = (trace.luck * self.table.samples).astype(np.int64)
        self._whole_s = [quantiles[trace.sizes, samples].tolist() for quantiles in self.table.quantiles_s]
        self._sizes = trace.sizes.tolist()
        self._luck = trace.luck.tolist()

    def service_s(self, server_type: int, sub_query: SubQuery) -> float:
        """The query's own draw if it is whole, else one for this part."""
        query_id = sub_query.query.query_id
        items = sub_query.stop - sub_query.start
        if items == self._sizes[query_id]:
            return self._whole_s[server_type][query_id]
        luck = (self._luck[query_id] + 0.6180339887498949 * sub_query.start) % 1.0
        return float(self.table.quantiles_s[server_type, items, int(luck * self.table.samples)])


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What became of a trace: `latency_s` float64 [queries] by query, nan where it was not answered; `busy_s` by
    server type; `end_s` when the last answer was given."""

    latency_s: Floats
    busy_s: tuple[float, ...]
    end_s: float

    def attainment(self, sla_s: float, skip: int = 0) -> float:
        """The share of queries, but for the first `skip`, that were answered within `sla_s`."""
        return attainment(self.latency_s[skip:], sla_s)

    def percentile_s(self, percentile: float, skip: int = 0) -> float:
        """Nearest-rank percentile of the latency, where a query without answer counts as infinitely late."""
        return percentile_of(self.latency_s[skip:], percentile)


def run_fleet(
    trace: QueryTrace,
    rate_qps: float,
    pool: Sequence[int],
    servers: ServiceModel,
    policy: DistributionPolicy | PartitionedRouter,
    sla_s: float,
    *,
    workers_per_instance: Mapping[str, int] | None = None,
    changes: Sequence[tuple[float, InstanceChanged]] = (),
    give_up_late: int | None = None,
) -> FleetRun:
    """Send the trace at `rate_qps` through a router with `policy` to `pool[t]` instances of each of the servers' types.

    In place of a policy, a partitioned router may be given, whose routers' fleets have the servers' types and whose SLA
    is `sla_s`. `changes` are told to the router at their times: instances that join, drain or are lost. The pool's
    instances have the ids from 0; one that comes back after it was lost needs a new id. `give_up_late`: stop once more
    than so many queries were answered after `sla_s`; the rest then count as not answered, which saves most of the time
    that a fleet too small would take. Raises ValueError for a rate that is not positive, an empty pool that nothing
    joins, or one of another length than the servers' types.
    """
    if not rate_qps > 0:
        raise ValueError(f"rate_qps is {rate_qps}: must be positive")
    if isinstance(policy, PartitionedRouter):
        router: Router | PartitionedRouter = policy
    else:
        router = Router(servers.fleet(), policy, RouterConfig(sla_s=sla_s))
    servers.begin(trace)
    happenings: EventQueue[SubQueryFinished | InstanceChanged] = EventQueue()
    instances = 0
    for name, count in zip(servers.types, pool, strict=True):
        for _ in range(count):
            workers = (workers_per_instance or {}).get(name, 1)
            happenings.push(-math.inf, InstanceChanged(instances, name, Availability.UP, workers))
            instances += 1
    if not instances and not changes:
        raise ValueError("the pool has no instance")
    for at_s, change in changes:
        happenings.push(at_s, change)
    types_of: dict[int, int] = {}
    latency_s = np.full(len(trace), np.nan)
    busy_s = [0.0] * len(servers.types)
    now, late = 0.0, 0
    most_late = len(trace) if give_up_late is None else give_up_late
    arrivals = (np.cumsum(trace.gaps) / rate_qps).tolist()
    sizes = trace.sizes.tolist()
    upcoming, queries = 0, len(trace)
    handle, push, service_s = router.handle, happenings.push, servers.service_s
    while upcoming < queries or happenings:
        if upcoming < queries and arrivals[upcoming] < happenings.next_s:
            now = arrivals[upcoming]
            actions = handle(QueryArrived(Query(upcoming, sizes[upcoming], now)), now)
            upcoming += 1
        else:
            now, happening = happenings.pop()
            if type(happening) is InstanceChanged:
                _take_note(happening, types_of, servers.types)
            elif happening.instance_id not in types_of:  # lost with what it had
                continue
            actions = handle(happening, now)
        for action in actions:
            if type(action) is SendSubQuery:
                server_type = types_of[action.instance_id]
                takes_s = service_s(server_type, action.sub_query)
                busy_s[server_type] += takes_s
                push(now + takes_s, SubQueryFinished(action.instance_id, action.sub_query, takes_s))
            elif type(action) is CompleteQuery:
                answered_s = now - action.query.arrival_s
                latency_s[action.query.query_id] = answered_s
                if answered_s > sla_s:
                    late += 1
        if late > most_late:
            break
    return FleetRun(latency_s, tuple(busy_s), now)


def _take_note(change: InstanceChanged, types_of: dict[int, int], types: Sequence[str]) -> None:
    if change.state is Availability.UP:
        types_of[change.instance_id] = types.index(change.server_type)
    elif change.state is Availability.LOST:
        types_of.pop(change.instance_id, None)


def partitioned(
    servers: ServiceModel, make_policy: Callable[[], DistributionPolicy], sla_s: float, partitions: int
) -> DistributionPolicy | PartitionedRouter:
    """The policy itself for one partition; else a router that gives each of its partitions a policy of its own.

    `sla_s` must be that of the run. `scheduling.partitioning.partitions_for` says how many suit a fleet. Raises
    `ValueError` for fewer than one.
    """
    if partitions == 1:
        return make_policy()
    return PartitionedRouter(partitions, lambda: Router(servers.fleet(), make_policy(), RouterConfig(sla_s=sla_s)))
