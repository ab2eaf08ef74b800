"""Kairos' figures and the splitting policy's, by simulation over published measurements of four EC2 types.

Every pool, policy and rate sees the same queries (common random numbers). What is chosen by simulation, baselines'
pools as well as ours, is chosen on traces of its own and measured on others. Each baseline runs on the best for it of
all pools within the budget, found as in the study kairos-distribution: a few seconds a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from hebe.planning.pool.pool import kairos_bounds, plan_pool, pools_within, ranking
from hebe.planning.pool.pool_problem import Floats, Ints, PoolProblem
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.report.figures import Figure
from hebe.report.progress_bar import bar_of
from hebe.scheduling.fleet.distribution import FirstComeFirstServed
from hebe.scheduling.fleet.matching import CostMatching
from hebe.simulation.fleet.capacity import Capacity, fleet_capacity
from hebe.simulation.fleet.capacity_race import CapacityRace, PolicyMaker
from hebe.simulation.fleet.fleet_run import QueryTrace, TableServers
from hebe.simulation.fleet.plan_choice import choose_plan
from hebe.simulation.sweep import sweep
from hebe.workload.query_sizes import ProductionSizes
from hebe_lab.baselines.pool_search import kairos_plus
from hebe_lab.studies.kairos.contenders import (
    CHOOSING_SEED,
    CLOCKWORK,
    DRS,
    FRESH_TRACES,
    RIBBON,
    best_contender,
    largest_pools,
)
from hebe_lab.studies.kairos.setting import BUDGET_PER_HOUR, GRID, PRICES, SLA_MS, TYPES, Setting

_PRICES_PER_HOUR = tuple(PRICES.values())
_OVER_HOMOGENEOUS = {"ncf": 1.7, "rm2": 2.0, "wnd": 1.3, "mtwnd": 1.4, "dien": 1.5}
_SPLIT_OVER_KAIROS = {"rm2": 1.22}
_SIZES_SEED = 2000
_TOLERANCE = 0.002
"""Relative, of the rates that are told; those that choices are made by are searched to half a percent."""
_SAME = 0.995
"""What is not below this share of another rate that choices are made by counts as equal to it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Queries of a trace that is measured, and of one that choices are made on; traces measured; runners-up for the
    splitting policy; models; the budget per hour."""

    queries: int
    planning_queries: int
    traces: int
    runners_up: int
    models: tuple[str, ...]
    budget_per_hour: float = BUDGET_PER_HOUR


FULL = Effort(10_000, 5_000, 3, 6, tuple(SLA_MS))
QUICK = Effort(2_000, 1_000, 2, 1, ("wnd",))


@dataclass(frozen=True, slots=True)
class Reached:
    """What one part of one model's comparison came to: rates by trace, of which pool and policy, and what bounds it.

    `evaluated` and `over_exhaustive` are Kairos+'s.
    """

    capacity: Capacity
    pool: tuple[int, ...]
    policy: str
    bound_qps: float = math.nan
    evaluated: int = 0
    over_exhaustive: float = math.nan


@dataclass(frozen=True, slots=True)
class Case:
    """One part of one model's comparison; `data` is the directory of the measurements, None the built-in figures."""

    model: str
    part: str
    data: Path | None
    effort: Effort


class Contest:
    """One model's problem, and its traces: what all parts of a comparison share."""

    def __init__(self, model: str, data: Path | None, effort: Effort) -> None:
        sizes = ProductionSizes()
        self.effort = effort
        self.setting = Setting(model, data, effort.budget_per_hour)
        self.table = self.setting.table
        self.servers = TableServers(self.table)
        self.sla = self.setting.sla
        weights = size_weights(sizes.draw(1_000_000, np.random.default_rng(_SIZES_SEED)), sizes.largest)
        self.problem = PoolProblem(
            TYPES, np.array(_PRICES_PER_HOUR), self.table.mean_s[:, : sizes.largest], weights, self.sla.latency_s
        )
        self.planning = QueryTrace.draw(effort.planning_queries, sizes, CHOOSING_SEED)
        self.fresh = [
            QueryTrace.draw(effort.planning_queries, sizes, CHOOSING_SEED + 1 + number)
            for number in range(FRESH_TRACES)
        ]
        self.measured = [QueryTrace.draw(effort.queries, sizes, seed) for seed in range(effort.traces)]

    def matching(self) -> CostMatching:
        """Kairos' policy."""
        return CostMatching(self.sla.latency_s, self.problem.largest)

    @property
    def budget_per_hour(self) -> float:
        """What a pool may cost."""
        return self.effort.budget_per_hour

    def capacity(self, pool: Sequence[int], make: PolicyMaker, guess_qps: float | None = None) -> Capacity:
        """On the traces that are measured."""
        return fleet_capacity(
            self.measured, pool, self.servers, make, self.sla, guess_qps=guess_qps, tolerance=_TOLERANCE
        )

    def race(self, guess_qps: float) -> CapacityRace:
        """On the planning trace."""
        return CapacityRace(self.planning, self.servers, self.sla, guess_qps)

    def full_pools(self) -> Ints:
        """The pools within the budget that not even the cheapest server can be added to, best Kairos bound first."""
        return self._ranked(largest_pools(self.problem, self.budget_per_hour))

    def _ranked(self, pools: Ints) -> Ints:
        return pools[ranking(kairos_bounds(self.problem, pools), self.problem.cost_per_hour(pools))]


