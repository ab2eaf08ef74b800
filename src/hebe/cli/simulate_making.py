"""How `hebe simulate` runs: reads what it is given, and runs or searches once for each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer
from rich.progress import Progress

from hebe.cli.fleet_simulation import (
    MOST_INSTANCES,
    RUNS_OF_A_SEARCH,
    check_sla,
    lasts_briefly,
    on_all_cores,
    queries_needed,
)
from hebe.cli.plan_files import PlanFileError
from hebe.cli.pool_forms import choose_policy, parse_counts
from hebe.cli.pool_plan_file import PoolPlanFile, read_pool_plan
from hebe.cli.service_times import ServiceTimes, read_service_times
from hebe.cli.simulate_plan import DEFAULT_PERCENTILE, agreed_sizes, agreed_sla, profiled_for
from hebe.planning.pool_problem import PoolProblem
from hebe.query import MOST_ITEMS
from hebe.simulation.capacity import Capacity
from hebe.simulation.fleet_case import FleetCase, RunResult, capacity_case, run_case, saturation_qps
from hebe.simulation.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.query_stream import SIZE_DRAWS, QueryStream, arrival_process, largest_drawn
from hebe.simulation.size_watch import SizeShift, size_shift
from hebe.spec import SlaTarget
from hebe.workload import forms
from hebe.workload.arrivals import arrival_remarks

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What was asked for; None: as the plan has it, as profiled, or a default. `rate_qps` None: search the largest."""

    service_times: tuple[Path, ...]
    plan: Path | None
    pool: str | None
    policy: str | None
    model: str | None
    rate_qps: float | None
    sla_ms: float | None
    percentile: float | None
    sizes: str | None
    arrivals: str
    queries: int | None
    seeds: int
    seed: int
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure's mean over the runs, the 95% confidence interval of that (None: a single run has none), and each
    run's own."""

    value: float
    low: float | None
    high: float | None
    by_run: tuple[float, ...]

    @classmethod
    def of(cls, by_run: Sequence[float], largest: float = math.inf) -> Estimate:
        """By Student's distribution, as `Capacity` has it, of what is never above `largest`."""
        found = Capacity.of(by_run)
        high = None if found.high is None else min(found.high, largest)
        return cls(found.qps, found.low, high, found.by_trace_qps)


@dataclass(frozen=True, slots=True, eq=False)
class SimulationMade:
    """The result: one run for each seed, at the rate asked for or at the largest that holds the SLA target.

    `capacity` is the latency-bounded throughput, if it was searched; then runs are those of seeds where a rate held.
    `partitions` are the fleets that the pool is dealt into; `shift` says when it showed that sizes are not the plan's.
    """

    request: SimulationRequest
    plan: PoolPlanFile | None
    times: ServiceTimes
    counts: tuple[int, ...]
    policy: PolicyChoice
    sla: SlaTarget
    stream: QueryStream
    capacity: Estimate | None
    runs: tuple[RunResult, ...]
    partitions: int = 1
    shift: SizeShift | None = None

    @property
    def queries(self) -> tuple[int, ...]:
        """How many each run sent; were there none, how many one was to send."""
        return tuple(run.latency_s.size for run in self.runs) or (self.stream.queries,)

    @property
    def remarks(self) -> list[str]:
        """What the figures do not show: of the service times, of the arrivals, and of runs that are too short."""
        rate_qps = self.request.rate_qps if self.capacity is None else self.capacity.value
        short = lasts_briefly(min(self.queries), rate_qps or 0.0, self.sla)
        arrivals = arrival_remarks(arrival_process(self.stream.arrivals))
        return [*self.times.remarks, *arrivals, *([short] if short else [])]

    @property
    def latency_ms(self) -> Floats:
        """Of all runs, float64 `[queries]`; infinite where a query was not answered."""
        every = np.concatenate([run.latency_s for run in self.runs]) if self.runs else np.empty(0)
        return np.nan_to_num(every * 1e3, nan=np.inf)

    def percentile_ms(self, percentile: float) -> Estimate:
        """The nearest-rank percentile of the latency, its mean over the runs and the interval of that."""
        return Estimate.of([1e3 * run.percentile_s(percentile) for run in self.runs])

    @property
    def attainment(self) -> Estimate:
        """The share of queries that were answered in time."""
        return Estimate.of([run.attainment(self.sla.latency_s) for run in self.runs], largest=1.0)

    @property
    def throughput_qps(self) -> Estimate:
        """Answers per second, until the last one."""
        return Estimate.of([run.throughput_qps for run in self.runs])

    @property
    def utilisation(self) -> dict[str, Estimate]:
        """The share of their time that servers of each type work."""
        by_type = zip(self.times.table.types, zip(*(run.utilisation for run in self.runs), strict=True), strict=True)
        return {name: Estimate.of(shares, largest=1.0) for name, shares in by_type}


