"""The oracle that Kairos compares with (section 7, ORCL): a policy that knows all queries before they come.

The queries of a trace are all there from the start, sorted by size. A worker of the base type that is free takes the
largest that is left, one of any other type the smallest, and no worker takes a query that it would not serve within
the SLA. Nobody waits for an arrival, so the rate that this reaches is for reference only; it is no strict bound, as
another order may serve the same queries sooner. `planning.fluid_bound` has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hebe.query import Query, SubQuery
from hebe.simulation.fleet.capacity import most_late
from hebe.simulation.fleet.fleet_run import QueryTrace, ServiceModel
from hebe.spec import SlaTarget


def oracle_qps(
    trace: QueryTrace, pool: Sequence[int], servers: ServiceModel, sla: SlaTarget, *, base: int = 0
) -> float:
    """Queries/s at which an oracle serves the trace with `pool[t]` instances of each type, each with one worker.

    `base` is the base type. Queries that no instance of the pool serves within the SLA are left out; 0 if they are
    more than the SLA's percentile lets be late. Raises `ValueError` for a pool that has no instance, negative counts,
    or another number of types than the servers; or a trace without queries.
    """
    if len(pool) != len(servers.types) or min(pool) < 0 or not sum(pool):
        raise ValueError(f"pool is {list(pool)}: give counts of {', '.join(servers.types)}, at least one instance")
    if not len(trace):
        raise ValueError("the trace has no queries")
    servers.begin(trace)
    sizes = trace.sizes.tolist()
    order = sorted(range(len(trace)), key=sizes.__getitem__)
    whole = [SubQuery(Query(at, sizes[at], 0.0), 0, sizes[at]) for at in range(len(trace))]
    left: dict[int, _InTime] = {}
    for server_type, count in enumerate(pool):
        if count:
            service_s = [servers.service_s(server_type, part) for part in whole]
            left[server_type] = _InTime(order if server_type != base else order[::-1], service_s, sla.latency_s)
    taken = [False] * len(trace)
    # Of equal times the fleet's first type is the first.
    free = [(0.0, server_type, at) for server_type, count in enumerate(pool) for at in range(count)]
    heapq.heapify(free)
    served, end_s = 0, 0.0
    while free:
        now, server_type, at = heapq.heappop(free)
        chosen = left[server_type].take(taken)
        if chosen is None:  # nothing is left that this type serves in time
            continue
        finish_s = now + left[server_type].service_s[chosen]
        served, end_s = served + 1, max(end_s, finish_s)
        heapq.heappush(free, (finish_s, server_type, at))
    return served / end_s if len(trace) - served <= most_late(len(trace), sla) else 0.0


class _InTime:
    """The queries that one server type serves within the SLA, in the order in which it takes them."""

    def __init__(self, order: Sequence[int], service_s: list[float], sla_s: float) -> None:
        self.service_s = service_s
        self._order = [at for at in order if service_s[at] <= sla_s]
        self._next = 0

    def take(self, taken: list[bool]) -> int | None:
        """The first that is not taken, which then is; None if there is none."""
        while self._next < len(self._order):
            at = self._order[self._next]
            self._next += 1
            if not taken[at]:
                taken[at] = True
                return at
        return None
