"""What Kairos and the schemes that it is compared with make of a budget: a pool, a policy, and their throughput.

A contender is a policy on a pool. Throughput is found by simulation, on traces that every contender sees alike. Pools
are chosen on one trace, and measured on others.

The pictures of the kairos studies call and colour the schemes alike, and what they are compared with (`COLOURS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.progress import Progress

from hebe.planning.pool.fluid_bound import DEFAULT_PARTS, fluid_bound
from hebe.planning.pool.fluid_pool import fluid_bounds
from hebe.planning.pool.pool import plan_pool, pools_within
from hebe.planning.pool.pool_problem import BUDGET_SLACK, Ints, PoolProblem
from hebe.report.figures import Figure
from hebe.report.plots.style import SERIES
from hebe.report.progress_bar import bar_of
from hebe.scheduling.fleet.distribution import DistributionPolicy
from hebe.simulation.fleet.capacity import Capacity, fleet_capacity
from hebe.simulation.fleet.capacity_race import CapacityRace
from hebe.simulation.fleet.plan_choice import choose_plan
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.sweep import sweep
from hebe_lab.baselines.oracle import oracle_qps
from hebe_lab.baselines.threshold_search import climb_threshold
from hebe_lab.studies.kairos.setting import Setting

RIBBON, DRS, CLOCKWORK, KAIROS, SPLITTING = "Ribbon", "DRS", "CLKWRK", "Kairos", "Hebe"
"""Schemes."""
_POLICIES = {
    RIBBON: PolicyKind.FCFS,
    DRS: PolicyKind.THRESHOLD,
    CLOCKWORK: PolicyKind.CLOCKWORK,
    KAIROS: PolicyKind.MATCHING,
    SPLITTING: PolicyKind.SPLITTING,
}

Counts = tuple[int, ...]
CHOOSING_SEED = 1_000
"""Of the trace on which pools are chosen; those on which they are measured begin at 1."""
FRESH_TRACES = 2
"""Beside that one: on which the best of Hebe's plans compete."""
_THRESHOLDS = range(50, 1000, 50)
MARGIN = 1.03
"""What a policy may reach over the fluid bound: 1% of queries may be late."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheme's policy on `pool[t]` instances of each type; `threshold` items for DRS, `prices_qps` for splitting."""

    setting: Setting
    scheme: str
    pool: Counts
    threshold: int = 0
    prices_qps: tuple[float, ...] = ()

    def make_policy(self) -> DistributionPolicy:
        """A new policy."""
        problem = self.setting.problem
        prices_qps = dict(zip(problem.types, self.prices_qps, strict=False))  # none but for splitting
        choice = PolicyChoice(_POLICIES[self.scheme], self.threshold, prices_qps)
        return choice.make(problem.types, self.setting.sla.latency_s, problem.largest)

    def qps(self, queries: int, seed: int, *, guess_qps: float | None = None, tolerance: float = 0.005) -> float:
        """Latency-bounded throughput on one trace."""
        setting = self.setting
        traces = [setting.trace(queries, seed)]
        return fleet_capacity(
            traces, self.pool, setting.servers, self.make_policy, setting.sla,
            guess_qps=guess_qps, tolerance=tolerance,
        ).qps  # fmt: skip

    @property
    def pool_text(self) -> str:
        """The counts as the paper writes them."""
        return pool_text(self.pool)


def pool_text(pool: Sequence[int]) -> str:
    """Counts as the paper writes them: (2,0,9,0)."""
    return f"({','.join(map(str, pool))})"


def kairos_contender(setting: Setting) -> Contender:
    """Kairos' matching on the pool that it picks without measuring."""
    return Contender(setting, KAIROS, plan_pool(setting.problem, setting.budget_per_hour).pick.counts)


def homogeneous_contender(setting: Setting) -> tuple[Contender, float]:
    """As many of the paper's base type, the first, as the budget buys; and the budget over their price, by which the
    paper scales."""
    price_per_hour = float(setting.problem.price_per_hour[0])
    count = int(setting.budget_per_hour * (1 + BUDGET_SLACK) / price_per_hour)
    pool = (count, *(0 for _ in setting.problem.types[1:]))
    return Contender(setting, RIBBON, pool), setting.budget_per_hour / (count * price_per_hour)


def splitting_contender(setting: Setting, queries: int, runners_up: int = 8) -> Contender:
    """Hebe's choice: a few promising pools, each with splitting and with matching, tried on one trace; the best of them
    and Kairos' way on further ones."""
    trace, *fresh = (setting.trace(queries, CHOOSING_SEED + number) for number in range(1 + FRESH_TRACES))
    plan = choose_plan(
        setting.problem, setting.table, setting.budget_per_hour, setting.sla, trace, fresh=fresh, runners_up=runners_up
    )
    scheme = SPLITTING if plan.policy.kind is PolicyKind.SPLITTING else KAIROS
    return Contender(setting, scheme, plan.counts, prices_qps=tuple(plan.policy.prices_qps.values()))


def splitting_on(setting: Setting, pool: Counts) -> Contender:
    """Splitting on a given pool, by its own fluid prices."""
    bound = fluid_bound(setting.problem, pool, most_parts=DEFAULT_PARTS)
    return Contender(setting, SPLITTING, pool, prices_qps=bound.splitting_prices_qps())


