"""How `hebe simulate` proves a plan of `hebe plan colocate`: each model's queries go through a router to the workers
that it has on all servers of the plan.

A group's servers are alike, and so are a model's workers on them: to the model's router a group is a server type. A
query takes as long as was measured alone, times the slowdown that the plan predicts for the model in that group
(`simulation.shared_slowdown`). The models meet nowhere else: what a neighbour does to a model is in that one factor,
however busy the neighbour is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hebe.capacity.arguments import checked
from hebe.capacity.colocation_planner import ColocationPlanMade
from hebe.capacity.errors import PlanFileError, naming
from hebe.capacity.files.colocation_plan import ColocationPlanFile, read_colocation_plan
from hebe.capacity.files.reading import FilePath
from hebe.capacity.planned_models import (
    FleetPlanRequest,
    ModelTimes,
    ModelTimesGiven,
    ModelUnderPlan,
    fleet_plan_request,
    model_times,
    read_models,
)
from hebe.capacity.policies import choose_policy
from hebe.capacity.pool_simulation import Estimate
from hebe.capacity.progress import OnProgress, ignore
from hebe.capacity.run_length import MOST_INSTANCES, on_all_cores, queries_needed
from hebe.planning.colocation.colocation import Tenant
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.simulation.fleet.fleet_case import FleetCase, RunResult, run_case
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream
from hebe.simulation.measured.service_table import ServiceTable
from hebe.simulation.queueing.shared_slowdown import WorkersAtLimit, longest_stretch, service_classes

_POLICY = PolicyKind.FCFS


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A model on the servers of one group (numbered from 1), and how much longer its queries take than alone."""

    group: int
    servers: int
    tenant: Tenant
    slowdown: float

    @property
    def workers(self) -> int:
        """The model's workers on all servers of the group."""
        return self.servers * self.tenant.workers


