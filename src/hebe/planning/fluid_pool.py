"""Which pool of servers a budget buys, by the fluid bound: exactly, without enumerating the pools.

Each solved pool yields prices that bound every other pool too: `bound(pool) <= pool @ prices`. An integer program over
the counts maximises the least of these bounds; its pool is solved, its prices join, until the pool's own bound is the
program's (Benders' decomposition). What an option of several parts needs, that many servers of a type, enters by
indicators: prices found for a pool with few servers of a type hold for pools that have no more of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from hebe.planning.error import PlanningError
from hebe.planning.fluid_bound import DEFAULT_PARTS, FluidBound, OptionCost, column_generation, fluid_bound
from hebe.planning.pool_problem import BUDGET_SLACK, Floats, Ints, PoolProblem, checked_budget, checked_limits
from hebe.planning.split_options import split_options

CLOSE = 1e-6
"""Relative distance from the optimum at which to stop."""

_TRACE = 1e-6
"""Servers that a pool is taken to have of each type, so that its prices say what a type it lacks is worth."""
_MOST_ROUNDS = 500


@dataclass(frozen=True, slots=True, eq=False)
class FluidPool:
    """The pool with the highest fluid bound within a budget: its counts, price and bound, and `limit_qps`, which no
    pool within the budget exceeds (equal to the bound within `CLOSE` unless the search was cut short)."""

    counts: tuple[int, ...]
    cost_per_hour: float
    bound: FluidBound
    limit_qps: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a plan file."""
        return {
            "counts": list(self.counts),
            "cost_per_hour": self.cost_per_hour,
            "bound_qps": self.bound.bound_qps,
            "prices_qps": self.bound.prices_qps.tolist(),
        }


def best_pool(
    problem: PoolProblem,
    budget_per_hour: float,
    *,
    most_parts: int = DEFAULT_PARTS,
    most_counts: Sequence[int] | None = None,
) -> FluidPool:
    """The pool of the highest fluid bound among those that cost at most the budget; of nearly equal ones a cheap one.

    Queries are split into at most `most_parts` (1: never). Raises `PlanningError` if no pool within the budget can
    serve every query size in time, naming the size or the cheapest price.
    """
    budget = checked_budget(budget_per_hour)
    limits = checked_limits(problem, most_counts)
    options = split_options(problem, most_parts)
    cost = OptionCost(problem, options)
    if cost.unserved_items:
        raise PlanningError(
            f"no server type serves queries of {cost.unserved_items} items within the SLA of {problem.sla_s:g} s (times"
            f" xi {problem.xi:g}), split into {most_parts} or not: raise sla_s or most_parts, or bound the query size"
        )
    master = _Master(problem, budget, limits, most_parts)
    master.limit(problem.price_per_hour / cost.cheapest(problem.price_per_hour).price)
    best: FluidBound | None = None
    ceiling = np.inf
    for _ in range(_MOST_ROUNDS):
        candidate = master.solve()
        if candidate is None:
            break
        counts, ceiling = candidate
        if best is not None and ceiling <= best.bound_qps * (1 + CLOSE):
            break
        found = fluid_bound(problem, counts, options=options)
        if best is None or found.bound_qps > best.bound_qps:
            best = found
        if found.unserved_items:
            master.forbid(counts)
            continue
        prices, _, _ = column_generation(cost, np.add(counts, _TRACE, dtype=np.float64))
        master.limit(prices)
        if prices @ counts > found.bound_qps * (1 + CLOSE / 2):
            master.limit_below(found.prices_qps, counts)
    if best is None or best.unserved_items:
        raise PlanningError(
            f"budget_per_hour of {budget:g} buys no pool that serves every query size in time"
            + ("" if limits is None else " within most_counts")
            + f": the cheapest server costs {problem.price_per_hour.min():g}"
        )
    spent = float(best.counts @ problem.price_per_hour)
    return FluidPool(tuple(best.counts.tolist()), spent, best, max(float(ceiling), best.bound_qps))


