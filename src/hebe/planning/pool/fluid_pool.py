"""Which pool of servers a budget buys, by the fluid bound: exactly, without enumerating the pools.

Each solved pool yields prices that bound every other pool too: `bound(pool) <= pool @ prices`. An integer program over
the counts maximises the least of these bounds; its pool is solved, its prices join, until the pool's own bound is the
program's (Benders' decomposition). What an option of several parts needs, that many servers of a type, enters by
indicators: prices found for a pool with few workers of a type hold for pools that have no more of it.

Some of what a budget buys may serve nothing. The same program then minimises the price of a pool with that bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from hebe.planning.error import Parameter, PlanningError
from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, FluidBound, OptionCost, column_generation, fluid_bound
from hebe.planning.pool.pool_problem import BUDGET_SLACK, Floats, Ints, PoolProblem, checked_budget, checked_limits
from hebe.planning.pool.split_options import SplitOptions, earliest_finish_s, split_options

CLOSE = 1e-6
"""Relative distance from the optimum at which to stop."""
MOST_SERVERS = 1_000_000
"""Of one type; with more, counts that differ by less than rounding could not be told apart."""

_TRACE = 1e-6
"""Servers that a pool is taken to have of each type, so that its prices say what a type it lacks is worth."""
_MOST_ROUNDS = 500
_MOST_ROUNDS_OF_THRIFT = 30
"""In which to look for the cheapest pool of the best bound; after that, one of which no server can be left out."""
_SHARPER = 1e3
"""By how much limits are multiplied when the rate is given: HiGHS lets each be missed by 1e-6, as much as `CLOSE`."""
_BUDGET = 100.0
"""The budget in its own row: HiGHS lets it be missed by 1e-6 or somewhat more, which must not buy a server."""
_TIGHTER = 1e-8
"""Share of the budget by which to lower it, at least, where that bought too much nevertheless."""


@dataclass(frozen=True, slots=True, eq=False)
class FluidPool:
    """The pool with the highest fluid bound within a budget: its counts, price and bound, which no pool within the
    budget exceeds by more than three `CLOSE`."""

    counts: tuple[int, ...]
    cost_per_hour: float
    bound: FluidBound

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
    """The pool of the highest fluid bound among those that cost at most the budget; of those within `CLOSE` of it the
    cheapest, where that is found soon, else one that could do without none of its servers.

    Queries are split into at most `most_parts` (1: never). Raises `PlanningError` if no pool within the budget can
    serve every query size in time, naming the size or the cheapest pool that does; for a budget that buys more than
    `MOST_SERVERS` of a type; and if the search ends without proof.
    """
    budget = checked_budget(budget_per_hour)
    limits = checked_limits(problem, most_counts)
    options = split_options(problem, most_parts)
    cost = OptionCost(problem, options)
    if cost.unserved_items:
        raise _no_type_serves(problem, cost.unserved_items, most_parts)
    _check_number(problem, budget, limits)
    # The program reckons in shares of what its budget could reach: it is given no more than limits let it spend.
    spent_at_most = budget if limits is None else float(np.dot(limits, problem.price_per_hour))
    master = _Master(problem, min(budget, spent_at_most) or budget, limits, most_parts)
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
        master.learn(cost, counts, found)
    if best is None or best.unserved_items:
        raise PlanningError(
            Parameter("budget_per_hour"),
            f" of {budget:g} buys no pool that serves every query size in time: the cheapest that does"
            f" is {_in_words(problem, cheapest_pool(problem, most_parts=most_parts, most_counts=limits))}",
        )
    if not ceiling <= best.bound_qps * (1 + 2 * CLOSE):
        raise PlanningError(
            "the search for the best pool within ",
            Parameter("budget_per_hour"),
            f" of {budget:g} ended at {best.bound_qps:.6g} queries/s"
            f" with {ceiling:.6g} not ruled out: lower the budget, or drop server types",
        )
    best = _thrifty(problem, master, cost, options, best)
    spent = float(best.counts @ problem.price_per_hour)
    return FluidPool(tuple(best.counts.tolist()), spent, best)


def _thrifty(
    problem: PoolProblem, master: _Master, cost: OptionCost, options: SplitOptions, best: FluidBound
) -> FluidBound:
    """The cheapest pool whose bound is within `CLOSE` of the best one's."""
    least_qps = best.bound_qps * (1 - CLOSE)
    kept = _without_idle(problem, options, best, least_qps)
    for _ in range(_MOST_ROUNDS_OF_THRIFT):
        counts = master.solve_cheapest(least_qps)
        if counts is None or counts @ problem.price_per_hour >= kept.counts @ problem.price_per_hour * (1 - CLOSE):
            break
        found = fluid_bound(problem, counts, options=options)
        if found.bound_qps >= least_qps:
            return found
        master.learn(cost, counts, found)
    return kept


def _without_idle(problem: PoolProblem, options: SplitOptions, best: FluidBound, least_qps: float) -> FluidBound:
    """The pool without the servers that it can do without, one type after the other, those that cost most first."""
    for kind in np.argsort(-best.counts * problem.price_per_hour, kind="stable").tolist():
        too_few, step = -1, 1  # so many are too few, which is not yet known if negative
        while best.counts[kind] > max(too_few + 1, 0):
            have = int(best.counts[kind])
            fewer = best.counts.copy()
            fewer[kind] = max(have - step, 0) if too_few < 0 else (too_few + have) // 2
            found = fluid_bound(problem, fewer, options=options)
            if found.bound_qps >= least_qps:
                best, step = found, 2 * step
            else:
                too_few = int(fewer[kind])
    return best


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
        raise _no_type_serves(problem, unserved, most_parts)
    budget = float(most @ problem.price_per_hour)
    master = _Master(problem, budget, most.tolist(), most_parts) if budget else None
    while master is not None and (counts := master.solve_cheapest()) is not None:
        usable = options.among(options.usable(counts * problem.workers_per_server))
        if not OptionCost(problem, usable).unserved_items:
            return tuple(counts.tolist())
        master.forbid(counts)
    raise PlanningError(
        Parameter("most_counts"), " leaves no pool that serves every query size in time, whatever the budget"
    )


