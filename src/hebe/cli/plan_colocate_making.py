"""What `hebe plan colocate` does between reading its files and showing the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from hebe.cli.colocation_files import read_demand, read_scalability, read_shared_server, shared_server_type
from hebe.cli.plan_files import PlanFileError
from hebe.planning.affinity import WorkerScalability, affinity_matrix, contended_affinity, worker_scalability
from hebe.planning.colocation import (
    ColocationPlan,
    ServerGroup,
    demand_array,
    hera,
    hera_random,
    one_model_a_server,
    random_pairs,
)
from hebe.planning.colocation_optimum import optimal_colocation
from hebe.planning.colocation_server import ScalabilityTables
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

POLICIES = ("optimal", "hera", "one-model-a-server")
"""Policies whose plan can be written; the random ones are only compared with."""

_SEEDS = 10


@dataclass(frozen=True, slots=True)
class ColocateRequest:
    """What the command line asks for. The demand times (1 + `over_provision`) is planned for."""

    profiles: Path
    server: Path
    demand: Path
    policy: str
    most_models: int
    least_slope: float
    time_limit_s: float
    over_provision: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ColocationPlanMade:
    """The plan, what it rests on, and what others would have needed.

    `demand_qps` is the demand as it was given; the plan's own is what was planned for, over-provisioned. `server_type`
    names the shared servers, where the files do.
    `affinity` and `algorithm_1` are float64 `[models, models]`, contended and Hera's own, absent where a server is too
    small to be shared. `servers` by policy; those of random ones are means over seeds.
    """

    request: ColocateRequest
    server_type: str | None
    demand_qps: Mapping[str, float]
    profiles: tuple[ScalabilityProfile, ...]
    tables: ScalabilityTables
    scalability: tuple[WorkerScalability, ...]
    plan: ColocationPlan
    affinity: npt.NDArray[np.float64] | None
    algorithm_1: npt.NDArray[np.float64] | None
    servers: dict[str, float]


@contextmanager
def _told_of(path: Path, inner: str) -> Iterator[None]:
    """What cannot be planned from becomes the fault of the file at `path`, whose fields planning calls `inner`..."""
    try:
        yield
    except PlanningError as fault:
        raise PlanFileError(f"{path}: {str(fault).removeprefix(inner)}") from None


def make_colocation_plan(request: ColocateRequest, progress: Progress) -> ColocationPlanMade:
    """Read the files, plan by every policy, keep the one asked for. Raises errors that name file, line and field."""
    server = read_shared_server(request.server)
    profiles = read_scalability(request.profiles, server)
    with _told_of(request.profiles, ""):
        tables = ScalabilityTables.of(profiles, server)
    demand = read_demand(request.demand, tables)
    with _told_of(request.demand, "demand_"):
        demand_array(tables, demand)
    asked = demand
    demand = {model: qps * (1 + request.over_provision) for model, qps in asked.items()}
    with _told_of(request.demand, "demand_"):
        demand_array(tables, demand)
    shareable = server.cores > 1 and server.cache_ways > 1
    task = progress.add_task("planning", total=4)
    plans = {"one-model-a-server": one_model_a_server(tables, demand)}
    progress.advance(task)
    servers: dict[str, float] = {}
    if shareable:
        plans["hera"] = hera(tables, demand, request.least_slope)
        by_seed = [
            (
                random_pairs(tables, demand, np.random.default_rng(seed)).servers,
                hera_random(tables, demand, np.random.default_rng(seed), request.least_slope).servers,
            )
            for seed in range(_SEEDS)
        ]
        servers["random"], servers["hera-random"] = np.mean(by_seed, axis=0).tolist()
    progress.advance(task, 2)
    plans["optimal"] = optimal_colocation(tables, demand, request.most_models, request.time_limit_s)
    progress.advance(task)
    plan = plans.get(request.policy, plans["one-model-a-server"])  # what cannot be shared is not
    servers |= {policy: float(made.servers) for policy, made in plans.items()}
    bounded = all(len(group.tenants) <= request.most_models for group in plan.groups)
    least = plans["optimal"].least_servers if bounded else None
    order = ("one-model-a-server", "random", "hera-random", "hera", "optimal")
    return ColocationPlanMade(
        request,
        shared_server_type(request.profiles, request.server),
        {model: asked[model] for model in plan.demand_qps},
        tuple(profiles),
        tables,
        tuple(worker_scalability(tables, request.least_slope)),
        ColocationPlan(plan.policy, plan.demand_qps, tuple(map(_that_run, plan.groups)), least),
        contended_affinity(tables) if shareable else None,
        affinity_matrix(tables).system if shareable else None,
        {policy: servers[policy] for policy in order if policy in servers},
    )


def _that_run(group: ServerGroup) -> ServerGroup:
    """The same without models that have no worker there, since their cores are fewer than one takes."""
    return replace(group, tenants=tuple(tenant for tenant in group.tenants if tenant.workers))
