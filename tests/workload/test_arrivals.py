import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.workload.arrivals import (
    BLOCK_ARRIVALS,
    BurstArrivals,
    ConstantArrivals,
    PoissonArrivals,
    TraceArrivals,
    over_window,
    whole_periods_s,
)
from hebe.workload.rate_trace import RateTrace
from hebe.workload.text_errors import WorkloadError

DAY = RateTrace(np.array([0.0, 10.0, 30.0, 40.0]), np.array([1.0, 0.0, 6.0]))
PROCESSES = [
    PoissonArrivals(),
    ConstantArrivals(),
    BurstArrivals(4.0, 0.5, 2.5),
    TraceArrivals(DAY),
    TraceArrivals(DAY, 7.0),
]


def arrival_times(process, rate_qps, duration_s, rng):
    """All arrivals of a run at once."""
    return np.concatenate([np.empty(0), *process.blocks(rate_qps, duration_s, rng)])


def test_poisson_gaps_are_exponential():
    gaps = np.diff(arrival_times(PoissonArrivals(), 1000.0, 100.0, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(1e-3, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.02)
    # Memoryless: the share of gaps beyond twice the mean is exp(-2).
    assert (gaps > 2e-3).mean() == pytest.approx(np.exp(-2), abs=0.005)


def test_poisson_counts_vary_as_much_as_their_mean():
    times = arrival_times(PoissonArrivals(), 50.0, 1000.0, np.random.default_rng(2))
    counts = np.bincount(times.astype(int), minlength=1000)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.15)


def test_constant_is_a_clock():
    times = arrival_times(ConstantArrivals(), 8.0, 2.0, np.random.default_rng(0))
    np.testing.assert_allclose(times, np.arange(16) / 8)


def test_burst_keeps_the_mean_and_the_factor():
    times = arrival_times(BurstArrivals(5.0, 1.0, 10.0), 100.0, 1000.0, np.random.default_rng(3))
    assert len(times) == pytest.approx(100_000, rel=0.02)
    in_burst = (times % 10.0) >= 9.0
    assert in_burst.sum() / (~in_burst).sum() * 9 == pytest.approx(5.0, rel=0.03)


def test_trace_is_played_once_over_the_run():
    times = arrival_times(TraceArrivals(DAY), 100.0, 400.0, np.random.default_rng(4))
    assert len(times) == pytest.approx(40_000, rel=0.02)
    assert not ((times > 100.0) & (times < 300.0)).any()
    assert (times >= 300.0).sum() / (times <= 100.0).sum() == pytest.approx(6.0, rel=0.05)


def test_trace_with_speed_starts_again():
    times = arrival_times(TraceArrivals(DAY, speed=4.0), 1000.0, 25.0, np.random.default_rng(5))
    phase = times % 10.0
    assert not ((phase > 2.5 + 1e-9) & (phase < 7.5 - 1e-9)).any()
    assert len(times) == pytest.approx(20_000 + 1000 * 2.5 * 4 / 7 + 1000 * 0, rel=0.05)


@pytest.mark.parametrize(
    ("process", "asked_s", "whole_s"),
    [
        (PoissonArrivals(), 7.3, 7.3),
        (ConstantArrivals(), 7.3, 7.3),
        (BurstArrivals(5.0, 1.0, 10.0), 10.0, 10.0),
        (BurstArrivals(5.0, 1.0, 10.0), 0.1, 10.0),
        (BurstArrivals(5.0, 1.0, 10.0), 10.5, 20.0),
        (BurstArrivals(5.0, 0.01, 0.1), 0.3, 0.3),  # a hair less than three periods, as floats are
        (TraceArrivals(DAY), 7.3, 7.3),
        (TraceArrivals(DAY, 4.0), 7.3, 10.0),
        (TraceArrivals(DAY, 4.0), 20.0, 20.0),
    ],
)
def test_windows_of_whole_periods(process, asked_s, whole_s):
    assert whole_periods_s(process, asked_s) == pytest.approx(whole_s, rel=1e-12)


def test_a_window_that_was_rounded_is_no_period_more():
    process = BurstArrivals(5.0, 1.0, 6088.996494532199)
    for printed_s in (6088.9965, 6088.9964):
        assert whole_periods_s(process, printed_s) == process.period_s
    assert whole_periods_s(process, 6089.1) == 2 * process.period_s


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("begins_s", [0.0, 3.7])
def test_over_whole_periods_the_mean_is_the_rate_wherever_they_begin(process, begins_s):
    window_s = whole_periods_s(process, 50.0)
    playing = over_window(process, window_s)
    times = arrival_times(playing, 400.0, begins_s + window_s, np.random.default_rng(7))
    assert (times >= begins_s).sum() == pytest.approx(400.0 * window_s, rel=0.03)


def test_long_runs_come_in_bounded_blocks_that_continue():
    blocks = list(PoissonArrivals().blocks(10_000.0, 30.0, np.random.default_rng(6)))
    assert len(blocks) >= 4
    assert max(map(len, blocks)) <= BLOCK_ARRIVALS
    joined = np.concatenate(blocks)
    assert np.all(np.diff(joined) >= 0)
    assert joined[-1] > 29.9


def test_same_seed_same_arrivals():
    for process in PROCESSES:
        first = arrival_times(process, 30.0, 5.0, np.random.default_rng(9))
        again = arrival_times(process, 30.0, 5.0, np.random.default_rng(9))
        np.testing.assert_array_equal(first, again)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(PROCESSES),
    st.floats(0.01, 5_000),
    st.floats(1e-3, 50),
    st.integers(0, 2**32),
)
def test_times_ascend_within_the_run(process, rate, duration, seed):
    times = arrival_times(process, rate, duration, np.random.default_rng(seed))
    assert times.dtype == np.float64
    if len(times):
        assert times[0] >= 0
        assert times[-1] < duration
        assert np.all(np.diff(times) >= -1e-12)


@pytest.mark.parametrize(("rate", "duration"), [(0, 1), (-1, 1), (np.nan, 1), (1, 0), (1, np.inf)])
def test_rejects_impossible_rates_and_durations(rate, duration):
    with pytest.raises(WorkloadError, match="must be a positive number"):
        PoissonArrivals().blocks(rate, duration, np.random.default_rng(0))


def test_rejects_impossible_bursts_and_speeds():
    with pytest.raises(WorkloadError, match="factor"):
        BurstArrivals(factor=0)
    with pytest.raises(WorkloadError, match="shorter than its period"):
        BurstArrivals(2, 10, 10)
    with pytest.raises(WorkloadError, match="speed"):
        TraceArrivals(DAY, 0.0)