@dataclass(frozen=True, slots=True, eq=False)
class ModelSimulated:
    """One model: its parts, the fastest first, its load, and one run for each seed.

    `alone` is the measured throughput that slowdowns start from, and `stretch_alone` by how much service times may grow
    until it is at the limit of the SLA target: about 1 if both were measured on the same server, with the same queries.
    """

    model: str
    known: ModelUnderPlan
    demand_qps: float
    alone: WorkersAtLimit
    stretch_alone: float
    parts: tuple[ModelPart, ...]
    case: FleetCase
    runs: tuple[RunResult, ...]

    @property
    def queries(self) -> tuple[int, ...]:
        """How many each run sent."""
        return tuple(run.latency_s.size for run in self.runs)

    @property
    def load_qps(self) -> float:
        """The arrival rate that was simulated."""
        return self.case.rate_qps

    @property
    def capacity_qps(self) -> float:
        """What the plan predicts for all parts."""
        return sum(part.servers * part.tenant.qps for part in self.parts)

    @property
    def attainment(self) -> Estimate:
        """The share of queries that were answered in time."""
        return Estimate.of([run.attainment(self.known.sla.latency_s) for run in self.runs], largest=1.0)

    @property
    def tail_ms(self) -> Estimate:
        """The latency at the SLA's percentile."""
        return Estimate.of([1e3 * run.percentile_s(self.known.sla.percentile) for run in self.runs])

    @property
    def held(self) -> int:
        """In how many runs the SLA target held."""
        return sum(tail_ms <= self.known.sla.latency_ms for tail_ms in self.tail_ms.by_run)

    @property
    def throughput_qps(self) -> Estimate:
        """Answers per second, until the last one."""
        return Estimate.of([run.throughput_qps for run in self.runs])

    @property
    def utilisation(self) -> dict[int, Estimate]:
        """The share of their time that the model's workers work, by group."""
        shares = zip(*(run.utilisation for run in self.runs), strict=True)
        return {part.group: Estimate.of(each, largest=1.0) for part, each in zip(self.parts, shares, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class ColocationSimulated:
    """The plan, and what became of each model with a load."""

    request: FleetPlanRequest
    plan: ColocationPlanFile
    models: tuple[ModelSimulated, ...]

    @property
    def all_held(self) -> bool:
        """Whether every model kept its SLA target in every run."""
        return all(model.held == len(model.runs) for model in self.models)


@checked
def simulate_colocation(
    plan: ColocationPlanFile | ColocationPlanMade | FilePath,
    service_times: ModelTimesGiven | None = None,
    *,
    load_factor: float = 1.0,
    sla_ms: Mapping[str, float] | float | None = None,
    percentile: float | None = None,
    sizes: str | None = None,
    arrivals: str = "poisson",
    queries: int | None = None,
    seeds: int = 3,
    seed: int = 0,
    policy: str | None = None,
    progress: OnProgress = ignore,
) -> ColocationSimulated:
    """Run a plan of servers that models share in virtual time, each model at its demand.

    Parameters:
        plan: a plan file, what is read of one, or what `plan_colocate` returns.
        service_times: of the models alone, as data by model, or in files or directories of profiles; None: those of
            the profiles that the plan was made from.
        load_factor: the planned demand times this is simulated.
        sla_ms, percentile: the SLA target in milliseconds, one bound or one by model; None: as profiled, or p99.
        sizes, arrivals: query sizes in items and arrivals, in forms of `hebe.workload.forms`; `sizes` None: as
            profiled, or production.
        queries: of a run; None: enough for the SLA target.
        seeds: runs of each model with other queries; `seed`: the same one sends the same queries.
        policy: `"fcfs"`, `"threshold[:ITEMS]"`, `"clockwork"`, `"matching"` or `"splitting"`; None: fcfs.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, or `MisfitError` for an argument that does not fit the plan or the files, both naming the
    `field`; `PlanFileError` for a file, naming the field; `PlanningError` where splitting serves some query too late;
    `WorkloadError` for queries that are larger than what was measured.
    """
    request = fleet_plan_request(
        plan, service_times, load_factor=load_factor, sla_ms=sla_ms, percentile=percentile, sizes=sizes,
        arrivals=arrivals, queries=queries, seeds=seeds, seed=seed, policy=policy,
    )  # fmt: skip
    if isinstance(plan, ColocationPlanMade):
        plan = plan.as_file()
    planned = plan if isinstance(plan, ColocationPlanFile) else read_colocation_plan(request.plan)
    times = model_times(request, service_times, planned.profiles)
    with naming({"sla_s": "sla_ms"}):
        return _simulated(request, planned, times, progress)


def _simulated(
    request: FleetPlanRequest, plan: ColocationPlanFile, times: ModelTimes, on_progress: OnProgress
) -> ColocationSimulated:
    loads_qps = {model: qps * request.load_factor for model, qps in plan.demand_qps.items() if qps}
    kinds = None if plan.server_type is None else (plan.server_type,)
    known = read_models(request, times, dict.fromkeys(loads_qps, kinds))
    models = []
    for model, qps in loads_qps.items():
        alone, stretch_alone, parts = _parts(request, plan, model, known[model])
        case = _case(request, known[model], parts, qps)
        models.append(
            ModelSimulated(model, known[model], plan.demand_qps[model], alone, stretch_alone, parts, case, ())
        )
    cases = [model.case.with_seed(request.seed + number) for model in models for number in range(request.seeds)]
    queries = sum(case.stream.queries for case in cases)
    runs = on_all_cores("simulating", run_case, cases, queries, on_progress)
    simulated = [
        replace(model, runs=tuple(runs[at * request.seeds : (at + 1) * request.seeds]))
        for at, model in enumerate(models)
    ]
    return ColocationSimulated(request, plan, tuple(simulated))


def _parts(
    request: FleetPlanRequest, plan: ColocationPlanFile, model: str, known: ModelUnderPlan
) -> tuple[WorkersAtLimit, float, tuple[ModelPart, ...]]:
    """What the model does alone, how far service times stretch there, and where it is served, the fastest part first.

    Raises `PlanFileError` if that cannot be told.
    """
    times = known.times
    if len(times.table.types) > 1:
        raise PlanFileError(
            f"{times.named_files}: has service times of {model} on {', '.join(times.table.types)}, and {request.plan}"
            " does not say of which type its servers are: give those of one type, or plan anew with server_type in the"
            " server's file"
        )
    service_s = service_classes(times.table.quantiles_s[0], known.size_weights)
    alone = _measured_alone(request, plan, model, times.workers_per_server[0])
    sla = known.profiled_sla or known.sla  # at which throughputs are the limits, whichever is asked for
    stretch_alone = longest_stretch(service_s, sla, alone)
    parts = [
        ModelPart(
            number,
            group.servers,
            tenant,
            longest_stretch(service_s, sla, WorkersAtLimit(tenant.workers, tenant.qps)) / stretch_alone,
        )
        for number, group in enumerate(plan.groups, 1)
        for tenant in group.tenants
        if tenant.model == model and tenant.qps > 0
    ]
    return alone, stretch_alone, tuple(sorted(parts, key=lambda part: part.slowdown))


def _measured_alone(request: FleetPlanRequest, plan: ColocationPlanFile, model: str, workers: int) -> WorkersAtLimit:
    """What the scalability profile says of the workers that service times were measured on, with the whole server.

    Where so few workers cannot keep the SLA target, the fewest that can.
    """
    whole = plan.scalability[model].qps_table()[:, -1]
    workers = min(workers, len(whole) - 1)
    able = np.flatnonzero(whole[workers:] > 0)
    if not able.size:
        raise PlanFileError(f"{request.plan}: scalability of {model}: qps is 0 throughout, but a group serves it")
    workers += int(able[0])
    return WorkersAtLimit(workers, float(whole[workers]))


def _case(request: FleetPlanRequest, known: ModelUnderPlan, parts: Sequence[ModelPart], load_qps: float) -> FleetCase:
    """The run of a model: a server type for each part."""
    model, workers = known.times.model, tuple(part.workers for part in parts)
    if sum(workers) > MOST_INSTANCES:
        raise PlanFileError(
            f"{request.plan}: {model} has {sum(workers):,} workers: at most {MOST_INSTANCES:,} are simulated"
        )
    quantiles_s = np.concatenate([part.slowdown * known.times.table.quantiles_s for part in parts])
    table = ServiceTable(tuple(f"group {part.group}" for part in parts), quantiles_s)
    policy = _policy(request, known, table, workers)
    queries = queries_needed(request.queries, known.sla, load_qps, request.arrivals, search=False)
    stream = QueryStream(request.arrivals, known.sizes, queries, request.seed)
    return FleetCase(
        table, workers, policy, known.sla, known.largest, stream, load_qps, policy.kind.partitions(workers)
    )


def _policy(
    request: FleetPlanRequest, known: ModelUnderPlan, table: ServiceTable, workers: tuple[int, ...]
) -> PolicyChoice:
    """As asked, with parameters that fit; by itself first come, first served, to the fastest part with an idle one."""
    form = request.policy or _POLICY
    if form == _POLICY:
        return PolicyChoice(_POLICY)
    any_price = np.ones(len(workers))  # what a policy's parameters depend on is time
    service_s = table.mean_s[:, : known.largest]
    problem = PoolProblem(table.types, any_price, service_s, known.size_weights, known.sla.latency_s)
    return choose_policy(form, problem, workers)
