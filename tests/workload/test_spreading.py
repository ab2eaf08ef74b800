import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.workload.key_skew import spread_ranks


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 3000), st.integers(0, 2**40))
def test_it_is_a_permutation(rows, seed):
    spread = spread_ranks(np.arange(rows), rows, seed)
    np.testing.assert_array_equal(np.sort(spread), np.arange(rows))


def test_hot_rows_lie_all_over_a_large_table():
    rows = 1_000_000_000
    hot = spread_ranks(np.arange(10_000), rows, 3)
    assert len(np.unique(hot)) == 10_000
    assert hot.min() >= 0
    assert hot.max() < rows
    per_tenth = np.bincount(hot * 10 // rows, minlength=10)
    assert per_tenth == pytest.approx(np.full(10, 1000), abs=150)


def test_neighbours_in_popularity_are_not_neighbours_in_the_table():
    spread = spread_ranks(np.arange(50_000), 1_000_000, 1)
    assert (np.abs(np.diff(spread)) < 1000).mean() < 0.01


def test_seeds_differ_and_shapes_are_kept():
    ranks = np.arange(600).reshape(20, 30)
    one, other = spread_ranks(ranks, 600, 1), spread_ranks(ranks, 600, 2)
    assert one.shape == (20, 30)
    assert (one != other).mean() > 0.9
