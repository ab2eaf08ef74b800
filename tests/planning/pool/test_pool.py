import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool import kairos_bounds, plan_pool, pools_within, ranking, similarity_pick
from tests.examples.pool_problems import BUDGET, SLA_S, any_problem, kairos_problem, recorded, three_types


@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0.05, 2))
def test_pools_within_are_all_that_the_budget_buys(seed, types, budget):
    problem = any_problem(np.random.default_rng(seed), types, 3)
    ranges = [range(int(budget / price) + 1) for price in problem.price_per_hour]
    expected = [pool for pool in itertools.product(*ranges) if 0 < np.dot(pool, problem.price_per_hour) <= budget]
    if not expected:
        with pytest.raises(PlanningError, match="buys no server"):
            pools_within(problem, budget)
        return
    assert [tuple(pool) for pool in pools_within(problem, budget).tolist()] == expected


def test_a_budget_of_exactly_so_many_servers_buys_them():
    problem = three_types(price_per_hour=np.array([0.1, 0.3, 0.7]))
    pools = pools_within(problem, 0.3).tolist()
    assert [3, 0, 0] in pools
    assert [0, 1, 0] in pools


def test_most_counts_limit_the_pools():
    pools = pools_within(three_types(), 2.5, most_counts=(2, 0, 3))
    assert pools.max(axis=0).tolist() == [2, 0, 3]
    assert len(pools) == 3 * 4 - 1


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (0, {}, "budget_per_hour is 0"),
        (-1, {}, "budget_per_hour is -1"),
        (np.nan, {}, "budget_per_hour is nan"),
        (np.inf, {}, "budget_per_hour is inf"),
        (0.1, {}, "buys no server: the cheapest costs 0.12"),
        (1, {"most_counts": (0, 0, 0)}, "buys no server"),
        (1, {"most_counts": (0, 1)}, "most_counts has 2 entries for 3"),
        (1, {"most_counts": (0, 1, -1)}, "most_counts of small is -1"),
        (1e9, {}, "more than 5,000,000 different pools"),
        (5, {"most_pools": 100}, "more than 100 different pools"),
    ],
)
def test_bad_budgets(budget, options, message):
    with pytest.raises(PlanningError, match=message):
        pools_within(three_types(), budget, **options)


def paper_bound(problem, base, pool):
    """Eq. 9-15 of Kairos, written down literally for one pool."""
    weights, service_s = problem.size_weights, problem.service_s
    sizes = np.arange(1, problem.largest + 1)
    helpers = [kind for kind in range(len(pool)) if kind != base and pool[kind] and problem.reach[kind] > 0]
    q_b = 1 / (weights @ service_s[base])
    u = pool[base]
    if not helpers:
        return u * q_b
    s = max(problem.reach[kind] for kind in helpers)
    small, large = sizes <= s, sizes > s
    f = weights[small].sum()
    q_a = {kind: f / (weights[small] @ service_s[kind][small]) for kind in helpers}
    total = sum(pool[kind] * q_a[kind] for kind in helpers)
    if not large.any():
        return total + u * q_b
    q_b_large = weights[large].sum() / (weights[large] @ service_s[base][large])
    c = total * (1 - f) / f
    if u * q_b_large <= c:
        return u * q_b_large / (1 - f)
    return total / f + (u * q_b_large - c) / (u * q_b_large) * u * q_b


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_bound_is_the_papers(seed, types):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 20)
    pools = rng.integers(0, 4, (30, types))
    if (problem.reach < problem.largest).all():
        with pytest.raises(PlanningError, match="no server type meets the SLA"):
            kairos_bounds(problem, pools)
        return
    base = problem.base_type()
    expected = [paper_bound(problem, base, pool) for pool in pools.tolist()]
    np.testing.assert_allclose(kairos_bounds(problem, pools), expected, rtol=1e-9, atol=1e-9)


def test_both_cases_of_the_bound_by_hand():
    """Half the queries have 1 item, half 2; the base needs 1 and 2 s, the auxiliary type 1 s, too long for 2 items."""
    problem = three_types(
        2,
        types=("base", "auxiliary"),
        price_per_hour=np.array([1.0, 0.1]),
        service_s=np.array([[1.0, 2.0], [1.0, 9.0]]),
        size_weights=np.array([0.5, 0.5]),
        sla_s=3.0,
    )
    pools = np.array([[1, 0], [2, 1], [1, 1], [0, 3]])
    # Alone 1/1.5. With two bases: the auxiliary takes 1/s of size 1, the bases as many of size 2, which leaves nothing
    # of 2 * 1/2. One base: it is the bottleneck, 1/2 of size 2 and as many of size 1. No base: no size 2 at all.
    np.testing.assert_allclose(kairos_bounds(problem, pools), [2 / 3, 2, 1, 0])


