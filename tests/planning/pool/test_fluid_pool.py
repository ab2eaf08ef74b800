import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hebe.planning.pool.fluid_pool
from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_bound import fluid_bound
from hebe.planning.pool.fluid_pool import CLOSE, best_pool, cheapest_pool, fluid_bounds
from hebe.planning.pool.pool import pools_within
from hebe.planning.pool.pool_problem import BUDGET_SLACK, PoolProblem
from hebe.planning.pool.split_options import split_options
from tests.examples.pool_problems import BUDGET, SLA_S, any_problem, kairos_problem, recorded, three_types


def pools_and_bounds(problem, budget, options):
    """All pools within the budget and their bounds; none where it buys no server."""
    if budget < problem.price_per_hour.min():
        return np.empty((0, len(problem.types)), np.int64), np.empty(0)
    pools = pools_within(problem, budget)
    return pools, np.array([fluid_bound(problem, pool, options=options).bound_qps for pool in pools])


def refuses(problem, budget, most_parts):
    """No pool within the budget serves every size in time, and it says so."""
    with pytest.raises(PlanningError, match=r"buys no pool that serves every|no server type serves"):
        best_pool(problem, budget, most_parts=most_parts)


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4), st.floats(0.5, 1.8))
def test_it_is_the_best_of_all_pools(seed, types, most_parts, budget):
    problem = any_problem(np.random.default_rng(seed), types, 12)
    pools, bounds = pools_and_bounds(problem, budget, split_options(problem, most_parts))
    if not bounds.any():
        refuses(problem, budget, most_parts)
        return
    found = best_pool(problem, budget, most_parts=most_parts)
    assert found.bound.bound_qps == pytest.approx(bounds.max(), rel=2e-6)
    assert found.cost_per_hour <= budget * (1 + 1e-8)
    assert list(found.counts) in pools.tolist()


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(2, 3), st.sampled_from([1, 4]), st.floats(0.5, 1.8))
def test_of_nearly_equal_pools_it_is_the_cheapest(seed, types, most_parts, budget):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 12)
    # A type that is late for the larger sizes is often worth nothing beyond some servers; round prices are often equal.
    problem = replace(problem, price_per_hour=np.round(problem.price_per_hour, 1))
    pools, bounds = pools_and_bounds(problem, budget, split_options(problem, most_parts))
    if not bounds.any():
        refuses(problem, budget, most_parts)
        return
    found = best_pool(problem, budget, most_parts=most_parts)
    as_good = bounds >= bounds.max() * (1 - CLOSE / 2)
    assert found.cost_per_hour <= problem.cost_per_hour(pools[as_good]).min() * (1 + 1e-9)


def gpu_and_useless():
    """Of two types, one serves every size in time, the other none."""
    given = {
        "types": ("gpu", "slow"),
        "price_per_hour": np.array([0.5, 0.05]),
        "service_s": np.array([[4e-3, 6e-3], [99e-3, 103e-3]]),
        "size_weights": np.array([0.5, 0.5]),
        "sla_s": 0.012,
    }
    return PoolProblem(**given)


@pytest.mark.parametrize("most_parts", [1, 4])
@pytest.mark.parametrize(("budget", "servers"), [(0.9, 1), (2.45, 4), (400.45, 800), (40_000.4, 80_000)])
def test_servers_that_serve_nothing_are_not_bought(most_parts, budget, servers):
    found = best_pool(gpu_and_useless(), budget, most_parts=most_parts)
    assert found.counts == (servers, 0)
    assert found.cost_per_hour == pytest.approx(0.5 * servers)
    assert found.bound.bound_qps == pytest.approx(servers / 0.005)


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e-5, 1e6])
@pytest.mark.parametrize("budget", [0.7, 2.5])
def test_the_unit_of_prices_makes_no_difference(unit, budget):
    problem = three_types()
    other = replace(problem, price_per_hour=problem.price_per_hour * unit)
    assert best_pool(other, budget * unit).counts == best_pool(problem, budget).counts
    assert cheapest_pool(other) == cheapest_pool(problem) == (0, 0, 3)


@pytest.mark.parametrize(("missing", "counts"), [(1e-7, (1, 2, 9)), (3e-9, (0, 7, 3)), (1.2e-9, (2, 1, 1))])
def test_a_pool_just_beyond_the_budget_is_not_bought(missing, counts):
    problem = three_types(largest=30)
    budget = float(np.dot(counts, problem.price_per_hour)) * (1 - missing)
    assert best_pool(problem, budget).cost_per_hour <= budget * (1 + BUDGET_SLACK)


