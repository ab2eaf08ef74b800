"""How many queries/s a pool can serve at most: the fluid linear program, with its prices and its plan.

Queries are a fluid: of each size any share may go to any option (`hebe.planning.pool.split_options`), at no wait, as
long as no server type works more than one second per second and server. The rate that this reaches bounds every policy
that keeps each query within `xi * sla_s` and uses those options; for a bound on policies that use the last of the SLA
too, pass `xi=1`. (An SLA at the 99th percentile lets 1% of queries be late, which the bound does not count on.)

In the dual, a second of each server type has a price in queries, and each query takes the option that is cheapest.
Prices are few, options many, so the program is solved by column generation: the simplex method on one row per type,
where the entering column is the plan that is best at the current prices. Every price vector bounds the rate from
above, every plan reaches one from below; they end a few ppm apart at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import Bools, Floats, Ints, PoolProblem
from hebe.planning.pool.split_options import SplitOptions, split_options

DEFAULT_PARTS = 4

_CLOSE = 1e-9
"""Relative distance of bound and plan at which to stop."""
_LEAST_PRICE = 0.01
"""Of the dearest type's: a type whose time the plan does not use up is worth nothing in it, but never given away."""
_MOST_PIVOTS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class FluidBound:
    """What a pool can serve at most, and how.

    `bound_qps` no plan over `options` exceeds; `reached_qps` the plan reaches; both 0 if there is a size that the
    pool cannot serve in time, the smallest such is then `unserved_items` (else 0). `prices_qps` float64 `[types]`:
    queries that one more server of a type, 1 s per s, is worth; `counts @ prices_qps == bound_qps`; 0 for types that
    the pool lacks. `busy_share` float64 `[types]`: the share of its servers' time that the plan uses at `reached_qps`.
    `workers` int64 `[types]` is how many a server has.

    The plan is a mixture: a query goes with probability `plan_shares[p]` by plan p, which serves a query of n items by
    option `plan_options[p, n - 1]` (-1: no query has that size, and the pool could not serve it). `options` are those
    that the pool has the servers for.
    """

    counts: Ints
    workers: Ints
    bound_qps: float
    reached_qps: float
    unserved_items: int
    prices_qps: Floats
    busy_share: Floats
    options: SplitOptions
    plan_shares: Floats
    plan_options: Ints

    def splitting_prices_qps(self) -> tuple[float, ...]:
        """Prices [types] of a worker's time for `scheduling.splitting` to distribute by: none of a type in the pool is
        quite 0."""
        prices_qps = self.prices_qps / self.workers
        least = _LEAST_PRICE * float(prices_qps.max())
        return tuple(np.where(self.counts > 0, np.maximum(prices_qps, least), 0.0).tolist())

    def shares(self, size: int) -> dict[int, float]:
        """The share of the queries of `size` items that each option gets, by option, the largest first."""
        if not 1 <= size <= self.plan_options.shape[1]:
            raise PlanningError(f"query size is {size}: must lie in 1..{self.plan_options.shape[1]}")
        found: dict[int, float] = {}
        for share, option in zip(self.plan_shares.tolist(), self.plan_options[:, size - 1].tolist(), strict=True):
            if option >= 0:
                found[option] = found.get(option, 0.0) + share
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))


