"""Which pool of servers a budget buys: Kairos' throughput upper bound, ranking and similarity pick.

B. Li et al., "Kairos: building cost-efficient machine learning inference systems with heterogeneous cloud resources",
HPDC 2023, section 5.2. Nothing is evaluated: the bound needs service times and the query sizes' distribution only.
The bound is the paper's, Eq. 9-15. It is an estimate, not a true bound: auxiliary types are taken to share the
farthest reach of any of them (too high), and to serve the mean of the sizes within it, not those they are
comparatively best at (too low). `hebe.planning.pool.fluid_bound` is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hebe.planning.error import Parameter, PlanningError
from hebe.planning.pool.pool_problem import BUDGET_SLACK, Floats, Ints, PoolProblem, checked_budget, checked_limits

MOST_POOLS = 5_000_000
"""More pools than this are not enumerated: a few hundred MB of counts."""


@dataclass(frozen=True, slots=True)
class RankedPool:
    """A pool, its price and its throughput upper bound."""

    counts: tuple[int, ...]
    cost_per_hour: float
    bound_qps: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file."""
        return {"counts": list(self.counts), "cost_per_hour": self.cost_per_hour, "bound_qps": self.bound_qps}


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pool picked for a budget, and the head of the ranking it was picked from.

    `ranked` are the pools with the highest bounds, best first; `pools` is how many there are within the budget;
    `base_type` the server type that meets the SLA at every query size.
    """

    types: tuple[str, ...]
    base_type: str
    sla_s: float
    budget_per_hour: float
    pick: RankedPool
    ranked: tuple[RankedPool, ...]
    pools: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file."""
        return {
            "types": list(self.types),
            "base_type": self.base_type,
            "sla_s": self.sla_s,
            "budget_per_hour": self.budget_per_hour,
            **self.pick.to_dict(),
            "ranked": [pool.to_dict() for pool in self.ranked],
            "pools": self.pools,
        }


def plan_pool(
    problem: PoolProblem, budget_per_hour: float, *, most_counts: Sequence[int] | None = None, head: int = 20
) -> PoolPlan:
    """Kairos' pick within the budget (`pools_within`, `kairos_bounds`, `similarity_pick`), with the `head` best of the
    ranking. Raises `PlanningError` if nothing within the budget can serve every query size."""
    if head < 1:
        raise PlanningError(f"head is {head}: must be at least 1")
    budget = checked_budget(budget_per_hour)
    base = problem.base_type()
    limits = checked_limits(problem, most_counts)
    allowed = np.ones(len(problem.types), dtype=np.int64) if limits is None else np.array(limits)
    whole = np.flatnonzero((problem.reach == problem.largest) & (allowed > 0))
    if not len(whole):
        raise PlanningError(
            Parameter("most_counts"), " leaves no pool that serves every query size in time, whatever the budget"
        )
    cheapest = int(whole[problem.price_per_hour[whole].argmin()])
    if problem.price_per_hour[cheapest] > budget * (1 + BUDGET_SLACK):
        raise PlanningError(
            Parameter("budget_per_hour"),
            f" is {budget:g}, below the cheapest pool that serves every query size in time: one"
            f" {problem.types[cheapest]} at {problem.price_per_hour[cheapest]:g}",
        )
    pools = pools_within(problem, budget, most_counts=most_counts)
    bounds = kairos_bounds(problem, pools)
    costs = problem.cost_per_hour(pools)
    best = ranking(bounds, costs)[: max(head, 10)]
    best = best[bounds[best] > 0]
    ranked = tuple(RankedPool(tuple(pools[at].tolist()), float(costs[at]), float(bounds[at])) for at in best.tolist())
    pick = ranked[similarity_pick(pools[best], base)]
    return PoolPlan(problem.types, problem.types[base], problem.sla_s, budget, pick, ranked[:head], len(pools))


