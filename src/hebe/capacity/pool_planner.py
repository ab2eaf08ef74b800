"""Which servers a budget buys for one model: pools are bounded, chosen by simulation, and measured on other queries."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.capacity.arguments import checked
from hebe.capacity.errors import MisfitError, check_at_least, check_form, check_percentile, naming, renamed
from hebe.capacity.files.pool_plan import PoolPlanFile
from hebe.capacity.files.reading import FilePath, in_memory
from hebe.capacity.files.service_times import ServiceTimes, TimesGiven, files_of, prices_of, service_times_of
from hebe.capacity.policies import check_counts
from hebe.capacity.progress import OnProgress, Progress, ignore
from hebe.capacity.run_length import (
    MOST_INSTANCES,
    RUNS_OF_A_SEARCH,
    check_sla,
    lasts_briefly,
    on_all_cores,
    queries_needed,
)
from hebe.planning.error import Parameter, PlanningError, join_message
from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, FluidBound, fluid_bound
from hebe.planning.pool.fluid_pool import FluidPool, best_pool, cheapest_pool
from hebe.planning.pool.pool import PoolPlan, kairos_bounds, pools_within
from hebe.planning.pool.pool import plan_pool as rank_pools
from hebe.planning.pool.pool_problem import BUDGET_SLACK, PoolProblem
from hebe.simulation.fleet.fleet_case import FleetCase, MeasuredCapacity, capacity_case, measured_capacity
from hebe.simulation.fleet.plan_choice import choose_plan
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind, policy_for_pool
from hebe.simulation.fleet.query_stream import QueryStream, check_largest, largest_drawn
from hebe.spec import SlaTarget
from hebe.workload import forms

Floats = npt.NDArray[np.float64]

_MOST_COMPARED = 200_000
"""Where a budget buys more pools than this, only the best of each bound are tried, not the runners-up."""
_FRESH_TRACES = 2
"""On which the best few compete: neither what they were first compared on, nor what the proposals are measured on."""
_FRONTIER_BUDGETS, _FRONTIER_REACH = 20, 2.0
"""For how many budgets the best fluid bounds are found for the frontier, and up to how many times the given one."""


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What was asked for; `types` and `most` limit what is on offer, `queries` is per run. Of data that was given in
    place of files, paths are `<service_times>` and `<prices>`."""

    service_times: tuple[Path, ...]
    prices: Path
    budget_per_hour: float
    sla: SlaTarget
    model: str | None
    types: tuple[str, ...] | None
    most: Mapping[str, int]
    sizes: str
    head: int
    simulate: bool
    queries: int | None
    seeds: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A pool with the policy that it was found for; `bound` is its fluid bound, with splitting if the policy splits;
    `measured` what the simulation says of it, if it was asked."""

    name: str
    counts: tuple[int, ...]
    cost_per_hour: float
    policy: PolicyChoice
    bound: FluidBound
    measured: MeasuredCapacity | None = None

    @property
    def share_of_bound(self) -> float | None:
        """How much of the bound the simulation reached."""
        if self.measured is None or not self.bound.bound_qps:
            return None
        return self.measured.capacity.qps / self.bound.bound_qps


@dataclass(frozen=True, slots=True, eq=False)
class PoolPlanMade:
    """The result: `kairos` is None, and `without_kairos` says why, where only splitting serves every query in time, or
    where the pools are too many to rank.

    `proposals` are by name, "chosen" among them; `frontier` has for each kind of bound budgets and the best bounds that
    they buy, of every budget at which it rises, or of some only if `sampled` names it; `unpriced` are the types that
    were measured but are not for sale.
    """

    request: PoolRequest
    times: ServiceTimes
    problem: PoolProblem
    kairos: PoolPlan | None
    without_kairos: str
    proposals: Mapping[str, Proposal]
    frontier: Mapping[str, tuple[Floats, Floats]]
    sampled: frozenset[str]
    unpriced: tuple[str, ...]
    queries: int
    why_without_kairos: tuple[str, ...] = ()
    """The parts of `without_kairos`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What remarks call a parameter, where not by its own name."""

    def named(self, names: Mapping[str, str]) -> PoolPlanMade:
        """The same, with `names` in place of parameters in all that it says."""
        return replace(self, names=names, without_kairos=join_message(self.why_without_kairos, names))

    @property
    def remarks(self) -> list[str]:
        """What the figures do not show: of the service times, and of runs that are too short."""
        measured = self.chosen.measured
        short = lasts_briefly(self.queries, measured.capacity.qps, self.request.sla) if measured else ()
        return [*self.times.remarks, *([join_message(short, self.names)] if short else [])]

    def as_file(self) -> PoolPlanFile:
        """The plan without its figures, as it is read back from a plan file."""
        problem, chosen = self.problem, self.chosen
        return PoolPlanFile(
            self.times.model,
            self.request.sla,
            self.request.sizes,
            self.request.budget_per_hour,
            dict(zip(problem.types, chosen.counts, strict=True)),
            dict(zip(problem.types, problem.price_per_hour.tolist(), strict=True)),
            chosen.policy,
            self.times.files,
            self.request.prices,
            {},
            {},
            self.times.estimated.intersection(problem.types),
            self.partitions,
        )

    @property
    def chosen(self) -> Proposal:
        """What the plan file holds."""
        return self.proposals["chosen"]

    @property
    def partitions(self) -> int:
        """Into how many fleets that decide on their own the chosen pool is dealt."""
        return self.chosen.policy.kind.partitions(self.times.workers_of(self.chosen.counts))


_OF_PLANNING = {"most_counts": "most", "sla_s": "sla_ms"}
"""What planning calls other than `plan_pool` does."""


@checked
def plan_pool(
    service_times: TimesGiven,
    prices: Mapping[str, float] | FilePath,
    budget_per_hour: float,
    sla_ms: float,
    *,
    percentile: float = 99.0,
    model: str | None = None,
    sizes: str = "production",
    types: Sequence[str] | None = None,
    most: Mapping[str, int] | None = None,
    simulate: bool = True,
    queries: int | None = None,
    seeds: int = 3,
    seed: int = 0,
    ranked: int = 10,
    progress: OnProgress = ignore,
) -> PoolPlanMade:
    """Choose the pool of unlike servers that serves most queries of one model within a budget and an SLA target.

    All pools within the budget are ranked by Kairos' throughput bound, which takes no measuring; a
    fluid program finds the best pools with whole and with split queries. The most promising are then simulated with the
    policies of a live router, and the best is the plan.

    Parameters:
        service_times: of one model by server type and query size, as data, or in files or directories of profiles.
        prices: per hour by server type, as data or in a file.
        budget_per_hour: what the pool may cost, in the unit of the prices.
        sla_ms: the latency bound in milliseconds, at `percentile` (0 to 100, both excluded).
        model: which one, if the files are of several.
        sizes: query sizes in items, in a form of `hebe.workload.forms`, as `"lognormal"` or `"quantiles:10,50,200"`.
        types: only these server types; None: all that are priced.
        most: most servers of a type, by type.
        simulate: choose by simulation and predict the throughput; else take the pool with the highest fluid bound.
        queries: of a run; None: enough for the SLA target.
        seeds: runs with other queries, for the confidence interval; `seed`: the same one gives the same plan.
        ranked: how many pools of Kairos' ranking the result has.
        progress: receives what is done, in this thread.

    Raises `ArgumentError`, or `MisfitError` for an argument that does not fit the others or the files, both naming the
    `field`; `PlanFileError` for a file, naming line and field; `PlanningError` where no pool serves every query in
    time, its `field` naming the parameter that could change that; `WorkloadError` for queries that are larger than what
    was measured.
    """
    check_at_least("budget_per_hour", budget_per_hour, more_than=0.0)
    check_at_least("sla_ms", sla_ms, more_than=0.0)
    check_percentile("percentile", percentile)
    if queries is not None:
        check_at_least("queries", queries, least=1)
    check_at_least("seeds", seeds, least=1)
    check_at_least("seed", seed, least=0)
    check_at_least("ranked", ranked, least=1)
    check_form("sizes", forms.query_sizes, sizes)
    check_counts("most", most or {})
    request = PoolRequest(
        files_of(service_times), in_memory("prices") if isinstance(prices, Mapping) else Path(prices), budget_per_hour,
        SlaTarget(sla_ms, percentile), model, None if types is None else tuple(types), dict(most or {}), sizes, ranked,
        simulate, queries, seeds, seed,
    )  # fmt: skip
    priced = prices_of(prices)
    for name in request.types or ():
        if name not in priced:
            raise MisfitError(
                f"{request.prices}: no price of {name}, which ",
                Parameter("types"),
                f" names: there are {', '.join(priced)}",
            )
    with naming(_OF_PLANNING):
        return _planned(request, priced, service_times_of(service_times, model), progress)


def _planned(
    request: PoolRequest, prices: Mapping[str, float], every: ServiceTimes, on_progress: OnProgress
) -> PoolPlanMade:
    """The plan, whose errors may name what planning calls otherwise."""
    times, problem, unpriced = _problem(request, prices, every)
    budget = request.budget_per_hour
    _check_budget(budget, problem)
    most = _most_counts(request, problem)

    def bounding(done: int) -> None:
        on_progress(Progress("bounding pools", done, 4))

    bounding(0)
    split = best_pool(problem, budget, most_counts=most)
    workers = sum(times.workers_of(split.counts))
    if request.simulate and workers > MOST_INSTANCES:
        raise MisfitError(
            "the pool that ",
            Parameter("budget_per_hour"),
            f" buys has {workers:,} workers: at most {MOST_INSTANCES:,} are simulated: bound it by ",
            Parameter("most"),
            ", or plan with ",
            Parameter("simulate=False"),
        )
    bounding(1)
    kairos, whole = None, None
    reason: tuple[str, ...] = ()
    try:
        whole = best_pool(problem, budget, most_parts=1, most_counts=most)
    except PlanningError as fault:
        reason = ("Only splitting serves every query in time: ", *renamed(fault, _OF_PLANNING).args)
    else:
        try:
            kairos = rank_pools(problem, budget, most_counts=most, head=request.head)
        except PlanningError as fault:
            reason = ("Kairos' ranking is left out: ", *renamed(fault, _OF_PLANNING).args)
    bounding(3)
    frontier, sampled = _frontier(request, problem, most)
    bounding(4)
    proposals = _proposals(request, problem, kairos, whole, split, most)
    queries = queries_needed(request.queries, request.sla, split.bound.bound_qps, "poisson", search=request.simulate)
    if request.simulate:
        proposals["chosen"] = _chosen(request, times, problem, most, queries, on_progress)
        proposals = _measured(request, times, problem, proposals, queries, on_progress)
    else:
        proposals["chosen"] = proposals["fluid, splitting"]
    return PoolPlanMade(
        request, times, problem, kairos, join_message(reason), proposals, frontier, sampled, unpriced, queries, reason
    )


def _problem(
    request: PoolRequest, prices: Mapping[str, float], every: ServiceTimes
) -> tuple[ServiceTimes, PoolProblem, tuple[str, ...]]:
    """Service times and the problem, the base type first; and the types without a price."""
    asked = list(request.types or prices)
    why: tuple[str, ...] = (Parameter("types"), " names") if request.types else (f"{request.prices} prices",)
    times = every.of_types(asked, *why)
    unpriced = tuple(name for name in every.table.types if name not in prices)
    weights, largest = largest_drawn(request.sizes, request.seed, times.table.largest)
    check_sla(request.sla, times, largest)

    def problem_of(chosen: ServiceTimes) -> PoolProblem:
        types = chosen.table.types
        price = np.array([prices[name] for name in types])
        service_s, workers = chosen.table.mean_s[:, :largest], chosen.workers_per_server
        return PoolProblem(types, price, service_s, weights, request.sla.latency_s, workers=workers)

    problem = problem_of(times)
    try:
        base = problem.types[problem.base_type()]
    except PlanningError:  # only splitting serves the largest queries: the fastest is most like a base
        base = problem.types[int(problem.service_s[:, -1].argmin())]
    times = times.of_types([base, *(name for name in asked if name != base)], "is the base type")
    return times, problem_of(times), unpriced


def _check_budget(budget_per_hour: float, problem: PoolProblem) -> None:
    """Raises `MisfitError` for a budget that buys more servers than a float can count."""
    least_price = float(problem.price_per_hour.min())
    if not math.isfinite(_FRONTIER_REACH * budget_per_hour / least_price):
        raise MisfitError(
            Parameter("budget_per_hour"),
            f" is {budget_per_hour:g}: too much to count servers at {least_price:g}: lower it",
        )


def _most_counts(request: PoolRequest, problem: PoolProblem) -> list[int] | None:
    for name in request.most:
        if name not in problem.types:
            raise MisfitError(
                Parameter("most"), f": no server type {name} on offer: there are {', '.join(problem.types)}"
            )
    if not request.most:
        return None
    most_spent = _FRONTIER_REACH * request.budget_per_hour
    unlimited = [int(most_spent / price) + 1 for price in problem.price_per_hour]
    return [request.most.get(name, at_most) for name, at_most in zip(problem.types, unlimited, strict=True)]


def _proposals(
    request: PoolRequest,
    problem: PoolProblem,
    kairos: PoolPlan | None,
    whole: FluidPool | None,
    split: FluidPool,
    most: list[int] | None,
) -> dict[str, Proposal]:
    """What the planners propose, by name."""
    found: dict[str, Proposal] = {}
    if whole is not None and (of_one_type := _pools_of_one_type(request, problem, most)):
        alone = (_proposal("one type", problem, counts, PolicyKind.FCFS) for counts in of_one_type)
        found["one type"] = max(alone, key=lambda proposal: proposal.bound.bound_qps)
    if kairos is not None:
        found["Kairos"] = _proposal("Kairos", problem, kairos.pick.counts, PolicyKind.MATCHING)
    if whole is not None:
        found["fluid, whole"] = _proposal("fluid, whole", problem, whole.counts, PolicyKind.MATCHING)
    found["fluid, splitting"] = _proposal("fluid, splitting", problem, split.counts, PolicyKind.SPLITTING)
    return found


def _pools_of_one_type(request: PoolRequest, problem: PoolProblem, most: list[int] | None) -> list[tuple[int, ...]]:
    """Of each type that serves every size in time, all that the budget buys."""
    pools = []
    for at in np.flatnonzero(problem.reach == problem.largest).tolist():
        count = int(request.budget_per_hour * (1 + BUDGET_SLACK) / problem.price_per_hour[at])
        if count := count if most is None else min(count, most[at]):
            pools.append(tuple(count if other == at else 0 for other in range(len(problem.types))))
    return pools


def _proposal(name: str, problem: PoolProblem, counts: tuple[int, ...], kind: PolicyKind) -> Proposal:
    policy = policy_for_pool(kind, problem, counts)
    bound = fluid_bound(problem, counts, most_parts=kind.most_parts)
    return Proposal(name, counts, float(np.dot(counts, problem.price_per_hour)), policy, bound)


def _chosen(
    request: PoolRequest,
    times: ServiceTimes,
    problem: PoolProblem,
    most: list[int] | None,
    queries: int,
    on_progress: OnProgress,
) -> Proposal:
    """The best of the planners' proposals: of many on one trace, of the few best and Kairos' on fresh ones."""

    def choosing(done: int, total: int | None) -> None:
        on_progress(Progress("choosing pool and policy by simulation", done, total))

    choosing(0, None)
    beyond = request.seed + 1 + request.seeds  # the seeds before are those that the proposals are measured on
    seeds = (request.seed, *range(beyond, beyond + _FRESH_TRACES))
    trace, *fresh = (QueryStream("poisson", request.sizes, queries, seed).trace(1.0) for seed in seeds)
    for drawn in (trace, *fresh):
        check_largest(int(drawn.sizes.max()), times.table.largest, request.sizes)
    try:
        pools_within(problem, request.budget_per_hour, most_counts=most, most_pools=_MOST_COMPARED)
        runners_up = 8
    except PlanningError:
        runners_up = 0
    choice = choose_plan(
        problem, times.table, request.budget_per_hour, request.sla, trace,
        fresh=fresh, most_counts=most, runners_up=runners_up, on_tried=choosing,
    )  # fmt: skip
    return _proposal("chosen", problem, choice.counts, choice.policy.kind)


def _measured(
    request: PoolRequest,
    times: ServiceTimes,
    problem: PoolProblem,
    proposals: dict[str, Proposal],
    queries: int,
    on_progress: OnProgress,
) -> dict[str, Proposal]:
    """All proposals measured on the same queries, which are not those that the choice was made on."""
    ways = {(one.counts, one.policy.kind): one for one in proposals.values()}
    cases = [
        FleetCase(
            times.table, workers := times.workers_of(one.counts), one.policy, request.sla, problem.largest,
            QueryStream("poisson", request.sizes, queries, request.seed + 1 + number), 0.8 * one.bound.bound_qps,
            one.policy.kind.partitions(workers),
        )
        for one in ways.values()
        for number in range(request.seeds)
    ]  # fmt: skip
    work = RUNS_OF_A_SEARCH * queries * len(cases)
    found = on_all_cores("measuring the proposals", capacity_case, cases, work, on_progress)
    of_way = {
        way: measured_capacity(found[at * request.seeds : (at + 1) * request.seeds]) for at, way in enumerate(ways)
    }
    return {name: replace(one, measured=of_way[one.counts, one.policy.kind]) for name, one in proposals.items()}


def _frontier(
    request: PoolRequest, problem: PoolProblem, most: list[int] | None
) -> tuple[dict[str, tuple[Floats, Floats]], frozenset[str]]:
    """Of each kind of bound the best that budgets up to some times the given one buy, beginning at the cheapest pool:
    budgets and bounds; and which kinds are sampled, since there are too many prices to solve a program for each."""
    largest = _FRONTIER_REACH * request.budget_per_hour
    try:
        pools = pools_within(problem, largest, most_counts=most, most_pools=_MOST_COMPARED)
    except PlanningError:  # too many
        pools = np.empty((0, len(problem.types)), dtype=np.int64)
    costs = problem.cost_per_hour(pools)
    prices = np.sort(costs)
    prices = prices[np.diff(prices, prepend=0.0) > BUDGET_SLACK * prices]  # 3 x 0.1 is 0.3
    every = 0 < len(prices) <= _FRONTIER_BUDGETS
    frontier: dict[str, tuple[Floats, Floats]] = {}
    sampled: set[str] = set()
    for name, parts in (("fluid bound, splitting", DEFAULT_PARTS), ("fluid bound, whole queries", 1)):
        try:
            cheapest = cheapest_pool(problem, most_parts=parts, most_counts=most)
        except PlanningError:
            continue
        least = float(np.dot(cheapest, problem.price_per_hour))
        if least > largest * (1 + BUDGET_SLACK):
            continue
        some = [*np.linspace(least, largest, _FRONTIER_BUDGETS), max(least, request.budget_per_hour)]
        budgets = prices[prices >= least * (1 - BUDGET_SLACK)] if every else np.unique(some)
        solved: list[tuple[float, float]] = []
        for one in budgets.tolist():
            with contextlib.suppress(PlanningError):  # a search that ended without proof
                pool = best_pool(problem, one, most_parts=parts, most_counts=most)
                solved.append((one, pool.bound.bound_qps))
        if len(solved) < len(budgets) or not every:
            sampled.add(name)
        frontier[name] = np.array([one for one, _ in solved]), np.array([qps for _, qps in solved])
    try:
        bounds = kairos_bounds(problem, pools)
    except PlanningError:  # no type serves every size
        return frontier, frozenset(sampled)
    by_cost = np.argsort(costs, kind="stable")
    best_so_far = np.maximum.accumulate(bounds[by_cost])
    rises = np.diff(best_so_far, prepend=0.0) > 0
    if rises.any():
        frontier["Kairos' bound"] = costs[by_cost][rises], best_so_far[rises]
    return frontier, frozenset(sampled)
