from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from hebe.planning.error import PlanningError
from hebe.planning.pool.query_size_monitor import QuerySizeMonitor, size_weights
from hebe.workload.query_sizes import LogNormalSizes, NormalSizes, ProductionSizes

FLAT = np.full(20, 0.05)


def test_size_weights():
    np.testing.assert_allclose(size_weights([1, 3, 3, 9], 4), [0.25, 0, 0.5, 0.25])
    for sizes, message in (([], "sizes is empty"), ([0], "query size is 0"), ([1.5], "whole numbers")):
        with pytest.raises(PlanningError, match=message):
            size_weights(sizes, 4)
    with pytest.raises(PlanningError, match="largest is 0"):
        size_weights([1], 0)


@given(st.lists(st.lists(st.integers(1, 30), max_size=25), max_size=12), st.integers(1, 20), st.booleans())
def test_the_window_holds_the_last_queries(batches, window, one_by_one):
    monitor = QuerySizeMonitor(FLAT, window=window, least_queries=1)
    last = deque(maxlen=window)
    for number, batch in enumerate(batches):
        if one_by_one and number % 2:
            for size in batch:
                monitor.observe(size)
        else:
            monitor.observe_many(np.array(batch, dtype=np.int64))
        last.extend(batch)
        assert monitor.queries == len(last)
        if last:
            np.testing.assert_allclose(monitor.weights(), size_weights(list(last), 20))


@given(st.integers(0, 1000), st.integers(5, 300), st.integers(5, 300))
def test_the_distance_is_kolmogorovs_and_smirnovs(seed, planned, seen):
    rng = np.random.default_rng(seed)
    first, second = rng.integers(1, 15, planned), rng.integers(1, 21, seen)
    monitor = QuerySizeMonitor(size_weights(first, 20))
    monitor.observe_many(second)
    assert monitor.distance() == pytest.approx(ks_2samp(first, second, method="asymp").statistic)


def test_a_shift_is_seen_and_sameness_is_not():
    rng = np.random.default_rng(0)
    planned = size_weights(LogNormalSizes().draw(10_000, rng), 999)
    for seed in range(20):
        monitor = QuerySizeMonitor(planned, planned_from=10_000)
        monitor.observe_many(LogNormalSizes().draw(1_000 + 500 * seed, np.random.default_rng(seed)))
        assert not monitor.shifted()
    monitor.observe_many(NormalSizes(256, 32, 999).draw(3_000, rng))
    assert monitor.shifted()
    monitor.plan_for(monitor.weights(), planned_from=monitor.queries)
    assert not monitor.shifted()
    monitor.observe_many(NormalSizes(256, 32, 999).draw(10_000, rng))
    assert monitor.shifted()  # from the mixture that the last plan was made for


def test_too_few_queries_say_nothing():
    monitor = QuerySizeMonitor(FLAT, least_queries=100)
    assert monitor.distance() == 0
    assert not monitor.shifted()
    for _ in range(99):
        monitor.observe(20)
    assert monitor.distance() > 0.9
    assert not monitor.shifted()
    monitor.observe(20)
    assert monitor.shifted()


def test_chance_is_allowed_for_when_queries_are_few():
    sizes = ProductionSizes().draw(50, np.random.default_rng(2))
    planned = size_weights(ProductionSizes().draw(100_000, np.random.default_rng(1)), 999)
    monitor = QuerySizeMonitor(planned, threshold=0.01, least_queries=50)
    monitor.observe_many(sizes)
    assert monitor.distance() > 0.01
    assert not monitor.shifted()


@pytest.mark.parametrize(("small", "shifted"), [(585, False), (586, True)])
def test_what_chance_brings_about_is_massarts_bound(small, shifted):
    """Of 1,000 queries: sqrt(ln(2 / 1e-6) / 2,000) = 0.0852."""
    monitor = QuerySizeMonitor(np.array([0.5, 0.5]))
    monitor.observe_many([1] * small + [2] * (1000 - small))
    assert monitor.shifted() == shifted


def test_a_new_plan_may_know_larger_queries():
    monitor = QuerySizeMonitor(FLAT)
    monitor.observe_many([5, 25, 30])
    np.testing.assert_allclose(monitor.weights()[[4, 19]], [1 / 3, 2 / 3])
    monitor.plan_for(np.full(40, 1 / 40))
    np.testing.assert_allclose(monitor.weights()[[4, 24, 29]], 1 / 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planned": np.empty(0)}, "planned must be"),
        ({"planned": np.array([0.5, np.nan])}, "planned must be"),
        ({"planned": np.array([1.5, -0.5])}, "planned must be"),
        ({"planned": np.array([0.5, 0.4])}, "planned sums to 0.9"),
        ({"planned_from": 0}, "planned_from is 0"),
        ({"planned_from": np.nan}, "planned_from is nan"),
        ({"window": 0}, "least_queries is 1000"),
        ({"least_queries": 0}, "least_queries is 0"),
        ({"threshold": 0.0}, "threshold is 0"),
        ({"threshold": 1.0}, "threshold is 1"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(PlanningError, match=message):
        QuerySizeMonitor(**{"planned": FLAT, **options})


def test_bad_sizes():
    monitor = QuerySizeMonitor(FLAT)
    with pytest.raises(PlanningError, match="no query was observed"):
        monitor.weights()
    with pytest.raises(PlanningError, match="query size is 0"):
        monitor.observe(0)
    with pytest.raises(PlanningError, match="query size is -3"):
        monitor.observe_many([1, -3])
    with pytest.raises(PlanningError, match="whole numbers"):
        monitor.observe_many(np.array([1.5]))
    assert monitor.queries == 0