def make_simulation(request: SimulationRequest, progress: Progress) -> SimulationMade:
    """Read the files and run. Wrong usage where nothing tells an SLA target; raises `PlanFileError`, `PlanningError`,
    `WorkloadError` or `SpecError`."""
    plan = read_pool_plan(request.plan) if request.plan is not None else None
    forms.arrivals(request.arrivals)
    counts = _counts(request, plan)
    times = _times(request, plan, list(counts))
    sla, sizes = _sla_and_sizes(request, plan, times.model)
    weights, largest = largest_drawn(sizes, request.seed, times.table.largest)
    check_sla(sla, times, largest)
    pool = tuple(counts.values())
    workers = times.workers_of(pool)
    if sum(workers) > MOST_INSTANCES:
        raise PlanFileError(f"the pool has {sum(workers):,} workers: at most {MOST_INSTANCES:,} are simulated")
    policy = _policy(request, plan, times, pool, sla, weights)
    limit_qps = saturation_qps(times.table, workers, weights)
    search = request.rate_qps is None
    rate_qps = 0.7 * limit_qps if request.rate_qps is None else request.rate_qps
    queries = queries_needed(request.queries, sla, limit_qps if search else rate_qps, request.arrivals, search=search)
    stream = QueryStream(request.arrivals, sizes, queries, request.seed)
    partitions = _partitions(request, plan if plan and plan.model == times.model else None, policy, workers)
    first = FleetCase(times.table, workers, policy, sla, largest, stream, rate_qps, partitions)
    cases = [first.with_seed(request.seed + number) for number in range(request.seeds)]
    capacity = None
    if search:
        work = RUNS_OF_A_SEARCH * queries * len(cases)
        found = on_all_cores("searching the largest rate", capacity_case, cases, work, progress)
        capacity = Estimate.of([qps for qps, _ in found])
        runs = tuple(run for _, run in found if run is not None)
    else:
        runs = tuple(on_all_cores("simulating", run_case, cases, queries * len(cases), progress))
    shift = _shift(request, plan, stream, rate_qps, times.table.largest)
    return SimulationMade(request, plan, times, pool, policy, sla, stream, capacity, runs, partitions, shift)


def _partitions(
    request: SimulationRequest, plan: PoolPlanFile | None, policy: PolicyChoice, workers: tuple[int, ...]
) -> int:
    """As asked, else as the plan says of its own pool and policy, else as the policy is dealt."""
    asked, where = request.partitions, "--partitions"
    if asked is None and plan is not None and request.pool is None and request.policy is None:
        asked, where = plan.partitions, f"{request.plan}: policy: partitions"
    if asked is None:
        return policy.kind.partitions(workers)
    if asked > sum(workers):
        raise PlanFileError(f"{where} is {asked}: the pool has {sum(workers)} workers to deal")
    return asked


def _shift(
    request: SimulationRequest, plan: PoolPlanFile | None, stream: QueryStream, rate_qps: float, largest: int
) -> SizeShift | None:
    """Whether a monitor sees in the first run that sizes are not those that the plan was made for, which may be larger
    than the `largest` that was measured.
    """
    if plan is None or plan.sizes == stream.sizes:
        return None
    planned, _ = largest_drawn(plan.sizes, request.seed, max(largest, MOST_ITEMS))
    return size_shift(stream.trace(rate_qps).sizes, planned, planned_from=SIZE_DRAWS)


def _sla_and_sizes(request: SimulationRequest, plan: PoolPlanFile | None, model: str) -> tuple[SlaTarget, str]:
    """The SLA target and the form of query sizes: as asked, else as planned, or without a plan as profiled."""
    if plan is not None:
        planned, sizes = plan.sla, plan.sizes
    else:
        profiled = profiled_for(request.service_times).get(model, [])
        sizes = agreed_sizes(profiled)
        if request.sla_ms is not None:
            planned = SlaTarget(request.sla_ms, DEFAULT_PERCENTILE)
        elif (agreed := agreed_sla(model, profiled)) is not None:
            planned = agreed
        else:
            raise typer.BadParameter(
                "give a latency bound, or a plan by --plan: only profiles that hebe profile wrote have one",
                param_hint="--sla-ms",
            )
    latency_ms = planned.latency_ms if request.sla_ms is None else request.sla_ms
    percentile = planned.percentile if request.percentile is None else request.percentile
    return SlaTarget(latency_ms, percentile), request.sizes or sizes


def _counts(request: SimulationRequest, plan: PoolPlanFile | None) -> dict[str, int]:
    """The types that the pool has, base first. Wrong usage of `--pool` where that has none, or too many servers."""
    if request.pool is not None:
        counts = parse_counts(request.pool, "--pool")
    else:
        assert plan is not None, "the command asks for one of them"
        counts = dict(plan.counts)
    present = {name: count for name, count in counts.items() if count}
    fault = ""
    if not present:
        fault = "has no server: must have at least one"
    elif sum(present.values()) > MOST_INSTANCES:
        fault = f"has {sum(present.values()):,} servers: at most {MOST_INSTANCES:,} are simulated"
    if fault and request.pool is not None:
        raise typer.BadParameter(fault, param_hint="--pool")
    if fault:
        raise PlanFileError(f"{request.plan}: [[server]]: {fault}")
    return present


def _times(request: SimulationRequest, plan: PoolPlanFile | None, types: list[str]) -> ServiceTimes:
    files = request.service_times or (plan.service_times if plan else ())
    times = read_service_times(files, request.model or (plan.model if plan else None))
    return times.of_types(types, "the pool has")


def _policy(
    request: SimulationRequest,
    plan: PoolPlanFile | None,
    times: ServiceTimes,
    pool: tuple[int, ...],
    sla: SlaTarget,
    weights: Floats,
) -> PolicyChoice:
    """As asked, with parameters that fit this pool and model; the plan's as it is if it is for these: a type that the
    plan had none of has price 0, which splitting cannot distribute by once there are some."""
    priced = plan is None or all(plan.policy.prices_qps.get(name, 1) for name in times.table.types)
    if plan is not None and plan.model == times.model and request.policy is None and request.pool is None and priced:
        return plan.policy
    form = request.policy or (plan.policy.kind if plan else PolicyKind.MATCHING)
    # Prices play no part: neither the pool's fluid bound nor how far a type reaches depends on them.
    any_price = np.ones(len(pool))
    service_s = times.table.mean_s[:, : weights.size]
    problem = PoolProblem(
        times.table.types, any_price, service_s, weights, sla.latency_s, workers=times.workers_per_server
    )
    return choose_policy(form, problem, pool)
