"""The best of many pools and policies by simulation, at about one run for each that is not the best.

A pool or policy that does not hold the SLA target just above the best rate so far cannot be better, which one run
shows, cut short as soon as too many queries are late. Only what holds there is searched for its own rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.capacity import holds_target, largest_rate_qps, most_late
from hebe.simulation.fleet.fleet_run import QueryTrace, ServiceModel, run_fleet
from hebe.spec import SlaTarget

PolicyMaker = Callable[[], DistributionPolicy | PartitionedRouter]


class CapacityRace:
    """All that is entered runs on the same `trace`; `guess_qps` is where the first one's search starts.

    `best_qps` is the greatest latency-bounded throughput found, within `tolerance` of itself (0 at first); `entered`
    counts what was tried.
    """

    def __init__(
        self, trace: QueryTrace, servers: ServiceModel, sla: SlaTarget, guess_qps: float, tolerance: float = 0.005
    ) -> None:
        self.best_qps = 0.0
        self.entered = 0
        self._trace = trace
        self._servers = servers
        self._sla = sla
        self._guess_qps = guess_qps
        self._tolerance = tolerance

    def enter(self, pool: Sequence[int], make_policy: PolicyMaker) -> float:
        """Queries/s of `pool[t]` instances of each type under the policy if that is the best so far, else 0."""
        self.entered += 1
        held: dict[float, bool] = {}

        def holds(rate_qps: float) -> bool:
            if rate_qps not in held:
                held[rate_qps] = self.holds(rate_qps, pool, make_policy)
            return held[rate_qps]

        guess_qps = self.best_qps * (1 + self._tolerance) or self._guess_qps
        if self.best_qps and not holds(guess_qps):
            return 0.0
        found_qps = largest_rate_qps(holds, guess_qps, self._tolerance)
        self.best_qps = max(self.best_qps, found_qps)
        return found_qps

    def holds(self, rate_qps: float, pool: Sequence[int], make_policy: PolicyMaker) -> bool:
        """Whether the pool meets the SLA target at this rate."""
        return holds_target(self._trace, rate_qps, pool, self._servers, make_policy(), self._sla)

    def attainment(
        self, rate_qps: float, pool: Sequence[int], make_policy: PolicyMaker, *, give_up_after: float | None = None
    ) -> float:
        """The share of queries answered within the SLA at this rate. `give_up_after`: stop once more than so many times
        as many queries as the SLA allows are late, and count the rest as late too."""
        late = None if give_up_after is None else int(give_up_after * most_late(len(self._trace), self._sla))
        run = run_fleet(
            self._trace, rate_qps, pool, self._servers, make_policy(), self._sla.latency_s, give_up_late=late
        )
        return run.attainment(self._sla.latency_s)
