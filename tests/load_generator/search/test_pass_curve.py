"""The crossing of the pass curve, from verdicts drawn from a curve that is known."""

import math

import numpy as np
import pytest
from scipy.special import expit

from hebe.load_generator.search.rate_search import CONFIDENCE, crossing_of

CROSSING = math.log(500.0)


def verdicts_of(rates, width, rng):
    return list(rng.random(len(rates)) < expit((CROSSING - np.log(rates)) / width))


@pytest.mark.parametrize("width", [0.02, 0.08, 0.3])
def test_the_interval_covers_the_crossing_as_often_as_it_says(width):
    rng = np.random.default_rng(1)
    covered, middles = 0, []
    for _ in range(150):
        rates = np.exp(CROSSING + rng.normal(0, 1.5 * width, 30))
        middle, lower, upper = crossing_of(rates, verdicts_of(rates, width, rng))
        assert lower <= middle <= upper
        covered += lower <= CROSSING <= upper
        middles.append(middle)
    assert covered / 150 >= CONFIDENCE - 0.05
    assert abs(np.mean(middles) - CROSSING) < width / 2


def test_more_verdicts_narrow_the_interval():
    rng = np.random.default_rng(2)
    rates = np.exp(CROSSING + rng.normal(0, 0.1, 200))
    verdicts = verdicts_of(rates, 0.08, rng)
    _, few_lower, few_upper = crossing_of(rates[:10], verdicts[:10])
    _, lower, upper = crossing_of(rates, verdicts)
    assert upper - lower < (few_upper - few_lower) / 2


def test_where_all_hold_the_crossing_is_beyond_and_where_none_does_below():
    rates = [400.0, 450.0, 500.0]
    above, lower, _ = crossing_of(rates, [True] * 3)
    below, _, upper = crossing_of(rates, [False] * 3)
    assert below < math.log(400.0) < math.log(500.0) < above
    assert lower > math.log(400.0)
    assert upper < math.log(500.0)


def test_a_single_disturbed_run_does_not_move_it_far():
    rates = [300.0] * 5 + [400.0] * 5 + [600.0] * 5 + [700.0] * 5
    verdicts = [True] * 10 + [False] * 10
    clean, *_ = crossing_of(rates, verdicts)
    verdicts[0] = False
    disturbed, *_ = crossing_of(rates, verdicts)
    assert disturbed == pytest.approx(clean, abs=0.02)


def test_one_verdict_is_enough_for_an_answer():
    middle, lower, upper = crossing_of([100.0], [True])
    assert lower < middle < upper
    assert middle > math.log(100.0)
