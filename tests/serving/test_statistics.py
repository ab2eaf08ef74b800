from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.query import KeyCounts, QueryResult
from hebe.serving.statistics import LATENCY_BOUNDS_S, SIZE_BOUNDS, STAGE_BOUNDS_S, Histogram, Statistics


def result(latency_s=0.01, defaulted=0):
    scores = np.zeros((1, 1), np.float32)
    return QueryResult(1, scores, latency_s, 0.001, 0.002, 0.003, KeyCounts(10, defaulted))


@given(st.lists(st.floats(0, 10)))
def test_a_value_counts_in_the_first_bucket_that_holds_it(values):
    histogram = Histogram(LATENCY_BOUNDS_S)
    for value in values:
        histogram.add(value)
    below = np.cumsum(histogram.counts)
    for bound, count in zip(LATENCY_BOUNDS_S, below, strict=False):
        assert count == sum(value <= bound for value in values)
    assert below[-1] == len(values)
    assert histogram.sum == pytest.approx(sum(values))


@pytest.mark.parametrize("bounds", [LATENCY_BOUNDS_S, STAGE_BOUNDS_S, SIZE_BOUNDS])
def test_bounds_rise(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_a_document_adds_up():
    model = Statistics().of("m", 3, 0.02)
    model.query_answered(5, result(0.01), 0.0005)
    model.query_answered(7, result(0.03, defaulted=4), 0.0005)
    model.answer_encoded(0.0002)
    model.query_refused("queue_full", 0.1)
    model.batch_ran(12, 0.004, 0.006)
    document = model.document()
    assert document["name"] == "m"
    assert document["version"] == "3"
    assert document["inference_count"] == 12
    assert document["execution_count"] == 1
    assert document["last_inference"] > 1_600_000_000_000
    times = document["inference_stats"]
    assert times["success"] == {"count": 2, "ns": 40_000_000}
    assert times["fail"] == {"count": 1, "ns": 100_000_000}
    assert times["queue"] == {"count": 2, "ns": 2_000_000}
    assert times["compute_input"] == {"count": 2, "ns": 1_000_000}
    assert times["compute_infer"] == {"count": 2, "ns": 10_000_000}
    assert times["compute_output"] == {"count": 1, "ns": 200_000}
    (batch,) = document["batch_stats"]
    assert batch["batch_size"] == 12
    assert batch["compute_infer"] == {"count": 1, "ns": 10_000_000}
    assert model.within_sla == 1
    assert (model.keys.total, model.keys.defaulted) == (20, 4)


def test_models_are_found_by_name_and_version():
    statistics = Statistics()
    for name, version in (("b", 1), ("a", 2), ("a", 10)):
        statistics.of(name, version, 0.1)
    found = [(model.name, model.version) for model in statistics.find()]
    assert found == [("a", 2), ("a", 10), ("b", 1)]
    assert [model.version for model in statistics.find("a", "10")] == [10]
    assert statistics.find("c") == []
    assert statistics.of("b", 1, 0.2) is statistics.of("b", 1, 0.2)


def test_batches_may_be_counted_from_any_thread():
    model = Statistics().of("m", 1, 0.1)

    def run() -> None:
        for _ in range(2000):
            model.batch_ran(3, 0.001, 0.001)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.executions == 8000
    assert model.batches[3].count == 8000


def test_latency_percentiles_are_those_of_the_histogram():
    histogram = Statistics().of("ranker", 1, 0.05).latency_s
    assert histogram.quantile(0.5) is None
    for latency_s in [0.0015] * 50 + [0.04] * 49 + [60.0]:
        histogram.add(latency_s)
    assert 0.001 < histogram.quantile(0.25) < histogram.quantile(0.5) <= 0.002
    assert 0.03 < histogram.quantile(0.95) <= 0.05
    assert histogram.quantile(1.0) == histogram.bounds[-1]


def test_attainment_counts_what_was_refused_for_want_of_time_failed_or_given_up_late_as_missed():
    counted = Statistics().of("ranker", 1, 0.05)
    for latency_s in (0.01, 0.01, 0.01, 0.2):
        counted.query_answered(1, result(latency_s), 0.0)
    counted.query_refused("deadline", 0.0)
    counted.query_refused("invalid", 0.0)
    counted.query_refused("deadline", 0.0, allowed_s=0.01)  # its client gave it less time than the model's bound
    counted.query_refused("cancelled", 0.01)
    assert counted.sla_attainment == 3 / 5
    assert counted.refused == {"deadline": 2, "invalid": 1, "cancelled": 1}
    counted.query_refused("cancelled", 0.06)
    counted.query_refused("failed", 0.001, failed=True)
    assert counted.sla_attainment == 3 / 7
