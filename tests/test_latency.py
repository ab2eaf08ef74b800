import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.latency import BUCKETS_PER_OCTAVE, EXACT_ANSWERS, LatencyRecorder, attainment, percentile_of
from hebe.spec import SlaTarget

SLA = SlaTarget(100.0, 95.0)


def recorder_of(latencies, sla=SLA):
    recorder = LatencyRecorder(sla)
    recorder.record_many(latencies)
    return recorder


def flat(recorder):
    counted = recorder.to_dict()
    return {**counted, "refused": sum(counted["refused"].values()), "failed": sum(counted["failed"].values())}


def nearest_rank(latencies, percentile):
    return float(np.percentile(latencies, percentile, method="inverted_cdf"))


@given(st.lists(st.floats(0, 10), min_size=1), st.sampled_from([50, 95, 99, 99.9, 100]))
def test_a_percentile_of_samples_is_one_of_them_and_the_recorders(samples, percentile):
    assert percentile_of(samples, percentile) == nearest_rank(samples, percentile) in samples
    assert percentile_of(samples, percentile) == recorder_of(samples).percentile_s(percentile)


def test_percentiles_of_few_are_exact():
    recorder = recorder_of(np.arange(1, 1001) / 1e3)
    assert recorder.percentile_s(50) == 0.5
    assert recorder.percentile_s(95) == 0.95
    assert recorder.percentile_s(99.9) == 0.999
    assert recorder.percentile_s(100) == 1.0
    assert recorder.percentile_s(0.01) == 0.001


def test_one_by_one_is_the_same_as_all_at_once():
    latencies = np.random.default_rng(1).lognormal(-4, 1, 10_000)
    slowly = LatencyRecorder(SLA)
    for latency in latencies:
        slowly.record(float(latency), items=2)
    at_once = LatencyRecorder(SLA)
    at_once.record_many(latencies, items=20_000)
    assert flat(slowly) == pytest.approx(flat(at_once))
    assert slowly.items == 20_000


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.floats(-12, 4), st.floats(0, 3), st.integers(EXACT_ANSWERS + 1, 60_000))
def test_percentiles_of_many_are_within_the_stated_error(seed, mu, sigma, count):
    latencies = np.random.default_rng(seed).lognormal(mu, sigma, count).clip(max=1e5)
    recorder = LatencyRecorder()
    half_a_bucket = 2 ** (0.5 / BUCKETS_PER_OCTAVE) - 1
    for part in np.array_split(latencies, 7):
        recorder.record_many(part)
    for percentile in (1, 50, 95, 99, 99.9, 100):
        true = nearest_rank(latencies, percentile)
        assert recorder.percentile_s(percentile) == pytest.approx(true, rel=half_a_bucket * 1.001, abs=1e-7)


def test_memory_is_bounded():
    recorder = LatencyRecorder()
    for _ in range(10):
        recorder.record_many(np.random.default_rng(0).random(20_000))
    kept = sum(a.nbytes for a in vars(recorder).values() if isinstance(a, np.ndarray))
    assert kept < 64 * 1024
    assert recorder.answers == 200_000


def test_extreme_latencies_are_kept_in_range():
    recorder = recorder_of(np.concatenate((np.zeros(20_000), [1e7])))
    assert recorder.percentile_s(50) == pytest.approx(1e-7, rel=0.01)
    assert recorder.summary().largest_s == 1e7
    assert recorder.percentile_s(100) <= 1e7


def test_refusals_and_failures_count_as_missed():
    recorder = recorder_of([0.05, 0.1, 0.1001, 0.2])
    recorder.refuse("503", 3)
    recorder.refuse("429")
    recorder.fail("connection closed", 2)
    assert recorder.arrivals == 10
    assert recorder.sla_attainment == pytest.approx(0.2)
    assert recorder.refused == {"503": 3, "429": 1}
    assert recorder.failed == {"connection closed": 2}


def test_nothing_recorded():
    recorder = LatencyRecorder(SLA)
    assert math.isnan(recorder.percentile_s(99))
    assert math.isnan(recorder.sla_attainment)
    assert recorder.samples_s().size == 0
    assert recorder.histogram() == []
    assert recorder.to_dict()["p99_ms"] is None
    json.dumps(recorder.to_dict(), allow_nan=False)


def test_without_a_target_there_is_no_attainment():
    assert math.isnan(recorder_of([0.1], sla=None).sla_attainment)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=3), st.integers(0, 2**32))
def test_merging_parts_is_recording_the_whole(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.lognormal(-3, 1, size) for size in sizes]
    merged = LatencyRecorder(SLA)
    for part in parts:
        one = recorder_of(part)
        one.refuse("503")
        merged.merge(one)
    whole = recorder_of(np.concatenate(parts))
    whole.refuse("503", len(parts))
    assert flat(merged) == pytest.approx(flat(whole))
    assert merged.histogram() == whole.histogram()


def test_merging_a_spilled_recorder_into_a_fresh_one():
    latencies = np.random.default_rng(3).lognormal(-3, 1, 30_000)
    merged = recorder_of(latencies[:100])
    merged.merge(recorder_of(latencies[100:]))
    assert flat(merged) == pytest.approx(flat(recorder_of(latencies)))


def test_different_targets_do_not_merge():
    with pytest.raises(ValueError, match="different SLA targets"):
        LatencyRecorder(SLA).merge(LatencyRecorder(None))


@pytest.mark.parametrize("count", [10, 500, EXACT_ANSWERS, 50_000])
def test_samples_stand_for_all(count):
    latencies = np.random.default_rng(count).lognormal(-3, 0.5, count)
    samples = recorder_of(latencies).samples_s(1000)
    assert len(samples) == min(count, 1000)
    assert np.all(np.diff(samples) >= 0)
    for percentile in (50, 95):
        assert nearest_rank(samples, percentile) == pytest.approx(nearest_rank(latencies, percentile), rel=0.01)


def test_histogram_holds_every_answer():
    for count in (100, 40_000):
        latencies = np.random.default_rng(count).lognormal(-3, 0.5, count)
        buckets = recorder_of(latencies).histogram()
        assert sum(answers for _, answers in buckets) == count
        middles = [middle for middle, _ in buckets]
        assert middles == sorted(middles)


def test_bad_latencies_are_refused():
    recorder = LatencyRecorder()
    for latency in (-0.1, math.nan):
        with pytest.raises(ValueError, match="at least 0"):
            recorder.record(latency)
        with pytest.raises(ValueError, match="at least 0"):
            recorder.record_many([0.1, latency])
    with pytest.raises(ValueError, match="percentile"):
        recorder.percentile_s(0)
    assert recorder.arrivals == 0


@pytest.mark.parametrize(("percentile", "expected"), [(50, 3.0), (60, 3.0), (80, 4.0), (80.1, math.inf), (1, 1.0)])
def test_queries_without_answer_are_infinitely_late(percentile, expected):
    latency_s = np.array([4.0, 1.0, math.nan, 2.0, 3.0])
    assert percentile_of(latency_s, percentile) == expected
    assert attainment(latency_s, 3.0) == 0.6
