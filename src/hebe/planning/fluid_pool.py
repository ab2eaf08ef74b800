"""Which pool of servers a budget buys, by the fluid bound: exactly, without enumerating the pools.

Each solved pool yields prices that bound every other pool too: `bound(pool) <= pool @ prices`. An integer program over
the counts maximises the least of these bounds; its pool is solved, its prices join, until the pool's own bound is the
program's (Benders' decomposition). What an option of several parts needs, that many servers of a type, enters by
indicators: prices found for a pool with few workers of a type hold for pools that have no more of it.
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
MOST_SERVERS = 1_000_000
"""Of one type; with more, counts that differ by less than rounding could not be told apart."""

_TRACE = 1e-6
"""Servers that a pool is taken to have of each type, so that its prices say what a type it lacks is worth."""
_MOST_ROUNDS = 500


@dataclass(frozen=True, slots=True, eq=False)
class FluidPool:
    """The pool with the highest fluid bound within a budget: its counts, price and bound, and `limit_qps`, which no
    pool within the budget exceeds (equal to the bound within `CLOSE`)."""

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
    serve every query size in time, naming the size or the cheapest pool that does; for a budget that buys more than
    `MOST_SERVERS` of a type; and if the search ends without proof.
    """
    budget = checked_budget(budget_per_hour)
    limits = checked_limits(problem, most_counts)
    options = split_options(problem, most_parts)
    cost = OptionCost(problem, options)
    if cost.unserved_items:
        raise PlanningError(_no_type_serves(problem, cost.unserved_items, most_parts))
    _check_number(problem, budget, limits)
    master = _Master(problem, budget, limits, most_parts)
    per_server = problem.workers_per_server
    master.limit(problem.price_per_hour / cost.cheapest(problem.price_per_hour / per_server).price)
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
        prices, _, _ = column_generation(cost, np.add(counts, _TRACE, dtype=np.float64) * per_server)
        prices *= per_server
        master.limit(prices)
        if prices @ counts > found.bound_qps * (1 + CLOSE / 2):
            master.limit_below(found.prices_qps, counts)
    if best is None or best.unserved_items:
        raise PlanningError(
            f"budget_per_hour of {budget:g} buys no pool that serves every query size in time: the cheapest that does"
            f" is {_in_words(problem, cheapest_pool(problem, most_parts=most_parts, most_counts=limits))}"
        )
    if not ceiling <= best.bound_qps * (1 + 2 * CLOSE):
        raise PlanningError(
            f"the search for the best pool within budget_per_hour of {budget:g} ended at {best.bound_qps:.6g} queries/s"
            f" with {ceiling:.6g} not ruled out: lower the budget, or drop server types"
        )
    spent = float(best.counts @ problem.price_per_hour)
    return FluidPool(tuple(best.counts.tolist()), spent, best, max(float(ceiling), best.bound_qps))