def _no_type_serves(problem: PoolProblem, items: int, most_parts: int) -> PlanningError:
    occur = problem.size_weights > 0
    least_ms = float(earliest_finish_s(problem, most_parts)[occur].max()) / problem.xi * 1e3
    return PlanningError(
        f"no server type serves queries of {items} items within the SLA of {problem.sla_s:g} s (times"
        f" xi {problem.xi:g}), split into {most_parts} or not: raise ",
        Parameter("sla_s"),
        f" (to {_rounded_up(least_ms):.4g} ms at least), or bound the query size",
    )


def _rounded_up(value: float) -> float:
    """A positive number in four digits, never less than it is."""
    step = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / step * (1 + 1e-9)) * step


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
            Parameter("budget_per_hour"),
            f" of {budget:g} buys {most[kind]:.4g} servers of {problem.types[kind]}: at most"
            f" {MOST_SERVERS:,} of a type can be planned: lower it, or set ",
            Parameter("most_counts"),
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
    """The integer program: counts, indicators `workers[t] >= m` for m in 1..parts, and the rate, to be maximised.

    Prices are shares of the budget, lest the tolerances of HiGHS, which are absolute, depend on the currency.
    """

    def __init__(self, problem: PoolProblem, budget: float, limits: list[int] | None, parts: int) -> None:
        types = len(problem.types)
        self._types, self._parts = types, parts
        self._per_server = problem.workers_per_server
        self._variables = types * (1 + parts) + 1
        most = np.floor(budget * (1 + BUDGET_SLACK) / problem.price_per_hour)
        if limits is not None:
            most = np.minimum(most, limits)
        self._shares: Floats = problem.price_per_hour / budget
        self._within = 1 + BUDGET_SLACK
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

    def _row_of(self, values: Floats) -> Floats:
        """A row of the program with `values` of the counts."""
        return np.append(values, np.zeros(self._variables - self._types))

    def _add(self, row: Floats, least: float) -> None:
        self._rows.append(row)
        self._least.append(least)

    def limit(self, prices: Floats) -> None:
        """No pool exceeds `counts @ prices`."""
        if not np.isfinite(self._scale):  # the first: what the whole budget could reach, the unit of the rate
            self._scale = float((prices / self._shares).max() * (1 + BUDGET_SLACK))
        row = np.zeros(self._variables)
        row[: self._types], row[-1] = prices / self._scale, -1
        self._add(row, 0.0)

    def limit_below(self, prices: Floats, counts: Ints) -> None:
        """No pool that has more servers of no type than `counts`, where those are few, exceeds `counts @ prices`."""
        row = self._beyond(counts)
        row[: self._types] += prices / self._scale
        row[-1] = -1
        self._add(row, 0.0)

    def learn(self, cost: OptionCost, counts: Ints, found: FluidBound) -> None:
        """What the solved pool `counts` says about others, by its prices."""
        if found.unserved_items:
            self.forbid(counts)
            return
        prices, _, _ = column_generation(cost, np.add(counts, _TRACE, dtype=np.float64) * self._per_server)
        prices *= self._per_server
        self.limit(prices)
        if prices @ counts > found.bound_qps * (1 + CLOSE / 2):
            self.limit_below(found.prices_qps, counts)

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
        # A ten-millionth of the rate for the whole budget: of pools with equal bounds the cheaper.
        objective = self._row_of(CLOSE / 10 * self._shares)
        objective[-1] = -1
        found = self._minimised(objective)
        if found is None:
            return None
        # The dual bound of the program, plus what thrift took off at most.
        return found[0], (-found[1] + CLOSE / 10) * self._scale

    def solve_cheapest(self, least_qps: float = 0.0) -> Ints | None:
        """The cheapest pool of those that may reach a rate, or None if none is left."""
        found = self._minimised(self._row_of(self._shares), least_qps / self._scale)
        return None if found is None else found[0]

    def _minimised(self, objective: Floats, rate: float = 0.0) -> tuple[Ints, float] | None:
        """The counts at which the objective is least, and its dual bound; of pools that may reach `rate`, scaled."""
        integral = np.ones(self._variables)
        integral[-1] = 0
        lower = np.append(np.zeros(self._variables - 1), rate)
        rows, least = np.array(self._rows), np.array(self._least)
        if rate:
            rows[rows[:, -1] < 0] *= _SHARPER
        while True:
            found = milp(
                objective,
                constraints=[
                    LinearConstraint(rows, least, np.inf),
                    LinearConstraint(self._row_of(_BUDGET * self._shares), -np.inf, _BUDGET * self._within),
                ],
                integrality=integral,
                bounds=Bounds(lower, self._upper),
                options={"mip_rel_gap": CLOSE / 10},
            )
            if found.x is None:
                return None
            counts: Ints = np.rint(found.x[: self._types]).astype(np.int64)
            beyond = float(counts @ self._shares) - (1 + BUDGET_SLACK)
            if beyond <= 0:
                return counts, float(found.mip_dual_bound)
            self._within -= _TIGHTER + beyond
