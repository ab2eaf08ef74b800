"""Which pool to buy and which policy to run on it: the best of the planners' few proposals, by simulation.

The fluid bound knows what splitting is worth, but no queueing; Kairos' bound knows neither, yet its pick with its
matching is sometimes hard to beat. So the pools that either of them likes best are tried with both policies on one
trace of queries, and what serves most is taken. Kairos' own pick with its own matching is always among them: on that
trace the choice never loses to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.fluid_bound import DEFAULT_PARTS, fluid_bound
from hebe.planning.fluid_pool import best_pool, fluid_bounds
from hebe.planning.pool import plan_pool, pools_within
from hebe.planning.pool_problem import PoolProblem
from hebe.planning.split_options import split_options
from hebe.scheduling.distribution import DistributionPolicy
from hebe.scheduling.matching import CostMatching
from hebe.scheduling.splitting import PricedSplitting
from hebe.simulation.capacity_race import CapacityRace
from hebe.simulation.fleet_run import QueryTrace, TableServers
from hebe.simulation.service_table import ServiceTable
from hebe.spec import SlaTarget

_GUESS = 0.7
"""Share of the fluid bound at which the search for a rate starts."""


class PolicyKind(StrEnum):
    """What distributes queries over the pool: Kairos' matching, or splitting by the fluid bound's prices."""

    MATCHING = "matching"
    SPLITTING = "splitting"


def make_policy(kind: PolicyKind, sla_s: float, largest: int, prices_qps: Sequence[float]) -> DistributionPolicy:
    """A new policy; `largest` items is the largest query, `prices_qps` [types] what a server's time is worth."""
    if kind is PolicyKind.MATCHING:
        return CostMatching(sla_s, largest)
    return PricedSplitting(sla_s, prices_qps, largest=largest)


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A pool, `counts` [types], and the policy to run on it.

    `prices_qps` [types] are the fluid bound's, which splitting distributes by; `predicted_qps` is what the simulation
    sustained; `bound_qps` no policy exceeds that splits into so many parts and keeps every query in time. `tried`
    counts the pairs of pool and policy that were compared.
    """

    types: tuple[str, ...]
    counts: tuple[int, ...]
    cost_per_hour: float
    policy: PolicyKind
    prices_qps: tuple[float, ...]
    predicted_qps: float
    bound_qps: float
    tried: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file."""
        return {
            "types": list(self.types),
            "counts": list(self.counts),
            "cost_per_hour": self.cost_per_hour,
            "policy": str(self.policy),
            "prices_qps": list(self.prices_qps),
            "predicted_qps": self.predicted_qps,
            "bound_qps": self.bound_qps,
        }


def choose_plan(
    problem: PoolProblem,
    table: ServiceTable,
    budget_per_hour: float,
    sla: SlaTarget,
    trace: QueryTrace,
    *,
    most_counts: Sequence[int] | None = None,
    most_parts: int = DEFAULT_PARTS,
    runners_up: int = 8,
    on_tried: Callable[[int, int], object] | None = None,
) -> PlanChoice:
    """The best pool and policy within the budget, on servers as slow as `table` says, for the queries of `trace`.

    Tried are the pools with the highest fluid bounds with and without splitting, Kairos' pick, and so many
    `runners_up` of the fluid ranking; `on_tried` is told how many of how many are done. Raises `PlanningError` where
    nothing within the budget serves every query in time, `ServiceTableError` for a type that was not measured.
    """
    if runners_up < 0:
        raise PlanningError(f"runners_up is {runners_up}: must be at least 0")
    servers = TableServers(table.of_types(problem.types))
    pools = candidate_pools(
        problem, budget_per_hour, most_counts=most_counts, most_parts=most_parts, runners_up=runners_up
    )
    options = split_options(problem, most_parts)
    bounds = [fluid_bound(problem, pool, options=options) for pool in pools]  # all positive: a candidate serves all
    race = CapacityRace(trace, servers, sla, _GUESS * max(bound.bound_qps for bound in bounds))
    best: tuple[int, PolicyKind] | None = None
    entries = [(at, kind) for at in range(len(pools)) for kind in (PolicyKind.SPLITTING, PolicyKind.MATCHING)]
    for done, (at, kind) in enumerate(entries, start=1):
        prices_qps = bounds[at].splitting_prices_qps()
        if race.enter(pools[at], lambda k=kind, p=prices_qps: make_policy(k, sla.latency_s, problem.largest, p)):  # type: ignore[misc]
            best = (at, kind)
        if on_tried is not None:
            on_tried(done, len(entries))
    if best is None:
        raise PlanningError("no pool within the budget held the SLA target in simulation at any rate: raise sla_s")
    at, kind = best
    return PlanChoice(
        problem.types,
        pools[at],
        float(np.dot(pools[at], problem.price_per_hour)),
        kind,
        bounds[at].splitting_prices_qps(),
        race.best_qps,
        bounds[at].bound_qps,
        race.entered,
    )


def candidate_pools(
    problem: PoolProblem,
    budget_per_hour: float,
    *,
    most_counts: Sequence[int] | None = None,
    most_parts: int = DEFAULT_PARTS,
    runners_up: int = 8,
) -> list[tuple[int, ...]]:
    """The pools worth trying, the most promising first, each once; those that only splitting makes able included."""
    found = [best_pool(problem, budget_per_hour, most_parts=most_parts, most_counts=most_counts).counts]
    try:
        whole = best_pool(problem, budget_per_hour, most_parts=1, most_counts=most_counts).counts
        found += [whole, plan_pool(problem, budget_per_hour, most_counts=most_counts).pick.counts]
    except PlanningError:  # only splitting serves every query in time
        pass
    if runners_up:
        pools = pools_within(problem, budget_per_hour, most_counts=most_counts)
        head = runners_up + len(found)
        bounds = fluid_bounds(problem, pools, most_parts=most_parts, exact=head)
        order = np.lexsort((problem.cost_per_hour(pools), -bounds))[:head]
        found += [tuple(pools[at].tolist()) for at in order.tolist() if bounds[at] > 0]
    return list(dict.fromkeys(found))[: runners_up + 3]
