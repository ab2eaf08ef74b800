from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_bound import fluid_bound
from hebe.planning.pool.split_options import split_options
from tests.examples.pool_problems import SLA_S, any_problem, kairos_problem, recorded, three_types


def written_out(problem, pool, options):
    """The linear program with a column for every option and size, solved by HiGHS; 0 if a size cannot be served."""
    usable = [
        (at, column)
        for at, column in np.argwhere(np.isfinite(options.finish_s)).tolist()
        if (options.parts[at] <= pool).all()
    ]
    if len({column for _, column in usable}) < problem.largest:
        return 0.0
    time = np.zeros((len(pool), len(usable) + 1))
    share = np.zeros((problem.largest, len(usable) + 1))
    share[:, -1] = -problem.size_weights
    for variable, (at, column) in enumerate(usable):
        time[options.first[at], variable] += options.first_load_s[at, column]
        time[options.second[at], variable] += options.second_load_s[at, column]
        share[column, variable] = 1
    objective = np.zeros(len(usable) + 1)
    objective[-1] = -1
    solved = linprog(objective, A_ub=time, b_ub=pool, A_eq=share, b_eq=np.zeros(problem.largest), method="highs")
    return -solved.fun


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 20), st.integers(1, 4))
def test_it_is_the_optimum_of_the_linear_program(seed, types, sizes, most_parts):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, sizes)
    options = split_options(problem, most_parts)
    pool = rng.integers(0, 5, types)
    found = fluid_bound(problem, pool, most_parts=most_parts)
    assert found.bound_qps == pytest.approx(written_out(problem, pool, options), rel=1e-6)
    assert found.reached_qps == pytest.approx(found.bound_qps, rel=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3))
def test_the_plan_reaches_it_and_the_prices_prove_it(seed, types, most_parts):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 15)
    pool = rng.integers(0, 6, types)
    found = fluid_bound(problem, pool, most_parts=most_parts)
    if found.unserved_items:
        assert found.bound_qps == 0
        assert found.shares(found.unserved_items) == {}
        return
    options = found.options
    busy_s = np.zeros(types)
    cheapest = 0.0
    for size in range(1, 16):
        shares = found.shares(size)
        assert sum(shares.values()) == pytest.approx(1)
        loads = {}
        for at in np.flatnonzero(np.isfinite(options.finish_s[:, size - 1])).tolist():
            loads[at] = np.zeros(types)
            loads[at][options.first[at]] += options.first_load_s[at, size - 1]
            loads[at][options.second[at]] += options.second_load_s[at, size - 1]
        busy_s += problem.size_weights[size - 1] * sum(share * loads[at] for at, share in shares.items())
        cheapest += problem.size_weights[size - 1] * min(load @ found.prices_qps for load in loads.values())
    assert (found.reached_qps * busy_s <= pool * (1 + 1e-9)).all()
    np.testing.assert_allclose(found.busy_share * pool, found.reached_qps * busy_s, rtol=1e-9, atol=1e-12)
    # A query needs at least `cheapest` = 1 of the prices, the servers have so much of them per second.
    assert cheapest == pytest.approx(1)
    assert found.prices_qps @ pool == pytest.approx(found.bound_qps)
    assert (found.prices_qps >= 0).all()


def test_no_type_of_the_pool_is_given_away_by_the_prices_to_split_by():
    found = fluid_bound(three_types(), (3, 1, 0), most_parts=2)
    prices = found.splitting_prices_qps()
    assert prices[2] == 0
    assert min(prices[:2]) >= 0.01 * max(prices) > 0
    for own, price in zip(found.prices_qps.tolist(), prices, strict=True):
        assert price == own or own < price == 0.01 * max(prices)


def test_a_homogeneous_pool_by_hand():
    problem = three_types()
    found = fluid_bound(problem, (3, 0, 0))
    assert found.bound_qps == pytest.approx(3 / (problem.service_s[0] @ problem.size_weights))
    assert found.shares(100) == {0: 1.0}
    assert found.busy_share.tolist() == pytest.approx([1, 0, 0])