def cheapest_pool(
    problem: PoolProblem, *, most_parts: int = DEFAULT_PARTS, most_counts: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The counts of the cheapest pool that serves every query size in time, be it one query after the other.

    Queries are split into at most `most_parts` (1: never). Raises `PlanningError` if there is none.
    """
    limits = checked_limits(problem, most_counts)
    options = split_options(problem, most_parts)
    # No option asks for more workers of a type than there may be parts.
    enough = -(-most_parts // problem.workers_per_server)
    most = enough if limits is None else np.minimum(enough, limits)
    if unserved := OptionCost(problem, options).unserved_items:
        raise PlanningError(_no_type_serves(problem, unserved, most_parts))
    budget = float(most @ problem.price_per_hour)
    master = _Master(problem, budget, most.tolist(), most_parts) if budget else None
    while master is not None and (counts := master.solve_cheapest()) is not None:
        usable = options.among(options.usable(counts * problem.workers_per_server))
        if not OptionCost(problem, usable).unserved_items:
            return tuple(counts.tolist())
        master.forbid(counts)
    raise PlanningError("most_counts leaves no pool that serves every query size in time, whatever the budget")


def _no_type_serves(problem: PoolProblem, items: int, most_parts: int) -> str:
    return (
        f"no server type serves queries of {items} items within the SLA of {problem.sla_s:g} s (times"
        f" xi {problem.xi:g}), split into {most_parts} or not: raise sla_s or most_parts, or bound the query size"
    )


def _in_words(problem: PoolProblem, counts: Sequence[int]) -> str:
    """A pool and its price, and whether it has to split queries."""
    servers = " + ".join(f"{count} {name}" for name, count in zip(problem.types, counts, strict=True) if count)
    splits = ", by splitting" if fluid_bound(problem, counts, most_parts=1).unserved_items else ""
    return f"{servers} at {np.dot(counts, problem.price_per_hour):g}{splits}"


def _check_number(problem: PoolProblem, budget: float, limits: Sequence[int] | None) -> None:
    """Raises `PlanningError` where the budget buys too many servers of a type."""
    most = budget / problem.price_per_hour
    if limits is not None:
        most = np.minimum(most, limits)
    kind = int(most.argmax())
    if most[kind] > MOST_SERVERS:
        raise PlanningError(
            f"budget_per_hour of {budget:g} buys {most[kind]:.4g} servers of {problem.types[kind]}: at most"
            f" {MOST_SERVERS:,} of a type can be planned: lower it, or set most_counts"
        )


def fluid_bounds(problem: PoolProblem, pools: Ints, *, most_parts: int = DEFAULT_PARTS, exact: int = 20) -> Floats:
    """An upper bound of each pool in queries/s, float64 `[pools]`, of counts `[pools, types]`.

    The `exact` highest are the pools' own fluid bounds; the others are bounded by the prices found on the way.
    """
    counts = problem.checked_pools(pools)
    options = split_options(problem, most_parts)
    cost = OptionCost(problem, options)
    if cost.unserved_items or not len(counts):
        return np.zeros(len(counts))
    prices, per_server = problem.price_per_hour, problem.workers_per_server
    bounds: Floats = counts @ (prices / cost.cheapest(prices / per_server).price)
    few = np.minimum(counts * per_server, most_parts)
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
            prices, _, _ = column_generation(cost, (counts[at] + _TRACE) * per_server)
            np.minimum(bounds, counts @ (prices * per_server), out=bounds)
            bounds[at] = own.bound_qps
        solved[at] = True


class _Master:
    """The integer program: counts, indicators `workers[t] >= m` for m in 1..parts, and the rate, to be maximised."""

    def __init__(self, problem: PoolProblem, budget: float, limits: list[int] | None, parts: int) -> None:
        types = len(problem.types)
        self._types, self._parts = types, parts
        self._per_server = problem.workers_per_server
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
                row[kind], row[self._indicator(kind, number)] = self._per_server[kind], -number
                self._add(row, 0.0)

    def _indicator(self, kind: int, number: int) -> int:
        """The variable that may be 1 only if there are at least `number` workers of type `kind`."""
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
        """The sum of the indicators that open options which a pool of `counts` lacks the workers for."""
        row = np.zeros(self._variables)
        workers = counts * self._per_server
        for kind in np.flatnonzero(workers < self._parts).tolist():
            row[self._indicator(kind, int(workers[kind]) + 1)] = 1
        return row

    def solve(self) -> tuple[Ints, float] | None:
        """The most promising pool and what it may reach at most in queries/s, or None if none is left."""
        objective = np.zeros(self._variables)
        objective[: self._types], objective[-1] = self._thrift, -1
        found = self._minimised(objective)
        if found is None:
            return None
        # The dual bound of the program, plus what thrift took off at most.
        return found[0], (-found[1] + CLOSE / 10) * self._scale

    def solve_cheapest(self) -> Ints | None:
        """The cheapest pool, whatever its rate, or None if none is left."""
        found = self._minimised(self._budget_row)
        return None if found is None else found[0]

    def _minimised(self, objective: Floats) -> tuple[Ints, float] | None:
        """The counts at which the objective is least, and its dual bound."""
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
        return counts, float(found.mip_dual_bound)
