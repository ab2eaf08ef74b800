from __future__ import annotations

import numpy as np
import pytest

from hebe.profile import LatencyProfile
from hebe.scheduling.latency_prediction import LatencyPredictor


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


def test_follows_a_server_that_became_slower():
    predictor = LatencyPredictor()
    for slowdown in (1.0, 3.0):
        for _ in range(1500):
            for items in (10, 100):
                predictor.observe(items, slowdown * items * 1e-4)
    assert predictor.service_time_s(100) == pytest.approx(0.03, rel=0.1)


def test_one_stall_hardly_moves_it():
    predictor = LatencyPredictor()
    for _ in range(200):
        predictor.observe(50, 0.005)
        predictor.observe(100, 0.010)
    predictor.observe(100, 5.0)
    assert predictor.service_time_s(100) == pytest.approx(0.010, rel=0.3)


def test_without_observations_it_answers_something_positive():
    assert LatencyPredictor().service_time_s(10) > 0
