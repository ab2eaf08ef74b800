"""What a pool of servers does for one model in virtual time: a run, or a search of the largest rate, for each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.arguments import checked
from hebe.capacity.errors import (
    ArgumentError,
    MisfitError,
    PlanFileError,
    check_at_least,
    check_form,
    check_percentile,
    naming,
)
from hebe.capacity.files.pool_plan import PoolPlanFile, read_pool_plan
from hebe.capacity.files.reading import FilePath, in_memory
from hebe.capacity.files.service_times import ServiceTimes, TimesGiven, files_of, service_times_of
from hebe.capacity.planned_models import DEFAULT_PERCENTILE, agreed_sizes, agreed_sla, profiled_for
from hebe.capacity.policies import check_counts, choose_policy
from hebe.capacity.pool_planner import PoolPlanMade
from hebe.capacity.progress import OnProgress, ignore
from hebe.capacity.run_length import (
    MOST_INSTANCES,
    RUNS_OF_A_SEARCH,
    check_sla,
    lasts_briefly,
    on_all_cores,
    queries_needed,
)
from hebe.planning.error import Parameter, join_message
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.query import MOST_ITEMS
from hebe.simulation.fleet.capacity import Capacity
from hebe.simulation.fleet.fleet_case import FleetCase, RunResult, capacity_case, run_case, saturation_qps
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import (
    SIZE_DRAWS,
    QueryStream,
    SizeShift,
    arrival_process,
    largest_drawn,
    size_shift,
)
from hebe.spec import SlaTarget
from hebe.workload import forms
from hebe.workload.arrivals import arrival_remarks

Floats = npt.NDArray[np.float64]

_OF_PLANNING = {"sla_s": "sla_ms"}
"""What planning calls other than `simulate_pool` does."""


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What was asked for; None: as the plan has it, as profiled, or a default. `rate_qps` None: search the largest."""

    service_times: tuple[Path, ...]
    plan: Path | None
    pool: Mapping[str, int] | None
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
    names: Mapping[str, str] = field(default_factory=dict)
    """What remarks call a parameter, where not by its own name."""

    def named(self, names: Mapping[str, str]) -> SimulationMade:
        """The same, with `names` in place of parameters in all that it says."""
        return replace(self, names=names)

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
        return [*self.times.remarks, *arrivals, *([join_message(short, self.names)] if short else [])]

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


@checked
def simulate_pool(
    service_times: TimesGiven | None = None,
    *,
    plan: PoolPlanFile | PoolPlanMade | FilePath | None = None,
    pool: Mapping[str, int] | None = None,
    policy: str | None = None,
    partitions: int | None = None,
    model: str | None = None,
    rate_qps: float | None = None,
    sla_ms: float | None = None,
    percentile: float | None = None,
    sizes: str | None = None,
    arrivals: str = "poisson",
    queries: int | None = None,
    seeds: int = 3,
    seed: int = 0,
    progress: OnProgress = ignore,
) -> SimulationMade:
    """Run a pool of servers for one model in virtual time, by the router and policies of a live fleet.

    Servers take as long as was measured, with the measured spread. The same seed sends the same queries to every pool
    and policy, so that two runs differ by what was changed and not by chance.

    Parameters:
        service_times: by server type and query size, as data, or in files or directories of profiles; None: those that
            the plan was made from.
        plan: of a pool: a plan file, what is read of one, or what `plan_pool` returns.
        pool: servers by type, the base type first; None: the plan's.
        policy: `"fcfs"`, `"threshold[:ITEMS]"`, `"clockwork"`, `"matching"` or `"splitting"`; None: the plan's, or
            matching.
        partitions: into how many fleets that decide on their own the pool is dealt; None: as suits it.
        model: which one, if the files are of several.
        rate_qps: the mean arrival rate in queries/s; None: search the largest at which the SLA target holds.
        sla_ms, percentile: the SLA target in milliseconds; None: the plan's, or as profiled, or p99.
        sizes, arrivals: query sizes in items and arrivals, in forms of `hebe.workload.forms`; `sizes` None: the plan's,
            as profiled, or production.
        queries: of a run; None: enough for the SLA target.
        seeds: runs with other queries, for the confidence interval; `seed`: the same one sends the same queries.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, or `MisfitError` for an argument that does not fit the others or the files, both naming the
    `field`; `PlanFileError` for a file, naming the field; `PlanningError` where splitting serves some query too late;
    `WorkloadError` for queries that are larger than what was measured.
    """
    if rate_qps is not None:
        check_at_least("rate_qps", rate_qps, more_than=0.0)
    if sla_ms is not None:
        check_at_least("sla_ms", sla_ms, more_than=0.0)
    if percentile is not None:
        check_percentile("percentile", percentile)
    if partitions is not None:
        check_at_least("partitions", partitions, least=1)
    if sizes is not None:
        check_form("sizes", forms.query_sizes, sizes)
    check_form("arrivals", arrival_process, arrivals)
    if queries is not None:
        check_at_least("queries", queries, least=1)
    check_at_least("seeds", seeds, least=1)
    check_at_least("seed", seed, least=0)
    check_counts("pool", pool or {})
    if plan is None and pool is None:
        raise ArgumentError("pool", "give a pool, or a plan by ", Parameter("plan"))
    if plan is None and service_times is None:
        raise ArgumentError("service_times", "give files of service times, or a plan by ", Parameter("plan"))
    request = SimulationRequest(
        () if service_times is None else files_of(service_times),
        Path(plan) if isinstance(plan, str | PathLike) else None if plan is None else in_memory("plan"),
        pool, policy, model, rate_qps, sla_ms, percentile, sizes, arrivals, queries, seeds, seed, partitions,
    )  # fmt: skip
    planned: PoolPlanFile | None
    if isinstance(plan, PoolPlanMade):
        planned = plan.as_file()
        if service_times is None:
            service_times = plan.times
    else:
        planned = plan if isinstance(plan, PoolPlanFile) or plan is None else read_pool_plan(Path(plan))
    counts = _counts(request, planned)
    if service_times is None:
        assert planned is not None, "there is one of both"
        service_times = planned.service_times
    every = service_times_of(service_times, model or (planned.model if planned else None))
    return _simulated(request, planned, counts, every.of_types(list(counts), "the pool has"), progress)


