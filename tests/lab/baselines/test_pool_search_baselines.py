"""What all searches have in common is tested in test_pool_search."""

import numpy as np
import pytest
from tests.examples.pool_problems import three_types

from hebe.planning.error import PlanningError
from hebe.planning.pool.pool import pools_within
from hebe_lab.baselines.pool_search import annealing_search, bayesian_search, genetic_search, random_search


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