@pytest.mark.parametrize("rounds", [0, 30])
def test_servers_beyond_what_the_slow_type_can_take_are_not_bought(monkeypatch, rounds):
    """The documentation's example: of whole queries two cpus take all that they can take in time."""
    monkeypatch.setattr(hebe.planning.pool.fluid_pool, "_MOST_ROUNDS_OF_THRIFT", rounds)
    problem = PoolProblem(
        ("gpu", "cpu"),
        np.array([0.5, 0.1]),
        np.array([[4e-3, 5e-3, 6e-3], [1e-3, 2e-3, 13e-3]]),
        np.array([0.3, 0.3, 0.4]),
        0.012,
    )
    found = best_pool(problem, 1.0, most_parts=1)
    assert found.counts == (1, 1)
    assert found.bound.bound_qps == pytest.approx(1 / (0.4 * 6e-3))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_bounds_of_many_pools_hold_and_the_highest_are_exact(seed, types, most_parts):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 12)
    pools = rng.integers(0, 5, (60, types))
    options = split_options(problem, most_parts)
    exact = np.array([fluid_bound(problem, pool, options=options).bound_qps for pool in pools])
    bounds = fluid_bounds(problem, pools, most_parts=most_parts, exact=5)
    assert (bounds >= exact * (1 - 1e-8)).all()
    np.testing.assert_allclose(np.sort(bounds)[-5:], np.sort(exact)[-5:], rtol=1e-7)


def test_a_budget_that_could_not_be_enumerated():
    problem = three_types()
    with pytest.raises(PlanningError, match="different pools"):
        pools_within(problem, 300.0)
    found = best_pool(problem, 300.0)
    # The best pools of many budgets together cost as much and serve no more.
    assert found.bound.bound_qps >= 100 * best_pool(problem, 3.0).bound.bound_qps * (1 - 1e-6)


def test_most_counts_are_kept():
    problem = three_types()
    free = best_pool(problem, 3.0)
    assert max(free.counts[1:]) > 2
    held = best_pool(problem, 3.0, most_counts=(9, 2, 2))
    assert max(held.counts[1:]) <= 2
    assert held.bound.bound_qps < free.bound.bound_qps


def test_splitting_buys_more_where_large_queries_force_a_dear_type():
    problem = three_types()
    whole, split = best_pool(problem, 3.0, most_parts=1), best_pool(problem, 3.0)
    assert split.bound.bound_qps > 1.02 * whole.bound.bound_qps
    assert split.counts[0] < whole.counts[0]


def test_for_a_plan_file():
    found = best_pool(three_types(), 3.0)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["counts"] == list(found.counts)
    assert np.dot(data["counts"], data["prices_qps"]) == pytest.approx(data["bound_qps"])


@pytest.mark.parametrize(
    ("changes", "budget", "options", "message"),
    [
        ({}, 0.0, {}, "budget_per_hour is 0"),
        ({}, 0.1, {}, "in time: the cheapest that does is 3 small at 0.36, by splitting"),
        ({}, 0.3, {"most_parts": 1}, "of 0.3 buys no pool that serves .* the cheapest that does is 1 gpu at 0.5$"),
        ({}, 0.4, {"most_parts": 1}, "of 0.4 buys no pool that serves every query size"),
        ({}, 3.0, {"most_parts": 1, "most_counts": (0, 9, 9)}, "most_counts leaves no pool that serves every"),
        ({}, 3.0, {"most_counts": (0, 0, 0)}, "most_counts leaves no pool that serves every"),
        ({}, 0.2, {"most_counts": (1, 9, 2)}, "the cheapest that does is 2 cpu at 0.4, by splitting"),
        ({}, 1e9, {}, r"of 1e\+09 buys 8.333e\+09 servers of small: at most 1,000,000 of a type"),
        ({}, 3.0, {"most_counts": (0, 9)}, "most_counts has 2 entries"),
        ({}, 3.0, {"most_parts": 0}, "most_parts is 0"),
        ({"sla_s": 0.005}, 3.0, {"most_parts": 1}, "no server type serves queries of 20 items within the SLA of 0.005"),
    ],
)
def test_pools_that_cannot_be(changes, budget, options, message):
    with pytest.raises(PlanningError, match=message):
        best_pool(three_types(**changes), budget, **options)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4))