def fluid_bound(
    problem: PoolProblem, counts: Sequence[int] | Ints, *, most_parts: int = 1, options: SplitOptions | None = None
) -> FluidBound:
    """The bound of one pool: counts per type, queries split into at most `most_parts` (1: never).

    `options`, if given, are `split_options(problem, most_parts)`, computed once for many pools. Raises
    `PlanningError` for bad counts or parts.
    """
    pool = problem.checked_counts(counts)
    per_server = problem.workers_per_server
    workers = pool * per_server
    every = split_options(problem, most_parts) if options is None else options
    own = every.among(every.usable(workers))
    cost = OptionCost(problem, own)
    if cost.unserved_items:
        none = np.zeros(len(pool))
        no_plan = np.empty(0), np.empty((0, problem.largest), np.int64)
        return FluidBound(pool, per_server, 0.0, 0.0, cost.unserved_items, none, none, own, *no_plan)
    prices, plans, amounts = column_generation(cost, workers.astype(np.float64))
    shares = amounts / amounts.sum()
    load_s = shares @ np.array([plan.load_s for plan in plans])
    present = pool > 0
    reached_qps = float((workers[present] / np.maximum(load_s[present], 1e-300)).min())
    busy_share = np.divide(load_s * reached_qps, workers, out=np.zeros(len(pool)), where=present)
    chosen = np.array([np.where(plan.servable, plan.option, -1) for plan in plans])
    bound_qps, prices_qps = float(prices @ workers), prices * per_server
    return FluidBound(pool, per_server, bound_qps, reached_qps, 0, prices_qps, busy_share, own, shares, chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One option for each query size: `option` int64 `[sizes]`, valid where `servable`; `load_s` float64 `[types]`,
    the server-seconds that a query needs in the mean; `price` of a query in the mean, at the prices it was made for.
    """

    option: Ints
    servable: Bools
    load_s: Floats
    price: float


class OptionCost:
    """Finds the cheapest option for each size at given prices of the server types' time."""

    def __init__(self, problem: PoolProblem, options: SplitOptions) -> None:
        self.options = options
        self._sizes = np.arange(problem.largest)
        self._types = len(problem.types)
        late = ~np.isfinite(options.finish_s)
        self._late = np.where(late, np.inf, 0.0)
        self._servable: Bools = np.logical_not(late.all(axis=0))
        stuck = np.flatnonzero(~self._servable & (problem.size_weights > 0))
        self._weights = np.where(self._servable, problem.size_weights, 0.0)
        self.unserved_items = int(stuck[0]) + 1 if len(stuck) else 0
        """The smallest query size that occurs and that no option serves in time; 0 if there is none."""

    def cheapest(self, prices: Floats) -> Plan:
        """The plan that costs least at these prices, float64 `[types]`, all at least 0."""
        cost = prices[self.options.first, np.newaxis] * self.options.first_load_s
        cost += prices[self.options.second, np.newaxis] * self.options.second_load_s
        cost += self._late
        option: Ints = cost.argmin(axis=0)
        first_s = self._weights * self.options.first_load_s[option, self._sizes]
        second_s = self._weights * self.options.second_load_s[option, self._sizes]
        load_s = np.zeros(self._types)
        np.add.at(load_s, self.options.first[option], first_s)
        np.add.at(load_s, self.options.second[option], second_s)
        return Plan(option, self._servable, load_s, float(load_s @ prices))


def column_generation(cost: OptionCost, capacity: Floats) -> tuple[Floats, list[Plan], Floats]:
    """Solves max sum(y) with sum(y[p] * load_s[p]) <= capacity over all plans p, every size being servable.

    `capacity` float64 `[types]`, server-seconds per second. Returns prices in queries/s per unit of capacity (their
    product with it bounds the optimum from above), the plans of the optimum and their amounts y > 0.
    """
    present = np.flatnonzero(capacity > 0)
    rows = len(present)
    # The tiniest skew keeps two rows from binding at once, on which the simplex method could cycle.
    limits: Floats = capacity[present] * (1 + 1e-10 * np.arange(1, rows + 1))
    basis, gains = np.eye(rows), np.zeros(rows)
    plans: list[Plan | None] = [None] * rows
    amounts, duals = limits.copy(), 1 / limits
    best_bound, best_prices = math.inf, np.zeros(len(capacity))
    for pivot in range(_MOST_PIVOTS):
        if pivot and duals.min() < -1e-12 * np.abs(duals).max():
            plan, gain, column = None, 0.0, np.eye(rows)[int(duals.argmin())]
        else:
            prices = np.zeros(len(capacity))
            prices[present] = np.maximum(duals, 0.0)
            plan, gain = cost.cheapest(prices), 1.0
            column = plan.load_s[present]
            if plan.price * best_bound > prices @ capacity:
                best_prices = prices / plan.price
                best_bound = float(best_prices @ capacity)
            if best_bound <= gains @ amounts * (1 + _CLOSE):
                break
        step = np.linalg.solve(basis, column)
        grows = step > 1e-11 * np.abs(step).max()
        leaving = int(np.where(grows, amounts / np.where(grows, step, 1.0), np.inf).argmin())
        basis[:, leaving], gains[leaving], plans[leaving] = column, gain, plan
        amounts[:] = np.linalg.solve(basis, limits)
        duals[:] = np.linalg.solve(basis.T, gains)
    kept = [(plan, amount) for plan, amount in zip(plans, amounts.tolist(), strict=True) if plan and amount > 0]
    return best_prices, [plan for plan, _ in kept], np.array([amount for _, amount in kept])
