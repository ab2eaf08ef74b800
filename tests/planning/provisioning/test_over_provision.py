from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.over_provision import over_provision_rate


def test_a_load_that_doubles_within_the_interval():
    times = np.arange(0, 3600, 60.0)
    loads = np.where(times < 1800, 100.0, 200.0)
    assert over_provision_rate(times, loads, 600, quantile=1.0) == pytest.approx(1.0)
    # ten of the moments whose ten minutes lie within the history see the step, of fifty
    assert over_provision_rate(times, loads, 600, quantile=0.79) == 0
    assert over_provision_rate(times, loads, 600, quantile=0.85) == pytest.approx(1.0)


def test_a_history_as_coarse_as_the_interval_tells_the_rise_from_one_plan_to_the_next():
    assert over_provision_rate([0, 600, 1200], [10, 12, 11], 600, quantile=1.0) == pytest.approx(0.2)


def test_the_moment_at_which_the_interval_ends_counts_in_seconds_since_1970_too():
    """Where a thousand-millionth of an interval is less than a float's last digit."""
    times = 1.7e9 + 60 * np.arange(3.0)
    assert over_provision_rate(times, [10, 12, 11], 60, quantile=1.0) == pytest.approx(0.2)


def test_a_falling_load_needs_no_more_than_it_has():
    times = np.arange(100.0)
    assert over_provision_rate(times, 200.0 - times, 10) == 0


def test_a_spike_counts_although_it_is_over_by_the_end():
    loads = np.full(200, 10.0)
    loads[50] = 40.0
    assert over_provision_rate(np.arange(200.0), loads, 20, quantile=1.0) == pytest.approx(3.0)


def test_each_model_has_its_own_rate_and_the_times_need_not_be_even():
    times = np.array([0.0, 1, 2, 10, 11, 30, 31, 50])
    loads = np.array([[1.0, 1], [2, 1], [1, 1], [1, 1], [1, 5], [1, 1], [1, 1], [1, 1]])
    np.testing.assert_allclose(over_provision_rate(times, loads, 5, quantile=1.0), [1.0, 4.0])


def test_moments_without_load_are_left_out():
    loads = np.array([0.0, 0, 10, 11, 10, 10, 10])
    assert over_provision_rate(np.arange(7.0), loads, 2, quantile=1.0) == pytest.approx(0.1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(2.0, 40.0), st.sampled_from([0.5, 0.9, 1.0]))
def test_is_that_of_looking_at_every_moment(seed, interval, quantile):
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.uniform(0.1, 1.5, 120))
    loads = draw.uniform(1, 10, 120)
    rises = [
        max(loads[(times >= at) & (times <= at + interval)]) / load - 1
        for at, load in zip(times, loads, strict=True)
        if at + interval <= times[-1]
    ]
    found = over_provision_rate(times, loads, interval, quantile)
    assert found == pytest.approx(np.quantile(rises, quantile), abs=1e-9)


@pytest.mark.parametrize(
    ("times", "loads", "interval", "quantile", "message"),
    [
        ([0, 1, 2], [1, 1, 1], 0, 0.9, "interval_s is 0"),
        ([0, 1, 2], [1, 1, 1], 2, 1.5, "quantile is 1.5"),
        ([0, 1, 2], [1, 1], 2, 0.9, "loads_qps: has shape"),
        ([0, 1, "noon"], [1, 1, 1], 2, 0.9, "times_s: must be numbers"),
        ([0, 1, 2], [1, [1], 1], 2, 0.9, "loads_qps: must be numbers"),
        ([0, 2, 1], [1, 1, 1], 2, 0.9, "times_s: must be finite and increase"),
        ([0, 1, 2], [1, -1, 1], 2, 0.9, "loads_qps: must be finite and at least 0"),
        ([0, 1, 2], [1, float("nan"), 1], 2, 0.9, "loads_qps: must be finite"),
        ([0, 1, 2], [1, 1, 1], 5, 0.9, "shorter than interval_s, 5 s"),
        ([], [], 5, 0.9, "shorter than interval_s"),
        ([0, 10, 20], [1, 1, 1], 5, 0.9, "no two times within interval_s"),
        ([0, 1, 2], [0, 0, 0], 2, 0.9, "a load is 0 at all times"),
        ([0, 1, 2], [0, 0, 9], 2, 0.9, "a load is 0 at all times that 2 s of history follow, so it tells no rise"),
    ],
)
def test_bad_histories_are_refused_by_name(times, loads, interval, quantile, message):
    with pytest.raises(PlanningError, match=message):
        over_provision_rate(times, loads, interval, quantile)
