"""Which models share a server, on as few servers as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.arguments import checked
from hebe.capacity.errors import PlanFileError, check_at_least, check_choice
from hebe.capacity.files.colocation_inputs import (
    read_demand,
    read_scalability,
    read_shared_server,
    shared_server_type,
)
from hebe.capacity.files.colocation_plan import ColocationPlanFile
from hebe.capacity.files.profiles import holds_profiles
from hebe.capacity.files.reading import FilePath, in_memory
from hebe.capacity.progress import OnProgress, Progress, ignore
from hebe.planning.colocation.affinity import WorkerScalability, affinity_matrix, contended_affinity, worker_scalability
from hebe.planning.colocation.colocation import (
    ColocationPlan,
    ServerGroup,
    demand_array,
    hera,
    hera_random,
    one_model_a_server,
    random_pairs,
)
from hebe.planning.colocation.optimum import optimal_colocation
from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

POLICIES = ("optimal", "hera", "one-model-a-server")
"""Policies whose plan can be written; the random ones are only compared with."""

_SEEDS = 10


@dataclass(frozen=True, slots=True)
class ColocateRequest:
    """What was asked for; of data that was given in place of files, paths are `<profiles>`, `<server>` ...

    The demand times (1 + `over_provision`) is planned for."""

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

    def as_file(self) -> ColocationPlanFile:
        """The plan without its figures, as it is read back from a plan file."""
        measured = {one.model: one for one in self.profiles if one.model in self.plan.capacity_qps}
        return ColocationPlanFile(
            self.demand_qps, tuple(self.plan.groups), measured, self.server_type, self.request.profiles
        )


@contextmanager
def _of_file(path: Path, inner: str) -> Iterator[None]:
    """What cannot be planned from becomes an error of the file at `path`, whose fields planning calls `inner`..."""
    try:
        yield
    except PlanningError as fault:
        raise PlanFileError(f"{path}: {str(fault).removeprefix(inner)}") from None


@checked
def plan_colocate(
    profiles: Sequence[ScalabilityProfile] | FilePath,
    server: ServerResources | FilePath,
    demand: Mapping[str, float] | FilePath,
    *,
    over_provision: float = 0.0,
    policy: str = "optimal",
    most_models: int = 2,
    least_slope: float = 0.5,
    time_limit_s: float = 10.0,
    progress: OnProgress = ignore,
) -> ColocationPlanMade:
    """Choose which models share a server, with how many workers and cache ways each, on as few servers as can be.

    From what each model does alone with some of the cores and cache ways, it predicts what any set of models does on
    one server, and finds the fewest servers that meet the demand, with a proven lower bound; Hera's plan and
    others are compared.

    Parameters:
        profiles: the scalability of each model, as data, or in a file or a directory of profiles.
        server: cores, cache ways, memory bandwidth in bytes/s and memory in bytes, as data or in a file.
        demand: queries/s by model, as data or in a file.
        over_provision: by which share of the demand to plan for more.
        policy: whose plan is the result: one of `POLICIES`.
        most_models: most models on a server, for the optimal plan.
        least_slope: from which slope on a model scales well, for Hera's plan.
        time_limit_s: most seconds of the integer program.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, whose `field` names the parameter; `PlanFileError` for a file, naming line and field, or for
    figures that do not go together; `PlanningError` for more cases than can be tried.
    """
    check_at_least("over_provision", over_provision, least=0.0)
    check_at_least("most_models", most_models, least=1)
    check_at_least("least_slope", least_slope, least=0.0)
    check_at_least("time_limit_s", time_limit_s, more_than=0.0)
    check_choice("policy", policy, POLICIES)
    request = ColocateRequest(
        Path(profiles) if isinstance(profiles, str | PathLike) else in_memory("profiles"),
        in_memory("server") if isinstance(server, ServerResources) else Path(server),
        in_memory("demand") if isinstance(demand, Mapping) else Path(demand),
        policy, most_models, least_slope, time_limit_s, over_provision,
    )  # fmt: skip
    resources = server if isinstance(server, ServerResources) else read_shared_server(request.server)
    if isinstance(profiles, str | PathLike):
        alone = read_scalability(request.profiles, resources)
    else:
        alone = list(profiles)
    with _of_file(request.profiles, ""):
        tables = ScalabilityTables.of(alone, resources)
    wanted = dict(demand) if isinstance(demand, Mapping) else read_demand(request.demand, tables)
    with _of_file(request.demand, "demand_"):
        demand_array(tables, wanted)
    return _planned(request, _server_type(request, server), alone, tables, wanted, progress)


def _server_type(request: ColocateRequest, server: object) -> str | None:
    """What the shared servers are called, where a file says so."""
    if isinstance(server, ServerResources) and not holds_profiles(request.profiles):
        return None
    return shared_server_type(request.profiles, request.server)


def _planned(
    request: ColocateRequest,
    server_type: str | None,
    profiles: Sequence[ScalabilityProfile],
    tables: ScalabilityTables,
    asked: Mapping[str, float],
    on_progress: OnProgress,
) -> ColocationPlanMade:
    """The plan by every policy; the one asked for is kept."""
    server = tables.server
    demand = {model: qps * (1 + request.over_provision) for model, qps in asked.items()}
    with _of_file(request.demand, "demand_"):
        demand_array(tables, demand)
    shareable = server.cores > 1 and server.cache_ways > 1

    def done(steps: int) -> None:
        on_progress(Progress("planning", steps, 4))

    done(0)
    plans = {"one-model-a-server": one_model_a_server(tables, demand)}
    done(1)
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
    done(3)
    plans["optimal"] = optimal_colocation(tables, demand, request.most_models, request.time_limit_s)
    done(4)
    plan = plans.get(request.policy, plans["one-model-a-server"])  # what cannot be shared is not
    servers |= {policy: float(made.servers) for policy, made in plans.items()}
    bounded = all(len(group.tenants) <= request.most_models for group in plan.groups)
    least = plans["optimal"].least_servers if bounded else None
    order = ("one-model-a-server", "random", "hera-random", "hera", "optimal")
    return ColocationPlanMade(
        request,
        server_type,
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
