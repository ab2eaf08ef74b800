"""Which pool to buy and which policy to run on it: the best of the planners' few proposals, by simulation.

The fluid bound knows what splitting is worth, but no queueing; Kairos' bound knows neither, yet its pick with its
matching is sometimes hard to beat. So the pools that either of them likes best are tried with both policies on one
trace of queries. What is best of many on one trace is so by luck too: the few that come nearest to it there, and
always Kairos' own pick with its own matching, then compete on traces that are new to them, and what serves most on
these is taken. What the choice is worth must be measured on yet other traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hebe.planning.error import Parameter, PlanningError
from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, FluidBound, fluid_bound
from hebe.planning.pool.fluid_pool import best_pool, fluid_bounds
from hebe.planning.pool.pool import plan_pool, pools_within
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.split_options import split_options
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.simulation.fleet.capacity import fleet_capacity
from hebe.simulation.fleet.capacity_race import CapacityRace, PolicyMaker
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers, partitioned
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind, splitting_choice
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget

_GUESS = 0.7
"""Share of the fluid bound at which the search for a rate starts."""
FINALISTS = 4
"""Pairs of pool and policy that compete on fresh traces."""
_HOPELESS = 5
"""What has so many times as many late queries as the SLA allows, at the best one's rate, is no finalist."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """A pool, `counts` [types], and the policy to run on it.

    `predicted_qps` is what the simulation sustained, on the fresh traces if there were any (a little too much, as it is
    the best of a few); `bound_qps` no policy exceeds that keeps every query in time by the fluid bound's options.
    `tried` counts the pairs of pool and policy that were compared.
    """

    types: tuple[str, ...]
    counts: tuple[int, ...]
    cost_per_hour: float
    policy: PolicyChoice
    predicted_qps: float
    bound_qps: float
    tried: int


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A pool under a policy, its fluid bound, and its workers: to the router a server of several workers is as good as
    so many servers. `make` deals a large pool into partitions, as it is to run."""

    policy: PolicyChoice
    bound: FluidBound
    workers: tuple[int, ...]
    make: PolicyMaker


def choose_plan(
    problem: PoolProblem,
    table: ServiceTable,
    budget_per_hour: float,
    sla: SlaTarget,
    trace: QueryTrace,
    *,
    fresh: Sequence[QueryTrace] = (),
    most_counts: Sequence[int] | None = None,
    runners_up: int = 8,
    on_tried: Callable[[int, int], object] | None = None,
) -> PlanChoice:
    """The best pool and policy within the budget, on servers as slow as `table` says, for queries as in the traces.

    Tried on `trace` are the pools with the highest fluid bounds with and without splitting, Kairos' pick, and so many
    `runners_up` of the fluid ranking; the `FINALISTS` best of them, Kairos' pick with its matching among them, compete
    on the `fresh` traces (none: the best on `trace` is taken). `on_tried` is told how many of how many steps are done.
    Raises `PlanningError` where nothing within the budget serves every query in time, `ServiceTableError` for a type
    that was not measured.
    """
    if runners_up < 0:
        raise PlanningError(f"runners_up is {runners_up}: must be at least 0")
    servers = TableServers(table.of_types(problem.types))
    pools, pick = _candidates(problem, budget_per_hour, most_counts, runners_up)
    options = split_options(problem, DEFAULT_PARTS)
    bounds = [fluid_bound(problem, pool, options=options) for pool in pools]  # all positive: a candidate serves all
    ways = [
        _way(problem, sla, servers, bound, kind)
        for bound in bounds
        for kind in (PolicyKind.SPLITTING, PolicyKind.MATCHING)
    ]
    finals = min(FINALISTS, len(ways)) if fresh else 0
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if on_tried is not None:
            on_tried(done, len(ways) + finals)

    race = CapacityRace(trace, servers, sla, _GUESS * max(bound.bound_qps for bound in bounds))
    best: _Way | None = None
    for way in ways:
        if race.enter(way.workers, way.make):
            best = way
        step()
    if best is None:
        raise PlanningError(
            "no pool within the budget held the SLA target in simulation at any rate: raise ", Parameter("sla_s")
        )
    found_qps = race.best_qps
    if fresh:
        kairos = next((w for w in ways if (*w.bound.counts,) == pick and w.policy.kind is PolicyKind.MATCHING), None)
        reached = []
        for way in _finalists(race, ways, best, kairos, finals):
            capacity = fleet_capacity(fresh, way.workers, servers, way.make, sla, guess_qps=race.best_qps)
            reached.append((capacity.qps, way))
            step()
        found_qps, best = max(reached, key=lambda one: one[0])
    counts = tuple(best.bound.counts.tolist())
    return PlanChoice(
        problem.types,
        counts,
        float(np.dot(counts, problem.price_per_hour)),
        best.policy,
        found_qps,
        best.bound.bound_qps,
        race.entered,
    )


def _way(problem: PoolProblem, sla: SlaTarget, servers: TableServers, bound: FluidBound, kind: PolicyKind) -> _Way:
    policy = splitting_choice(problem, bound) if kind is PolicyKind.SPLITTING else PolicyChoice(kind)
    workers = tuple((bound.counts * problem.workers_per_server).tolist())

    def make() -> DistributionPolicy:
        return policy.make(problem.types, sla.latency_s, problem.largest)

    dealt = kind.partitions(workers)
    return _Way(policy, bound, workers, lambda: partitioned(servers, make, sla.latency_s, dealt))


def _finalists(race: CapacityRace, ways: Sequence[_Way], best: _Way, kairos: _Way | None, count: int) -> list[_Way]:
    """The best, what answers most queries in time at its rate, and Kairos' way: so many in all."""

    def attainment(way: _Way) -> float:
        return race.attainment(race.best_qps, way.workers, way.make, give_up_after=_HOPELESS)

    others = sorted((way for way in ways if way is not best), key=attainment, reverse=True)
    chosen = [best, *others][:count]
    if kairos is not None and kairos not in chosen:
        chosen[-1] = kairos
    return chosen


def _candidates(
    problem: PoolProblem,
    budget_per_hour: float,
    most_counts: Sequence[int] | None,
    runners_up: int,
) -> tuple[list[tuple[int, ...]], tuple[int, ...] | None]:
    """The pools worth trying, the most promising first, each once, those that only splitting makes able included; and
    which of them is Kairos' pick, if it has one."""
    found = [best_pool(problem, budget_per_hour, most_counts=most_counts).counts]
    pick = None
    try:
        found.append(best_pool(problem, budget_per_hour, most_parts=1, most_counts=most_counts).counts)
        pick = plan_pool(problem, budget_per_hour, most_counts=most_counts).pick.counts
        found.append(pick)
    except PlanningError:  # only splitting serves every query in time, or the pools are too many to rank
        pass
    if runners_up:
        pools = pools_within(problem, budget_per_hour, most_counts=most_counts)
        head = runners_up + len(found)
        bounds = fluid_bounds(problem, pools, exact=head)
        order = np.lexsort((problem.cost_per_hour(pools), -bounds))[:head]
        found += [tuple(pools[at].tolist()) for at in order.tolist() if bounds[at] > 0]
    return list(dict.fromkeys(found))[: runners_up + 3], pick
