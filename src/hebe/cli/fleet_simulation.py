"""What `hebe simulate` and `hebe plan pool` run: a pool of table servers under a policy, over queries drawn by seed.

Cases are plain data, so that they run on all cores; each depends on its own seed only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.cli.plan_files import PlanFileError
from hebe.cli.service_times import ServiceTimes
from hebe.planning.query_size_monitor import size_weights
from hebe.scheduling.distribution import DistributionPolicy
from hebe.scheduling.partitioning import PartitionedRouter
from hebe.simulation.capacity import Capacity, holds_target, largest_rate_qps
from hebe.simulation.fleet_run import FleetRun, QueryTrace, TableServers, run_fleet
from hebe.simulation.partitioned_fleet import partitioned
from hebe.simulation.policy_choice import PolicyChoice
from hebe.simulation.service_table import ServiceTable
from hebe.spec import SAFEGUARD, SlaTarget
from hebe.studies.sweep import sweep
from hebe.workload import forms
from hebe.workload.arrivals import ArrivalProcess, whole_periods_s

Floats = npt.NDArray[np.float64]

LEAST_QUERIES = 10_000
MOST_QUERIES = 2_000_000
RUNS_OF_A_SEARCH = 16
"""About how often a search for the latency-bounded throughput runs a case."""
_LEAST_SLAS = 5
_SLAS, _FEW_SLAS = 100, 50
"""A run should last so many times the SLA over the percentile's share: overload by a hundredth then shows, as a queue
of one SLA before that share of the queries has come. Of one that lasts few the result says so."""
_PERIODS = 5
_WORTH_PROCESSES = 50_000
"""Queries below which starting processes takes longer than running them here."""

_Case = TypeVar("_Case")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class QueryStream:
    """Which queries come: `arrivals` and `sizes` in the forms of `hebe.workload.forms`; about `queries` of them, or as
    many more as whole periods of the arrivals take, over which alone their mean rate is that asked for."""

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
        """One run. Raises `PlanFileError` if a query is larger than what was measured."""
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


SIZE_DRAWS = 200_000
"""Queries that the share of each size is estimated from."""


def largest_drawn(sizes: str, seed: int) -> tuple[Floats, int]:
    """The share of queries of 1, 2, ... items, float64 `[largest]`, and the largest, from many draws."""
    drawn = forms.query_sizes(sizes).draw(SIZE_DRAWS, np.random.default_rng(seed))
    largest = int(drawn.max())
    return size_weights(drawn, largest), largest


def check_largest(largest: int, measured: int, sizes: str) -> None:
    """Raises `PlanFileError` if queries are larger than the service times reach."""
    if largest > measured:
        raise PlanFileError(
            f"--sizes {sizes}: has queries of {largest} items, but service times reach to {measured} items:"
            " measure larger ones or bound the sizes"
        )


def check_sla(sla: SlaTarget, times: ServiceTimes, largest: int) -> None:
    """Raises `PlanFileError` if no server type serves any query of at most `largest` items in time."""
    mean_s = times.table.mean_s[:, :largest]
    kind, at = np.unravel_index(int(mean_s.argmin()), mean_s.shape)
    if mean_s.min() > SAFEGUARD * sla.latency_s:
        raise PlanFileError(
            f"--sla-ms is {sla.latency_ms:g}: below the fastest service time of {times.model} in {times.named_files},"
            f" {mean_s.min() * 1e3:.4g} ms (of {times.table.types[kind]} at {at + 1} items, with 2% to spare):"
            " nothing can be served in time"
        )


def queries_needed(asked: int | None, sla: SlaTarget, rate_qps: float, arrivals: str, *, search: bool) -> int:
    """How many queries a run takes: as asked, or enough for the SLA's percentile, for overload to show, and for the
    arrivals to go through some of their periods.

    `rate_qps` is about the highest rate to be run at. Raises `PlanFileError` if what was asked for is too little for
    the percentile, for a period of the arrivals, or for a search of the rate.
    """
    for_percentile = math.ceil(1 / (1 - sla.percentile / 100) - 1e-6)
    period_s = arrival_process(arrivals).period_s or 0.0
    if asked is None:
        lasting_s = max(_SLAS * _over_share_s(sla), _PERIODS * period_s)
        wanted = max(LEAST_QUERIES, 10 * for_percentile, math.ceil(min(lasting_s * rate_qps, 1e15)))
        if wanted > MOST_QUERIES and (search or period_s):
            raise PlanFileError(
                f"{rate_qps:g} queries/s, p{sla.percentile:g} within {sla.latency_ms:g} ms, and {arrivals} arrivals"
                f" need {wanted:,} queries a run, more than {MOST_QUERIES:,}: set --queries, or change one of them"
            )
        return min(wanted, MOST_QUERIES)
    lasting_s = max(_LEAST_SLAS * _over_share_s(sla) if search else 0.0, period_s)
    least = max(for_percentile, math.ceil(min(lasting_s * rate_qps, 1e15)))
    if not least <= asked <= 5 * MOST_QUERIES:
        why = f"a run must show p{sla.percentile:g}"
        if lasting_s:
            few = "a few times the SLA, longer where --percentile is low, and " if search else ""
            why += f", and last {lasting_s:g} s: {few}a period of the arrivals"
        raise PlanFileError(f"--queries is {asked}: must lie in {least:,}..{5 * MOST_QUERIES:,}: {why}")
    return asked


def _over_share_s(sla: SlaTarget) -> float:
    """The SLA over the percentile's share. If servers need less time than that for all queries of a run, enough of them
    are in time even if all arrive at once: no rate is too high."""
    return sla.latency_s / (sla.percentile / 100)


def lasts_briefly(queries: int, rate_qps: float, sla: SlaTarget) -> str:
    """What to say of a run of so many queries in which a slight overload does not show; nothing of a longer one."""
    slas = queries / rate_qps / _over_share_s(sla) if rate_qps else math.inf
    if slas >= _FEW_SLAS:
        return ""
    wanted = math.ceil(queries * _SLAS / slas / 1000) * 1000
    lasting = queries / rate_qps / sla.latency_s
    return (
        f"A run lasts {lasting:.3g} times the SLA, so that a rate may seem to hold that servers cannot serve for long,"
        f" about {1 / slas:.0%} too high at most: for {1 / _SLAS:.0%} give --queries {wanted}."
    )


def in_words(queries: Sequence[int]) -> str:
    """How many queries each of some runs sent."""
    least, most = min(queries), max(queries)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def workers_of(counts: Sequence[int], times: ServiceTimes) -> tuple[int, ...]:
    """The workers of all servers of a pool, by the table's types, of its counts of servers."""
    return tuple(count * each for count, each in zip(counts, times.workers_per_server, strict=True))


def saturation_qps(table: ServiceTable, workers: Sequence[int], size_weights: Floats) -> float:
    """What the pool did if its workers were always busy, each with its share of all queries."""
    mean_s = table.mean_s[:, : size_weights.size] @ size_weights
    return float(np.asarray(workers) @ (1.0 / mean_s))


def on_all_cores(
    title: str,
    function: Callable[[_Case], _Answer],
    cases: Sequence[_Case],
    queries: int,
    progress: Progress,
) -> list[_Answer]:
    """As `sweep`; in this process if all cases together have fewer than some `queries`."""
    return sweep(title, function, cases, progress, in_process=queries < _WORTH_PROCESSES)
