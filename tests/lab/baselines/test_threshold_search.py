import numpy as np
import pytest

from hebe.planning.error import PlanningError
from hebe_lab.baselines.threshold_search import climb_threshold


@pytest.mark.parametrize("peak", [0, 7, 180, 500, 731, 1000])
@pytest.mark.parametrize("start", [None, 0, 90, 1000])
def test_finds_the_only_peak_within_the_finest_step(peak, start):
    found = climb_threshold(lambda threshold: 2000.0 - abs(threshold - peak), 1000, start=start)
    assert abs(found.threshold - peak) <= 10
    assert found.qps == 2000.0 - abs(found.threshold - peak)
    assert found.evaluations < 40


def test_measures_no_threshold_twice_and_none_out_of_range():
    asked = []

    def evaluate(threshold):
        asked.append(threshold)
        return float(threshold % 97)

    found = climb_threshold(evaluate, 1000)
    assert len(asked) == len(set(asked)) == found.evaluations
    assert min(asked) >= 0
    assert max(asked) <= 1000
    assert found.path == tuple((threshold, float(threshold % 97)) for threshold in asked)
    assert found.qps == max(value for _, value in found.path)


def test_goes_on_in_the_direction_that_was_better_and_by_no_finer_steps_than_the_finest():
    """Steps of 250, 125, 62, 31, 15 and 10 items, from 203 on upwards first."""
    found = climb_threshold(lambda threshold: 2000.0 - abs(threshold - 200), 1000)
    assert [threshold for threshold, _ in found.path] == [
        500,
        750,
        250,
        0,
        125,
        375,
        188,
        126,
        157,
        219,
        173,
        203,
        218,
        213,
        193,
    ]


def test_leaves_a_start_from_which_nothing_is_served():
    found = climb_threshold(lambda threshold: float(threshold) if threshold <= 60 else 0.0, 1000)
    assert 50 <= found.threshold <= 60


def test_gives_up_where_nothing_is_served_at_all():
    found = climb_threshold(lambda _: 0.0, 1000)
    assert found.qps == 0
    assert found.threshold == 0


@pytest.mark.parametrize("most", [1, 2, 5])
def test_measures_no_more_than_allowed(most):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        found = climb_threshold(lambda _, rng=rng: rng.choice([0.0, rng.random()]), 1000, most_evaluations=most)
        assert found.evaluations <= most
        assert (found.threshold, found.qps) in found.path


@pytest.mark.parametrize(
    "wrong", [{"start": -1}, {"start": 101}, {"step": 0}, {"finest": 0}, {"most_evaluations": 0}, {"largest": 0}]
)
def test_refuses_a_climb_that_makes_no_sense(wrong):
    with pytest.raises(PlanningError, match=next(iter(wrong))):
        climb_threshold(lambda _: 1.0, **{"largest": 100, **wrong})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_refuses_what_is_no_throughput(value):
    with pytest.raises(PlanningError, match="threshold 50"):
        climb_threshold(lambda _: value, 100)