def test_the_sla_that_is_told_is_the_least_that_serves_every_size(seed, types, most_parts):
    problem = any_problem(np.random.default_rng(seed), types, 12)
    problem = replace(problem, sla_s=problem.service_s.min() * 1.03)
    try:
        best_pool(problem, 100.0, most_parts=most_parts)
    except PlanningError as fault:
        told = re.search(r"raise sla_s \(to (\S+) ms at least\)", str(fault))
    else:
        return
    least_s = float(told[1]) / 1e3
    assert best_pool(replace(problem, sla_s=least_s), 100.0, most_parts=most_parts).bound.bound_qps > 0
    with pytest.raises(PlanningError, match="no server type serves"):
        best_pool(replace(problem, sla_s=least_s * 0.998), 100.0, most_parts=most_parts)


def test_limits_keep_a_huge_budget_plannable():
    found = best_pool(three_types(), 1e9, most_counts=(100_000, 100_000, 100_000))
    assert found.counts == (100_000, 100_000, 100_000)


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 0, 3), (0, 3, 0)])
@pytest.mark.parametrize("budget", [100.0, 10_000.0])
def test_limits_far_below_the_budget_leave_the_pool_that_they_allow(counts, budget):
    found = best_pool(three_types(), budget, most_counts=counts)
    assert found.counts == counts


def test_the_largest_fleets_are_the_best_still():
    problem = three_types()
    small, large = best_pool(problem, 100.0), best_pool(problem, 100_000.0)
    assert large.bound.bound_qps == pytest.approx(1000 * small.bound.bound_qps, rel=1e-5)


def test_a_search_without_proof_is_an_error(monkeypatch):
    monkeypatch.setattr(hebe.planning.pool.fluid_pool, "_MOST_ROUNDS", 1)
    with pytest.raises(PlanningError, match=r"with .* not ruled out"):
        best_pool(three_types(), 3.0)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_the_cheapest_pool_that_serves(seed, types, most_parts, many_workers):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 12)
    if many_workers:
        problem = replace(problem, workers=tuple(rng.integers(1, 4, types).tolist()))
    options = split_options(problem, most_parts)
    able = [
        float(np.dot(pool, problem.price_per_hour))
        for pool in product(range(most_parts + 1), repeat=types)
        if any(pool) and not fluid_bound(problem, pool, options=options).unserved_items
    ]
    if not able:
        with pytest.raises(PlanningError, match="no server type serves"):
            cheapest_pool(problem, most_parts=most_parts)
        return
    found = cheapest_pool(problem, most_parts=most_parts)
    assert np.dot(found, problem.price_per_hour) == pytest.approx(min(able))
    assert not fluid_bound(problem, found, options=options).unserved_items


def test_bounds_of_pools_that_serve_nothing_in_time():
    assert fluid_bounds(three_types(sla_s=0.003), np.array([[9, 9, 9]]), most_parts=1).tolist() == [0]
    assert fluid_bounds(three_types(), np.array([[0, 0, 0], [0, 5, 0]]), most_parts=1).tolist() == [0, 0]
    assert fluid_bounds(three_types(), np.empty((0, 3), dtype=np.int64)).tolist() == []


@recorded
@pytest.mark.parametrize("model", SLA_S)
def test_on_the_recorded_data(model):
    problem = kairos_problem(model)
    whole, split = best_pool(problem, BUDGET, most_parts=1), best_pool(problem, BUDGET)
    assert split.bound.bound_qps >= whole.bound.bound_qps
    bounds = fluid_bounds(problem, pools_within(problem, BUDGET), most_parts=1)
    assert whole.bound.bound_qps == pytest.approx(bounds.max(), rel=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4), st.floats(0.5, 1.8))
def test_it_is_the_best_of_all_pools_of_servers_with_several_workers(seed, types, most_parts, budget):
    rng = np.random.default_rng(seed)
    problem = replace(any_problem(rng, types, 12), workers=tuple(rng.integers(1, 5, types).tolist()))
    pools, exact = pools_and_bounds(problem, budget, split_options(problem, most_parts))
    if not exact.any():
        refuses(problem, budget, most_parts)
        return
    found = best_pool(problem, budget, most_parts=most_parts)
    assert found.bound.bound_qps == pytest.approx(exact.max(), rel=2e-6)
    bounds = fluid_bounds(problem, pools, most_parts=most_parts, exact=5)
    assert (bounds >= exact * (1 - 1e-8)).all()
    np.testing.assert_allclose(np.sort(bounds)[-5:], np.sort(exact)[-5:], rtol=1e-7)
