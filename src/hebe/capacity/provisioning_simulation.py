"""What the plan of a day does in virtual time: every model in every interval, on all cores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hebe.capacity.arguments import checked
from hebe.capacity.errors import ArgumentError, MisfitError, PlanFileError
from hebe.capacity.files.provisioning_plan import ProvisioningPlanFile, read_provisioning_plan
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
from hebe.capacity.policies import parse_policy
from hebe.capacity.progress import OnProgress, ignore
from hebe.capacity.provision_planner import ProvisionPlanMade
from hebe.capacity.run_length import MOST_INSTANCES, MOST_QUERIES, on_all_cores, queries_needed
from hebe.planning.error import Parameter
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.scheduling.fleet.partitioning import PartitionedRouter
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, partitioned
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.provisioned_day import (
    Draw,
    IntervalRun,
    LateServers,
    PlannedServers,
    queries_drawn,
    run_interval,
)
from hebe.simulation.fleet.query_stream import QueryStream, arrival_process, check_largest, sending_s
from hebe.workload import forms

Floats = npt.NDArray[np.float64]

QUERIES = 10_000
"""Queries that are simulated of each model in each interval, or as many more as whole periods of the arrivals take."""
_POLICIES = ", ".join(
    f"{kind}:ITEMS" if kind is PolicyKind.THRESHOLD else str(kind)
    for kind in PolicyKind
    if kind is not PolicyKind.SPLITTING
)
_INTERVALS_A_CASE = 6
"""Of one model: enough that sending its service times to another process does not count."""


@dataclass(frozen=True, slots=True)
class StretchCase:
    """Some intervals of one model's day; `seeds` has one of each run for each interval."""

    model: ModelUnderPlan
    intervals: tuple[PlannedServers, ...]
    seeds: tuple[tuple[int, ...], ...]
    interval_s: float
    policy: PolicyChoice
    arrivals: str
    queries: int

    @property
    def period_s(self) -> float | None:
        """After how long the arrivals repeat; None if they do not."""
        return arrival_process(self.arrivals).period_s


@dataclass(frozen=True, slots=True, eq=False)
class DayMade:
    """The result. `runs` by model, in the plan's order, and interval: None where there is no load."""

    request: FleetPlanRequest
    plan: ProvisioningPlanFile
    models: dict[str, ModelUnderPlan]
    policy: PolicyChoice
    queries: int
    runs: tuple[tuple[IntervalRun | None, ...], ...]

    @property
    def load_qps(self) -> Floats:
        """What was simulated, float64 `[intervals, models]`."""
        return self.plan.load_qps * self.request.load_factor

    @property
    def attainment(self) -> Floats:
        """float64 `[intervals, models]`, nan where there is no load."""
        return self._measure(lambda run: run.attainment)

    @property
    def tail_ms(self) -> Floats:
        """Latency at each model's percentile, float64 `[intervals, models]`, nan where there is no load."""
        return self._measure(lambda run: run.tail_s * 1e3)

    @property
    def missed(self) -> npt.NDArray[np.bool_]:
        """Where a model's SLA target does not hold, bool `[intervals, models]`."""
        bound_ms = np.array([model.sla.latency_ms for model in self.models.values()])
        return np.asarray(self.tail_ms > bound_ms)  # false for nan

    @property
    def mean_attainment(self) -> Floats:
        """Of all of a model's queries of the day, float64 `[models]`; nan for one that has none."""
        load = self.load_qps.sum(axis=0)
        served = np.nansum(self.attainment * self.load_qps, axis=0)
        return np.asarray(np.divide(served, load, out=np.full(len(load), np.nan), where=load > 0))

    @property
    def utilisation(self) -> Floats:
        """The share of their time that the servers of a type work, those of all models together, float64
        `[intervals, types]`; nan where there are none. Of a model without load they stand idle."""
        counts, types = self.plan.counts, self.plan.server_types
        working = np.zeros(counts.shape)
        for number, (model, runs) in enumerate(zip(self.models.values(), self.runs, strict=True)):
            # A model that never has a server is simulated with all types that were measured.
            columns = {own: types.index(name) for own, name in enumerate(model.times.table.types) if name in types}
            for at, run in enumerate(runs):
                if run is not None:
                    working[at, number, list(columns.values())] = [run.utilisation[own] for own in columns]
        servers = counts.sum(axis=1)
        used = (working * counts).sum(axis=1)
        return np.asarray(np.divide(used, servers, out=np.full(used.shape, np.nan), where=servers > 0))

    @property
    def queries_sent(self) -> int:
        """In all intervals and runs together."""
        return sum(run.queries for runs in self.runs for run in runs if run is not None)

    @property
    def sampled_slas(self) -> Floats:
        """How many times its SLA each model's shortest sample lasts, float64 `[models]`: infinite where intervals are
        simulated whole."""
        load, bound_s = self.load_qps, np.array([model.sla.latency_s for model in self.models.values()])
        most = load.max(axis=0)
        sampled = most * self.plan.interval_s > self.queries
        arrivals, queries = self.request.arrivals, self.queries
        lasting_s = np.array([sending_s(arrivals, queries, max(rate_qps, 1e-15)) for rate_qps in most.tolist()])
        return np.where(sampled, lasting_s / bound_s, np.inf)

    def _measure(self, measure: Callable[[IntervalRun], float]) -> Floats:
        by_model = [[np.nan if run is None else measure(run) for run in runs] for runs in self.runs]
        return np.array(by_model).T