def test_an_auxiliary_type_that_serves_nothing_counts_nothing():
    slow = three_types(service_s=np.array([np.full(100, 1e-3), np.full(100, 1.0), np.full(100, 1.0)]))
    np.testing.assert_allclose(kairos_bounds(slow, np.array([[1, 5, 5], [0, 5, 5]])), [1000, 0])


def test_ranking_puts_the_cheaper_of_equal_bounds_first():
    assert ranking(np.array([1.0, 3, 3, 3]), np.array([1.0, 9, 5, 5])).tolist() == [2, 3, 1, 0]


def test_similarity_pick():
    same = np.array([[2, 0], [2, 5], [2, 1], [9, 9]])
    assert similarity_pick(same, 0) == 0
    crowd = np.array([[9, 0], [1, 5], [1, 6], [1, 7], [2, 5], [1, 20]])
    assert similarity_pick(crowd, 0) == 3
    far = np.array([[1, 5], [2, 5], [1, 6], *[[1, 5]] * 7, *[[9, 90]] * 50])
    assert similarity_pick(far, 0) == 0  # only the first ten count
    with pytest.raises(PlanningError, match="no pool to pick from"):
        similarity_pick(np.empty((0, 2), dtype=np.int64), 0)


def test_three_pools_must_have_equally_many_of_the_base_type():
    assert similarity_pick(np.array([[2, 0], [2, 1], [3, 1]]), 0) == 1


def test_the_tenth_pool_counts():
    first, tenth = [[1], [2], [3], *[[2]] * 6], [[20]]
    assert (similarity_pick(np.array(first), 0), similarity_pick(np.array(first + tenth), 0)) == (1, 2)


def test_the_pick_does_not_depend_on_how_much_of_the_ranking_is_shown():
    plans = [plan_pool(three_types(), 1.7, head=head) for head in (1, 10, 20)]
    assert [len(plan.ranked) for plan in plans] == [1, 10, 20]
    assert {plan.pick.counts for plan in plans} == {(1, 3, 4)}
    assert plans[0].ranked[0].counts == (2, 1, 4)


def test_pools_that_cannot_serve_every_size_are_neither_ranked_nor_picked():
    plan = plan_pool(three_types(), 0.6)
    assert [pool.counts for pool in plan.ranked] == [plan.pick.counts] == [(1, 0, 0)]
    assert plan.pools > 1


def test_plan_pool():
    problem = three_types()
    plan = plan_pool(problem, 2.0, head=5)
    pools = pools_within(problem, 2.0)
    bounds = kairos_bounds(problem, pools)
    assert plan.pools == len(pools)
    assert plan.base_type == "gpu"
    assert [pool.bound_qps for pool in plan.ranked] == sorted(bounds, reverse=True)[:5]
    assert plan.pick.cost_per_hour <= 2.0
    assert plan.pick.bound_qps == kairos_bounds(problem, np.array([plan.pick.counts]))[0]
    assert plan.pick.counts[0] > 0
    assert json.loads(json.dumps(plan.to_dict()))["counts"] == list(plan.pick.counts)


def test_a_plan_is_better_than_the_best_homogeneous_pool():
    plan = plan_pool(three_types(), 2.0)
    assert plan.pick.bound_qps > 1.2 * kairos_bounds(three_types(), np.array([[4, 0, 0]]))[0]


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (0.4, {}, "below the cheapest pool that serves every query size in time: one gpu at 0.5"),
        (0.0, {}, "budget_per_hour is 0"),
        (2.0, {"most_counts": (0, 5, 5)}, "most_counts leaves no pool"),
        (2.0, {"head": 0}, "head is 0"),
    ],
)
def test_plans_that_cannot_be(budget, options, message):
    with pytest.raises(PlanningError, match=message):
        plan_pool(three_types(), budget, **options)


def test_many_pools_are_ranked_as_few_are():
    problem = three_types()
    pools = pools_within(problem, 12.0)
    assert len(pools) > 20_000
    bounds = kairos_bounds(problem, pools)
    some = np.random.default_rng(0).choice(len(pools), 50, replace=False)
    np.testing.assert_array_equal(bounds[some], kairos_bounds(problem, pools[some]))
    order = ranking(bounds, problem.cost_per_hour(pools))
    assert (np.diff(bounds[order]) <= 0).all()


@recorded
@pytest.mark.parametrize("model", SLA_S)
def test_on_the_recorded_data(model):
    plan = plan_pool(kairos_problem(model), BUDGET)
    assert plan.base_type == "g4dn.xlarge"
    assert plan.pools == 696
    assert plan.pick.counts[0] in (1, 2)
    assert plan.pick.counts[2] >= 8


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_a_server_of_several_workers_is_so_many_servers(seed, types):
    rng = np.random.default_rng(seed)
    problem = replace(three_types(), workers=(3, 1, 2))
    pools = rng.integers(0, 9, (types, 3))
    np.testing.assert_allclose(kairos_bounds(problem, pools), kairos_bounds(three_types(), pools * (3, 1, 2)))
