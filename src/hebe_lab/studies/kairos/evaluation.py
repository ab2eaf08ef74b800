"""Measures pools one by one for the searches that ask for it; each once, by simulation on one trace."""

from __future__ import annotations

from dataclasses import replace

from hebe.planning.pool.fluid_pool import fluid_bounds
from hebe.planning.pool.pool_problem import Floats, Ints
from hebe.simulation.fleet.capacity_race import CapacityRace
from hebe_lab.baselines.pool_search import Evaluate
from hebe_lab.studies.kairos.contenders import (
    CHOOSING_SEED,
    DRS,
    KAIROS,
    MARGIN,
    SPLITTING,
    Contender,
    Counts,
    splitting_on,
    with_best_threshold,
)
from hebe_lab.studies.kairos.setting import Setting


def pool_evaluator(setting: Setting, scheme: str, queries: int, pools: Ints, bounds: Floats) -> Evaluate:
    """Measures the throughput of one of `pools` under the scheme, once; the search for it begins near its bound."""
    guesses = {tuple(pool): 0.85 * bound for pool, bound in zip(pools.tolist(), bounds.tolist(), strict=True)}
    known: dict[Counts, float] = {}

    def evaluate(pool: Counts) -> float:
        if pool not in known:
            if scheme not in (KAIROS, SPLITTING):
                known[pool] = throughput_on(setting, scheme, pool, queries)
            elif not guesses[pool]:
                known[pool] = 0.0  # no policy serves every size in time
            else:
                known[pool] = throughput_on(setting, scheme, pool, queries, guesses[pool])
        return known[pool]

    return evaluate


def throughput_on(setting: Setting, scheme: str, pool: Counts, queries: int, guess_qps: float | None = None) -> float:
    """What the pool serves under the scheme on the trace on which pools are chosen; DRS with its best threshold."""
    if scheme == DRS:
        return with_best_threshold(setting, pool, queries)[1]
    contender = splitting_on(setting, pool) if scheme == SPLITTING else Contender(setting, scheme, pool)
    return contender.qps(queries, CHOOSING_SEED, guess_qps=guess_qps, tolerance=0.01)


def pool_judge(setting: Setting, scheme: str, queries: int, pools: Ints, best_qps: float, share: float) -> Evaluate:
    """Gives `best_qps` for a pool that reaches `share` of it, else 0: one run for each that might, keeping queries
    whole."""
    bounds = fluid_bounds(replace(setting.problem, xi=1.0), pools, most_parts=1, exact=1)
    able = {tuple(pool) for pool in pools[MARGIN * bounds >= best_qps].tolist()}
    race = CapacityRace(setting.trace(queries, CHOOSING_SEED), setting.servers, setting.sla, best_qps)
    known: dict[Counts, float] = {}

    def judge(pool: Counts) -> float:
        if pool not in known:
            contender = Contender(setting, scheme, pool)
            holds = pool in able and race.holds(share * best_qps, pool, contender.make_policy)
            known[pool] = best_qps if holds else 0.0
        return known[pool]

    return judge
