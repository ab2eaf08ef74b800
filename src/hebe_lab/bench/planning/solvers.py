"""How fast the planners' own steps are: matching, ranking, provisioning, co-location. One thread, made-up inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.progress import Progress
from scipy.optimize import linear_sum_assignment

from hebe.planning.colocation.affinity import affinity_of
from hebe.planning.colocation.colocation import hera
from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.planning.pool.pool import kairos_bounds, pools_within, ranking, similarity_pick
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.planning.provisioning.provisioning import ProvisioningPlan, provision
from hebe.report.figures import Figure, median_and_spread
from hebe.scheduling.fleet.assignment import Floats, Indices, busy_columns, match_queries, matching_cost
from hebe.workload.query_sizes import ProductionSizes
from hebe_lab.baselines.provisioning_instance import generate_fleet
from hebe_lab.bench.planning.tables import LARGEST, PRICES_PER_HOUR, SLA_MS, TYPES, scalability_profiles, service_table

_MATCHINGS = {20: 0.05, 200: 1.0, 1000: 10.0}
"""Queries, and as many instances: at most so many milliseconds."""
_HALF_BUSY = (200, 1000)
"""Of these sizes also with half of the instances busy, each free at a time of its own."""
_RANKED = 1_000_000
_LARGE_FLEET = (100, 1000)
"""Models, and server types, of the large provisioning."""
_PAIRED, _COLOCATED, _COLOCATED_SERVERS = 500, 100, 5_700
"""Models whose pairs are weighed; models that are co-located, and about how many servers they would take alone."""
_SERVER = ServerResources(cores=16, cache_ways=11, bandwidth_bytes_per_s=100e9)
_SHORT_ROUNDS, _LONG_ROUNDS = 50, 2_000
"""Rounds of improvement of the large provisioning, for a plan within 2 s and within 20 s."""
_CLOSE_ENOUGH = 0.01
"""The small provisioning ends within so much of the proven bound."""


def solver_figures(quick: bool, progress: Progress) -> list[Figure]:
    """`matching.*`, `pool.rank_s.*`, `provision.*`, `affinity.*`, `colocate.*`."""
    repeats = 5 if quick else 21
    steps: list[Callable[[], list[Figure]]] = [
        *(lambda size=size, most=most: _matching(size, most, repeats) for size, most in _MATCHINGS.items()),
        *(lambda size=size: _matching(size, _MATCHINGS[size], repeats, half_busy=True) for size in _HALF_BUSY),
        lambda: _ranking(1 if quick else 5),
        lambda: _provisioning_small(repeats),
        lambda: _provisioning_large(long=not quick),
        lambda: _colocation(repeats),
    ]
    task = progress.add_task("planners' steps", total=len(steps))
    figures: list[Figure] = []
    for step in steps:
        figures += step()
        progress.advance(task)
    return figures


def _matching(size: int, most_ms: float, repeats: int, *, half_busy: bool = False) -> list[Figure]:
    """`size` waiting queries and as many instances of four types, idle or half of them busy, by the cost of Kairos'
    Eq. 4 and 8."""
    chance = np.random.default_rng(size)
    mean_s = service_table().mean_s
    sla_s = SLA_MS / 1e3
    busy = size // 2 if half_busy else 0
    idle = np.full(len(TYPES), (size - busy) // len(TYPES))
    coefficients = mean_s[:, -1].min() / mean_s[:, -1]
    samples: list[float] = []
    inner = max(2_000 // size, 1)
    for repeat in range(repeats):
        service_s = mean_s[:, ProductionSizes().draw(size, chance) - 1].T.copy()
        waited_s = chance.uniform(0.0, 0.9 * sla_s, size)
        busy_types, remaining_s = chance.integers(0, len(TYPES), busy), chance.uniform(0.0, 0.8 * sla_s, busy)
        began_s = time.thread_time()
        for _ in range(inner):
            types, free_s, counts = busy_columns(size, size - busy, busy_types, remaining_s)
            cost = matching_cost(service_s, waited_s, coefficients, sla_s, busy_types=types, busy_remaining_s=free_s)
            offered = np.array([*idle, *counts])
            matched = match_queries(cost, offered)
        samples.append(1e3 * (time.thread_time() - began_s) / inner)
        if repeat == 0:
            _check_optimal(cost, offered, matched)
    value, low, high = median_and_spread(samples)
    note = "matrix included; four types; total cost equal to SciPy's exact assignment; thread's own time"
    if half_busy:
        note += "; half of the instances busy, those of one type as one column, free after their mean time"
    name = f"matching.ms.{size}x{size}{'.busy' if half_busy else ''}"
    return [Figure(name, value, "ms", low, high, repeats * inner, f"<= {most_ms:g}", note=note)]


def _check_optimal(cost: Floats, counts: Indices, matched: Indices) -> None:
    each = np.repeat(np.arange(counts.size), counts)
    rows, columns = linear_sum_assignment(cost[:, each])
    least = float(cost[rows, each[columns]].sum())
    found = float(cost[np.arange(len(cost)), matched].sum())
    if not np.isclose(found, least, rtol=1e-9):
        raise RuntimeError(f"a matching costs {found}, the least is {least}")


def _ranking(repeats: int) -> list[Figure]:
    """A million pools of four types: bounded, ranked, picked from."""
    weights = size_weights(ProductionSizes().draw(100_000, np.random.default_rng(0)), LARGEST)
    problem = PoolProblem(TYPES, np.array(PRICES_PER_HOUR), service_table().mean_s, weights, SLA_MS / 1e3)
    budget = 16.0
    while len(pools := pools_within(problem, budget)) < _RANKED:
        budget *= 1.03
    pools = pools[:: len(pools) // _RANKED][:_RANKED]
    samples = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        bounds = kairos_bounds(problem, pools)
        best = ranking(bounds, problem.cost_per_hour(pools))[:10]
        similarity_pick(pools[best], problem.base_type())
        samples.append(time.perf_counter() - began_s)
    value, low, high = median_and_spread(samples)
    note = "bounds, prices, ranking and pick of a million pools of four types"
    return [Figure("pool.rank_s.1e6", value, "s", low, high, repeats, "<= 1", "1,000 pools in 2 s", note)]


def _provisioning_small(repeats: int) -> list[Figure]:
    samples = []
    gaps = []
    for seed in range(repeats):
        options, demand = generate_fleet(10, 6, seed)
        began_s = time.perf_counter()
        plan = provision(options, demand, target_gap=_CLOSE_ENOUGH, time_limit_s=0.0)
        samples.append(1e3 * (time.perf_counter() - began_s))
        gaps.append(plan.gap or 0.0)
    value, low, high = median_and_spread(samples)
    note = f"10 models on 6 server types, {repeats} problems; each proven within {max(gaps):.1%} of the optimum"
    return [Figure("provision.ms.10x6", value, "ms", low, high, repeats, "<= 20", note=note)]


def _provisioning_large(*, long: bool) -> list[Figure]:
    """A hundred models on a thousand types, with few and with many rounds of improvement."""
    options, demand = generate_fleet(*_LARGE_FLEET)
    found: list[tuple[str, str, float, ProvisioningPlan]] = []
    began_s = time.perf_counter()
    plan = provision(options, demand, improvement_rounds=_SHORT_ROUNDS)
    found.append(("provision.gap.100x1000", "<= 0.01", time.perf_counter() - began_s, plan))
    if long:
        began_s = time.perf_counter()
        plan = provision(options, demand, improvement_rounds=_LONG_ROUNDS)
        found.append(("provision.gap.100x1000.20s", "<= 0.003", time.perf_counter() - began_s, plan))
    figures = []
    for name, target, took_s, plan in found:
        note = f"proven against the relaxation; {plan.servers:,} servers"
        figures.append(Figure(name, plan.gap or 0.0, "share", target=target, note=note))
        most = "<= 20" if name.endswith("20s") else "<= 2"
        figures.append(Figure(name.replace(".gap.", ".s."), took_s, "s", target=most, note="the same plan's time"))
    return figures


def _colocation(repeats: int) -> list[Figure]:
    profiles = scalability_profiles(_PAIRED, _SERVER.cores, _SERVER.cache_ways, _SERVER.bandwidth_bytes_per_s)
    took_s = _times(lambda: affinity_of(profiles, _SERVER), min(repeats, 5))
    value, low, high = median_and_spread(took_s)
    note = f"Algorithm 1 on all pairs of {_PAIRED} profiles, tables included"
    figures = [Figure("affinity.s.500_models", value, "s", low, high, len(took_s), "<= 1", note=note)]
    tables = ScalabilityTables.of(profiles[:_COLOCATED], _SERVER)
    chance = np.random.default_rng(0)
    each = _COLOCATED_SERVERS / len(tables.models)
    shares = chance.uniform(0.2, 1.8, len(tables.models))
    demand = dict(zip(tables.models, (tables.alone * each * shares).tolist(), strict=True))
    plan = hera(tables, demand)
    samples_ms = [1e3 * one for one in _times(lambda: hera(tables, demand), repeats)]
    value, low, high = median_and_spread(samples_ms)
    note = f"Algorithm 2: {_COLOCATED} models on {plan.servers:,} servers, from tables"
    return [*figures, Figure("colocate.ms.5000_servers", value, "ms", low, high, repeats, "<= 100", note=note)]


def _times(function: Callable[[], object], repeats: int) -> Sequence[float]:
    samples = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        function()
        samples.append(time.perf_counter() - began_s)
    return samples