def pools_within(
    problem: PoolProblem,
    budget_per_hour: float,
    *,
    most_counts: Sequence[int] | None = None,
    most_pools: int = MOST_POOLS,
) -> Ints:
    """All pools of at least one server that cost at most the budget, int64 `[pools, types]`, in lexicographic order.

    `most_counts` limits the servers of each type. Raises `PlanningError` if there is none, or more than `most_pools`.
    """
    budget = checked_budget(budget_per_hour)
    limits = checked_limits(problem, most_counts)
    left = np.array([budget * (1 + BUDGET_SLACK)])
    columns: list[Ints] = []
    for kind, price in enumerate(problem.price_per_hour.tolist()):
        room = np.minimum(left / price, float(most_pools))  # beyond that it is refused below
        if limits is not None:
            room = np.minimum(room, float(limits[kind]))
        choices = room.astype(np.int64) + 1
        total = int(choices.sum())
        if total > most_pools + 1:
            raise PlanningError(
                Parameter("budget_per_hour"),
                f" of {budget:g} buys more than {most_pools:,} different pools: lower it, set ",
                Parameter("most_counts"),
                ", drop server types, or use the fluid bound's best pool, which does not enumerate",
            )
        prefix = np.repeat(np.arange(len(left)), choices)
        count = np.arange(total) - np.repeat(np.cumsum(choices) - choices, choices)
        left = left[prefix] - count * price
        columns = [column[prefix] for column in columns]
        columns.append(count)
    pools = np.stack(columns, axis=1)[1:]
    if not len(pools):
        raise PlanningError(
            Parameter("budget_per_hour"),
            f" of {budget:g} buys no server: the cheapest costs {problem.price_per_hour.min():g}",
            *(() if limits is None else (", and ", Parameter("most_counts"), " may forbid it")),
        )
    return pools


def kairos_bounds(problem: PoolProblem, pools: Ints) -> Floats:
    """Kairos' throughput upper bound of each pool in queries/s, float64 `[pools]`, of counts `[pools, types]`; 0 for
    a pool that cannot serve every query size in time.

    Eq. 15, with f' and s' those of the auxiliary type of the pool that reaches farthest. An auxiliary type that serves
    in time only sizes that no query has is left out; Eq. 14 would let it share the farthest reach like any other.
    Raises `PlanningError` if no type meets the SLA at every size.
    """
    counts = problem.checked_pools(pools) * problem.workers_per_server
    base = problem.base_type()
    weights, service_s, reach = problem.size_weights, problem.service_s, problem.reach
    below = np.concatenate(([0.0], np.cumsum(weights)))  # share of queries of at most that many items
    work_s = np.concatenate((np.zeros((len(reach), 1)), np.cumsum(service_s * weights, axis=1)), axis=1)
    auxiliary = [kind for kind in range(len(reach)) if kind != base and below[reach[kind]] > 0]
    base_count = counts[:, base]
    base_qps = base_count / work_s[base, -1]
    farthest = np.zeros(len(counts), dtype=np.int64)
    for kind in auxiliary:
        np.maximum(farthest, np.where(counts[:, kind] > 0, reach[kind], 0), out=farthest)
    bounds: Floats = base_qps.copy()  # of pools with no auxiliary instance that can serve anything
    for reached in {int(reach[kind]) for kind in auxiliary}:
        of_pool = np.flatnonzero(farthest == reached)
        small = min(float(below[reached]), 1.0)
        # Eq. 14's sum: each auxiliary type's rate if it served the queries of at most `reached` items alone.
        rates = np.zeros(len(reach))
        rates[auxiliary] = below[reached] / work_s[auxiliary, reached]
        auxiliary_qps = counts[of_pool] @ rates
        large_work_s = work_s[base, -1] - work_s[base, reached]
        if reached == problem.largest or 1 - small <= 1e-12 or large_work_s <= 0:
            bounds[of_pool] = auxiliary_qps + base_qps[of_pool]
            continue
        large_qps = base_count[of_pool] * (1 - small) / large_work_s
        offloaded_qps = auxiliary_qps * (1 - small) / small
        slack = np.divide(large_qps - offloaded_qps, large_qps, out=np.zeros(len(of_pool)), where=large_qps > 0)
        bounds[of_pool] = np.where(
            large_qps <= offloaded_qps, large_qps / (1 - small), auxiliary_qps / small + slack * base_qps[of_pool]
        )
    return bounds


def ranking(bounds: Floats, costs: Floats) -> Ints:
    """Indices of pools by falling bound, int64 `[pools]`; of equal bounds the cheaper first, then the earlier."""
    order: Ints = np.lexsort((costs, -bounds))
    return order


def similarity_pick(ranked: Ints, base: int) -> int:
    """Which of the ranked pools, counts `[pools, types]`, best first, to take: its position.

    The first if the first three have equally many of the base type; else of the first ten the one nearest to the
    others by the sum of squared distances (Kairos section 5.2).
    """
    if len(ranked) == 0:
        raise PlanningError("similarity pick: there is no pool to pick from")
    if len(set(ranked[:3, base].tolist())) == 1:
        return 0
    top = ranked[:10].astype(np.float64)
    distances = ((top[:, np.newaxis] - top[np.newaxis]) ** 2).sum(axis=2)
    return int(distances.sum(axis=1).argmin())
