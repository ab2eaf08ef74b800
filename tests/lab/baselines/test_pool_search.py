"""Searches for the best pool: what all of them have in common, and what each finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.pool.fluid_pool import fluid_bounds
from hebe.planning.pool.pool import kairos_bounds, pools_within
from hebe_lab.baselines.pool_search import (
    annealing_search,
    bayesian_search,
    exhaustive,
    genetic_search,
    kairos_plus,
    random_search,
)
from tests.examples.pool_problems import BUDGET, SLA_S, any_problem, kairos_problem, recorded, three_types

GRID = 6 * 7 * 18 * 16
"""Counts that the Kairos artifact searches: up to 5, 6, 17 and 15 servers of its types."""


SEARCHES = {
    "exhaustive": lambda pools, evaluate, rng, **given: exhaustive(pools, evaluate, **given),  # noqa: ARG005
    "random": random_search,
    "genetic": genetic_search,
    "annealing": annealing_search,
    "bayesian": bayesian_search,
}


class Measured:
    """Grows with the pool; remembers what it was asked."""

    def __init__(self, weights):
        self.weights = weights
        self.asked = []

    def __call__(self, pool):
        self.asked.append(pool)
        return float(np.sqrt(np.array(pool) @ self.weights))


@given(st.integers(0, 10_000), st.integers(1, 4), st.floats(0, 1))
def test_kairos_plus_finds_the_best_under_any_true_bounds(seed, types, looseness):
    rng = np.random.default_rng(seed)
    problem = any_problem(rng, types, 3)
    pools = pools_within(problem, 1.5)
    measure = Measured(rng.uniform(0, 1, types))
    values = np.array([measure(pool) for pool in pools.tolist()])
    bounds = values * (1 + looseness * rng.random(len(pools)))
    found = kairos_plus(pools, bounds, measure)
    assert found.best_qps == values.max()
    assert found.complete
    assert measure(found.best) == found.best_qps
    assert len({pool for pool, _ in found.path}) == found.evaluations <= len(pools)
    # The same without sub-pools, for measurements that need not grow with the pool.
    noisy = dict(zip(map(tuple, pools.tolist()), (values * rng.random(len(pools))).tolist(), strict=True))
    assert kairos_plus(pools, bounds, noisy.__getitem__, prune=False).best_qps == max(noisy.values())


def test_kairos_plus_by_hand():
    pools = np.array([[1, 0], [2, 0], [0, 1], [1, 1], [0, 3]])
    bounds = np.array([5.0, 10, 4, 9, 6])
    values = {(1, 0): 5.0, (2, 0): 5.5, (0, 1): 4.0, (1, 1): 6.0, (0, 3): 6.0}
    found = kairos_plus(pools, bounds, values.__getitem__)
    # (2, 0) first, which drops its sub-pool (1, 0) and, by its bound, (0, 1); then (1, 1), which reaches the bound of
    # the last.
    assert found.path == (((2, 0), 5.5), ((1, 1), 6.0))
    assert (found.best, found.best_qps, found.evaluations, found.complete) == ((1, 1), 6.0, 2, True)


def test_a_pool_with_less_of_one_type_and_as_much_of_the_others_is_a_sub_pool():
    pools = np.array([[1, 1], [2, 0], [2, 1], [0, 2]])
    found = kairos_plus(pools, np.array([9.0, 9, 10, 9]), lambda pool: float(sum(pool)))
    assert found.path == (((2, 1), 3.0), ((0, 2), 2.0))


def test_loose_bounds_only_cost_measurements():
    problem = three_types()
    pools = pools_within(problem, 3.0)
    measure = Measured(np.array([4.0, 2, 1]))
    tight = kairos_plus(pools, np.array([measure(pool) for pool in pools.tolist()]), measure)
    loose = kairos_plus(pools, np.full(len(pools), 1e9), measure)
    assert tight.evaluations == 1
    assert loose.best_qps == tight.best_qps
    assert tight.evaluations < loose.evaluations < len(pools)


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("prune", [False, True])
def test_every_search_ends_with_the_best(search, prune):
    pools = pools_within(three_types(), 2.0)
    measure = Measured(np.array([4.0, 2, 1]))
    found = search(pools, measure, np.random.default_rng(3), prune=prune)
    assert found.complete
    assert found.best_qps == max(measure(pool) for pool in pools.tolist())
    asked = [pool for pool, _ in found.path]
    assert asked == measure.asked[: found.evaluations]
    assert len(set(asked)) == found.evaluations
    assert (found.evaluations < len(pools)) == prune or search is SEARCHES["exhaustive"]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_search_stops_when_told_and_is_reproducible(search):
    pools = pools_within(three_types(), 3.0)
    measure = Measured(np.array([4.0, 2, 1]))
    first, again = (search(pools, measure, np.random.default_rng(7), most_evaluations=12) for _ in range(2))
    assert first == again
    assert first.evaluations == 12
    assert not first.complete
    assert first.best_qps == max(value for _, value in first.path)


def test_measurements_all_alike():
    """No spread to learn from, and every pool reaches the bound."""
    pools = pools_within(three_types(), 1.0)
    for name, search in SEARCHES.items():
        found = search(pools, lambda pool: 0.0, np.random.default_rng(0), prune=False)  # noqa: ARG005
        assert found.evaluations == len(pools), name
        assert found.best_qps == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_bad_measurements(value):
    with pytest.raises(PlanningError, match=r"evaluate gave .* for the pool \(1, 1\)"):
        exhaustive(np.array([[1, 1]]), lambda pool: value)  # noqa: ARG005


@pytest.mark.parametrize(
    ("pools", "options", "message"),
    [
        (np.empty((0, 2), dtype=np.int64), {}, "at least one pool"),
        (np.array([1, 2]), {}, "at least one pool by types"),
        (np.array([[0.5, 1]]), {}, "whole counts"),
        (np.array([[-1, 1]]), {}, "whole counts"),
        (np.array([[1, 1]]), {"most_evaluations": 0}, "most_evaluations is 0"),
    ],
)
def test_bad_searches(pools, options, message):
    for search in SEARCHES.values():
        with pytest.raises(PlanningError, match=message):
            search(pools, lambda pool: 1.0, np.random.default_rng(0), **options)  # noqa: ARG005


@pytest.mark.parametrize(
    ("bounds", "message"), [([1.0, 2], "one for each of 1"), ([np.nan], "at least 0"), ([-1.0], "at least 0")]
)
def test_bad_bounds(bounds, message):
    with pytest.raises(PlanningError, match=message):
        kairos_plus(np.array([[1, 1]]), np.array(bounds), lambda pool: 1.0)  # noqa: ARG005


def falls_short(problem, pools):
    """A stand-in for measuring: the fluid bound, less what queueing takes from few servers more than from many."""
    bounds = fluid_bounds(problem, pools, most_parts=1, exact=min(len(pools), 100))
    values = bounds * (1 - 0.35 / np.sqrt(1 + pools.sum(axis=1)))
    return bounds, dict(zip(map(tuple, pools.tolist()), values.tolist(), strict=True))


def test_kairos_plus_measures_few_pools():
    problem = three_types()
    pools = pools_within(problem, 3.0)
    bounds, values = falls_short(problem, pools)
    for guide in (bounds, kairos_bounds(problem, pools)):
        found = kairos_plus(pools, guide, values.__getitem__)
        assert found.best_qps == pytest.approx(max(values.values()), rel=0.01)
        assert found.evaluations < 0.1 * len(pools)


@recorded
@pytest.mark.parametrize("model", SLA_S)
def test_kairos_plus_on_the_recorded_data(model):
    problem = kairos_problem(model)
    pools = pools_within(problem, BUDGET)
    bounds, values = falls_short(problem, pools)
    for guide in (bounds, kairos_bounds(problem, pools)):
        found = kairos_plus(pools, guide, values.__getitem__)
        assert found.best_qps == max(values.values())
        assert found.evaluations < 0.01 * GRID


def test_searches_that_learn_find_a_peak_that_random_search_does_not():
    pools = pools_within(three_types(), 4.0)
    assert len(pools) > 1_000
    peak = np.array([3, 6, 8])

    def measure(pool):
        return float(np.exp(-((np.array(pool) - peak) ** 2).sum() / 40))

    def found_within(search, evaluations):
        runs = (
            search(pools, measure, np.random.default_rng(seed), prune=False, most_evaluations=evaluations)
            for seed in range(5)
        )
        return sum(run.best_qps == 1 for run in runs)

    assert found_within(bayesian_search, 30) >= 4
    assert found_within(genetic_search, 100) >= 4
    assert found_within(annealing_search, 100) >= 4
    assert found_within(random_search, 100) <= 1


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        (genetic_search, {"population": 1}, "population is 1"),
        (genetic_search, {"mutation": 1.5}, "mutation is 1.5"),
        (annealing_search, {"heat": 0.0}, "heat is 0"),
        (annealing_search, {"cooling": 1.0}, "cooling is 1"),
    ],
)
def test_bad_settings(search, options, message):
    with pytest.raises(PlanningError, match=message):
        search(np.array([[1, 1]]), lambda pool: 1.0, np.random.default_rng(0), **options)  # noqa: ARG005