def kairos_figures(data: Path | None, effort: Effort, progress: Progress) -> list[Figure]:
    """`kairos.*`, `split.*`, `kairos_plus.*` from the measurements in the directory `data` (None: from the built-in
    figures)."""
    for model in effort.models:
        _ = Setting(model, data).table  # read here, so that a fault in the files is told at once
    cases = [Case(model, part, data, effort) for part in PARTS for model in effort.models]
    answers = sweep(reach, cases, bar_of(progress, "pools and policies of five models"))
    by_model: dict[str, dict[str, Reached]] = {model: {} for model in effort.models}
    for case, answer in zip(cases, answers, strict=True):
        if answer is not None:
            by_model[case.model][case.part] = answer
    figures: list[Figure] = []
    for model, parts in by_model.items():
        figures += _figures_of(model, parts)
    over_kairos = [figure.value for figure in figures if figure.name.startswith("split.over_kairos.")]
    if len(over_kairos) == len(SLA_MS):
        mean = math.exp(float(np.mean(np.log(over_kairos))))
        note = "geometric mean over five models"
        figures.append(Figure("split.over_kairos.geomean", mean, "ratio", target=">= 1.12", note=note))
    searched = [parts["kairos_plus"] for parts in by_model.values()]
    grid = math.prod(GRID)
    figures.append(
        Figure(
            "kairos_plus.evaluated_share", max(one.evaluated for one in searched) / grid, "share", runs=len(searched),
            target="< 0.01", paper="under 1%", note=f"most of any model, of {grid:,} configurations",
        )
    )  # fmt: skip
    figures.append(
        Figure(
            "kairos_plus.over_exhaustive", min(one.over_exhaustive for one in searched), "ratio", runs=len(searched),
            target=">= 1.0", note="least of any model; every pool that no server fits into any more was tried; rates "
            "within half a percent are equal",
        )
    )  # fmt: skip
    return figures


def reach(case: Case) -> Reached | None:
    """Do one part of one model's comparison."""
    return PARTS[case.part](Contest(case.model, case.data, case.effort))


def _kairos(contest: Contest) -> Reached:
    pick = plan_pool(contest.problem, contest.budget_per_hour).pick
    capacity = contest.capacity(pick.counts, contest.matching, 0.85 * pick.bound_qps)
    return Reached(capacity, pick.counts, "matching", pick.bound_qps)


def _best_bound(contest: Contest) -> Reached | None:
    """The pool of the highest bound under matching, where the similarity pick is another one."""
    plan = plan_pool(contest.problem, contest.budget_per_hour)
    first = plan.ranked[0]
    if first == plan.pick:
        return None
    capacity = contest.capacity(first.counts, contest.matching, 0.85 * first.bound_qps)
    return Reached(capacity, first.counts, "matching", first.bound_qps)


def _homogeneous(contest: Contest) -> Reached:
    """The base type alone; its rate is scaled to the whole budget."""
    base = contest.problem.base_type()
    pool = [0] * len(TYPES)
    pool[base] = int(contest.budget_per_hour / _PRICES_PER_HOUR[base])
    bound_qps = float(kairos_bounds(contest.problem, np.array([pool]))[0])
    capacity = contest.capacity(pool, FirstComeFirstServed, 0.7 * bound_qps)
    scale = contest.budget_per_hour / (pool[base] * _PRICES_PER_HOUR[base])
    return Reached(Capacity.of([scale * qps for qps in capacity.by_trace_qps]), tuple(pool), "first come, first served")


def _ribbon(contest: Contest) -> Reached:
    return _on_best_pool(contest, RIBBON, "first come, first served")


def _clockwork(contest: Contest) -> Reached:
    return _on_best_pool(contest, CLOCKWORK, "earliest finish")


def _drs(contest: Contest) -> Reached:
    return _on_best_pool(contest, DRS, "size threshold")


def _on_best_pool(contest: Contest, scheme: str, policy: str) -> Reached:
    """A baseline on the best pool for it on the planning trace, measured."""
    best = best_contender(contest.setting, scheme, contest.effort.planning_queries)
    if best.threshold:
        policy += f" of {best.threshold} items"
    return Reached(contest.capacity(best.pool, best.make_policy), best.pool, policy)