def fluid_bounds(problem: PoolProblem, pools: Ints, *, most_parts: int = DEFAULT_PARTS, exact: int = 20) -> Floats:
    """An upper bound of each pool in queries/s, float64 `[pools]`, of counts `[pools, types]`.

    The `exact` highest are the pools' own fluid bounds; the others are bounded by the prices found on the way.
    """
    counts = problem.checked_pools(pools)
    options = split_options(problem, most_parts)
    cost = OptionCost(problem, options)
    if cost.unserved_items or not len(counts):
        return np.zeros(len(counts))
    prices = problem.price_per_hour
    bounds: Floats = counts @ (prices / cost.cheapest(prices).price)
    few = np.minimum(counts, most_parts)
    solved = np.zeros(len(counts), dtype=np.bool_)
    while True:
        top = np.argsort(-bounds, kind="stable")[:exact]
        open_ones = top[~solved[top]]
        if not len(open_ones):
            return bounds
        at = int(open_ones[0])
        own = fluid_bound(problem, counts[at], options=options)
        if own.unserved_items:  # nor can a pool that has the servers for no other option
            bounds[(few <= few[at]).all(axis=1)] = 0.0
        else:
            prices, _, _ = column_generation(cost, counts[at] + _TRACE)
            np.minimum(bounds, counts @ prices, out=bounds)
            bounds[at] = own.bound_qps
        solved[at] = True


class _Master:
    """The integer program: counts, indicators `counts[t] >= m` for m in 1..parts, and the rate, to be maximised."""

    def __init__(self, problem: PoolProblem, budget: float, limits: list[int] | None, parts: int) -> None:
        types = len(problem.types)
        self._types, self._parts = types, parts
        self._variables = types * (1 + parts) + 1
        self._budget = budget * (1 + BUDGET_SLACK)
        most = np.floor(self._budget / problem.price_per_hour)
        if limits is not None:
            most = np.minimum(most, limits)
        # A millionth of the rate for the whole budget: of pools with equal bounds the cheaper.
        self._thrift = CLOSE / 10 * problem.price_per_hour / budget
        self._budget_row = np.append(problem.price_per_hour, np.zeros(types * parts + 1))
        self._upper = np.concatenate((most, np.ones(types * parts), [np.inf]))
        self._rows: list[Floats] = []
        self._least: list[float] = []
        self._scale = np.inf
        for kind in range(types):
            for number in range(1, parts + 1):
                row = np.zeros(self._variables)
                row[kind], row[self._indicator(kind, number)] = 1, -number
                self._add(row, 0.0)

    def _indicator(self, kind: int, number: int) -> int:
        """The variable that may be 1 only if there are at least `number` servers of type `kind`."""
        return self._types + kind * self._parts + number - 1

    def _add(self, row: Floats, least: float) -> None:
        self._rows.append(row)
        self._least.append(least)

    def limit(self, prices: Floats) -> None:
        """No pool exceeds `counts @ prices`."""
        if not np.isfinite(self._scale):  # the first: what the whole budget could reach, the unit of the rate
            self._scale = float((prices / self._budget_row[: self._types]).max() * self._budget)
        row = np.zeros(self._variables)
        row[: self._types], row[-1] = prices / self._scale, -1
        self._add(row, 0.0)

    def limit_below(self, prices: Floats, counts: Ints) -> None:
        """No pool that has more servers of no type than `counts`, where those are few, exceeds `counts @ prices`."""
        row = self._beyond(counts)
        row[: self._types] += prices / self._scale
        row[-1] = -1
        self._add(row, 0.0)

    def forbid(self, counts: Ints) -> None:
        """A pool must have more servers than `counts` of a type that it has few of."""
        self._add(self._beyond(counts), 1.0)

    def _beyond(self, counts: Ints) -> Floats:
        """The sum of the indicators that open options which a pool of `counts` lacks the servers for."""
        row = np.zeros(self._variables)
        for kind in np.flatnonzero(counts < self._parts).tolist():
            row[self._indicator(kind, int(counts[kind]) + 1)] = 1
        return row

    def solve(self) -> tuple[Ints, float] | None:
        """The most promising pool and what it may reach at most in queries/s, or None if none is left."""
        objective = np.zeros(self._variables)
        objective[: self._types], objective[-1] = self._thrift, -1
        integral = np.ones(self._variables)
        integral[-1] = 0
        found = milp(
            objective,
            constraints=[
                LinearConstraint(np.array(self._rows), np.array(self._least), np.inf),
                LinearConstraint(self._budget_row[np.newaxis], -np.inf, self._budget),
            ],
            integrality=integral,
            bounds=Bounds(0, self._upper),
            options={"mip_rel_gap": CLOSE / 10},
        )
        if found.x is None:
            return None
        counts: Ints = np.rint(found.x[: self._types]).astype(np.int64)
        # The dual bound of the program, plus what thrift took off at most.
        return counts, (-float(found.mip_dual_bound) + CLOSE / 10) * self._scale