def _simulated(
    request: SimulationRequest,
    plan: PoolPlanFile | None,
    counts: Mapping[str, int],
    times: ServiceTimes,
    on_progress: OnProgress,
) -> SimulationMade:
    sla, sizes = _sla_and_sizes(request, plan, times.model)
    weights, largest = largest_drawn(sizes, request.seed, times.table.largest)
    check_sla(sla, times, largest)
    pool = tuple(counts.values())
    workers = times.workers_of(pool)
    if sum(workers) > MOST_INSTANCES:
        raise MisfitError(f"the pool has {sum(workers):,} workers: at most {MOST_INSTANCES:,} are simulated")
    with naming(_OF_PLANNING):
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
        found = on_all_cores("searching the largest rate", capacity_case, cases, work, on_progress)
        capacity = Estimate.of([qps for qps, _ in found])
        runs = tuple(run for _, run in found if run is not None)
    else:
        runs = tuple(on_all_cores("simulating", run_case, cases, queries * len(cases), on_progress))
    shift = _shift(request, plan, stream, rate_qps, times.table.largest)
    return SimulationMade(request, plan, times, pool, policy, sla, stream, capacity, runs, partitions, shift)


def _partitions(
    request: SimulationRequest, plan: PoolPlanFile | None, policy: PolicyChoice, workers: tuple[int, ...]
) -> int:
    """As asked, else as the plan says of its own pool and policy, else as the policy is dealt."""
    where: str = Parameter("partitions")
    asked = request.partitions
    if asked is None and plan is not None and request.pool is None and request.policy is None:
        asked, where = plan.partitions, f"{request.plan}: policy: partitions"
    if asked is None:
        return policy.kind.partitions(workers)
    if asked > sum(workers):
        raise MisfitError(where, f" is {asked}: the pool has {sum(workers)} workers to deal")
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
            raise ArgumentError(
                "sla_ms",
                "give a latency bound, or a plan by ",
                Parameter("plan"),
                ": only profiles that hebe profile wrote have one",
            )
    latency_ms = planned.latency_ms if request.sla_ms is None else request.sla_ms
    percentile = planned.percentile if request.percentile is None else request.percentile
    return SlaTarget(latency_ms, percentile), request.sizes or sizes


def _counts(request: SimulationRequest, plan: PoolPlanFile | None) -> dict[str, int]:
    """The types that the pool has, base first. Raises `ArgumentError` for `pool` if that has none, or too many servers,
    and `PlanFileError` for such a plan."""
    counts = request.pool if request.pool is not None or plan is None else plan.counts
    present = {name: count for name, count in (counts or {}).items() if count}
    fault = ""
    if not present:
        fault = "has no server: must have at least one"
    elif sum(present.values()) > MOST_INSTANCES:
        fault = f"has {sum(present.values()):,} servers: at most {MOST_INSTANCES:,} are simulated"
    if fault and request.pool is not None:
        raise ArgumentError("pool", fault)
    if fault:
        raise PlanFileError(f"{request.plan}: [[server]]: {fault}")
    return present


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