def _split(contest: Contest) -> Reached:
    """The splitting policy's own plan."""
    plan = choose_plan(
        contest.problem, contest.table, contest.budget_per_hour, contest.sla, contest.planning,
        fresh=contest.fresh, runners_up=contest.effort.runners_up,
    )  # fmt: skip
    capacity = contest.capacity(
        plan.counts,
        lambda: plan.policy.make(plan.types, contest.sla.latency_s, contest.problem.largest),
        plan.predicted_qps,
    )
    return Reached(capacity, plan.counts, str(plan.policy.kind), plan.bound_qps)


def _kairos_plus(contest: Contest) -> Reached:
    """Algorithm 1 over all pools, then all full pools that it left out."""
    pools = pools_within(contest.problem, contest.budget_per_hour, most_counts=[count - 1 for count in GRID])
    bounds = kairos_bounds(contest.problem, pools)
    race = contest.race(0.8 * float(bounds.max()))
    found = kairos_plus(pools, bounds, lambda pool: race.enter(pool, contest.matching))
    done = {pool for pool, _ in found.path}
    for row in contest.full_pools().tolist():
        if tuple(row) not in done:
            race.enter(tuple(row), contest.matching)
    share = found.best_qps / race.best_qps
    only = Capacity.of([found.best_qps])
    return Reached(only, found.best, "matching", evaluated=found.evaluations, over_exhaustive=_snapped(share))


def _snapped(ratio: float) -> float:
    return 1.0 if ratio >= _SAME else ratio


PARTS: Mapping[str, Callable[[Contest], Reached | None]] = {
    "kairos": _kairos,
    "kairos_plus": _kairos_plus,
    "split": _split,
    "clockwork": _clockwork,
    "drs": _drs,
    "ribbon": _ribbon,
    "best_bound": _best_bound,
    "homogeneous": _homogeneous,
}
"""The longest first, so that no core is left with one of them at the end."""


def _figures_of(model: str, parts: Mapping[str, Reached]) -> list[Figure]:
    kairos, split, homogeneous = parts["kairos"], parts["split"], parts["homogeneous"]
    figures = [
        _ratio(
            f"kairos.over_homogeneous.{model}", kairos, homogeneous, f">= {_OVER_HOMOGENEOUS[model]}",
            paper="1.25 to 2.03", note=f"{_shown(kairos)} over {_shown(homogeneous)}, scaled to the budget",
        )
    ]  # fmt: skip
    if (first := parts.get("best_bound")) is not None:
        note = f"{_shown(first)}, the pool of the highest bound, which the similarity pick passes over"
        figures.append(_ratio(f"kairos.best_bound_over_homogeneous.{model}", first, homogeneous, None, note=note))
    for name in ("ribbon", "drs", "clockwork"):
        other = parts[name]
        note = f"{_shown(kairos)} over {_shown(other)}"
        figures.append(_ratio(f"kairos.over_{name}.{model}", kairos, other, "> 1", note=note))
    figures.append(_share(f"kairos.share_of_bound.{model}", kairos, ">= 0.84", "of Kairos' bound, Eq. 15"))
    target = f">= {_SPLIT_OVER_KAIROS.get(model, 1.0)}"
    note = f"{_shown(split)} over {_shown(kairos)}"
    figures.append(_ratio(f"split.over_kairos.{model}", split, kairos, target, note=note))
    bound = "of the fluid bound of its pool, which lets no query be late (the SLA target lets 1%)"
    figures.append(_share(f"split.share_of_fluid_bound.{model}", split, ">= 0.90", bound))
    return figures


def _ratio(
    name: str, ours: Reached, theirs: Reached, target: str | None, *, paper: str | None = None, note: str = ""
) -> Figure:
    """The ratio of mean rates; its spread is that of the ratios by trace."""
    ratios = np.array(ours.capacity.by_trace_qps) / np.array(theirs.capacity.by_trace_qps)
    return _by_trace(name, ours.capacity.qps / theirs.capacity.qps, ratios, "ratio", target, note, paper)


def _share(name: str, reached: Reached, target: str, what: str) -> Figure:
    shares = np.array(reached.capacity.by_trace_qps) / reached.bound_qps
    return _by_trace(name, reached.capacity.qps / reached.bound_qps, shares, "share", target, what)


def _by_trace(
    name: str, value: float, by_trace: Floats, unit: str, target: str | None, note: str, paper: str | None = None
) -> Figure:
    if len(by_trace) == 1:
        return Figure(name, value, unit, target=target, paper=paper, note=f"{note}; one trace")
    low, high = min(float(by_trace.min()), value), max(float(by_trace.max()), value)
    return Figure(name, value, unit, low, high, len(by_trace), target, paper, f"{note}; spread: by trace")


def _shown(reached: Reached) -> str:
    """A rate, policy and pool in words."""
    pool = " + ".join(f"{count} {name}" for count, name in zip(reached.pool, TYPES, strict=True) if count)
    return f"{reached.capacity.qps:,.4g} queries/s by {reached.policy} on {pool}"