@checked
def simulate_provisioning(
    plan: ProvisioningPlanFile | ProvisionPlanMade | FilePath,
    service_times: ModelTimesGiven | None = None,
    *,
    load_factor: float = 1.0,
    sla_ms: Mapping[str, float] | float | None = None,
    percentile: float | None = None,
    sizes: str | None = None,
    arrivals: str = "poisson",
    queries: int | None = None,
    seeds: int = 1,
    seed: int = 0,
    policy: str | None = None,
    progress: OnProgress = ignore,
) -> DayMade:
    """Run the plan of a day in virtual time: every model in every interval, at its load.

    Parameters:
        plan: a plan file, what is read of one, or what `plan_provision` returns.
        service_times: of the models, as data by model, or in files or directories of profiles; None: those of the
            profiles that the plan was made from.
        load_factor: the planned loads times this are simulated.
        sla_ms, percentile: the SLA target in milliseconds, one bound or one by model; None: as profiled, or p99.
        sizes, arrivals: query sizes in items and arrivals, in forms of `hebe.workload.forms`; `sizes` None: as
            profiled, or production.
        queries: of a model in an interval; None: `QUERIES`.
        seeds: runs with other queries; `seed`: the same one sends the same queries.
        policy: `"fcfs"`, `"threshold:ITEMS"`, `"clockwork"` or `"matching"`; None: fcfs.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, or `MisfitError` for an argument that does not fit the plan or the files, both naming the
    `field`; `PlanFileError` for a file, naming the field; `WorkloadError` for queries that are larger than what was
    measured.
    """
    request = fleet_plan_request(
        plan, service_times, load_factor=load_factor, sla_ms=sla_ms, percentile=percentile, sizes=sizes,
        arrivals=arrivals, queries=queries, seeds=seeds, seed=seed, policy=policy,
    )  # fmt: skip
    if isinstance(plan, ProvisionPlanMade):
        plan = plan.as_file()
    planned = plan if isinstance(plan, ProvisioningPlanFile) else read_provisioning_plan(request.plan)
    chosen = _policy(request.policy)
    return _simulated(
        request, planned.with_load(), chosen, model_times(request, service_times, planned.made_from), progress
    )


