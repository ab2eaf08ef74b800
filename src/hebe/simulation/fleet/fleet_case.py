"""A pool of table servers under a policy, over queries drawn by seed: what one run or search of it finds.

Cases are plain data, so that they run on all cores; each depends on its own seed only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.capacity import Capacity, holds_target, largest_rate_qps
from hebe.simulation.fleet.fleet_run import FleetRun, QueryTrace, TableServers, partitioned, run_fleet
from hebe.simulation.fleet.policy_choice import PolicyChoice
from hebe.simulation.fleet.query_stream import QueryStream, check_largest
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FleetCase:
    """A pool, and what runs on it; `largest` is the largest query.

    `workers` [types] are those of all servers of each of the table's types, base first: to the router a server of
    several is as good as so many servers.
    `rate_qps` is the rate to run at, or where a search for the latency-bounded throughput begins. `partitions`: into
    how many fleets that decide on their own the pool is dealt.
    """

    table: ServiceTable
    workers: tuple[int, ...]
    policy: PolicyChoice
    sla: SlaTarget
    largest: int
    stream: QueryStream
    rate_qps: float
    partitions: int = 1

    def with_seed(self, seed: int) -> FleetCase:
        """The same with other queries."""
        return replace(self, stream=replace(self.stream, seed=seed))

    def run(self, rate_qps: float) -> FleetRun:
        """One run. Raises `WorkloadError` if a query is larger than what was measured."""
        trace = self._trace(rate_qps)
        return run_fleet(trace, rate_qps, self.workers, TableServers(self.table), self._policy(), self.sla.latency_s)

    def meets_sla(self, rate_qps: float) -> bool:
        """Whether the SLA target holds at this rate. Raises as `run` does."""
        trace = self._trace(rate_qps)
        return holds_target(trace, rate_qps, self.workers, TableServers(self.table), self._policy(), self.sla)

    def _trace(self, rate_qps: float) -> QueryTrace:
        trace = self.stream.trace(rate_qps)
        check_largest(int(trace.sizes.max()), self.table.largest, self.stream.sizes)
        return trace

    def _policy(self) -> DistributionPolicy | PartitionedRouter:
        def make() -> DistributionPolicy:
            return self.policy.make(self.table.types, self.sla.latency_s, self.largest)

        return partitioned(TableServers(self.table), make, self.sla.latency_s, self.partitions)


@dataclass(frozen=True, slots=True, eq=False)
class RunResult(FleetRun):
    """What became of one run, with its rate, and the pool that it was of: `workers` [types]."""

    rate_qps: float
    workers: tuple[int, ...]

    @property
    def utilisation(self) -> tuple[float, ...]:
        """The share of their time that servers of each type work."""
        busy = zip(self.busy_s, self.workers, strict=True)
        return tuple(busy_s / (count * self.end_s) if count and self.end_s else 0.0 for busy_s, count in busy)

    @property
    def throughput_qps(self) -> float:
        """Answers per second, until the last one."""
        answered = int(np.isfinite(self.latency_s).sum())
        return answered / self.end_s if self.end_s else 0.0


def run_case(case: FleetCase) -> RunResult:
    """The run of a case at its rate."""
    run = case.run(case.rate_qps)
    return RunResult(run.latency_s, run.busy_s, run.end_s, case.rate_qps, case.workers)


def capacity_case(case: FleetCase) -> tuple[float, RunResult | None]:
    """The latency-bounded throughput of a case, and the run at that rate; 0 and None if no rate holds."""
    found_qps = largest_rate_qps(case.meets_sla, case.rate_qps)
    return found_qps, run_case(replace(case, rate_qps=found_qps)) if found_qps else None


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCapacity:
    """The latency-bounded throughput over seeds, and each seed's run at its own."""

    capacity: Capacity
    runs: tuple[RunResult, ...]

    @property
    def utilisation(self) -> list[float]:
        """The mean share of their time that servers of each type work."""
        return np.mean([run.utilisation for run in self.runs], axis=0).tolist() if self.runs else []


def measured_capacity(found: Sequence[tuple[float, RunResult | None]]) -> MeasuredCapacity:
    """From the answers of `capacity_case`, one a seed."""
    return MeasuredCapacity(Capacity.of([qps for qps, _ in found]), tuple(run for _, run in found if run is not None))


def saturation_qps(table: ServiceTable, workers: Sequence[int], size_weights: Floats) -> float:
    """What the pool did if its workers were always busy, each with its share of all queries."""
    mean_s = table.mean_s[:, : size_weights.size] @ size_weights
    return float(np.asarray(workers) @ (1.0 / mean_s))