def test_two_types_by_hand():
    """Halves of 1 and 2 items; the slow type serves 1 item only, in the same second as the fast one."""
    problem = three_types(
        2,
        types=("fast", "slow"),
        price_per_hour=np.array([1.0, 0.1]),
        service_s=np.array([[1.0, 2.0], [1.0, 9.0]]),
        size_weights=np.array([0.5, 0.5]),
        sla_s=3.0,
    )
    assert fluid_bound(problem, (1, 0)).bound_qps == pytest.approx(2 / 3)
    assert fluid_bound(problem, (1, 1)).bound_qps == pytest.approx(1)  # the fast one has 1 s for size 2
    assert fluid_bound(problem, (4, 1)).bound_qps == pytest.approx(10 / 3)  # 5 = rate (2 + 1) / 2: all busy
    assert fluid_bound(problem, (0, 5)).unserved_items == 2
    split = fluid_bound(problem, (0, 5), most_parts=2)
    assert split.bound_qps == pytest.approx(5 / 1.5)
    assert [split.options.parts[[*split.shares(size)]].tolist() for size in (1, 2)] == [[[0, 1]], [[0, 2]]]
    assert fluid_bound(problem, (0, 1), most_parts=2).unserved_items == 2  # no second server for the other half


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_more_servers_and_more_parts_never_serve_less(seed, types):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 15)
    pool = rng.integers(0, 4, types)
    more = pool + rng.integers(0, 2, types)
    few = fluid_bound(problem, pool, most_parts=2).bound_qps
    assert fluid_bound(problem, more, most_parts=2).bound_qps >= few * (1 - 1e-8)
    assert fluid_bound(problem, pool, most_parts=4).bound_qps >= few * (1 - 1e-8)
    assert fluid_bound(problem, pool).bound_qps <= few * (1 + 1e-8)


def test_sizes_that_do_not_occur_need_not_be_served():
    weights = np.r_[np.full(50, 1 / 50), np.zeros(50)]
    found = fluid_bound(three_types(size_weights=weights), (0, 2, 0))
    assert found.bound_qps > 0
    assert found.shares(50) == {0: 1.0}
    assert found.shares(100) == {}


def test_bad_input():
    problem = three_types()
    with pytest.raises(PlanningError, match="-1 is negative"):
        fluid_bound(problem, (1, -1, 0))
    with pytest.raises(PlanningError, match="3 types"):
        fluid_bound(problem, (1, 1))
    with pytest.raises(PlanningError, match="most_parts is 0"):
        fluid_bound(problem, (1, 1, 1), most_parts=0)
    with pytest.raises(PlanningError, match="query size is 0"):
        fluid_bound(problem, (1, 1, 1)).shares(0)
    assert fluid_bound(problem, (0, 0, 0)).bound_qps == 0


def equal_parts_or_not(problem, prices, most_doublings):
    """The least price of a query of each size if it may be cut into any whole parts on any types, by recursion."""
    price = np.min(np.where(problem.in_time, prices[:, None] * problem.service_s, np.inf), axis=0)
    price = np.r_[0.0, price]
    for _ in range(most_doublings):
        for size in range(problem.largest, 1, -1):
            price[size] = min(price[size], (price[1 : size // 2 + 1] + price[size - 1 : (size - 1) // 2 : -1]).min())
    return price[1:]


def test_no_other_way_to_split_is_much_better_on_made_up_types():
    """Equal parts, and parts that finish together, are nearly all there is to splitting: at the bound's own prices any
    other parts save a query at most 2%."""
    problem = three_types(sla_s=0.008)
    found = fluid_bound(problem, (3, 6, 9), most_parts=4)
    least = equal_parts_or_not(problem, found.prices_qps, 2)
    assert 0.98 < least @ problem.size_weights <= 1 + 1e-9


@recorded
@pytest.mark.parametrize("model", SLA_S)
def test_nor_on_the_recorded_data(model):
    problem = kairos_problem(model)
    found = fluid_bound(problem, (1, 1, 6, 6), most_parts=4)
    least = equal_parts_or_not(problem, found.prices_qps, 2)
    assert 0.98 < least @ problem.size_weights <= 1 + 1e-9


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_a_server_of_several_workers_is_so_many_servers(seed, types, most_parts):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 12)
    pool, workers = rng.integers(0, 4, types), rng.integers(1, 5, types)
    found = fluid_bound(replace(problem, workers=tuple(workers.tolist())), pool, most_parts=most_parts)
    alike = fluid_bound(problem, pool * workers, most_parts=most_parts)
    assert found.bound_qps == pytest.approx(alike.bound_qps)
    assert found.busy_share == pytest.approx(alike.busy_share)
    assert found.prices_qps == pytest.approx(alike.prices_qps * workers)
    assert found.splitting_prices_qps() == pytest.approx(alike.splitting_prices_qps())
    assert found.counts @ found.prices_qps == pytest.approx(found.bound_qps)
