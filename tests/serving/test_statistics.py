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
    model.query_answered(5, result(0.01), 0.0005, 0.0008)
    model.query_answered(7, result(0.03, defaulted=4), 0.0005, 0.0008)
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
    assert times["success"] == {"count": 2, "ns": 40_200_000}
    assert times["fail"] == {"count": 1, "ns": 100_000_000}
    assert times["queue"] == {"count": 2, "ns": 400_000}
    assert times["compute_input"] == {"count": 2, "ns": 1_000_000}
    assert times["compute_infer"] == {"count": 2, "ns": 10_000_000}
    assert times["compute_output"] == {"count": 1, "ns": 200_000}
    (batch,) = document["batch_stats"]
    assert batch["batch_size"] == 12
    assert batch["compute_infer"] == {"count": 1, "ns": 10_000_000}
    assert model.within_sla == 1
    assert (model.keys.total, model.keys.defaulted) == (20, 4)


def timed(**times):
    return QueryResult(1, np.zeros((1, 1), np.float32), **times)


SECONDS = st.floats(0, 10)


@given(SECONDS, SECONDS, SECONDS, st.tuples(SECONDS, SECONDS, SECONDS), SECONDS, SECONDS)
def test_the_parts_of_an_answered_query_are_no_more_than_its_time(received, decode, waited, work, busy, encode):
    """Neither is decoding counted twice, nor are the parts of a split query, which run side by side."""
    sparse, loading, dense = work
    queue = received + decode + waited
    answer = timed(latency_s=queue + busy, queue_s=queue, sparse_s=sparse, loading_s=loading, dense_s=dense)
    model = Statistics().of("m", 1, 0.05)
    model.query_answered(1, answer, decode, received + decode)
    model.answer_encoded(encode)
    assert model.queue.seconds == pytest.approx(waited, abs=1e-9)
    parts = (model.queue, model.compute_input, model.compute_infer, model.compute_output)
    assert sum(part.seconds for part in parts) <= model.success.seconds + 1e-9


def test_the_way_of_inputs_to_an_accelerator_is_counted():
    model = Statistics().of("m", 1, 0.05)
    model.query_answered(
        1, timed(latency_s=0.01, queue_s=0.001, sparse_s=0.002, loading_s=0.004, dense_s=0.003), 0.0005, 0.001
    )
    times = model.document()["inference_stats"]
    assert times["compute_input"]["ns"] == 4_500_000
    assert times["compute_infer"]["ns"] == 5_000_000
    stages = {stage: histogram.sum for stage, histogram in model.stage_s.items()}
    assert stages == pytest.approx({"queue": 0.001, "sparse": 0.002, "dense": 0.007})
    assert sum(stages.values()) == pytest.approx(0.01), "the latency"


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
        counted.query_answered(1, result(latency_s), 0.0, 0.0)
    counted.query_refused("deadline", 0.0)
    counted.query_refused("invalid", 0.0)
    counted.query_refused("deadline", 0.0, allowed_s=0.01)  # its client gave it less time than the model's bound
    counted.query_refused("cancelled", 0.01)
    assert counted.sla_attainment == 3 / 5
    assert counted.refused == {"deadline": 2, "invalid": 1, "cancelled": 1}
    counted.query_refused("cancelled", 0.06)
    counted.query_refused("failed", 0.001, failed=True)
    assert counted.sla_attainment == 3 / 7