def _simulated(
    request: FleetPlanRequest,
    plan: ProvisioningPlanFile,
    policy: PolicyChoice,
    times: ModelTimes,
    on_progress: OnProgress,
) -> DayMade:
    types = {model: plan.types_of(at) or None for at, model in enumerate(plan.models)}
    models = {name: _fastest_first(model) for name, model in read_models(request, times, types).items()}
    queries = QUERIES if request.queries is None else request.queries
    _check_period(request, plan)
    for at, model in enumerate(models.values()):
        # Enough for the percentile: whole periods of the arrivals are sampled anyway.
        queries_needed(queries, model.sla, float(plan.load_qps[:, at].max()), "poisson", search=False)
        _check_size(plan, at, model)
    cases = [
        case for at, model in enumerate(models.values()) for case in _cases(request, plan, at, model, policy, queries)
    ]
    work = sum(len(case.intervals) for case in cases) * queries * request.seeds
    _check_sizes(cases, work, on_progress)
    found = iter(on_all_cores("simulating the day", run_stretch, cases, work, on_progress))
    runs = {
        name: tuple(run for case in cases if case.model is model for run in next(found))
        for name, model in models.items()
    }
    return DayMade(request, plan, models, policy, queries, tuple(runs.values()))


def _check_period(request: FleetPlanRequest, plan: ProvisioningPlanFile) -> None:
    """Raises `MisfitError` where a sample cannot hold a period of the arrivals."""
    period_s = arrival_process(request.arrivals).period_s
    if period_s is None:
        return
    if period_s > plan.interval_s:
        raise MisfitError(
            Parameter("arrivals"),
            f" {request.arrivals}: repeat every {period_s:g} s, and the plan's intervals last"
            f" {plan.interval_s:g} s: give arrivals that repeat within one",
        )
    arriving = period_s * float(plan.load_qps.max()) * request.load_factor
    if arriving > MOST_QUERIES:
        raise MisfitError(
            Parameter("arrivals"),
            f" {request.arrivals}: repeat every {period_s:g} s, in which up to {arriving:,.0f} queries of a"
            f" model arrive, more than {MOST_QUERIES:,}: give arrivals that repeat sooner",
        )


def _check_sizes(cases: Sequence[StretchCase], work: int, on_progress: OnProgress) -> None:
    """Raise `WorkloadError` if any query of the day is larger than what was measured. One in millions may be, which
    `read_models` did not see; it would come to light when most of the day is simulated."""
    asked = [case for case in cases if forms.query_sizes(case.model.sizes).largest > case.model.times.table.largest]
    if not asked:
        return
    found = on_all_cores("looking for the largest query", largest_of_stretch, asked, work, on_progress)
    for case, largest in zip(asked, found, strict=True):
        check_largest(largest, case.model.times.table.largest, case.model.sizes)


def largest_of_stretch(case: StretchCase) -> int:
    """The size of the largest query that is sent in the intervals of a case; 0 if none is."""
    return max(
        (
            int(_draw(case, seed)(count, planned.rate_qps).sizes.max())
            for planned, seeds in zip(case.intervals, case.seeds, strict=True)
            for seed in seeds
            for count in queries_drawn(planned, case.interval_s, case.queries, period_s=case.period_s)
        ),
        default=0,
    )


def run_stretch(case: StretchCase) -> list[IntervalRun | None]:
    """What becomes of each interval of a case."""
    model, table = case.model, case.model.times.table
    # Routers know the service times: a day's intervals follow each other, so that they have learned them before.
    servers = TableServers(table, known=True)
    workers = dict(zip(table.types, model.times.workers_per_server, strict=True))
    runs = []
    for planned, seeds in zip(case.intervals, case.seeds, strict=True):
        pool = [count * workers[name] for name, count in zip(table.types, planned.counts, strict=True)]

        def policy(partitions: int = case.policy.kind.partitions(pool)) -> DistributionPolicy | PartitionedRouter:
            return partitioned(servers, make_policy, model.sla.latency_s, partitions)

        def make_policy() -> DistributionPolicy:
            return case.policy.make(table.types, model.sla.latency_s, model.largest)

        draws = [_draw(case, seed) for seed in seeds]
        runs.append(
            run_interval(
                planned, case.interval_s, servers, policy, model.sla,
                queries=case.queries, draws=draws, workers_per_instance=workers,
                period_s=case.period_s,
            )
        )  # fmt: skip
    return runs


