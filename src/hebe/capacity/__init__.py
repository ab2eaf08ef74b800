"""Capacity planning as a library: plan a pool, a day or shared servers, estimate servers, simulate plans.

    plan_pool(times, prices, budget_per_hour, sla_ms)    which servers a budget buys for one model
    plan_provision(efficiency, servers, loads)           how many servers of which type each model gets over the day
    plan_colocate(profiles, server, demand)              which models share a server
    estimate(models, servers)                            what servers would do, from their data sheets
    simulate_pool(times, pool=...)                       what a pool does under a load, in virtual time
    simulate_provisioning(plan), simulate_colocation(plan), simulate_plan(plan)    what the other plans do

They take data or files and return results, print nothing, and run anywhere: in a notebook, and in a script without
`if __name__ == "__main__":`. Importing this package imports nothing heavy; the functions do when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hebe.capacity.colocation_planner import plan_colocate
    from hebe.capacity.colocation_simulation import simulate_colocation
    from hebe.capacity.plan_simulation import simulate_plan
    from hebe.capacity.pool_planner import plan_pool
    from hebe.capacity.pool_simulation import simulate_pool
    from hebe.capacity.provision_planner import plan_provision
    from hebe.capacity.provisioning_simulation import simulate_provisioning
    from hebe.capacity.server_estimates import estimate

__all__ = [
    "estimate", "plan_colocate", "plan_pool", "plan_provision", "simulate_colocation", "simulate_plan",
    "simulate_pool", "simulate_provisioning",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "estimate":
        from hebe.capacity.server_estimates import estimate

        return estimate
    if name == "plan_colocate":
        from hebe.capacity.colocation_planner import plan_colocate

        return plan_colocate
    if name == "plan_pool":
        from hebe.capacity.pool_planner import plan_pool

        return plan_pool
    if name == "plan_provision":
        from hebe.capacity.provision_planner import plan_provision

        return plan_provision
    if name == "simulate_colocation":
        from hebe.capacity.colocation_simulation import simulate_colocation

        return simulate_colocation
    if name == "simulate_plan":
        from hebe.capacity.plan_simulation import simulate_plan

        return simulate_plan
    if name == "simulate_pool":
        from hebe.capacity.pool_simulation import simulate_pool

        return simulate_pool
    if name == "simulate_provisioning":
        from hebe.capacity.provisioning_simulation import simulate_provisioning

        return simulate_provisioning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
