"""What planning asks of a server type that is known by its data sheet alone: an efficiency tuple, service times, a
scalability profile. All of them are marked as estimated; docs/analytic-servers.md tells how far off they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from hebe.planning.colocation.shared_server import ServerResources
from hebe.planning.server_split.search import gradient_search
from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.profile import EfficiencyTuple, LatencyProfile, ScalabilityProfile
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer, Evaluation
from hebe.simulation.analytic.batch_phases import SharedServerModel
from hebe.simulation.analytic.calibration import HEBE
from hebe.simulation.analytic.configuration_search import (
    SearchGrid,
    baseline_configuration,
    best_configuration,
    best_one_stage,
    efficiency_tuple,
    evaluation_on,
    least_latency_s,
)
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.scalability_model import resources_of, scalability_profile
from hebe.spec import ModelSpec, ServerSpec, SlaTarget
from hebe.workload.query_sizes import QuerySizes
from hebe.workload.reuse_profile import ReuseProfile

Sizes = npt.NDArray[np.int64]

_DRAWN = 20_000
"""Queries whose sizes stand for all."""
_MOST_ROUNDS = 64
"""Of a split query, at how many sizes it is told how long it takes."""


class Strategy(StrEnum):
    """How the best configuration is looked for."""

    GRID = "grid"
    """All of a grid over placements and m x o x d, with the cores that an accelerator leaves."""
    HERCULES = "hercules"
    """Algorithm 1 of Hercules, refined: fewer evaluations."""
    ONE_STAGE = "one-stage"
    """The grid's configurations in which a query's time is one number by its size: those that can be simulated."""
    DEEPRECSYS = "deeprecsys"
    """The baseline: a worker on every core, the best batch size; on an accelerator co-location without fusion."""


@dataclass(frozen=True, slots=True)
class EstimateCase:
    """One model on one server type; `sla` is what it must keep, `reuse` how skewed its keys are (None: uniform)."""

    server: ServerSpec
    model: ModelSpec
    sla: SlaTarget
    sizes: QuerySizes
    reuse: ReuseProfile | None = None
    strategy: Strategy = Strategy.GRID
    cache_ways: int = 11


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """How long queries take by their size, in the best `lane` in which each has one stage.

    The server is told as one that works at `workers` queries at once, each of which takes `service` alone, batches of
    one query side by side: together they serve as many queries/s as the lane does when it is saturated. `qps` is the
    lane's latency-bounded throughput.
    """

    lane: Lane
    qps: float
    service: LatencyProfile
    workers: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What co-location planning asks: the model's `scalability` on the host, and what its models share."""

    scalability: ScalabilityProfile
    resources: ServerResources


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one model on one server type; where it cannot be served, `efficiency.qps` is 0 and `reason` says why.

    `times` is None where no configuration of one stage keeps the SLA target; `shared` where `not_shared` says why.
    """

    efficiency: EfficiencyTuple
    lanes: tuple[Lane, ...] = ()
    reason: str = ""
    times: QueryTimes | None = None
    shared: Shared | None = None
    not_shared: str = ""


def estimate(case: EstimateCase) -> Estimate:
    """The estimate of one pair.

    Raises `PlanningError` where the model's architecture is not known or the server type states too little.
    """
    model, server = case.model, case.server
    work = model_work(model)
    if model.table_bytes > server.memory_bytes:
        nothing = EfficiencyTuple(model.name, server.name, 0.0, server.idle_power_watts, {}, estimated=True)
        needed, has = model.table_bytes / 1e9, server.memory_bytes / 1e9
        reason = f"its tables take {needed:,.1f} GB, the server has {has:,.1f}"
        return Estimate(nothing, reason=reason, not_shared=reason)
    sizes = case.sizes.draw(_DRAWN, np.random.default_rng(0))
    analytic = AnalyticServer(server, model, sizes, case.reuse, HEBE)
    best = _best(analytic, case.sla, case.strategy)
    efficiency = efficiency_tuple(analytic, best)
    times = None if best.qps <= 0 else _query_times(analytic, case, best)
    not_shared = _why_not_shared(server)
    shared = None if not_shared else _shared(case, sizes, work.weight_bytes, times)
    if best.qps <= 0:
        reason = _out_of_reach(analytic, case, best)
        return Estimate(efficiency, best.lanes, reason, shared=shared, not_shared=not_shared)
    return Estimate(efficiency, best.lanes, times=times, shared=shared, not_shared=not_shared)


def _out_of_reach(analytic: AnalyticServer, case: EstimateCase, best: Evaluation) -> str:
    sla = case.sla
    tried_s = [analytic.tail_latency_s(lane, 0.0, sla.percentile) for lane in best.lanes]
    alone_ms = 1e3 * min(least_latency_s(analytic, sla.percentile), *tried_s)
    if alone_ms < sla.latency_ms:
        return f"nothing that strategy {case.strategy} tries keeps the SLA target, as other configurations may"
    return (
        f"the SLA target is out of reach: p{sla.percentile:g} is {alone_ms:,.4g} ms at best without load, "
        f"{sla.latency_ms:g} ms are asked"
    )


def _best(analytic: AnalyticServer, sla: SlaTarget, strategy: Strategy) -> Evaluation:
    server = analytic.server
    if strategy is Strategy.GRID:
        return best_configuration(analytic, sla)
    if strategy is Strategy.ONE_STAGE:
        return best_one_stage(analytic, sla)
    if strategy is Strategy.DEEPRECSYS:
        return baseline_configuration(analytic, sla)
    placements = host_placements(server.cores)
    if server.accelerator is not None:
        if server.cores < 2:  # Algorithm 1 begins with a worker on the host beside the accelerator's
            return best_configuration(analytic, sla)
        placements += (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR)
    space = ParallelismSpace(server.cores, SearchGrid().batch_sizes, placements)
    return analytic.evaluate(gradient_search(space, evaluation_on(analytic, sla)).closest, sla)


def _query_times(analytic: AnalyticServer, case: EstimateCase, best: Evaluation) -> QueryTimes | None:
    one = best if _has_one_stage(best.lanes) else best_one_stage(analytic, case.sla)
    if one.qps <= 0:
        return None
    (lane,) = one.lanes
    at_once = analytic.query_stage(lane).queries_at_once
    workers = max(round(at_once), 1)
    told = _told_sizes(lane, case.sizes.largest)
    # Rounded to whole workers, they are as much faster or slower as keeps the capacity.
    service_s = analytic.query_stage(lane, told).own_s * workers / at_once
    profile = LatencyProfile(tuple(told), tuple(service_s.tolist()), (0.0,) * len(told))
    return QueryTimes(lane, one.qps, profile, workers)


def _has_one_stage(lanes: tuple[Lane, ...]) -> bool:
    (lane, *beside) = lanes
    on_host = lane.placement is Placement.MODEL_ON_HOST
    on_device = lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR and not lane.workers and not lane.fused_items
    return not beside and (on_host or on_device)


def _told_sizes(lane: Lane, largest: int) -> list[int]:
    """Query sizes between which the time is about straight: it jumps where another round of batches begins."""
    sizes = {1, largest, *np.unique(np.rint(np.geomspace(1, largest, 24))).astype(int).tolist()}
    if lane.placement is Placement.MODEL_ON_HOST:
        step = lane.batch_size * lane.workers
        rounds = np.unique(np.linspace(1, max(largest // step, 1), _MOST_ROUNDS).astype(int)).tolist()
        edges = [lane.batch_size, *(step * number for number in rounds)]
        sizes |= {edge + beyond for edge in edges for beyond in (0, 1)}
    return sorted(size for size in sizes if size <= largest)


def _why_not_shared(server: ServerSpec) -> str:
    if not server.llc_bytes:
        return "llc_bytes is not stated"
    if server.near_memory_ranks:
        return "near-memory ranks are not modelled there"
    return ""


def _shared(case: EstimateCase, sizes: Sizes, weight_bytes: int, times: QueryTimes | None) -> Shared:
    """Workers of one core run the whole model, and share its tables as Hebe's do: memory bounds not their number."""
    server, table_bytes = case.server, case.model.table_bytes
    if times is None or times.lane.placement is not Placement.MODEL_ON_HOST:
        hosts = AnalyticServer(replace(server, accelerator=None), case.model, sizes, case.reuse, HEBE)
        batch_size = best_one_stage(hosts, case.sla).lanes[0].batch_size
    else:
        batch_size = times.lane.batch_size
    own = SharedServerModel(server, case.cache_ways, batch_size, calibration=HEBE)
    # As far as that model knows, each worker has tables of its own.
    roomy = replace(own, server=replace(server, memory_bytes=max(server.memory_bytes, server.cores * table_bytes)))
    profile = scalability_profile(roomy, case.model, sizes, case.sla, case.reuse)
    memory = (float(table_bytes + weight_bytes),) * len(profile.workers)
    return Shared(replace(profile, memory_bytes=memory), resources_of(own))