def _draw(case: StretchCase, seed: int) -> Draw:
    def draw(queries: int, rate_qps: float) -> QueryTrace:
        return QueryStream(case.arrivals, case.model.sizes, queries, seed).trace(rate_qps)

    return draw


def _cases(
    request: FleetPlanRequest,
    plan: ProvisioningPlanFile,
    at: int,
    model: ModelUnderPlan,
    policy: PolicyChoice,
    queries: int,
) -> list[StretchCase]:
    """Those of the plan's model at place `at`."""
    intervals = [
        PlannedServers(
            rate_qps * request.load_factor,
            _of_types(counts, plan.server_types, model),
            tuple(
                LateServers(after_s, _of_types(late, plan.server_types, model))
                for after_s, late in plan.joining(interval, at)
            ),
        )
        for interval, (rate_qps, counts) in enumerate(
            zip(plan.load_qps[:, at].tolist(), plan.counts[:, at], strict=True)
        )
    ]
    seeds = [_seeds(request, at, interval) for interval in range(len(intervals))]
    return [
        StretchCase(
            model, tuple(intervals[first:end]), tuple(seeds[first:end]), plan.interval_s, policy,
            request.arrivals, queries,
        )
        for first in range(0, len(intervals), _INTERVALS_A_CASE)
        for end in (first + _INTERVALS_A_CASE,)
    ]  # fmt: skip


def _seeds(request: FleetPlanRequest, model: int, interval: int) -> tuple[int, ...]:
    """Other queries for each model and interval, and for each of the runs asked for."""
    return tuple(
        int(np.random.SeedSequence([request.seed + number, model, interval]).generate_state(1)[0])
        for number in range(request.seeds)
    )


def _of_types(counts: npt.NDArray[np.int64], types: tuple[str, ...], model: ModelUnderPlan) -> tuple[int, ...]:
    """Counts `[types]` in the order of the model's service times."""
    by_type = dict(zip(types, counts.tolist(), strict=True))
    return tuple(by_type.get(name, 0) for name in model.times.table.types)


def _fastest_first(model: ModelUnderPlan) -> ModelUnderPlan:
    """The same with the server types in the order in which first come, first served prefers idle ones."""
    mean_s = model.times.table.mean_s[:, : model.largest] @ model.size_weights
    order = [model.times.table.types[at] for at in np.argsort(mean_s, kind="stable").tolist()]
    return replace(model, times=model.times.of_types(order, "the plan uses"))


def _policy(form: str | None) -> PolicyChoice:
    """One whose parameters do not depend on the pool, which is another one in every interval."""
    with contextlib.suppress(ArgumentError):
        kind, items = parse_policy(form or PolicyKind.FCFS)
        if kind is PolicyKind.THRESHOLD and items is not None:
            return PolicyChoice(kind, threshold_items=items)
        if kind not in (PolicyKind.THRESHOLD, PolicyKind.SPLITTING):
            return PolicyChoice(kind)
    raise ArgumentError(
        "policy",
        f"{form!r}: must be one of {_POLICIES} for the plan of a day, in which a model's servers are others in every"
        " interval",
    )


def _check_size(plan: ProvisioningPlanFile, at: int, model: ModelUnderPlan) -> None:
    each = dict(zip(model.times.table.types, model.times.workers_per_server, strict=True))
    workers = plan.counts[:, at] @ np.array([each.get(name, 1) for name in plan.server_types])
    if workers.max() > MOST_INSTANCES:
        raise PlanFileError(
            f"{plan.path}: interval {int(workers.argmax()) + 1}: {plan.models[at]} has {int(workers.max()):,} workers:"
            f" at most {MOST_INSTANCES:,} are simulated"
        )
