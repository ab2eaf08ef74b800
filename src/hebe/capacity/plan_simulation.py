"""A plan file simulated, of whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hebe.capacity.colocation_simulation import ColocationSimulated, simulate_colocation
from hebe.capacity.errors import ArgumentError
from hebe.capacity.files.plan_content import plan_kind
from hebe.capacity.files.reading import FilePath
from hebe.capacity.pool_simulation import SimulationMade, simulate_pool
from hebe.capacity.progress import OnProgress, ignore
from hebe.capacity.provisioning_simulation import DayMade, simulate_provisioning


def simulate_plan(
    plan: FilePath,
    service_times: FilePath | Sequence[FilePath] | None = None,
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
    """Run a plan file in virtual time, by `simulate_pool`, `simulate_provisioning` or `simulate_colocation`, which say
    what the parameters are, what they default to, and what is raised.

    `rate_qps` is for the plan of a pool, of which the largest rate is searched without it; `load_factor` for the
    others, whose plans say the load.
    """
    kind = plan_kind(Path(plan))
    asked: dict[str, Any] = {
        "percentile": percentile, "sizes": sizes, "arrivals": arrivals, "queries": queries, "seed": seed,
        "policy": policy, "progress": progress,
    }  # fmt: skip
    if seeds is not None:
        asked["seeds"] = seeds
    if kind == "pool":
        if load_factor is not None:
            raise ArgumentError("load_factor", "is for plans of several models: a pool has no load of its own")
        if isinstance(sla_ms, Mapping):
            raise ArgumentError("sla_ms", "a pool has one model: give one number")
        return simulate_pool(service_times, plan=plan, rate_qps=rate_qps, sla_ms=sla_ms, **asked)
    if rate_qps is not None:
        raise ArgumentError("rate_qps", "the plan says each model's load: give a load factor")
    asked |= {"sla_ms": sla_ms, "load_factor": 1.0 if load_factor is None else load_factor}
    if kind == "provisioning":
        return simulate_provisioning(plan, service_times, **asked)
    return simulate_colocation(plan, service_times, **asked)
