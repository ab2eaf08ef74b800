from dataclasses import replace

import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool_problem import PoolProblem
from hebe.profile import LatencyProfile
from tests.examples.pool_problems import three_types


def test_reach_is_the_largest_size_below_which_all_are_in_time():
    problem = three_types(10, service_s=np.array([[1.0] * 10, [1, 1, 9, 1, 1, 1, 1, 1, 1, 1], [9.0] * 10]), sla_s=2)
    assert problem.reach.tolist() == [10, 2, 0]
    assert problem.in_time[1].sum() == 9


def test_a_late_size_that_no_query_has_ends_no_reach_before_one_that_queries_have():
    service_s = np.array([[1.0, 9, 1, 1], [1, 9, 1, 9], [1, 9, 9, 9]])
    weights = np.array([0.5, 0, 0.5, 0])
    problem = three_types(4, service_s=service_s, size_weights=weights, sla_s=2)
    assert problem.reach.tolist() == [4, 3, 1]
    assert problem.base_type() == 0
    spiked = replace(problem, service_s=np.array([[1, 99.0, 1, 8], [1, 9, 9, 9], [1, 9, 9, 9]]))
    assert spiked.reach.tolist() == [3, 1, 1]
    with pytest.raises(PlanningError, match=r"gpu comes nearest with 8 s at 4 items"):
        spiked.base_type()


def test_the_safeguard_shortens_the_sla():
    assert three_types(sla_s=0.01).limit_s == pytest.approx(0.0098)
    assert three_types(sla_s=0.01, xi=1.0).limit_s == 0.01


def test_the_base_type_is_the_cheapest_per_query_of_those_in_time():
    fast, slow = np.full(5, 1.0), np.full(5, 1.5)
    common = {"types": ("a", "b"), "size_weights": np.full(5, 0.2), "sla_s": 2, "service_s": np.array([fast, slow])}
    assert three_types(5, price_per_hour=np.array([1.0, 1.0]), **common).base_type() == 0
    assert three_types(5, price_per_hour=np.array([1.6, 1.0]), **common).base_type() == 1


def test_no_base_type_is_said_with_the_nearest():
    with pytest.raises(
        PlanningError, match=r"no server type meets the SLA of 0.005 s .* gpu comes nearest .* 100 items"
    ):
        three_types(sla_s=0.005).base_type()


def test_cost():
    np.testing.assert_allclose(three_types().cost_per_hour(np.array([[1, 2, 0], [0, 0, 10]])), [0.9, 1.2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": ()}, "types is empty"),
        ({"types": ("gpu", "cpu", "gpu")}, "types names gpu more than once"),
        ({"types": ("gpu", "cpu")}, "price_per_hour has 3 entries for 2 types"),
        ({"price_per_hour": np.array([1.0, -1, 1])}, "price_per_hour of cpu is -1.0: must be positive"),
        ({"price_per_hour": np.array([1.0, 0, 1])}, "price_per_hour of cpu is 0.0: must be positive"),
        ({"price_per_hour": np.array([1.0, np.nan, 1])}, "price_per_hour holds NaN"),
        ({"price_per_hour": np.array(["dear", "x", "y"])}, "price_per_hour is not an array of numbers"),
        ({"service_s": np.ones((2, 100))}, r"service_s has shape \[2, 100\]"),
        ({"service_s": np.ones(100)}, "service_s has 1 dimensions"),
        ({"service_s": np.ones((3, 0))}, "service_s is empty"),
        ({"service_s": np.full((3, 100), np.inf)}, "service_s holds NaN or an infinity"),
        ({"service_s": np.r_[np.ones(120), -1, np.ones(179)].reshape(3, 100)}, "service_s of cpu at 21 items is -1"),
        ({"size_weights": np.full(99, 1 / 99)}, "size_weights has 99 entries, service_s 100"),
        ({"size_weights": np.r_[-0.5, 1.5, np.zeros(98)]}, "size_weights has a negative entry"),
        ({"size_weights": np.full(100, 0.02)}, "size_weights sums to 2: must be 1"),
        ({"sla_s": 0.0}, "sla_s is 0.0"),
        ({"sla_s": np.nan}, "sla_s is nan"),
        ({"sla_s": 1e-4}, "sla_s is 0.0001 .* below the fastest service time"),
        ({"xi": 0.0}, "xi is 0.0"),
        ({"xi": 1.1}, "xi is 1.1"),
    ],
)
def test_bad_problems_are_named_by_field(changes, message):
    with pytest.raises(PlanningError, match=message):
        three_types(**changes)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([[1, 2]], "must be pools by 3 types"),
        ([1, 2, 3], "must be pools by 3 types"),
        ([[1, 2, -1]], "-1 is negative"),
        ([[1.0, 2.0, 0.5]], "must be whole numbers"),
    ],
)
def test_bad_counts(pools, message):
    with pytest.raises(PlanningError, match=message):
        three_types().checked_pools(np.array(pools))


def test_figures_cannot_be_changed_afterwards():
    prices = np.array([0.5, 0.2, 0.12])
    problem = three_types(price_per_hour=prices)
    prices[0] = 99
    assert problem.price_per_hour[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        problem.price_per_hour[0] = 1


def test_from_profiles():
    profiles = {
        ("m", "a"): LatencyProfile((1, 3), (0.1, 0.3), (0.0, 0.0)),
        ("m", "b"): LatencyProfile((1, 2, 4), (0.2, 0.2, 0.6), (0.0,) * 3),
    }
    weights = np.full(4, 0.25)
    problem = PoolProblem.from_profiles("m", {"a": 1.0, "b": 0.5}, profiles, weights, 1.0)
    np.testing.assert_allclose(problem.service_s, [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.4, 0.6]])
    assert problem.types == ("a", "b")
    with pytest.raises(PlanningError, match="none of model m on server type c"):
        PoolProblem.from_profiles("m", {"a": 1.0, "c": 0.5}, profiles, weights, 1.0)
    with pytest.raises(PlanningError, match="types is empty"):
        PoolProblem.from_profiles("m", {}, profiles, weights, 1.0)


def test_a_server_of_several_workers_is_cheaper_per_query():
    problem = three_types(sla_s=1.0)
    dear = problem.base_type()
    workers = tuple(1 if kind == dear else 50 for kind in range(3))
    assert replace(problem, workers=workers).base_type() != dear
    for bad in ((1, 2), (1, 1, 0)):
        with pytest.raises(PlanningError, match="workers is"):
            replace(problem, workers=bad)
