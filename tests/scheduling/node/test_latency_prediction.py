from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import LatencyProfile
from hebe.scheduling.node.latency_prediction import LatencyPredictor


def test_learns_a_line_from_two_sizes():
    predictor = LatencyPredictor(LatencyProfile((10, 100), (0.002, 0.011), (0.0, 0.0)))
    assert predictor.service_time_s(50) == pytest.approx(0.006, rel=0.02)


def test_one_size_only_is_taken_as_proportional():
    predictor = LatencyPredictor(LatencyProfile((100,), (0.010,), (0.0,)))
    assert predictor.service_time_s(50) == pytest.approx(0.005)


def test_the_table_corrects_the_line_where_sizes_are_far_from_it():
    rng = np.random.default_rng(1)
    predictor = LatencyPredictor()
    truth = {1: 0.004, 64: 0.005, 256: 0.006, 1024: 0.060}  # out of cache beyond 256
    for _ in range(400):
        items = int(rng.choice(list(truth)))
        predictor.observe(items, truth[items] * rng.normal(1.0, 0.05))
    for items, service_s in truth.items():
        assert predictor.service_time_s(items) == pytest.approx(service_s, rel=0.2)


def test_a_size_is_the_line_s_until_enough_batches_of_it_were_seen_and_then_its_own():
    predictor = LatencyPredictor()
    for _ in range(200):
        for items in (10, 1000):
            predictor.observe(items, items * 1e-4)
    for _ in range(3):
        predictor.observe(60, 0.018)
    assert predictor.service_time_s(60) == pytest.approx(0.006, rel=0.1)
    predictor.observe(60, 0.018)
    assert predictor.service_time_s(60) == pytest.approx(0.018)


def test_follows_a_server_that_became_slower():
    predictor = LatencyPredictor()
    for slowdown in (1.0, 3.0):
        for _ in range(1500):
            for items in (10, 100):
                predictor.observe(items, slowdown * items * 1e-4)
    assert predictor.service_time_s(100) == pytest.approx(0.03, rel=0.1)
    assert predictor.service_time_s(50) == pytest.approx(0.015, rel=0.1), "a size never seen: the line follows, too"


def test_one_stall_hardly_moves_it():
    predictor = LatencyPredictor()
    for _ in range(200):
        predictor.observe(50, 0.005)
        predictor.observe(100, 0.010)
    predictor.observe(100, 5.0)
    assert predictor.service_time_s(100) == pytest.approx(0.010, rel=0.3)


def test_a_stall_among_sizes_close_together_does_not_make_large_batches_take_minutes():
    predictor = LatencyPredictor()
    predictor.observe(63, 0.001)
    predictor.observe(64, 0.201)
    assert predictor.service_time_s(300) <= 300 * 0.201 / 64


OBSERVED = st.lists(st.tuples(st.integers(1, 2000), st.floats(1e-5, 1.0)), min_size=1, max_size=12)


@given(OBSERVED, st.integers(1, 2000))
def test_no_size_is_predicted_to_take_longer_than_the_slowest_batch_or_the_most_costly_item(observed, items):
    predictor = LatencyPredictor()
    for size, service_s in observed:
        predictor.observe(size, service_s)
    slowest_s = max(service_s for _, service_s in observed)
    most_costly_s = max(service_s / size for size, service_s in observed)
    assert 0 < predictor.fixed_s + predictor.per_item_s * items <= 1.001 * max(slowest_s, most_costly_s * items)


def test_without_observations_it_answers_something_positive():
    assert LatencyPredictor().service_time_s(10) > 0


def test_the_tail_time_is_what_nine_in_ten_batches_take_at_most():
    rng = np.random.default_rng(2)
    steady, burstable = LatencyPredictor(), LatencyPredictor()
    for _ in range(4000):
        items = int(rng.integers(10, 500))
        steady.observe(items, items * 1e-4 * rng.normal(1.0, 0.005))
        burstable.observe(items, items * 1e-4 * rng.lognormal(0.0, 0.2))
    assert steady.tail_time_s(100) == pytest.approx(0.01, rel=0.03)
    assert burstable.tail_time_s(100) == pytest.approx(0.01 * np.exp(1.2816 * 0.2), rel=0.06)


def test_the_tail_time_is_never_below_the_predicted_time_and_counts_what_the_safeguard_spares():
    predictor = LatencyPredictor()
    for _ in range(300):
        predictor.observe(100, 0.01)
    assert predictor.tail_time_s(100, 0.5) == predictor.service_time_s(100)
    for at in range(3000):
        predictor.observe(100, 0.008 if at % 5 else 0.018)  # one in five: the 90th percentile is the slow one
    assert predictor.tail_time_s(100, 0.5) == predictor.service_time_s(100)
    assert predictor.tail_time_s(100, 0.9) == pytest.approx(0.9 * predictor.tail_time_s(100))
    assert predictor.tail_time_s(100) > 1.5 * predictor.service_time_s(100)


def test_the_tail_time_forgets_bad_times():
    predictor = LatencyPredictor()
    for at in range(500):
        predictor.observe(100, 0.01 if at % 2 else 0.02)
    assert predictor.tail_time_s(100) > 1.2 * predictor.service_time_s(100)
    for _ in range(2000):
        predictor.observe(100, 0.01)
    assert predictor.tail_time_s(100) == pytest.approx(0.01, rel=0.02)
