"""A plan simulated, of whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hebe.capacity.arguments import checked
from hebe.capacity.colocation_planner import ColocationPlanMade
from hebe.capacity.colocation_simulation import ColocationSimulated, simulate_colocation
from hebe.capacity.errors import ArgumentError
from hebe.capacity.files.plan_content import plan_kind
from hebe.capacity.files.reading import FilePath
from hebe.capacity.files.service_times import TimesGiven
from hebe.capacity.planned_models import ModelTimesGiven
from hebe.capacity.pool_planner import PoolPlanMade
from hebe.capacity.pool_simulation import SimulationMade, simulate_pool
from hebe.capacity.progress import OnProgress, ignore
from hebe.capacity.provision_planner import ProvisionPlanMade
from hebe.capacity.provisioning_simulation import DayMade, simulate_provisioning
from hebe.planning.error import Parameter


@checked
def simulate_plan(
    plan: PoolPlanMade | ProvisionPlanMade | ColocationPlanMade | FilePath,
    service_times: TimesGiven | ModelTimesGiven | None = None,
    *,
    rate_qps: float | None = None,
    load_factor: float | None = None,
    sla_ms: Mapping[str, float] | float | None = None,
    percentile: float | None = None,
    sizes: str | None = None,
    arrivals: str = "poisson",
    queries: int | None = None,
    seeds: int | None = None,
    seed: int = 0,
    policy: str | None = None,
    progress: OnProgress = ignore,
) -> SimulationMade | DayMade | ColocationSimulated:
    """Run a plan, a file or what planning returned, in virtual time.

    It is run by `simulate_pool`, `simulate_provisioning` or `simulate_colocation`, which say what the parameters are,
    what they default to, and what is raised.

    `rate_qps` is for the plan of a pool, of which the largest rate is searched without it; `load_factor` for the
    others, whose plans say the load.
    """
    kind = _kind(plan)
    asked: dict[str, Any] = {
        "plan": plan, "service_times": service_times, "percentile": percentile, "sizes": sizes, "arrivals": arrivals,
        "queries": queries, "seed": seed, "policy": policy, "progress": progress,
    }  # fmt: skip
    if seeds is not None:
        asked["seeds"] = seeds
    if kind == "pool":
        if load_factor is not None:
            raise ArgumentError("load_factor", "is for plans of several models: a pool has no load of its own")
        if isinstance(sla_ms, Mapping):
            raise ArgumentError("sla_ms", "a pool has one model: give one number")
        return simulate_pool(rate_qps=rate_qps, sla_ms=sla_ms, **asked)
    if rate_qps is not None:
        raise ArgumentError("rate_qps", "the plan says each model's load: give ", Parameter("load_factor"))
    asked |= {"sla_ms": sla_ms, "load_factor": 1.0 if load_factor is None else load_factor}
    return simulate_provisioning(**asked) if kind == "provisioning" else simulate_colocation(**asked)


def _kind(plan: PoolPlanMade | ProvisionPlanMade | ColocationPlanMade | FilePath) -> str:
    match plan:
        case PoolPlanMade():
            return "pool"
        case ProvisionPlanMade():
            return "provisioning"
        case ColocationPlanMade():
            return "colocation"
        case _:
            return plan_kind(Path(plan))