def best_contender(setting: Setting, scheme: str, queries: int) -> Contender:
    """The scheme on the pool that suits it best, of all that the budget buys; for DRS with its best threshold.

    Pools whose fluid bound the best found exceeds are left out, as are those that could have one more server, but for
    Ribbon: first come, first served is worse off with a slow server than without.
    """
    problem = setting.problem
    enumerate_pools = pools_within if scheme == RIBBON else largest_pools
    pools = enumerate_pools(problem, setting.budget_per_hour)
    bounds = MARGIN * fluid_bounds(replace(problem, xi=1.0), pools, most_parts=1)
    race = CapacityRace(
        setting.trace(queries, CHOOSING_SEED), setting.servers, setting.sla, 0.5 * float(bounds.max()), 0.01
    )
    best: Contender | None = None
    for at in np.argsort(-bounds).tolist():
        if bounds[at] <= race.best_qps:
            break
        pool = tuple(pools[at].tolist())
        mixed = scheme == DRS and 0 < pool[0] < sum(pool)
        for threshold in _THRESHOLDS if mixed else (0,):
            contender = Contender(setting, scheme, pool, threshold)
            if race.enter(pool, contender.make_policy):
                best = contender
    assert best is not None, "the homogeneous pool serves some rate under every scheme"
    return _climbed(best, queries, best.threshold, 25)[0] if scheme == DRS else best


def with_best_threshold(setting: Setting, pool: Counts, queries: int) -> tuple[Contender, float]:
    """DRS on a given pool with the threshold that a hill climb finds from what its slowest type serves in time, and
    its throughput on the trace of the climb."""
    reach = [int(setting.problem.reach[kind]) for kind in range(1, len(pool)) if pool[kind]]
    start = Contender(setting, DRS, pool)
    if not reach or not pool[0]:
        return start, start.qps(queries, CHOOSING_SEED, tolerance=0.01)
    return _climbed(start, queries, min(reach), 100)


def drs_on(setting: Setting, pools: Sequence[Counts], queries: int, progress: Progress) -> list[Contender]:
    """DRS with its best threshold on each of the pools, on all cores."""
    return sweep(_drs_on, [(setting, pool, queries) for pool in pools], bar_of(progress, "thresholds of DRS"))


def _drs_on(case: tuple[Setting, Counts, int]) -> Contender:
    return with_best_threshold(*case)[0]


def _climbed(contender: Contender, queries: int, start: int, step: int) -> tuple[Contender, float]:
    guess_qps: float | None = None

    def evaluate(threshold: int) -> float:
        nonlocal guess_qps
        moved = replace(contender, threshold=threshold)
        found_qps = moved.qps(queries, CHOOSING_SEED, guess_qps=guess_qps, tolerance=0.01)
        guess_qps = found_qps or guess_qps
        return found_qps

    found = climb_threshold(evaluate, contender.setting.problem.largest, start=start, step=step, finest=25)
    return replace(contender, threshold=found.threshold), found.qps


def largest_pools(problem: PoolProblem, budget_per_hour: float) -> Ints:
    """The pools within the budget to which not one server can be added, int64 [pools, types]."""
    pools = pools_within(problem, budget_per_hour)
    left = budget_per_hour - problem.cost_per_hour(pools)
    largest: Ints = pools[left < problem.price_per_hour.min()]
    return largest


def best_oracle_qps(setting: Setting, queries: int, seed: int) -> float:
    """What the oracle reaches on the pool that suits it best."""
    trace = setting.trace(queries, seed)
    pools = largest_pools(setting.problem, setting.budget_per_hour).tolist()
    return max(oracle_qps(trace, pool, setting.servers, setting.sla) for pool in pools)


def measure_oracle(
    title: str, given: Sequence[Setting], queries: int, seeds: int, progress: Progress
) -> list[Capacity]:
    """What the oracle reaches in each setting on its best pool, on `seeds` traces, on all cores."""
    cases = [(setting, queries, seed) for setting in given for seed in range(1, seeds + 1)]
    answers = sweep(_oracle, cases, bar_of(progress, title))
    return [Capacity.of(answers[at * seeds : (at + 1) * seeds]) for at in range(len(given))]


def _oracle(case: tuple[Setting, int, int]) -> float:
    return best_oracle_qps(*case)


@dataclass(frozen=True, slots=True)
class CapacityCase:
    """One call of `Contender.qps`."""

    contender: Contender
    queries: int
    seed: int
    tolerance: float = 0.005


def measure(
    title: str, contenders: Sequence[Contender], queries: int, seeds: int, progress: Progress, tolerance: float = 0.005
) -> list[Capacity]:
    """Every contender's throughput on `seeds` traces, on all cores; one that is there twice is measured once."""
    each = list(dict.fromkeys(contenders))
    cases = [CapacityCase(contender, queries, seed, tolerance) for contender in each for seed in range(1, seeds + 1)]
    answers = sweep(capacity_of_case, cases, bar_of(progress, title))
    found = {contender: Capacity.of(answers[at * seeds : (at + 1) * seeds]) for at, contender in enumerate(each)}
    return [found[contender] for contender in contenders]


def capacity_of_case(case: CapacityCase) -> float:
    """Queries/s."""
    return case.contender.qps(case.queries, case.seed, tolerance=case.tolerance)


def ratio(name: str, over: Capacity, under: Capacity, factor: float = 1.0, **rest: str | float | None) -> Figure:
    """`factor` times the mean over traces of one throughput over another, with Student's interval where there are
    several; further fields of `Figure` in `rest`."""
    ratios = Capacity.of([factor * a / b for a, b in zip(over.by_trace_qps, under.by_trace_qps, strict=True)])
    runs = len(ratios.by_trace_qps)
    return Figure(name, ratios.qps, "ratio", ratios.low, ratios.high, runs, **rest)  # type: ignore[arg-type]


KAIROS_PLUS = "Kairos+"
"""Kairos' matching on the best of all pools under it, where Kairos itself takes its own pick."""

ORACLE = "ORCL"
"""It knows all queries beforehand."""

COLOURS: Mapping[str, str] = dict(zip((KAIROS, SPLITTING, KAIROS_PLUS, CLOCKWORK, DRS, RIBBON), SERIES, strict=False))
